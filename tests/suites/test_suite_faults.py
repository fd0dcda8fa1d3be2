"""Losses of environments in suites: one fault each, and nothing that stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import envweave_gym
from envweave_gym.core.faults import EnvironmentCrashed, FaultKind, InvalidArgument, NotAvailable
from envweave_gym.suites.virtual_environments import installed, remove_unused


def lost_step(toy: dict[str, Any], how: str, **arguments: Any) -> tuple[Any, Any]:
    env = envweave_gym.make("toy/Fails-v0", how=how, reset_deadline=30, **toy, **arguments)
    env.reset(seed=0)
    env.step(1)
    result = env.step(1)
    return env, result


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("raise", FaultKind.CRASH, "ZeroDivisionError: division by zero"),
        ("own", FaultKind.CRASH, "OwnError: a sentence of its own"),
        ("exit", FaultKind.CRASH, "SystemExit: 3"),
        ("die", FaultKind.CRASH, "SIGSEGV"),
        ("say", FaultKind.CRASH, "ended with exit code 7: last words of the suite"),
        ("four", FaultKind.CRASH, "expected 5, got 4"),
        ("object", FaultKind.CRASH, "of type object cannot be sent"),
    ],
)
def test_what_fails_in_the_suite_is_one_fault_and_the_next_reset_works(
    toy: dict[str, Any], how: str, kind: FaultKind, words: str
):
    env, (observation, reward, terminated, truncated, info) = lost_step(toy, how)
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert observation[0] == 1  # the last one
    assert info["fault"].kind is kind
    assert words in info["fault"].message
    assert env.reset(seed=1)[0][0] == 0
    env.step(1)
    env.close()


def test_a_step_that_hangs_is_a_timeout_and_its_process_is_killed(toy: dict[str, Any]):
    env = envweave_gym.make("toy/Fails-v0", how="hang", call_deadline=20, reset_deadline=30, **toy)
    pid = env.reset(seed=0)[1]["pid"]
    env.unwrapped.session.launch = _with_deadline(env.unwrapped.session.launch, 0.5)
    env.step(1)
    info = env.step(1)[4]
    assert info["fault"].kind is FaultKind.TIMEOUT
    assert "step did not end before call_deadline=0.5 s" in info["fault"].message
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    env.unwrapped.session.launch = _with_deadline(env.unwrapped.session.launch, 60)
    assert env.reset(seed=0)[1]["pid"] != pid
    env.close()


def _with_deadline(launch: Any, seconds: float) -> Any:
    import dataclasses

    return dataclasses.replace(launch, call_deadline=seconds)


def test_exceptions_have_their_types_if_they_are_raised(toy: dict[str, Any]):
    env = envweave_gym.make("toy/Fails-v0", on_fault="raise", **toy)
    env.reset(seed=0)
    env.step(1)
    with pytest.raises(ZeroDivisionError, match="division by zero") as raised:
        env.step(1)
    assert isinstance(raised.value, EnvironmentCrashed)
    assert "envs.py" in raised.value.__notes__[0]
    env.close()
    env = envweave_gym.make("toy/Closes-v0", **toy)
    env.reset(seed=0)
    with pytest.raises(RuntimeError, match="cannot close"):
        env.close()


def test_a_lost_environment_goes_on_with_a_seed_that_is_recorded(toy: dict[str, Any]):
    env, _ = lost_step(toy, "die")
    _, info = env.reset()
    assert isinstance(info["seed"], int)
    assert info["stream"].events[0].data["seed"] == info["seed"]
    env.close()


def test_an_interrupted_call_ends_the_process_and_the_next_reset_works(toy: dict[str, Any]):
    env = envweave_gym.make("toy/Walk-v0", **toy)
    pid = env.reset(seed=0)[1]["pid"]
    channel = env.unwrapped.session._process._child.socket
    receive = channel.receive

    def interrupted(deadline: float) -> bytes:
        receive(deadline)
        raise KeyboardInterrupt  # after the reply has come, before anybody has it

    channel.receive = interrupted
    with pytest.raises(KeyboardInterrupt):
        env.step(1)
    assert env.reset(seed=0)[1]["pid"] != pid
    assert env.step(1)[0][0] == 1
    env.close()


def test_garbage_from_the_process_is_a_fault(toy: dict[str, Any]):
    env = envweave_gym.make("toy/Walk-v0", **toy)
    env.reset(seed=0)
    env.unwrapped.session._process._child.socket.receive = lambda deadline: b"garbage"
    info = env.step(1)[4]
    assert "sent what is no reply" in info["fault"].message
    env.close()


# What is left


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_close_ends_the_process_and_what_it_has_started_and_frees_the_environment(toy: dict[str, Any]):
    env = envweave_gym.make("toy/Detached-v0", **toy)
    info = env.reset(seed=0)[1]
    [folder] = [one for one, marker in installed() if marker.requirements[0] == "toy-suite==1.0"]
    assert info["python"] == str(folder / "bin" / "python")
    assert info["path"].startswith(f"{folder / 'bin'}:")
    assert not remove_unused(folder)
    env.close()
    for pid in (info["pid"], info["child"]):
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists())


@pytest.mark.parametrize("victim", ["suite", "keeper"])
@pytest.mark.parametrize("rows", [None, 2])
def test_closing_after_the_process_was_killed_raises_nothing(
    toy: dict[str, Any], rows: int | None, victim: str
):
    given = {} if rows is None else {"num_envs": rows, "processes": 1}
    env = envweave_gym.make("toy/Walk-v0", **given, **toy)
    env.reset(seed=0)
    session = (env if rows is None else env.envs[0]).unwrapped.session
    child = session._process._child
    os.kill(child.pid if victim == "suite" else child._process.pid, signal.SIGKILL)
    wait_until(lambda: not child.runs())
    env.close()
    assert not session.is_open


def test_nothing_outlives_a_killed_owner(toy: dict[str, Any]):
    code = (
        "import sys, envweave_gym\n"
        "env = envweave_gym.make('toy/Detached-v0', backend='venv', requirements=['toy-suite==1.0'], install=True)\n"
        "info = env.reset(seed=0)[1]\n"
        "print(info['pid'], info['child'], flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pids = owner.stdout.readline().split()
        assert len(pids) == 2
        owner.send_signal(signal.SIGKILL)
        owner.wait(60)
    for pid in pids:
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists())


def test_closing_leaves_no_descriptors_and_threads(toy: dict[str, Any]):
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    envweave_gym.make("toy/Walk-v0", **toy).close()
    before = count()
    for _ in range(2):
        env = envweave_gym.make("toy/Walk-v0", **toy)
        env.reset(seed=0)
        env.close()
    wait_until(lambda: count() <= before)


def test_failed_starts_leave_nothing(toy: dict[str, Any]):
    envweave_gym.make("toy/Walk-v0", **toy).close()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(InvalidArgument):
        envweave_gym.make("toy/Walk-v0", length=0, **toy)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_variables_of_the_owner_reach_the_suite_and_its_paths_do_not(
    toy: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    hashes: set[Any] = set()
    for _ in range(2):
        env = envweave_gym.make("toy/Masks-v0", **toy)
        info = env.reset(seed=0)[1]
        hashes.add(info["hash"])
        env.close()
    assert len(hashes) == 1
    assert "PYTHONPATH" not in info["variables"]


def test_an_environment_that_was_removed_is_one_sentence(toy: dict[str, Any]):
    env = envweave_gym.make("toy/Walk-v0", **toy)
    env.close()
    [folder] = [one for one, marker in installed() if marker.requirements[0] == "toy-suite==1.0"]
    assert remove_unused(folder)
    with pytest.raises(NotAvailable, match="was removed"):
        env.reset(seed=0)
