"""Questions are answered by the episode they are about, or not at all; closing ends whatever was begun."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from proxies import proxy
from remote_worlds import kill, mortal, transport
from servers import RunningServer, running_server, until

import envweave_gym as ew
from envweave_gym.providers.subprocess import PrivateServer
from envweave_gym.remote.address import remember_token
from envweave_gym.remote.env import RemoteEnv
from envweave_gym.remote.games import RemoteAEC, RemoteParallel
from envweave_gym.remote.vector import RemoteVectorEnv

__all__ = ["mortal", "transport"]
LINE, CODEFIX, KUHN = (f"envweave/{name}-v0" for name in ("LineWorld", "CodeFix", "KuhnPoker"))


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(LINE, CODEFIX, KUHN) as running:
        remember_token(running.url, running.token or "")
        yield running


def sessions(server: RunningServer) -> int:
    """How many sessions are open there."""
    found = re.search(r"^envweave_sessions (\d+)", server.ask("GET", "/metrics").text, re.MULTILINE)
    assert found is not None
    return int(found[1])


MAKERS: dict[str, Callable[[str], Any]] = {
    "single": lambda url: RemoteEnv(CODEFIX, url),
    "vector": lambda url: RemoteVectorEnv(CODEFIX, url, num_envs=2),
    "drawn vector": lambda url: RemoteVectorEnv(LINE, url, num_envs=2, render_mode="ansi"),
    "turns": lambda url: RemoteAEC(KUHN, url),
    "rounds": lambda url: RemoteParallel(KUHN, url),
}


def questions(env: Any) -> list[Callable[[], Any]]:
    """What may be asked of an environment; games remember their counters themselves."""
    if isinstance(env, RemoteAEC | RemoteParallel):
        return [env.render, *answered_by_its_episode(env)]
    asks: list[Callable[[], Any]] = [lambda: ew.state_of(env), *answered_by_its_episode(env)]
    if not isinstance(env, RemoteVectorEnv) or env.render_mode:
        asks.append(env.render)
    return asks


def answered_by_its_episode(env: Any) -> list[Callable[[], Any]]:
    """What nobody else can answer, and nothing is remembered of."""
    if isinstance(env, RemoteAEC | RemoteParallel):
        return [lambda: env.record]
    return [lambda: ew.parse_action(env, "<=")] if env.description["parses"] else []


@pytest.mark.parametrize("kind", MAKERS)
def test_after_closing_questions_fail_and_open_no_session(kind: str, server: RunningServer) -> None:
    env = MAKERS[kind](server.url)
    for _ in range(2):
        env.reset(seed=1)
        env.close()
        for ask in questions(env):
            with pytest.raises(ew.ResetNeeded, match=r"was asked for after close\(\); call reset\(\)"):
                ask()
        assert sessions(server) == 0


@pytest.mark.parametrize("kind", ["single", "turns", "rounds"])
def test_after_a_loss_questions_about_the_episode_fail(kind: str, mortal: PrivateServer) -> None:
    env = MAKERS[kind](mortal.url)
    env.reset(seed=1)
    kill(mortal)
    env.step({"player_0": 1} if kind == "rounds" else 1)
    for ask in answered_by_its_episode(env):
        with pytest.raises(ew.SessionLost, match=r"the session of this episode is gone; call reset\(\)"):
            ask()
    env.reset(seed=1)
    for ask in questions(env):
        ask()
    env.close()


def test_a_text_for_a_lost_episode_is_any_action_for_the_step_that_says_so(mortal: PrivateServer) -> None:
    env = RemoteEnv(CODEFIX, mortal.url)
    env.reset(seed=1)
    kill(mortal)
    action = ew.parse_action(env, "<=")
    _, reward, _, truncated, info = env.step(action)
    assert (reward, truncated, info["fault"].kind) == (0.0, True, ew.FaultKind.LOST)
    with pytest.raises(ew.SessionLost):
        ew.parse_action(env, "<=")
    env.reset()
    assert not env.step(ew.parse_action(env, "<="))[4].get("fault")
    env.close()


def test_a_vector_that_goes_on_by_itself_takes_texts_all_along(mortal: PrivateServer) -> None:
    env = RemoteVectorEnv(CODEFIX, mortal.url, num_envs=2)
    env.reset(seed=1)
    kill(mortal)
    lost = [env.step([ew.parse_action(env, "<=")] * 2)[3].all() for _ in range(3)]
    assert lost == [True, False, False]
    assert ew.state_of(env)[0]["step_count"] == 1
    env.close()


def test_before_the_first_reset_questions_are_answered(server: RunningServer) -> None:
    env = RemoteEnv(CODEFIX, server.url)
    assert ew.state_of(env)["episode"] == -1
    assert ew.parse_action(env, "<=") in env.action_space
    env.close()
    assert sessions(server) == 0


# What closing ends


@pytest.mark.parametrize("kind", ["single", "vector"])
def test_a_session_whose_first_reset_was_refused_ends_when_it_is_closed(
    kind: str, transport: str, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = MAKERS[kind](server.url)
    monkeypatch.setitem(env.description["metadata"], "reset_options", ("what",))
    with pytest.raises(ew.InvalidArgument, match="what"):
        env.reset(seed=1, options={"what": 1})
    assert sessions(server) == 1
    env.close()
    assert sessions(server) == 0
    env.reset(seed=1)
    env.close()


@pytest.mark.parametrize("kind", ["single", "vector", "turns"])
def test_a_session_whose_idle_connection_was_cut_ends_when_it_is_closed(
    kind: str, transport: str, server: RunningServer
) -> None:
    with proxy(server.url) as between:
        env = MAKERS[kind](between.url)
        env.reset(seed=1)
        assert sessions(server) == 1
        between.cut()
        env.close()
        assert sessions(server) == 0


def test_a_session_whose_call_was_interrupted_ends_when_it_is_closed(
    transport: str, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = RemoteEnv(LINE, server.url)
    env.reset(seed=1)
    transport_there = env._served.session()._transport
    monkeypatch.setattr(transport_there, "receive", lambda deadline: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        env.step(1)
    assert sessions(server) == 1
    env.close()
    until(lambda: sessions(server) == 0)
