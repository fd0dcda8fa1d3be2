"""OpenEnv servers in trouble: each is one fault or one clear error, and never silently a fresh episode."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from openenv_servers import (
    NEW,
    OLD,
    Fault,
    OpenEnvServer,
    drop,
    error,
    hang,
    observing,
    openenv_server,
    saying,
)

import envweave_gym as ew
from envweave_gym.core.faults import AtCapacity, EnvironmentCrashed, FaultStorm, NotAvailable, SessionLost
from envweave_gym.hubs.openenv import idle_pings

ID = "envweave/OpenEnv-v0"
ONE = {"delta": 1}
DEEP = b'{"type":"observation","data":' + b'{"observation":' * 5000 + b"1" + b"}" * 5001
WRONG: dict[str, Fault] = {
    "no JSON": saying(b"<html>"),
    "a list": saying(b"[]"),
    "no type": saying(b"{}"),
    "data of another type": saying({"type": "observation", "data": 1}),
    "another reply": saying({"type": "state", "data": {}}),
    "no observation": saying({"type": "observation", "data": {}}),
    "an observation of another type": observing(observation=[1]),
    "a member missing": observing(observation={"count": 1}),
    "a member too many": observing(observation={"count": 1, "text": "1", "more": 1}),
    "a member of another type": observing(observation={"count": "1", "text": "1"}),
    "a number too large": saying(
        b'{"type":"observation","data":{"observation":{"count":1' + b"0" * 400 + b',"text":"1"}}}'
    ),
    "a reward of another type": observing(reward="1"),
    "an infinite reward": saying(
        b'{"type":"observation","data":{"observation":{"count":1,"text":"1"},"reward":1e999,"done":false}}'
    ),
    "a reward too large": saying(
        b'{"type":"observation","data":{"observation":{"count":1,"text":"1"},"reward":1' + b"0" * 400 + b"}}"
    ),
    "done of another type": observing(done="yes"),
    "metadata of another type": observing(metadata=[1]),
    "an endless nest": saying(DEEP),
    "an error without a code": saying({"type": "error", "data": {}}),
    "an error of another type": saying({"type": "error", "data": {"code": 1, "message": [], "errors": {}}}),
    "a session error": saying(error("SESSION_ERROR", "'list' object has no attribute 'get'")),
    "an unmasked frame of a kind that is none": lambda talk: talk.client.sendall(b"\x83\x00"),
    "a frame that is too large": lambda talk: talk.client.sendall(b"\x81\x7f" + b"\x7f" * 8),
    "a dropped connection": drop,
    "a dead server": lambda talk: talk.server.die(),
}


@pytest.fixture(params=[OLD, NEW])
def server(request: pytest.FixtureRequest) -> Iterator[OpenEnvServer]:
    with openenv_server(request.param) as running:
        yield running


@pytest.fixture
def new() -> Iterator[OpenEnvServer]:
    with openenv_server(NEW) as running:
        yield running


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_reply_loses_the_episode(new: OpenEnvServer, fault: str) -> None:
    with ew.make(new.name, reset_deadline=0) as env:
        env.reset(seed=1)
        env.step(ONE)
        new.faults.append(WRONG[fault])
        seen, reward, terminated, truncated, info = env.step(ONE)
        assert (seen["text"], reward, terminated, truncated) == ("1", 0.0, False, True)
        assert (info["fault"].kind, info["fault"].retryable) == ("lost", True)
        assert f"127.0.0.1:{new.port}" in info["fault"].message
        assert not ew.trainable(info)
        sent = new.kinds().count("step")
        with pytest.raises(ew.ResetNeeded):
            env.step(ONE)
        assert new.kinds().count("step") == sent
        if fault != "a dead server":
            env.reset(seed=1)
            assert env.step(ONE)[0]["text"] == "1"
            assert len(new.talks) == 2


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_reply_to_a_reset_is_a_fault_or_an_error(new: OpenEnvServer, fault: str) -> None:
    with ew.make(new.name, reset_deadline=0) as env:
        new.faults.append(WRONG[fault])
        assert env.reset(seed=1)[1]["fault"].kind == "lost"
        assert env.step(ONE)[3]
    if fault != "a dead server":
        with ew.make(new.name, on_fault="raise") as env:
            new.faults.append(WRONG[fault])
            with pytest.raises((SessionLost, ConnectionError), match=r"127\.0\.0\.1"):
                env.reset(seed=1)


def test_a_failed_reset_is_tried_again(new: OpenEnvServer) -> None:
    with ew.make(new.name) as env:
        new.faults += [drop, saying(b"?"), saying(error("FACTORY_ERROR", "no"))]
        assert "fault" not in env.reset(seed=1)[1]
        assert len(new.talks) == 4


def test_a_reply_that_comes_too_late_is_never_taken_for_another(server: OpenEnvServer) -> None:
    """OpenEnv's own client of 0.3 shifts all later observations by one."""
    with ew.make(server.name) as env:
        env.reset(seed=1)
        server.faults.append(hang)
        env.unwrapped._call_deadline = 0.3
        assert env.step(ONE)[4]["fault"].kind == "timeout"
        env.unwrapped._call_deadline = 60.0
        assert server.closed.acquire(timeout=10)  # the client's end of the connection takes nothing any more
        env.reset(seed=1)
        assert env.step(ONE)[0]["text"] == "1"


def test_a_server_that_comes_back_has_forgotten_the_episode() -> None:
    with openenv_server() as first:
        env = ew.make(first.name)
        env.reset(seed=1)
        env.step(ONE)
        port = first.port
    with openenv_server(port=port) as second:
        info = env.step(ONE)[4]
        assert info["fault"].kind == "lost"
        assert second.kinds() == []
        env.reset(seed=1)
        assert env.step(ONE)[0]["text"] == "1"
        env.close()


def test_a_connection_that_is_lost_between_two_steps(new: OpenEnvServer, monkeypatch: Any) -> None:
    monkeypatch.setattr(idle_pings, "_LOOK_EVERY_S", 0.01)
    with ew.make(new.name) as env:
        env.reset(seed=1)
        env.step(ONE)
        new.talks[0].hang_up()
        assert new.closed.acquire(timeout=10)
        assert env.step(ONE)[4]["fault"].kind == "lost"
        assert new.kinds() == ["reset", "step"]


def test_a_message_that_nobody_has_requested_loses_the_session(new: OpenEnvServer) -> None:
    with ew.make(new.name) as env:
        env.reset(seed=1)
        new.talks[0].say({"type": "observation", "data": {"observation": {"count": 9, "text": "9"}}})
        session = env.unwrapped._session
        while session._unrequested is None:
            session.answer_pings()
        assert env.step(ONE)[4]["fault"].message.endswith("nobody has requested: 'observation'")


def test_a_crash_is_a_crash(new: OpenEnvServer) -> None:
    crash = saying(error("EXECUTION_ERROR", "division by zero"))
    with ew.make(new.name) as env:
        env.reset(seed=1)
        new.faults.append(crash)
        fault = env.step(ONE)[4]["fault"]
        assert (fault.kind, "division by zero" in fault.message) == ("crash", True)
        env.reset(seed=1)
        assert env.step(ONE)[0]["text"] == "1"
    with ew.make(new.name, on_fault="raise") as env:
        env.reset(seed=1)
        new.faults.append(crash)
        with pytest.raises(EnvironmentCrashed, match="division by zero"):
            env.step(ONE)


@pytest.mark.parametrize("code", ["EXECUTION_ERROR", "UNKNOWN_TYPE", "VALIDATION_ERROR"])
def test_a_server_that_cannot_tell_its_state_goes_on_with_the_episode(new: OpenEnvServer, code: str) -> None:
    with ew.make(new.name) as env:
        env.reset(seed=1)
        env.step(ONE)
        new.faults.append(saying(error(code, "the state is no JSON")))
        assert "given" not in ew.state_of(env)
        assert env.step(ONE)[0]["text"] == "2"
        assert len(new.talks) == 1


def test_a_full_server_is_a_fault_of_capacity() -> None:
    with openenv_server(capacity=1) as server:
        first, second = ew.make(server.name), ew.make(server.name, reset_deadline=0)
        third = ew.make(server.name, on_fault="raise")
        first.reset(seed=1)
        assert second.reset(seed=1)[1]["fault"].kind == "capacity"
        with pytest.raises(AtCapacity, match="Server at capacity"):
            third.reset(seed=1)
        first.close()
        third.reset(seed=1)
        for env in (second, third):
            env.close()


def test_ten_faults_in_a_row_are_a_storm(new: OpenEnvServer) -> None:
    with ew.make(new.name, reset_deadline=0) as env:
        for _ in range(9):
            env.reset(seed=1)
            new.faults.append(drop)
            env.step(ONE)
        env.reset(seed=1)
        new.faults.append(drop)
        with pytest.raises(FaultStorm, match="10 faults in a row"):
            env.step(ONE)


def test_an_interrupted_step_loses_the_session(new: OpenEnvServer) -> None:
    def interrupt(_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with ew.make(new.name) as env:
        env.reset(seed=1)
        new.faults.append(interrupt)
        with pytest.raises(KeyboardInterrupt):
            env.step(ONE)
        env.reset(seed=1)
        assert env.step(ONE)[0]["text"] == "1"
        assert len(new.talks) == 2


def test_a_forked_child_leaves_the_session_to_its_parent(new: OpenEnvServer) -> None:
    env = ew.make(new.name)
    env.reset(seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        info = env.step(ONE)[4]
        env.close()
        os._exit(0 if info["fault"].kind == "lost" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert env.step(ONE)[0]["text"] == "1"
    env.close()


def test_an_environment_that_is_forgotten_ends_its_session(new: OpenEnvServer) -> None:
    env = ew.make(new.name)
    env.reset(seed=1)
    del env
    gc.collect()
    assert new.closed.acquire(timeout=10)


def test_nobody_at_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConnectionRefusedError, match=f"127.0.0.1:{port}"):
        ew.make(f"openenv://127.0.0.1:{port}")


def test_a_server_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        name = f"openenv://127.0.0.1:{silent.getsockname()[1]}"
        for spaces in ("auto", "json"):
            with pytest.raises(TimeoutError, match="did not answer"):
                ew.make(name, call_deadline=0.2, spaces=spaces)


def test_a_server_that_hangs_at_a_reset(new: OpenEnvServer) -> None:
    with ew.make(new.name, reset_deadline=0) as env:
        env.unwrapped._call_deadline = 0.3
        new.faults.append(hang)
        assert env.reset(seed=1)[1]["fault"].kind == "timeout"


def test_closing_many_sessions_of_a_hung_server_takes_no_longer_than_one(new: OpenEnvServer) -> None:
    envs = [ew.make(new.name) for _ in range(20)]
    for env in envs:
        env.reset(seed=1)
    before = time.monotonic()
    new.answers_close.clear()
    for env in envs:
        env.close()
    new.answers_close.set()
    assert time.monotonic() - before < 20 * 0.4  # with half a second each it would be ten seconds


def test_no_thread_is_left(new: OpenEnvServer) -> None:
    def pings() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name == "pings of OpenEnv sessions"]

    with ew.make(new.name) as env:
        env.reset(seed=1)
        (thread,) = pings()
    thread.join(10)
    assert not pings()


def test_what_is_no_openenv_server_is_refused_at_once(new: OpenEnvServer) -> None:
    for how in ({}, {"spaces": "json"}):
        with pytest.raises(ConnectionError, match="is no OpenEnv server: it answers with HTTP 404"):
            ew.make(f"{new.name}/elsewhere", **how)


@pytest.mark.parametrize(
    ("status", "kind", "why"),
    [(401, NotAvailable, "token="), (503, ConnectionError, "503"), (301, NotAvailable, "redirect")],
)
def test_statuses_that_refuse(new: OpenEnvServer, status: int, kind: type[Exception], why: str) -> None:
    new.documents["/schema"] = (status, b"{}")
    with pytest.raises(kind, match=why):
        ew.make(new.name)
