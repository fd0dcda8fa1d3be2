"""An ID of this package that is served by OpenEnv's protocol, played through ``openenv://``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from servers import RunningServer, running_server

import envweave_gym as ew
from envweave_gym.compat.clients import EchoAction, EchoEnv
from envweave_gym.core.faults import NotAvailable
from envweave_gym.hubs.openenv.server_detection import is_openenv

ECHO, COUNTER, LINE = "envweave/Echo-v0", "envweave/Counter-v0", "envweave/LineWorld-v0"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(ECHO, COUNTER, LINE, protocol="openenv", default=ECHO) as running:
        yield running


@pytest.fixture
def how(monkeypatch: pytest.MonkeyPatch, server: RunningServer) -> dict[str, Any]:
    """The argument with the token of the server."""
    monkeypatch.setenv("TOKEN_OF_THE_TEST", server.token or "")
    return {"token": "env:TOKEN_OF_THE_TEST"}


def test_a_step_is_the_same_both_ways(server: RunningServer, how: dict[str, Any]) -> None:
    through = server.url.replace("http", "openenv")
    with (
        ew.make(f"{through}/openenv/{LINE}", max_steps=5, **how) as foreign,
        ew.make(f"{server.url}#{LINE}", max_steps=5, **how) as native,
    ):
        seen, _ = foreign.reset(seed=3)
        assert seen["observation"] == native.reset(seed=3)[0].tolist()
        for move in (1, 1, 0, 1, 1):
            seen, *ends, info = foreign.step({"action": move})
            expected, *others, _ = native.step(move)
            assert seen["observation"] == expected.tolist()
            assert ends == others
        assert "fault" not in info


@pytest.mark.parametrize("env_id", [COUNTER, LINE])
def test_samples_of_the_action_space_are_actions(
    server: RunningServer, how: dict[str, Any], env_id: str
) -> None:
    with ew.make(f"{server.url.replace('http', 'openenv')}/openenv/{env_id}", **how) as env:
        assert {} not in env.action_space
        assert {"message": "1"} in env.action_space
        env.reset(seed=1)
        env.action_space.seed(1)
        for _ in range(3):
            assert "fault" not in env.step(env.action_space.sample())[4]


def test_a_server_of_ours_stays_one(server: RunningServer, how: dict[str, Any]) -> None:
    assert not is_openenv(server.url, how["token"])
    with (
        EchoEnv(server.url, **how) as native,
        EchoEnv(server.url.replace("http", "openenv"), **how) as foreign,
    ):
        for env in (native, foreign):
            assert env.reset(seed=1).observation.echoed_message == "Echo environment ready!"
            result = env.step(EchoAction("hello"))
            assert (result.observation.echoed_message, result.reward) == ("hello", pytest.approx(0.5))


def test_a_token_is_needed(server: RunningServer) -> None:
    with pytest.raises(NotAvailable, match="give token="):
        ew.make(server.url.replace("http", "openenv"))
