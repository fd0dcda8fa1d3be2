"""envweave/CodeAct-v0: copies and pickles in mid-episode, forked processes, vectors, what is left."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import psutil
import pytest
from code_episodes import CODE_ACT, left, ran, settles, value
from gymnasium.vector import AsyncVectorEnv

import envweave_gym as ew
from envweave_gym.rewards import math_transform
from envweave_gym.sandbox import Sandbox, Session, sharing
from envweave_gym.sandbox.forkserver import _Zygote

Make = Callable[..., Any]
TOOL_CALLS: list[int] = []
HOSTILE = [
    "while True: pass",
    "import os; os._exit(1)",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "x = 'x' * 10 ** 10",
    "print('x' * 10 ** 6)",
    "import sys; sys.setrecursionlimit(10 ** 9)\ndef f(): f()\nf()",
    "import os; os.close(3)",
    "import os\nwhile True: os.fork()",
    "open('/etc/shadow').read()",
    "final_answer(1)",
    "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
]


def is_a_sandbox(process: psutil.Process) -> bool:
    """Whether this is a process of a sandbox, not one that Python itself leaves behind its vectors."""
    try:
        return "inside.zygote" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def count(step: int) -> int:
    """Say how often it was called."""
    TOOL_CALLS.append(step)
    return len(TOOL_CALLS)


# Copies


def test_a_copy_goes_on_in_mid_episode_by_itself(code_act: Make) -> None:
    env = code_act(files=True)
    env.step("x = [1]\nfile_write('a', 'one')")
    other = copy.deepcopy(env)
    other.step("x.append(2)\nfile_write('a', 'two')")
    assert value(env, "x, file_read('a')") == [[1], "one"]
    assert value(other, "x, file_read('a')") == [[1, 2], "two"]
    assert ew.state_of(other)["step_count"] == 3
    env.close()
    assert value(other, "x") == [1, 2]
    other.close()


def test_a_copy_tells_of_its_own_calls(code_act: Make) -> None:
    env = code_act(tools=[count])
    env.step("x = 1")
    other = copy.deepcopy(env)
    for one, number in ((other, 5), (env, 6), (other, 7)):
        events = one.step(f"count({number})")[4]["stream"].events
        called = [event.data["arguments"] for event in events if str(event.kind) == "tool_call"]
        assert called == [{"step": number}]
    again = pickle.loads(pickle.dumps(other))
    assert value(again, "x") == 1
    again.close()
    other.close()


def test_a_copy_of_what_cannot_be_forked_plays_its_steps_again(code_act: Make) -> None:
    env = code_act()
    env.step("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()")
    env.step("x = 7")
    other = copy.deepcopy(env)
    assert value(other, "x") == 7
    other.close()


def test_a_pickle_goes_on_in_mid_episode_with_what_tools_said_then(code_act: Make) -> None:
    TOOL_CALLS.clear()
    env = code_act(tools=[count])
    env.step("x = count(1)\nfor n in range(2): x += count(n)")
    env.step("import random; y = random.random()")
    said = value(env, "x, y")
    other = pickle.loads(pickle.dumps(env))
    assert value(other, "x, y") == said
    assert len(TOOL_CALLS) == 3
    assert value(other, "count(9)") == 4
    assert ew.state_of(other)["step_count"] == 5
    other.close()


def test_a_pickle_of_an_episode_that_lost_its_variables_begins_after_that(code_act: Make) -> None:
    env = code_act()
    env.step("x = 1")
    env.step("import os; os._exit(1)")
    env.step("y = 2")
    other = pickle.loads(pickle.dumps(env))
    assert ran(other, "x").error_type == "NameError"
    assert value(other, "y") == 2
    other.close()


def test_an_episode_whose_playing_again_was_interrupted_is_played_again_as_a_whole(
    code_act: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = code_act()
    env.step("x = 1")
    env.step("x += 1")
    other = pickle.loads(pickle.dumps(env.unwrapped))
    run = Session.run

    def interrupted(session: Session, code: str, **more: Any) -> Any:
        if code == "x += 1":
            raise KeyboardInterrupt
        return run(session, code, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Session, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            other.step("x")
    assert other.step("x")[0]["value"] == "2"
    other.close()


def test_an_environment_before_its_first_reset_can_be_copied_and_pickled() -> None:
    env = ew.make(CODE_ACT)
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        other.reset(seed=0)
        assert value(other, "1") == 1
        other.close()
    env.close()


def test_a_forked_process_has_an_episode_of_its_own(code_act: Make) -> None:
    env = code_act()
    env.step("x = [1]")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            env.step("x.append(2)")
            os.write(writing, str(value(env, "x")).encode())
            env.close()
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as said:
        assert said.read() == "[1, 2]"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert value(env, "x") == [1]


# Ends


def test_it_may_be_closed_twice_and_reset_again(code_act: Make) -> None:
    env = code_act()
    env.step("x = 1")
    env.close()
    env.close()
    with pytest.raises(ew.ResetNeeded, match=rf"{CODE_ACT}: step\(\) was called after close"):
        env.step("x")
    env.reset(seed=1)
    assert ran(env, "x").error_type == "NameError"


def test_nothing_is_left_of_an_environment_that_was_closed() -> None:
    gc.collect()
    before = left()
    env = ew.make(CODE_ACT)
    for seed in range(3):
        env.reset(seed=seed)
        env.step("open('a', 'w').write('x')")
    env.close()
    assert settles(lambda: left() == before), (before, left())


def test_nothing_is_left_of_an_environment_that_was_forgotten() -> None:
    gc.collect()
    before = left()[0]
    env = ew.make(CODE_ACT)
    env.reset()
    env.step("1")
    del env
    gc.collect()
    assert settles(lambda: left()[0] == before)


def test_two_hundred_steps_of_which_some_are_hostile_leave_nothing() -> None:
    gc.collect()
    before, chance = left(), random.Random(0)
    env = ew.make(CODE_ACT, step_timeout=0.5, max_steps=20, memory="128m")
    env.reset(seed=0)
    hostile = iter(HOSTILE)
    for step in range(200):
        code = next(hostile, "1") if step % 18 == 9 else f"x = {chance.random()}\nx"
        observation, _, terminated, truncated, info = env.step(code)
        assert env.observation_space.contains(observation)
        assert "fault" not in info
        if terminated or truncated:
            env.reset()
    assert next(hostile, None) is None
    assert value(env, "6 * 7") == 42
    assert left()[0] - before[0] <= 4
    env.close()
    assert settles(lambda: left() == before), (before, left())


# Vectors


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_worker_processes_have_sandboxes_of_their_own(context: str) -> None:
    here = psutil.Process()
    before = set(here.children(recursive=True))
    envs = AsyncVectorEnv([lambda: gym.make(f"envweave_gym:{CODE_ACT}")] * 2, context=context)
    envs.reset(seed=0)
    envs.step(("x = 1", "x = 2"))
    observations, *_, infos = envs.step(("x", "1 / 0"))
    assert observations["value"] == ("1", "")
    assert list(observations["success"]) == [1, 0]
    assert [one.error_type for one in infos["result"]] == ["", "ZeroDivisionError"]
    envs.close()
    assert settles(lambda: not {one for one in here.children(recursive=True) if is_a_sandbox(one)} - before)


def test_a_vector_tells_of_each_row_by_itself() -> None:
    envs = ew.make(CODE_ACT, num_envs=2, tools=[count], transform=math_transform(2))
    envs.reset(seed=[1, 2])
    _, rewards, terminations, _, infos = envs.step(("count(1)\n2", "final_answer(3)"))
    assert [one.value for one in infos["result"]] == [2, None]
    assert list(rewards) == pytest.approx([1.1, 0.1])
    assert list(terminations) == [False, True]
    kinds = [[str(event.kind) for event in stream.events] for stream in ew.stream_of(infos)]
    assert "tool_call" in kinds[0]
    assert "tool_call" not in kinds[1]
    envs.close()


@pytest.fixture
def sandbox_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Sandbox]:
    """Gives the sandbox that all share, which hears late of the end of its zygote."""
    heard = _Zygote._note_end

    def late(self: _Zygote, words: str) -> None:
        time.sleep(0.3)
        heard(self, words)

    def found() -> Sandbox:
        (used,) = sharing._sandboxes._entries.values()
        assert used.value.sandbox is not None
        return used.value.sandbox

    monkeypatch.setattr(_Zygote, "_note_end", late)
    return found


def killed(sandbox: Sandbox) -> None:
    """Kill the zygote, once a worker waits ready; one that was killed before is not killed again."""

    def is_killed() -> bool:
        zygote = sandbox._forks._zygote
        if (
            not sandbox._ready
            or zygote is None
            or zygote._process is None
            or zygote._process.poll() is not None
        ):
            return False
        os.kill(zygote._process.pid, signal.SIGKILL)
        return True

    assert settles(is_killed)


@pytest.mark.parametrize("pause", [0.0, 0.002, 0.1])
def test_an_episode_begins_though_the_zygote_was_killed(
    code_act: Make, sandbox_of: Callable[[], Sandbox], pause: float
) -> None:
    code_act()
    other = ew.make(CODE_ACT)
    killed(sandbox_of())
    time.sleep(pause)
    other.reset()
    assert value(other, "1 + 1") == 2
    other.close()


def test_a_step_that_is_lost_with_the_zygote_is_played_again(
    code_act: Make, sandbox_of: Callable[[], Sandbox]
) -> None:
    env = code_act(tools={"double": lambda number: 2 * number})
    assert value(env, "x = double(3)\nx") == 6
    killed(sandbox_of())
    assert value(env, "x + 1") == 7
    killed(sandbox_of())
    assert value(env, "x + 2") == 8


def test_a_step_that_may_have_written_files_is_not_played_again(
    code_act: Make, sandbox_of: Callable[[], Sandbox]
) -> None:
    env = code_act(isolation="process")
    zygote = sandbox_of()._forks._zygote
    assert zygote is not None
    assert zygote._process is not None
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)  # the program may be another user
        written = Path(folder, "written")
        killer = threading.Thread(target=kill_when, args=[written, zygote._process.pid])
        killer.start()
        lost = ran(env, f"import time\nopen({str(written)!r}, 'a').write('x')\ntime.sleep(30)")
        killer.join()
        assert lost.state_lost
        assert written.read_text() == "x"


def kill_when(written: Path, pid: int) -> None:
    """Kill a process once there is something in a file."""
    assert settles(lambda: written.exists() and bool(written.read_text()))
    os.kill(pid, signal.SIGKILL)


def test_a_step_whose_own_program_ends_its_process_is_not_played_again(code_act: Make) -> None:
    env = code_act()
    assert ran(env, "import os; os._exit(1)").state_lost
