"""An auction as a ParallelEnv, and who is asked in it, for the tests of games played in turns."""

from __future__ import annotations

from typing import Any

from toy_games import Auction

from envweave_gym.wrappers.aec_stream import AECStream
from envweave_gym.wrappers.turn_based_parallel import TurnBasedParallel

ID = "test/Auction-v0"


def auction(**kwargs: Any) -> TurnBasedParallel:
    return TurnBasedParallel(AECStream(Auction(**kwargs), name=ID))


def asked(infos: dict[str, Any]) -> list[str]:
    assert all(
        info["stream"].requests == next(iter(infos.values()))["stream"].requests for info in infos.values()
    )
    active = [agent for agent, info in infos.items() if info["active"]]
    assert active == list(next(iter(infos.values()))["stream"].agents())
    return active
