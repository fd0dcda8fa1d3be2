"""Games played in turns as ParallelEnvs: what is refused, what fails, and what is left of the episode."""

from __future__ import annotations

from typing import Any

import pytest
from auctions import ID, asked, auction
from toy_games import BURN, LEAVE, PASS, REFUSE, Auction

from envweave_gym import state_of
from envweave_gym.core.faults import InvalidAction, InvalidArgument, ResetNeeded
from envweave_gym.envs.games import kuhn_poker
from envweave_gym.wrappers.aec_stream import AECStream
from envweave_gym.wrappers.turn_based_parallel import TurnBasedParallel


@pytest.mark.parametrize(
    ("actions", "complaint"),
    [
        ({}, "player_0 must act"),
        ({"player_1": 0}, "player_0 must act"),
        ({"player_0": 2}, r"action 2 of player_0 is not in Discrete\(2\)"),
        ({"player_0": None}, "action None of player_0"),
        ({"player_0": 0, "player_2": 0}, "'player_2' is no agent; there are 'player_0', 'player_1'"),
        ({"player_0": 0, 7: 0}, "7 is no agent"),
        ([0, 1], "takes a dict of actions by agent"),
        (None, "takes a dict of actions by agent"),
    ],
)
def test_wrong_actions_change_nothing(actions: Any, complaint: str) -> None:
    game, other = kuhn_poker.parallel_env(), kuhn_poker.parallel_env()
    game.reset(seed=3)
    other.reset(seed=3)
    with pytest.raises(InvalidAction, match=f"^envweave/KuhnPoker-v0: .*{complaint}"):
        game.step(actions)
    assert game.aec_env.record.events == other.aec_env.record.events
    for action in (0, 1, 1):
        both = dict.fromkeys(game.agents, action)
        assert str(game.step(both)) == str(other.step(both))
    assert game.agents == []


def test_calls_out_of_order_name_the_environment() -> None:
    game = auction()
    for actions in ({}, {"auctioneer_0": 0}):
        with pytest.raises(
            ResetNeeded, match=rf"^{ID}: step\(\) was called before reset\(\); call reset\(\)$"
        ):
            game.step(actions)
    with pytest.raises(ResetNeeded, match=f"{ID}: render"):
        game.render()
    assert game.agents == []
    game.reset(seed=0)
    while game.agents:
        game.step(dict.fromkeys(game.agents, LEAVE))
    assert game.step({}) == ({}, {}, {}, {}, {})
    with pytest.raises(ResetNeeded, match="after the episode ended"):
        game.step({"auctioneer_0": 0})
    with pytest.raises(InvalidArgument, match=rf"^{ID}: reset\(seed=-1\)"):
        game.reset(seed=-1)
    game.reset()
    assert len(game.agents) == 4
    assert state_of(game) == {"episode": 1, "step_count": 0}


def test_a_bad_seed_leaves_the_running_episode_alone() -> None:
    game = auction()
    game.reset(seed=0)
    with pytest.raises(InvalidArgument):
        game.reset(seed="x")
    assert len(game.agents) == 4
    game.step({"auctioneer_0": PASS})


def test_an_exception_ends_the_episode_and_a_reset_begins_the_next() -> None:
    game = auction()
    game.reset(seed=0)
    with pytest.raises(RuntimeError, match="on fire"):
        game.step({"auctioneer_0": BURN})
    assert game.agents == []
    with pytest.raises(ResetNeeded, match=ID):
        game.step({"auctioneer_0": PASS})
    game.reset(seed=0)
    *_, infos = game.step({"auctioneer_0": PASS})
    assert asked(infos) == ["bidder_0", "bidder_1", "bidder_2"]


@pytest.mark.parametrize("call", ["reset", "step"])
def test_an_observation_that_fails_ends_the_episode(call: str) -> None:
    core = Auction()
    game = TurnBasedParallel(AECStream(core, name=ID))
    game.reset(seed=0)

    def fail(agent: str) -> Any:
        raise RuntimeError("all is dark")

    core.observe = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="all is dark"):
        game.reset(seed=0) if call == "reset" else game.step({"auctioneer_0": PASS})
    assert game.agents == []
    del core.observe
    game.reset(seed=0)
    game.step({"auctioneer_0": PASS})


def test_a_refusal_of_the_environments_own_leaves_the_episode_going() -> None:
    game = auction()
    game.reset(seed=0)
    with pytest.raises(InvalidAction, match="frowns"):
        game.step({"auctioneer_0": REFUSE})
    *_, infos = game.step({"auctioneer_0": PASS})
    assert infos["auctioneer_0"]["seq"] == 2
