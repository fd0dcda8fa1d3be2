"""Addresses, tokens and deadlines that cannot be are refused in one sentence, and so is a step after Ctrl-C."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from remote_peers import Talk, peer, plays, reply_to
from remote_worlds import TROUBLE, transport, url

import envweave_gym as ew
from envweave_gym.remote.address import Address
from envweave_gym.remote.env import RemoteEnv
from envweave_gym.remote.games import RemoteAEC, RemoteParallel
from envweave_gym.wire.framing import CONTENT_TYPE

__all__ = ["transport", "url"]
LINE, KUHN = "envweave/LineWorld-v0", "envweave/KuhnPoker-v0"
NOBODY = "http://127.0.0.1:9"

# Deadlines


@pytest.mark.parametrize("seconds", ["5", None, float("nan"), float("inf"), 1e12, 0, -1, True, 10**400])
@pytest.mark.parametrize("how", [{}, {"num_envs": 2}])
def test_a_call_deadline_that_nobody_can_wait_for(seconds: Any, how: dict[str, Any]) -> None:
    for name, where in ((LINE, {"backend": NOBODY}), (f"{NOBODY}#{LINE}", {}), (NOBODY, {})):
        with pytest.raises(
            ew.InvalidArgument, match=r"call_deadline=.* is not a number of seconds from 0.001"
        ):
            ew.make(name, call_deadline=seconds, **where, **how)


@pytest.mark.parametrize("seconds", ["5", float("nan"), float("inf"), 1e12, -1, 10**400])
@pytest.mark.parametrize("kind", [RemoteEnv, RemoteAEC, RemoteParallel])
def test_a_reset_deadline_that_nobody_can_wait_for(seconds: Any, kind: Callable[..., Any]) -> None:
    with pytest.raises(
        ew.InvalidArgument, match=r"^envweave/X-v0: reset_deadline=.* is not a number of seconds"
    ):
        kind("envweave/X-v0", NOBODY, reset_deadline=seconds)


def test_the_longest_deadlines_can_be_waited_for(transport: str, url: str) -> None:
    env = RemoteEnv(LINE, url, call_deadline=604_800, reset_deadline=604_800)
    env.reset(seed=1)
    env.step(1)
    env.close()


# Tokens


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", "price: 5 €".encode(), b"one\ntwo", b"one\r\nX-Other: two", b"\0"]
)
def test_a_file_that_holds_no_token(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(ew.InvalidArgument, match=r"token holds no token, which is one line of ASCII") as told:
        ew.make(LINE, backend=NOBODY, token=f"file:{file}")
    assert "€" not in str(told.value)
    assert "two" not in str(told.value)


def test_a_variable_that_holds_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVWEAVE_TOKEN", "€")
    with pytest.raises(ew.InvalidArgument, match="env:ENVWEAVE_TOKEN holds no token"):
        ew.make(LINE, backend=NOBODY)


def test_a_file_that_no_file_can_be() -> None:
    with pytest.raises(ew.InvalidArgument, match="there is no token in file:"):
        ew.make(LINE, backend=NOBODY, token="file:\0")


# URLs


@pytest.mark.parametrize(
    "wrong",
    ["http://[::1", "http://host:99999", "http://host:abc", "http://host:0", f"http://{'x' * 64}.org"],
)
def test_what_is_no_url(wrong: str) -> None:
    with pytest.raises(
        ew.InvalidArgument, match=f"^{LINE}: backend=.* is not a URL like 'http://host:port'$"
    ):
        ew.make(LINE, backend=wrong)


@pytest.mark.parametrize("end", ["#envweave/Other-v0", "?token=hush", "/?token=hush#x"])
def test_what_stands_after_a_url_is_not_passed_over(end: str) -> None:
    with pytest.raises(ew.InvalidArgument, match="leave out what comes after '\\?' or '#'") as told:
        ew.make(LINE, backend=NOBODY + end)
    assert "hush" not in str(told.value)


@pytest.mark.parametrize("url", ["http://[::1]:8000", "http://host", "https://host:443/sub/", "http://a_b:1"])
def test_what_is_a_url(url: str) -> None:
    assert Address.of("x", url).url == url.rstrip("/")


def test_a_path_at_which_there_is_no_server(url: str) -> None:
    with pytest.raises(ew.NotAvailable, match=r"/sub: there is no envweave-gym server at this path"):
        ew.make(LINE, backend=f"{url}/sub/", token="env:HOME")


def test_a_path_at_which_there_is_one() -> None:
    paths: list[bytes] = []

    def under_a_path(talk: Talk) -> None:
        _, frame = talk.request()
        paths.append(frame)
        talk.respond(200, reply_to(frame), CONTENT_TYPE)

    with peer(plays) as server:
        session = server.session(5.0)
        session.address = Address.of("x", f"{server.url}/sub/")
        assert session.reset(0, None) is not None


# Ctrl-C


def interrupted(step: Callable[[], Any]) -> None:
    """Press Ctrl-C while the step is under way."""
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    main = threading.main_thread().ident
    timer = threading.Timer(0.3, signal.pthread_kill, [main, signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        step()
    timer.join()


HALFWAY = "KeyboardInterrupt stopped the last call halfway; call reset()"


def test_a_step_after_one_that_was_stopped_halfway_waits_for_a_reset(transport: str, url: str) -> None:
    env = RemoteEnv(TROUBLE, url, nap=1.0)
    env.reset(seed=1)
    assert env.step(0)[0] == 1
    interrupted(lambda: env.step(2))
    for action in (0, 2):
        with pytest.raises(ew.ResetNeeded, match=HALFWAY):
            env.step(action)
    started = time.monotonic()
    assert "fault" not in env.reset()[1]
    assert time.monotonic() - started < 4
    assert env.step(0)[0] == 1
    env.close()
    with pytest.raises(ew.ResetNeeded, match="after the episode ended"):
        env.step(0)
