"""Remote games on servers that are full, die in part, or stand behind a bad network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pettingzoo.test.example_envs import generated_agents_env_v0
from proxies import proxy
from remote_tables import KUHN, MOODY, OURS, expect_same_rounds, expect_same_turns, pair
from remote_worlds import url
from servers import RunningServer, running_server
from toy_games import CRASH, Whisper

import envweave_gym as ew
from envweave_gym.core.faults import FaultKind
from envweave_gym.remote.games import RemoteAEC
from envweave_gym.wire.messages import Refused, Reset, Step, read_reply
from envweave_gym.wrappers.aec_stream import AECStream
from envweave_gym_server.environments.description import describe
from envweave_gym_server.environments.hosted_env import HostedEnv

__all__ = ["url"]


def token_of(server: RunningServer, directory: Path) -> str:
    """Where a client finds the token of this server."""
    kept = directory / "token"
    kept.write_text(str(server.token))
    return f"file:{kept}"


def test_a_server_without_room_is_a_fault_until_there_is_some(tmp_path: Path) -> None:
    with running_server(KUHN, max_sessions=1) as server:
        token = token_of(server, tmp_path)
        first, second = (RemoteAEC(KUHN, server.url, token=token, reset_deadline=0.1) for _ in range(2))
        first.reset(seed=1)
        second.reset(seed=1)
        assert "fault" not in first.infos["player_0"]
        assert second.infos["player_0"]["fault"].kind is FaultKind.CAPACITY
        first.close()
        second.reset(seed=1)
        assert "fault" not in second.infos["player_0"]
        with pytest.raises(ew.InvalidArgument, match="takes no argument 'deck' from a client"):
            _ = RemoteAEC(KUHN, server.url, token=token, deck=4).possible_agents


def test_a_game_that_ends_its_process_is_alone_in_it(tmp_path: Path) -> None:
    with running_server(MOODY, isolation="process") as server:
        token, moody = token_of(server, tmp_path), MOODY.partition(":")[2]
        env, other = (RemoteAEC(moody, server.url, token=token) for _ in range(2))
        for one in (env, other):
            one.reset(seed=1)
        env.step(CRASH)
        assert env.infos["player_0"]["fault"].kind is FaultKind.CRASH
        other.step(0)
        assert "fault" not in other.infos["player_0"]
        env.reset(seed=1)
        env.step(0)
        assert "fault" not in env.infos["player_0"]


@pytest.mark.parametrize("env_id", OURS)
def test_every_move_is_made_once_however_often_the_connection_breaks(env_id: str, url: str) -> None:
    with proxy(url, seed=3) as between:
        (turn, turns), (round_, rounds) = (pair(env_id, api, between.url) for api in ("aec", "parallel"))
        assert turns.possible_agents == rounds.possible_agents
        between.chances = {"cut": 0.05, "truncate": 0.05}
        for seed in range(4):
            turn.reset(seed=seed)
            turns.reset(seed=seed)
            expect_same_turns(turn, turns)
            expect_same_rounds(round_, rounds, (round_.reset(seed=seed), rounds.reset(seed=seed)))
        assert between.done["cut"] + between.done["truncate"] > 5
        between.chances = {}
        turns.close()
        rounds.close()


def test_a_move_that_was_made_is_no_refusal_when_the_look_after_it_fails() -> None:
    class Blind(Whisper):
        def observe(self, agent: str) -> Any:
            if self.said:
                raise ew.InvalidArgument("it is dark")
            return super().observe(agent)

    served = HostedEnv(AECStream(Blind()))
    assert served.do(Reset(1, 0), b"")[1]
    frame, done = served.do(Step(2, 0), b"")
    reply = read_reply(frame)
    assert isinstance(reply, Refused)
    assert (done, reply.kind) == (True, "EnvironmentCrashed")
    assert "InvalidArgument: it is dark" in reply.message


def test_a_game_without_possible_agents_is_not_served() -> None:
    with pytest.raises(ew.NotAvailable, match="cannot be served: give it possible_agents"):
        describe(AECStream(generated_agents_env_v0.env()))
