"""Processes of sessions and what is left of them: nothing; and how servers and their clients see them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import crashing_envs
import gymnasium as gym
import pytest
from crashing_envs import CrashingEnv
from isolated_sessions import (
    MEMORY,
    NAME,
    OFFER,
    TRUNCATE,
    Player,
    descendants,
    is_gone,
    parent_of,
    sessions,
    until,
    workers,
    workers_with,
)
from json_clients import JsonClient
from served_envs import Awkward
from servers import RunningServer, running_server

import envweave_gym as ew
from envweave_gym.core.faults import EnvironmentCrashed, Fault, FaultKind, InvalidArgument, NotAvailable
from envweave_gym.remote.address import remember_token
from envweave_gym.remote.env import RemoteEnv
from envweave_gym.sandbox import forkserver
from envweave_gym.sandbox.forkserver import ForkServer, Program, _Zygote
from envweave_gym.wire.messages import Close, Create, Reset, encode, read_reply
from envweave_gym_server.app.app import create_app
from envweave_gym_server.core.settings import Settings
from envweave_gym_server.isolation.worker_hosts import WorkerHosts
from envweave_gym_server.offers.offers import offer_of_factory, offers_of
from envweave_gym_server.sessions.session_table import Sessions

__all__ = ["sessions", "workers"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process isolation needs Linux")
SLEEPER = Program("time:sleep", 60, dict(os.environ), path=tuple(sys.path))


def test_a_session_that_closes_leaves_nothing_behind(sessions: Sessions):
    player = Player(sessions)
    player.reset()
    pids = [player.pid(), player.step("child").info["result"], player.step("daemon").info["result"]]
    assert not any(map(is_gone, pids))
    player.session.call(Close(-2), encode(Close(-2)))
    until(lambda: all(map(is_gone, pids)))


def test_a_worker_that_dies_leaves_nothing_behind_although_its_child_holds_its_socket(sessions: Sessions):
    player = Player(sessions)
    player.reset()
    pids = [player.pid(), player.step("child").info["result"], player.step("daemon").info["result"]]
    assert player.step("exit").truncated
    until(lambda: all(map(is_gone, pids)))


def test_a_session_that_closes_in_the_middle_of_nothing_ends_also_a_stuck_environment(
    workers: WorkerHosts, monkeypatch: Any
):
    monkeypatch.setattr("envweave_gym_server.isolation.worker_hosts._CLOSING_S", 0.2)
    host = workers.open(Create(NAME, "gym", TRUNCATE))
    began = read_reply(host.do(Reset(1, 0), encode(Reset(1, 0)))[0])
    os.kill(pid := began.info["pid"], signal.SIGSTOP)
    host.close()
    until(lambda: is_gone(pid))


def test_a_worker_has_no_socket_but_its_own(sessions: Sessions):
    for name in ("one", "two", "three"):
        player = Player(sessions, name)
        player.reset()
        assert player.step("sockets").info["result"] == 1


def test_the_zygote_ends_with_its_workers():
    workers = workers_with()
    player = Player(Sessions(workers.open, most=1, idle_timeout=300))
    player.reset()
    pid = player.pid()
    zygote = parent_of(pid)
    workers.close()
    until(lambda: is_gone(pid) and is_gone(zygote))
    assert player.step("nothing").truncated
    player.session.close()


@pytest.mark.parametrize("rows", [None, 2])
def test_a_reset_that_raises_again_and_again_tells_so_before_its_call_timeout(rows: int | None):
    offer = offer_of_factory(Awkward, name="Awkward", kwargs=("when",))
    client = JsonClient(offer, isolation="process", worker_memory=MEMORY, call_timeout=2.0)
    session = client.open("Awkward", num_envs=rows, kwargs={"when": "reset", "reset_deadline": 30.0})
    reported = client.post(f"{session}/reset")["info"]
    faults = reported["fault"] if rows else [reported["fault"]]
    assert [fault["message"] for fault in faults] == ["RuntimeError: reset badly"] * (rows or 1)
    client.state.stop()


def test_a_server_that_stops_leaves_no_process_behind():
    app = create_app(OFFER, isolation="process", worker_memory=MEMORY)
    state = app.extensions["envweave"]
    player = Player(state.sessions)
    player.reset()
    pid = player.pid()
    zygote = parent_of(pid)
    state.stop()
    assert is_gone(pid)
    assert is_gone(zygote)
    with pytest.raises(NotAvailable, match="the server is stopping"):
        state._hosts.open(Create(NAME))


def test_a_zygote_that_does_not_get_ready_is_waited_for_no_longer_than_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("envweave_gym.sandbox.forkserver._START_TIMEOUT_S", 1.0)
    forks = ForkServer(SLEEPER)
    with pytest.raises(NotAvailable, match="within 1 s"):
        forks.fork()
    zygote = forks._zygote
    assert zygote is not None
    assert zygote.end_event.wait(5)
    assert zygote.ended == "was killed by SIGKILL"
    forks.close()


def test_a_zygote_that_does_not_listen_is_gone_when_its_server_has_closed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(forkserver, "_END_TIMEOUT_S", 0.3)
    kill = _Zygote.kill
    monkeypatch.setattr(_Zygote, "kill", lambda zygote: (monkeypatch.undo(), kill(zygote)))
    forks = ForkServer(SLEEPER)
    with ThreadPoolExecutor(1) as pool:
        fork = pool.submit(forks.fork)
        until(lambda: forks._zygote is not None and forks._zygote._process is not None)
        forks.close()
        assert forks._zygote is not None
        assert forks._zygote.ended == "was killed by SIGKILL"
        with pytest.raises(NotAvailable, match="the zygote was killed by SIGKILL"):
            fork.result()


@pytest.mark.parametrize("end", [_Zygote.stop, _Zygote.kill])
def test_a_zygote_that_is_ended_before_it_has_begun_is_never_started(
    end: Callable[[_Zygote], None], monkeypatch: pytest.MonkeyPatch
):
    go, started, live = threading.Event(), [], _Zygote._run
    monkeypatch.setattr(_Zygote, "_run", lambda *given: go.wait(10) and live(*given))
    monkeypatch.setattr(forkserver, "_start", started.append)
    zygote = _Zygote(SLEEPER)
    end(zygote)
    go.set()
    assert zygote.end_event.wait(10)
    assert started == []
    assert zygote.ended == "was not started"


def test_only_what_can_be_imported_is_served_from_processes():
    class Hidden(CrashingEnv):
        pass

    for factory in (Hidden, offer_of_factory(lambda: CrashingEnv(), name="Lambda")):
        with pytest.raises(InvalidArgument, match="isolation='process' needs a factory that other processes"):
            create_app(factory, isolation="process")
    create_app(CrashingEnv, isolation="process")


@pytest.mark.usefixtures("registries")
def test_ids_are_made_in_processes_that_only_the_program_has_registered():
    gym.register("tests/Crash-v0", entry_point="crashing_envs:CrashingEnv")
    workers = WorkerHosts(offers_of(["tests/Crash-v0", "CartPole-v1"]), Settings(isolation="process"))
    for name, kind in (("tests/Crash-v0", "Unicode"), ("CartPole-v1", "Discrete")):
        assert workers.describe(Create(name))["action_space"]["type"] == kind
    workers.close()


@pytest.mark.usefixtures("registries")
def test_a_class_of_ones_own_is_made_in_processes_with_its_models():
    offer = offer_of_factory(
        crashing_envs.Untyped, action=crashing_envs.Move, observation=crashing_envs.Place
    )
    workers = WorkerHosts(offers_of([offer]), Settings(isolation="process"))
    host = workers.open(Create("Untyped"))
    assert read_reply(host.do(Reset(1, 0), encode(Reset(1, 0)))[0]).observation == {"x": 0}
    host.close()
    workers.close()


@pytest.mark.usefixtures("registries")
def test_a_module_that_cannot_be_imported_is_an_error_of_make(capfd: Any):
    gym.register("tests/Missing-v0", entry_point="no_such_module:Env")
    workers = WorkerHosts(offers_of(["tests/Missing-v0"]), Settings(isolation="process"))
    with pytest.raises(EnvironmentCrashed, match="No module named 'no_such_module'"):
        workers.describe(Create("tests/Missing-v0"))
    workers.close()
    assert "no_such_module is not imported ahead" in capfd.readouterr().err


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("crashing_envs:CrashingEnv", "envweave/LineWorld-v0", isolation="process") as running:
        remember_token(running.url, running.token or "")
        yield running


def remote(server: RunningServer, **kwargs: Any) -> RemoteEnv:
    return RemoteEnv("CrashingEnv", server.url, **kwargs)


def test_a_client_sees_a_death_as_a_fault_and_plays_on_in_its_session(server: RunningServer):
    env, other = remote(server), remote(server)
    other.reset(seed=1)
    env.reset(seed=1)
    env.step("nothing")
    session = env._served.session().id
    observation, reward, terminated, truncated, info = env.step("segfault")
    assert (observation, reward, terminated, truncated) == ("nothing 1", 0.0, False, True)
    assert info["fault"] == Fault(FaultKind.CRASH, "CrashingEnv: its process was killed by SIGSEGV", True)
    assert env.reset(seed=2)[0] == "ready"
    assert env._served.session().id == session
    assert env.step("nothing")[0] == "nothing 1"
    assert other.step("nothing")[0] == "nothing 1"
    raising = remote(server, on_fault="raise")
    raising.reset(seed=1)
    with pytest.raises(EnvironmentCrashed, match="was killed by SIGSEGV"):
        raising.step("segfault")
    assert raising.reset()[0] == "ready"
    for one in (env, other, raising):
        one.close()


def test_json_tells_a_death_as_the_last_step_of_its_episode(server: RunningServer):
    session = server.post("/v1/sessions", {"id": "CrashingEnv"})["session"]
    server.post(f"/v1/sessions/{session}/reset", {"seed": 1})
    lost = server.post(f"/v1/sessions/{session}/step", {"action": "exit"})
    assert (lost["reward"], lost["terminated"], lost["truncated"]) == (0.0, False, True)
    assert lost["info"]["fault"]["kind"] == "crash"
    assert server.post(f"/v1/sessions/{session}/reset", {"seed": 1})["observation"] == "ready"
    server.ask("DELETE", f"/v1/sessions/{session}")


def test_output_of_an_environment_is_in_the_log_of_the_server(server: RunningServer):
    env = remote(server)
    env.reset(seed=1)
    env.step("speak")
    env.step("segfault")
    log = server.log()
    assert "spoken on stdout" in log
    assert "spoken on stderr" in log
    assert "in segfault" in log  # the stack of the crash
    env.close()


def test_the_same_seed_gives_the_same_episode_in_a_process(server: RunningServer):
    here, there = ew.make("envweave/LineWorld-v0"), RemoteEnv("envweave/LineWorld-v0", server.url)
    here.action_space.seed(1)
    assert str(here.reset(seed=3)) == str(there.reset(seed=3))
    for _ in range(100):
        action = here.action_space.sample()
        own, its = here.step(action), there.step(action)
        assert str(own) == str(its)
        if own[2] or own[3]:
            assert str(here.reset()) == str(there.reset())
    there.close()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_the_server(end: signal.Signals):
    with running_server("crashing_envs:CrashingEnv", isolation="process", drain=0.5) as server:
        remember_token(server.url, server.token or "")
        envs = [remote(server, call_deadline=5) for _ in range(3)]
        for env in envs:
            env.reset(seed=1)
        pids = [env.step("child")[4]["result"] for env in envs] + [envs[0].step("daemon")[4]["result"]]
        stuck = threading.Thread(target=play_until_lost, args=(envs[2],))
        stuck.start()
        before = descendants(server.process.pid)
        assert len(before) == 1 + 1 + 3 + 4  # the server, the zygote, the workers and their children
        servers = [server.process.pid, *(pid for pid in before if is_server(pid))]
        for pid in servers if end == signal.SIGKILL else servers[:1]:
            os.kill(pid, end)
        until(lambda: all(is_gone(pid) for pid in (*before, *pids)), 20)
        stuck.join()


def play_until_lost(env: RemoteEnv) -> None:
    assert env.step("loop")[3]


def is_server(pid: int) -> bool:
    return b"envweave_gym_server\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
