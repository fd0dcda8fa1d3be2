"""Games played in turns as ParallelEnvs: whose actions count, what they earn, what each agent sees."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from auctions import ID, asked, auction
from pettingzoo.test import parallel_api_test, parallel_seed_test
from pettingzoo.test.example_envs import generated_agents_env_v0
from pettingzoo.utils.conversions import parallel_to_aec
from pettingzoo.utils.wrappers import BaseWrapper, OrderEnforcingWrapper
from toy_games import BID, LEAVE, PASS, Auction, Relay

from envweave_gym import state_of, trainable
from envweave_gym.core.faults import InvalidAction, InvalidArgument
from envweave_gym.envs.games import kuhn_poker, line_race
from envweave_gym.episode.stream import EventKind, RequestKind
from envweave_gym.wrappers import NumericInfo
from envweave_gym.wrappers.aec_stream import AECStream
from envweave_gym.wrappers.parallel_stream import ParallelStream
from envweave_gym.wrappers.turn_based_parallel import TurnBasedParallel


def kinds(info: dict[str, Any]) -> list[str]:
    return [str(event.kind) for event in info["stream"].events]


def test_the_reset_says_who_is_asked() -> None:
    game = kuhn_poker.parallel_env()
    observations, infos = game.reset(seed=0)
    assert list(observations) == list(infos) == game.agents == ["player_0", "player_1"]
    assert asked(infos) == ["player_0"]
    assert infos["player_1"]["active"] is False


def test_only_agents_with_requests_act_and_the_others_see_ignored_events() -> None:
    game = kuhn_poker.parallel_env()
    game.reset(seed=0)
    *_, infos = game.step({"player_0": 0, "player_1": 1})
    assert state_of(game)["history"] == "p"
    assert kinds(infos["player_0"]) == ["act"]
    assert kinds(infos["player_1"]) == ["ignored", "act", "message"]
    (ignored, *_) = infos["player_1"]["stream"].events
    assert (ignored.agent, ignored.to, ignored.data) == ("player_1", ("player_1",), {"action": 1})
    assert trainable(infos) == {"player_0": True, "player_1": False}
    assert asked(infos) == ["player_1"]
    *_, infos = game.step({"player_1": 1})
    assert kinds(infos["player_0"]) == ["act", "message"]
    assert kinds(infos["player_1"]) == ["act"]
    assert asked(infos) == ["player_0"]


def test_an_ignored_value_need_not_be_an_action() -> None:
    game = kuhn_poker.parallel_env()
    game.reset(seed=0)
    *_, infos = game.step({"player_0": 0, "player_1": object})
    assert infos["player_1"]["stream"].events[0].data == {"action": repr(object)}


def test_several_are_asked_at_once_and_earn_the_sum_of_the_round() -> None:
    game = auction()
    _, infos = game.reset(seed=0)
    assert asked(infos) == ["auctioneer_0"]
    *_, infos = game.step(dict.fromkeys(game.agents, PASS))
    assert asked(infos) == ["bidder_0", "bidder_1", "bidder_2"]
    assert {request.turn for request in infos["bidder_0"]["stream"].requests} == {1}
    _, rewards, terminations, _, infos = game.step({"bidder_0": BID, "bidder_1": PASS, "bidder_2": BID})
    assert rewards == {"auctioneer_0": 2.0, "bidder_0": -1.0, "bidder_1": 0.0, "bidder_2": -1.0}
    assert not any(terminations.values())
    assert asked(infos) == ["auctioneer_0"]
    assert kinds(infos["auctioneer_0"]) == ["act", "act", "act", "reward"]
    assert kinds(infos["bidder_1"]) == ["act", "act", "act"]
    assert infos["auctioneer_0"]["stream"].events[-1].data == {"reward": 2.0}
    assert state_of(game)["step_count"] == 2


def test_agents_with_requests_do_not_see_each_other_act() -> None:
    turns = AECStream(Auction(), name=ID)
    turns.reset(seed=0)
    turns.step(PASS)
    for left in (["bidder_0", "bidder_1", "bidder_2"], ["bidder_1", "bidder_2"], ["bidder_2"]):
        assert [request.agent for request in turns.requests()] == left
        assert {request.turn for request in turns.requests()} == {1}
        assert not [event for event in turns.record.events if event.agent == "bidder_0"]
        turns.step(BID)
    rounds = auction()
    rounds.reset(seed=0)
    rounds.step({"auctioneer_0": PASS})
    rounds.step(dict.fromkeys(["bidder_0", "bidder_1", "bidder_2"], BID))
    assert turns.record.events == rounds.record.events


def test_secrets_stay_secret() -> None:
    game = auction()
    game.reset(seed=0)
    results = game.step({"auctioneer_0": PASS})
    for agent in game.agents:
        seen = repr([part[agent] for part in results])
        assert ("price 0" in seen) is (agent == "auctioneer_0")


def test_those_not_asked_any_more_are_ignored() -> None:
    game = auction(snap=True)
    game.reset(seed=0)
    game.step({"auctioneer_0": PASS})
    actions = {"bidder_0": PASS, "bidder_1": BID, "bidder_2": BID}
    _, rewards, _, _, infos = game.step(actions)
    assert rewards == {"auctioneer_0": 1.0, "bidder_0": 0.0, "bidder_1": -1.0, "bidder_2": 0.0}
    assert kinds(infos["bidder_0"]) == ["act", "act"]
    assert kinds(infos["bidder_2"]) == ["act", "act", "ignored"]
    assert trainable(infos) == {"auctioneer_0": True, "bidder_0": True, "bidder_1": True, "bidder_2": False}
    assert asked(infos) == ["auctioneer_0"]
    assert infos["bidder_0"]["seq"] == infos["bidder_0"]["stream"].requests[0].seq == 7


def test_done_agents_leave_in_mid_round_and_get_their_last_values_once() -> None:
    game = auction()
    game.reset(seed=0)
    game.step({"auctioneer_0": PASS})
    results = game.step({"bidder_0": LEAVE, "bidder_1": BID, "bidder_2": PASS})
    observations, rewards, terminations, truncations, infos = results
    assert [list(part) for part in results] == [game.possible_agents] * 5
    assert terminations == {"auctioneer_0": False, "bidder_0": True, "bidder_1": False, "bidder_2": False}
    assert not any(truncations.values())
    assert rewards == {"auctioneer_0": 1.0, "bidder_0": 0.0, "bidder_1": -1.0, "bidder_2": 0.0}
    assert observations["bidder_0"] in game.observation_space("bidder_0")
    assert "episode_end" in kinds(infos["bidder_0"])
    assert infos["bidder_0"]["own"] == "bidder_0"
    assert game.agents == ["auctioneer_0", "bidder_1", "bidder_2"]
    *_, infos = game.step({"auctioneer_0": PASS, "bidder_0": BID})
    assert list(infos) == game.agents
    assert asked(infos) == ["bidder_1", "bidder_2"]


def test_the_end_comes_for_all_with_five_values() -> None:
    game = auction(rounds=1)
    game.reset(seed=0)
    game.step({"auctioneer_0": PASS})
    results = game.step(dict.fromkeys(game.agents, BID))
    assert [list(part) for part in results] == [game.possible_agents] * 5
    assert all(results[2].values())
    assert results[1]["auctioneer_0"] == 3.0
    assert game.agents == []
    (request,) = results[4]["bidder_0"]["stream"].requests
    assert (request.kind, request.agent) == (RequestKind.RESET, None)
    assert not any(info["active"] for info in results[4].values())
    assert state_of(game) == {"episode": 0, "step_count": 2}


def test_done_agents_that_have_not_left_count_as_gone() -> None:
    game = TurnBasedParallel(Relay())
    game.reset(seed=0)
    reported = []
    while game.agents:
        live = list(game.agents)
        _, rewards, terminations, _, infos = game.step(dict.fromkeys(live, 2))
        assert list(rewards) == list(infos) == live
        reported.append((rewards, [agent for agent, done in terminations.items() if done]))
    assert reported == [
        ({"runner_0": 2.0, "runner_1": 0.0, "runner_2": 0.0}, ["runner_0"]),
        ({"runner_1": 2.0, "runner_2": 0.0}, ["runner_1"]),
        ({"runner_2": 2.0}, ["runner_2"]),
    ]
    assert game.aec_env.agents == []


def test_agents_that_join_in_mid_game_are_in_the_stream() -> None:
    game = TurnBasedParallel(generated_agents_env_v0.env())
    game.reset(seed=4)
    seen = set(game.agents)
    for _ in range(300):
        before = list(game.agents)
        results = game.step({agent: game.action_space(agent).sample() for agent in game.agents})
        for part in results:
            assert list(part) == [*before, *(agent for agent in game.agents if agent not in before)]
        seen.update(game.agents)
    assert len(seen) > 5


def test_a_simultaneous_game_comes_back_as_it_was() -> None:
    through_aec = TurnBasedParallel(AECStream(parallel_to_aec(line_race.raw_env()), name="same"))
    plain = ParallelStream(line_race.raw_env(), name="same")
    assert str(through_aec.reset(seed=5)) == str(plain.reset(seed=5))
    step = 0
    while plain.agents:
        step += 1
        actions = dict.fromkeys(plain.agents, step % 3 % 2)
        for ours, theirs in zip(through_aec.step(actions), plain.step(actions), strict=True):
            assert str(ours) == str(theirs)
    assert through_aec.agents == []
    assert through_aec.aec_env.record.events == plain.record.events


class Polite(BaseWrapper[str, Any, Any]):
    """Nobody bids."""

    def step(self, action: Any) -> None:
        super().step(PASS if action == BID else action)


def test_wrappers_around_a_stream_are_stepped_through() -> None:
    stream = AECStream(Auction(), name=ID)
    game = TurnBasedParallel(Polite(stream))
    game.reset(seed=0)
    game.step({"auctioneer_0": PASS})
    _, rewards, _, _, infos = game.step(dict.fromkeys(game.agents, BID))
    assert set(rewards.values()) == {0.0}
    assert [event.data for event in infos["bidder_0"]["stream"].of_kind(EventKind.ACT)] == [
        {"action": PASS}
    ] * 3
    assert infos["bidder_0"]["own"] == "bidder_0"
    assert state_of(game) == stream.stream_state()


def test_any_aec_environment_gets_a_stream_and_nothing_else_is_taken() -> None:
    game = TurnBasedParallel(OrderEnforcingWrapper(Auction()))
    _, infos = game.reset(seed=1)
    assert asked(infos) == ["auctioneer_0"]
    with pytest.raises(InvalidAction, match=r"^auction_v0: "):
        game.step({"auctioneer_0": 9})
    for other in (line_race.raw_env(), None):
        with pytest.raises(InvalidArgument, match=r"takes a pettingzoo\.AECEnv"):
            TurnBasedParallel(other)  # type: ignore[arg-type]


def test_the_environment_shows_through() -> None:
    core = Auction()
    game = TurnBasedParallel(AECStream(core, name=ID))
    assert game.unwrapped is core
    assert game.possible_agents == core.possible_agents
    assert game.metadata is core.metadata
    assert game.render_mode == "ansi"
    assert game.rounds == 3
    assert (
        game.observation_space("bidder_0")
        is game.observation_space("bidder_0")
        is core.observation_space("bidder_0")
    )
    assert game.action_space("bidder_0") is core.action_space("bidder_0")
    assert str(game) == "TurnBasedParallel<AECStream<auction_v0>>"
    assert game.max_num_agents == 4
    with pytest.raises(AttributeError):
        _ = game._missing
    with pytest.raises(AttributeError):
        _ = game.missing
    game.reset(seed=0)
    assert game.num_agents == 4
    assert game.render() == "round 0"
    assert game.state().tolist() == [0]
    game.close()
    game.close()
    assert core.closed


def test_infos_are_fresh() -> None:
    game = auction()
    _, first = game.reset(seed=0)
    *_, second = game.step({"auctioneer_0": PASS})
    assert all(first[agent] is not second[agent] for agent in first)
    assert game.unwrapped.infos["bidder_0"] == {"own": "bidder_0"}
    assert asked(first) == ["auctioneer_0"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda game: pickle.loads(pickle.dumps(game))])
@pytest.mark.parametrize("moves", [0, 1, 2, 3])
def test_a_copy_continues_in_mid_episode(copied: Any, moves: int) -> None:
    game = auction()
    game.reset(seed=7)
    for _ in range(moves):
        game.step(dict.fromkeys(game.agents, BID))
    again = copied(game)
    while game.agents:
        actions = dict.fromkeys(game.agents, BID)
        assert str(game.step(actions)) == str(again.step(actions))
    assert again.agents == []
    assert str(game.reset()) == str(again.reset())


def test_pettingzoos_tests_pass_without_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    for make in (kuhn_poker.parallel_env, lambda: TurnBasedParallel(line_race.env())):
        parallel_api_test(make(), num_cycles=200)
        parallel_seed_test(make, num_cycles=50)
    assert capsys.readouterr().out.count("Passed Parallel API test") == 2


def test_numbers_alone_are_left_for_trainers_that_want_no_more() -> None:
    game = NumericInfo(kuhn_poker.parallel_env())
    _, infos = game.reset(seed=0)
    assert infos == {
        "player_0": {"seq": 5, "active": True, "trainable": False},
        "player_1": {"seq": 5, "active": False, "trainable": False},
    }
    *_, infos = game.step({"player_0": 0})
    assert [info["active"] for info in infos.values()] == [False, True]
    assert state_of(game)["step_count"] == 1
