"""The state machine of an episode with several agents."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from envweave_gym import Event, EventKind, Request, ResetNeeded, message, reveal
from envweave_gym.core.faults import MAX_FAULTS_IN_A_ROW, Fault, FaultKind, FaultStorm, InvalidAction
from envweave_gym.episode.game_record import GameRecord
from envweave_gym.episode.stream import RequestKind

FAULT = Fault(FaultKind.LOST, "the server is gone", True)


def kinds(events: Any) -> list[str]:
    return [str(event.kind) for event in events]


def begun() -> GameRecord:
    record = GameRecord("test/Game-v0")
    record.began(3, {"deal": "KQ"}, [reveal(("ann",), card="K"), message("user", "hi")])
    return record


def test_the_events_are_numbered_and_the_journal_of_the_episode() -> None:
    record = begun()
    record.ignored({"cat": 9})
    record.acted({"ann": 1, "bob": 0}, {"ann": 0.5, "bob": 0.0}, [message("user", "next")])
    record.ended("ann", True, False)
    assert [event.seq for event in record.events] == list(range(record.seq + 1))
    assert kinds(record.events) == [
        *("episode_start", "reveal", "message", "ignored", "act", "act", "message", "reward", "episode_end")
    ]
    assert record.events[0].data == {"seed": 3, "options": {"deal": "KQ"}}
    assert record.events[-1] == Event(
        8, EventKind.EPISODE_END, "ann", None, {"terminated": True, "truncated": False}
    )
    assert record.counters() == {"episode": 0, "step_count": 1}


def test_an_agent_reads_what_it_may_see_and_not_the_seed() -> None:
    record = begun()
    assert kinds(record.since(-1, "ann")) == ["episode_start", "reveal", "message"]
    assert kinds(record.since(-1, "bob")) == ["episode_start", "message"]
    assert record.since(-1, "bob")[0].data == {}
    assert kinds(record.since(1, "ann")) == ["message"]
    assert record.since(record.seq, "ann") == ()


def test_requests_go_to_the_agents_that_must_act_or_ask_for_a_reset() -> None:
    record = begun()
    assert record.requests(["ann", "bob"], over=False) == (
        Request(2, RequestKind.ACT, "ann", 0),
        Request(2, RequestKind.ACT, "bob", 0),
    )
    assert record.requests([], over=True) == (Request(2, RequestKind.RESET, None, 0),)


def test_an_info_says_whether_its_agent_must_act() -> None:
    record = begun()
    requests = record.requests(["ann"], over=False)
    own = {"mine": 1}
    info = record.info(own, "ann", requests, 0)
    assert (info["mine"], info["active"], info["seq"]) == (1, True, 2)
    assert kinds(info["stream"].events) == ["reveal", "message"]
    assert record.info(own, "bob", requests, 0)["active"] is False
    assert own == {"mine": 1}, "infos are copies"


def test_an_exception_ends_the_episode_and_a_refusal_does_not() -> None:
    record = begun()
    with pytest.raises(InvalidAction):
        record.run(_raise, InvalidAction("no"))
    assert not record.failed
    with pytest.raises(KeyboardInterrupt):
        record.run(_raise, KeyboardInterrupt())
    assert record.failed
    record.began(4)
    assert not record.failed
    assert record.run(max, 1, 2) == 2


def _raise(error: BaseException) -> None:
    raise error


def test_calls_out_of_order_are_refused_by_name() -> None:
    record = GameRecord("test/Game-v0")
    with pytest.raises(ResetNeeded, match=r"test/Game-v0: render\(\) .* before reset"):
        record.check_begun("render")
    with pytest.raises(ResetNeeded, match="before reset"):
        record.step_after_end({})
    record.began(0)
    record.check_begun("render")
    assert record.step_after_end({}) == ({}, {}, {}, {}, {})
    with pytest.raises(ResetNeeded, match="after the episode ended"):
        record.step_after_end({"ann": 0})


def test_a_loss_truncates_the_live_agents() -> None:
    record = begun()
    before = record.seq
    record.lost(FAULT, ["ann", "bob"], acted={"ann": 1}, ignored={"bob": 2})
    assert kinds(record.since(before, "ann")) == ["act", "fault", "episode_end", "episode_end"]
    assert kinds(record.since(before, "bob"))[0] == "ignored"
    assert record.turn == 1


def test_a_lost_reset_is_counted_once_and_reported_by_the_next_round() -> None:
    record = GameRecord("test/Game-v0")
    for _ in range(MAX_FAULTS_IN_A_ROW - 1):
        record.lost_reset(FAULT, 1)
        record.lost(FAULT, ["ann"], ignored={"ann": 0})
    with pytest.raises(FaultStorm, match="test/Game-v0: 10 faults in a row"):
        record.lost_reset(FAULT, 1)
    assert record.failed


def test_a_game_played_to_its_end_starts_the_count_anew() -> None:
    record = GameRecord("test/Game-v0")
    for _ in range(2 * MAX_FAULTS_IN_A_ROW):
        record.began(0)
        record.lost(FAULT, ["ann"])
        record.played()


def test_a_client_takes_over_the_numbers_of_its_server() -> None:
    server, client = begun(), GameRecord("test/Game-v0")
    info = server.info({}, "ann", server.requests(["ann"], over=False), -1)
    client.begin()
    client.adopt(info)
    assert (client.episode, client.seq, client.turn) == (0, server.seq, 0)
    server.acted({"ann": 1}, {})
    client.adopt(server.info({}, "bob", server.requests(["bob"], over=False), client.seq))
    assert (client.seq, client.turn) == (server.seq, 1)
    for record in (server, client):
        record.lost(FAULT, ["ann", "bob"], acted={"bob": 0})
    assert client.events == server.events[-4:]
    assert client.since(client.seq - 4, "bob") == server.since(server.seq - 4, "bob")


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda record: pickle.loads(pickle.dumps(record))])
def test_a_copy_goes_on_in_mid_episode(duplicate: Any) -> None:
    record = begun()
    other = duplicate(record)
    for one in (record, other):
        one.acted({"ann": 1}, {"ann": 1.0})
    assert other.events == record.events
