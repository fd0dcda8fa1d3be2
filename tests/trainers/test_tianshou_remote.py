"""Tianshou learns a game on a server as it learns the same game here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("tianshou", reason="Tianshou is not installed: run make trainers")
pytest.importorskip("flask", reason="the server is not installed: pip install 'envweave-gym[server]'")

import numpy as np
import pettingzoo
import torch
from servers import running_server
from test_tianshou import AT_RANDOM, winnings

from envweave_gym.envs.games.kuhn_rules import best_response_value
from envweave_gym.remote.games import RemoteAEC

pytestmark = pytest.mark.trainers
KUHN = "envweave/KuhnPoker-v0"


def test_dqn_learns_remote_kuhn_poker_and_learns_the_same(
    example: Callable[[str], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def learn() -> dict[str, Any]:
        np.random.seed(0)
        torch.manual_seed(0)
        return example("tianshou_kuhn_poker")

    here, make = learn(), pettingzoo.make
    with running_server(KUHN) as server, monkeypatch.context() as patched:
        patched.setenv("ENVWEAVE_TOKEN", str(server.token))
        patched.setattr(pettingzoo, "make", lambda kind, env_id: make(kind, env_id, backend=server.url))
        there = learn()

    assert isinstance(there["env"].env.unwrapped, RemoteAEC)
    assert 0.7 < winnings(there["learner"], 1_000) / best_response_value(AT_RANDOM, 0) < 1.3
    for mine, theirs in zip(here["net"].parameters(), there["net"].parameters(), strict=True):
        assert torch.equal(mine, theirs)
