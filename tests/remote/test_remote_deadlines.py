"""A deadline is that of the whole call, however often a peer lets hear of itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
from remote_peers import PACE, Script, Talk, lets_through, peer, plays, replies_slowly, response
from remote_worlds import block_websockets
from servers import running_server, until

from envweave_gym.net.websocket import PING
from envweave_gym.remote.address import Address
from envweave_gym.remote.descriptions import describe
from envweave_gym.remote.session import RemoteSession, call_all
from envweave_gym.remote.transports.plain_http import HttpTransport
from envweave_gym.wire.messages import CONTENT_TYPE, Began, Create, Reset

DEADLINE = 0.6
MUCH = b"x" * 1000


@contextmanager
def too_late() -> Iterator[None]:
    """The block ends soon after the deadline, because of it."""
    started = time.monotonic()
    with pytest.raises(TimeoutError, match="did not answer before the deadline"):
        yield
    assert DEADLINE / 2 < time.monotonic() - started < DEADLINE + 2


def shakes_hands_slowly(talk: Talk) -> None:
    talk.shake_hands(slowly=True)


def turns_away_slowly(talk: Talk) -> None:
    talk.request()
    talk.trickle(response(404, MUCH))


def pings_for_ever(talk: Talk) -> None:
    talk.shake_hands()
    while True:
        talk.say(b"", kind=PING)
        time.sleep(PACE)


def sends_parts_for_ever(talk: Talk) -> None:
    talk.shake_hands()
    while True:
        talk.trickle(b"\x02\x01x")


def reads_slowly(talk: Talk) -> None:
    talk.shake_hands()
    time.sleep(10)


def begins_slowly(talk: Talk) -> None:
    talk.request()
    talk.trickle(response(200, MUCH, CONTENT_TYPE))


def goes_on_slowly(talk: Talk) -> None:
    talk.request()
    talk.begin_to_respond(200, MUCH, CONTENT_TYPE)


WEBSOCKETS = (
    shakes_hands_slowly,
    turns_away_slowly,
    replies_slowly,
    pings_for_ever,
    sends_parts_for_ever,
)


@pytest.mark.parametrize("script", WEBSOCKETS)
def test_of_a_call_over_a_websocket(script: Script) -> None:
    with peer(script) as slow, too_late():
        slow.session(DEADLINE).reset(0, None)


def test_of_a_call_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with peer(lets_through(replies_slowly)) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        session = RemoteSession(Address.of("x", "http://far.invalid"), Create("x"), DEADLINE)
        with too_late():
            session.reset(0, None)


def test_of_a_frame_that_a_server_does_not_take() -> None:
    with peer(reads_slowly) as slow, too_late():
        slow.session(DEADLINE).reset(0, {"much": b"x" * (64 << 20)})


def at_work(url: str) -> list[threading.Thread]:
    """The threads that talk to a server."""
    return [thread for thread in threading.enumerate() if thread.name == f"frames to {url}"]


@pytest.mark.parametrize("script", [begins_slowly, goes_on_slowly])
def test_of_a_call_over_http(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    block_websockets(monkeypatch)
    with peer(script) as slow:
        with too_late():
            slow.session(DEADLINE).reset(0, None)
        until(lambda: not at_work(slow.url))


@pytest.mark.parametrize("script", [begins_slowly, goes_on_slowly])
def test_of_a_description(script: Script) -> None:
    with peer(script) as slow:
        with too_late():
            describe(Address.of("x", slow.url), Create("x"), DEADLINE)
        until(lambda: not at_work(slow.url))


def test_queued_requests_are_not_sent_after_closing() -> None:
    released = threading.Event()

    def answers_late(talk: Talk) -> None:
        for _ in range(2):
            talk.request()
            released.wait(10)
            talk.respond(200, MUCH, CONTENT_TYPE)

    with peer(answers_late) as slow:
        way = HttpTransport(Address.of("x", slow.url), "/")
        for _ in range(2):
            way.send(b"frame", time.monotonic() + 30)
        until(lambda: slow.methods == ["POST"])
        way.close()
        released.set()
        until(lambda: not at_work(slow.url))
        assert slow.methods == ["POST"]


# Servers that are gone


def test_of_a_call_whose_server_has_left_is_that_of_a_refused_connection() -> None:
    with peer(reads_slowly) as leaving:
        session = leaving.session(DEADLINE)
        session.send(Reset(0, 0, None))
        leaving.close()
        assert session.attempt() is None  # overdue after a quarter of the time, and sent again in vain
        with pytest.raises(ConnectionError, match="refused"):
            session.receive()


def test_a_server_that_is_gone_is_said_once_and_said_again_when_it_has_been_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with peer(plays) as there:
        sessions = [there.session(2 * DEADLINE) for _ in range(3)]
    for session in sessions[:2]:
        with pytest.raises(ConnectionError):
            session.reset(0, None)
    [said] = caplog.messages
    assert said.startswith(f"{there.url} cannot be reached (")
    assert re.search(r"refused.*; reset of x waits [01] s more for it", said)
    with peer(plays, port=int(there.url.rpartition(":")[2])):
        sessions[2].reset(0, None)
        sessions[2].drop()
    with pytest.raises(ConnectionError):
        sessions[2].reset(0, None)
    assert len(caplog.messages) == 2


WAITS = """
import sys, time, envweave_gym as ew
env = ew.make("envweave/Counter-v0", backend=sys.argv[1], call_deadline=30)
env.reset()
print("begun", flush=True)
input()
env.step({"delta": 1})
print("done")
"""


def test_a_wait_for_a_missing_server_is_explained_on_stderr() -> None:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with running_server("envweave/Counter-v0") as server:
        command, secrets = [sys.executable, "-c", WAITS, server.url], {"ENVWEAVE_TOKEN": server.token or ""}
        environ = {**os.environ, **secrets}
        with subprocess.Popen(command, env=environ, text=True, bufsize=1, **pipes) as waiting:
            assert waiting.stdin is not None
            assert waiting.stdout is not None
            assert waiting.stderr is not None
            assert waiting.stdout.readline() == "begun\n"
            family = [server.process, *psutil.Process(server.process.pid).children(recursive=True)]
            for one in family:  # the first one first: it would start another in place of a worker
                one.kill()
            for one in family:
                one.wait()
            started = time.monotonic()
            waiting.stdin.write("\n")
            said = waiting.stderr.readline()
            seconds = time.monotonic() - started
            waiting.kill()
    assert re.search(
        rf"{server.url} cannot be reached .*; step of envweave/Counter-v0 waits \d+ s more", said
    )
    assert seconds < 10  # 0.5 where nothing else runs; the deadline is 30


# Several servers


def cuts_at_once(talk: Talk) -> None:
    """Hang up before the handshake."""


def cuts_after_the_frame(talk: Talk) -> None:
    talk.shake_hands()
    talk.frame()


@pytest.mark.parametrize("cut", [cuts_at_once, cuts_after_the_frame])
def test_of_a_silent_server_is_not_that_of_another_whose_connection_was_cut(cut: Script) -> None:
    with peer(reads_slowly) as silent, peer(cut, cut, plays) as cutting:
        sessions = [silent.session(DEADLINE), cutting.session(DEADLINE)]
        lost, reply = call_all(sessions, [Reset(0, 0, None), Reset(0, 0, None)])
        assert isinstance(lost, TimeoutError)
        assert isinstance(reply, Began)
        for session in sessions:
            session.abandon()
