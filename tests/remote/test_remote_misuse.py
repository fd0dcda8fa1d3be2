"""What cannot be is refused in one sentence: addresses, tokens, deadlines, and a step after Ctrl-C."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pettingzoo
import pytest
from gymnasium.spaces import Discrete
from pettingzoo import ParallelEnv
from remote_worlds import TROUBLE, transport, url
from servers import running_server

import envweave_gym as ew
from envweave_gym.remote.address import Address
from envweave_gym.remote.env import RemoteEnv
from envweave_gym.remote.games import RemoteAEC, RemoteParallel

__all__ = ["transport", "url"]
LINE, KUHN = "envweave/LineWorld-v0", "envweave/KuhnPoker-v0"
NOBODY = "http://127.0.0.1:9"

# Deadlines


@pytest.mark.parametrize("seconds", ["5", None, float("nan"), float("inf"), 1e12, 0, -1, True, 10**400])
@pytest.mark.parametrize("how", [{}, {"num_envs": 2}])
def test_a_call_deadline_beyond_the_largest_wait_is_refused(seconds: Any, how: dict[str, Any]) -> None:
    for name, where in ((LINE, {"backend": NOBODY}), (f"{NOBODY}#{LINE}", {}), (NOBODY, {})):
        with pytest.raises(ew.InvalidArgument, match=r"call_deadline=.* is not a number of seconds from"):
            ew.make(name, call_deadline=seconds, **where, **how)


@pytest.mark.parametrize("seconds", ["5", float("nan"), float("inf"), 1e12, -1, 10**400])
@pytest.mark.parametrize("kind", [RemoteEnv, RemoteAEC, RemoteParallel])
def test_a_reset_deadline_beyond_the_largest_wait_is_refused(seconds: Any, kind: Callable[..., Any]) -> None:
    with pytest.raises(ew.InvalidArgument, match=r"^x/X-v0: reset_deadline=.* is not a number of sec"):
        kind("x/X-v0", NOBODY, reset_deadline=seconds)


def test_the_longest_deadlines_can_be_waited_for(transport: str, url: str) -> None:
    env = RemoteEnv(LINE, url, call_deadline=604_800, reset_deadline=604_800)
    env.reset(seed=1)
    env.step(1)
    env.close()


# Tokens


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", "price: 5 €".encode(), b"one\ntwo", b"one\r\nX: two", b"\0"]
)
def test_a_file_that_holds_no_token(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(
        ew.InvalidArgument, match=r"token holds no token, which is one line of ASCII"
    ) as reported:
        ew.make(LINE, backend=NOBODY, token=f"file:{file}")
    assert "€" not in str(reported.value)
    assert "two" not in str(reported.value)


def test_a_variable_that_holds_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVWEAVE_TOKEN", "€")
    with pytest.raises(ew.InvalidArgument, match="env:ENVWEAVE_TOKEN holds no token"):
        ew.make(LINE, backend=NOBODY)


def test_a_file_that_no_file_can_be() -> None:
    with pytest.raises(ew.InvalidArgument, match="there is no token in file:"):
        ew.make(LINE, backend=NOBODY, token="file:\0")


# URLs


@pytest.mark.parametrize(
    ("given", "like"),
    [
        ("unix:///tmp/x.sock", "'unix://%2Ftmp%2Fx.sock', with %2F for / and %40 for @"),
        ("http+unix:///tmp/x.sock", "'http+unix://%2Ftmp%2Fx.sock', with %2F for / and %40 for @"),
        ("unix://@x", "'unix://%40x', with %2F for / and %40 for @"),
        ("http://a:99999", "'http://host:port'"),
    ],
)
def test_a_name_with_an_invalid_url_is_refused_without_a_word_of_a_backend(given: str, like: str) -> None:
    for name in (given, f"{given}#{LINE}"):
        with pytest.raises(ew.InvalidArgument) as refused:
            ew.make(name)
        assert str(refused.value) == f"make({name!r}): {given!r} is not a URL like {like}"
    with pytest.raises(ew.InvalidArgument) as refused:
        ew.make(LINE, backend=given)
    assert str(refused.value) == f"{LINE}: backend={given!r} is not a URL like {like}"


@pytest.mark.parametrize(
    "wrong",
    ["http://[::1", "http://a:99999", "http://a:abc", "http://a:0", f"http://{'x' * 64}.org"],
)
def test_invalid_urls_are_refused(wrong: str) -> None:
    with pytest.raises(
        ew.InvalidArgument, match=f"^{LINE}: backend=.* is not a URL like 'http://host:port'$"
    ):
        ew.make(LINE, backend=wrong)


@pytest.mark.parametrize(
    ("end", "marks"),
    [
        ("#envweave/Other-v0", "'#'"),
        ("?x=1", "'?'"),
        ("?token=hush", "'?'"),
        ("/?token=hush#x", "'?' and '#'"),
    ],
)
def test_text_after_a_url_is_refused(end: str, marks: str) -> None:
    with pytest.raises(
        ew.InvalidArgument, match=re.escape(f"leave out what comes after {marks}")
    ) as reported:
        ew.make(LINE, backend=NOBODY + end)
    assert str(reported.value).startswith(f"{LINE}: ")
    assert "hush" not in str(reported.value)


@pytest.mark.parametrize("end", ["?token=hush", "/?token=hush", f"/?token=hush#{LINE}", "?token="])
@pytest.mark.parametrize("num_envs", [None, 2])
def test_a_token_in_a_url_is_refused_with_advice(end: str, num_envs: int | None) -> None:
    ways = [lambda: ew.make(NOBODY + end, num_envs=num_envs)]
    if "#" not in end:
        ways.append(lambda: gym.make("envweave/Remote-v0", url=NOBODY + end))
    for make in ways:
        with pytest.raises(ew.InvalidArgument, match="the URL holds a token; leave out") as reported:
            make()
        assert "ENVWEAVE_TOKEN, or in a file that token='file:PATH' names" in str(reported.value)
        assert not re.search("hush|backend", str(reported.value))


def test_a_password_in_a_url_is_not_repeated() -> None:
    with pytest.raises(ew.InvalidArgument, match="the URL holds a secret") as reported:
        ew.make("http://me:hush@127.0.0.1:9")
    assert str(reported.value).startswith(f"{NOBODY}: ")


def test_a_server_with_several_environments_asks_which() -> None:
    with running_server(LINE, KUHN, token=None) as server:
        for num_envs in (None, 2):
            with pytest.raises(
                ew.UnknownEnvironment, match=f"choose one, as in .*#ID': there are {LINE}, {KUHN}"
            ):
                ew.make(server.url, num_envs=num_envs)


@pytest.mark.parametrize("url", ["http://[::1]:8000", "http://host", "https://host:443/sub/", "http://a_b:1"])
def test_valid_urls_are_accepted(url: str) -> None:
    assert Address.of("x", url).url == url.rstrip("/")


def test_a_path_at_which_there_is_no_server() -> None:
    with (
        running_server(LINE, token=None) as server,
        pytest.raises(ew.NotAvailable, match="there is no env") as reported,
    ):
        ew.make(LINE, backend=f"{server.url}/sub/")
    assert (
        str(reported.value) == f"{server.url}/sub: there is no envweave-gym server at this path; correct it"
    )


# Ctrl-C


def interrupted(step: Callable[[], Any]) -> None:
    """Press Ctrl-C while the step is under way."""
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


class NapGame(ParallelEnv[str, Any, Any]):
    """A game in which a round takes long."""

    metadata = {"name": "nap"}
    possible_agents = ["only"]

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.observation_spaces = self.action_spaces = {"only": Discrete(2)}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents = ["only"]
        return {"only": 0}, {"only": {}}

    def step(self, actions: dict[str, Any]) -> Any:
        time.sleep(actions["only"])
        return {"only": 1}, {"only": 0.0}, {"only": False}, {"only": False}, {"only": {}}


pettingzoo.register("parallel", "tests/NapGame-v0", "test_remote_misuse:NapGame")


@pytest.mark.parametrize("api", ["aec", "parallel"])
def test_so_does_a_game(api: str, url: str) -> None:
    game: Any = ew.make("test_remote_misuse:tests/NapGame-v0", api=api, backend=url)

    def act(action: int) -> Any:
        return game.step(action if api == "aec" else {"only": action})

    game.reset(seed=1)
    act(0)
    interrupted(lambda: act(1))
    assert game.agents == []
    for _ in range(2):
        with pytest.raises(ew.ResetNeeded, match=HALFWAY):
            act(0)
    game.reset()
    assert game.agents == ["only"]
    act(0)
    game.close()
