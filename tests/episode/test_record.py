"""The state machine of an episode with one agent."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from envweave_gym import Event, EventKind, Request, ResetNeeded, Stream, message
from envweave_gym.core.faults import MAX_FAULTS_IN_A_ROW, Fault, FaultKind, FaultStorm
from envweave_gym.episode.record import EpisodeRecord
from envweave_gym.episode.stream import RequestKind

FAULT = Fault(FaultKind.CRASH, "it fell over", True)


def kinds(stream: Stream) -> list[str]:
    return [str(event.kind) for event in stream.events]


def begun(**options: Any) -> EpisodeRecord:
    record = EpisodeRecord("test/Env-v0")
    record.began(7, **options)
    return record


def test_an_episode_is_numbered_from_its_start_to_its_end() -> None:
    record = EpisodeRecord("test/Env-v0")
    start = record.began(7, {"level": 2}, (message("user", "go"),))
    assert start.requests == (Request(1, RequestKind.ACT, "agent", 0),)
    assert start.events[0] == Event(0, EventKind.EPISODE_START, data={"seed": 7, "options": {"level": 2}})
    step = record.acted(3, 0.5, (message("user", "well?"), message("user", "and?")))
    assert [event.seq for event in step.events] == [2, 3, 4, 5]
    assert kinds(step) == ["act", "message", "message", "reward"]
    assert step.requests == (Request(5, RequestKind.ACT, "agent", 1),)
    last = record.ended(1, 0.0, (), True, False)
    assert kinds(last) == ["act", "episode_end"]
    assert last.requests == (Request(7, RequestKind.RESET, None, 2),)
    assert (record.seq, record.turn, record.live) == (7, 2, False)


def test_the_streams_one_after_the_other_are_the_journal_of_the_episode() -> None:
    record = begun()
    streams = [record.began(8, {"index": 1}), record.acted(0, 1.0), record.ended(1, -1.0, (), False, True)]
    journal = [event for stream in streams for event in stream.events]
    assert [event.seq for event in journal] == list(range(len(journal)))
    assert journal[0].data == {"seed": 8, "options": {"index": 1}}
    assert [event.data["action"] for event in journal if event.kind == EventKind.ACT] == [0, 1]
    assert [event.data["reward"] for event in journal if event.kind == EventKind.REWARD] == [1.0, -1.0]
    assert journal[-1].data == {"terminated": False, "truncated": True}


def test_each_episode_has_its_number_and_counts_anew() -> None:
    record = begun()
    record.acted(0, 0.0)
    assert record.counters() == {"episode": 0, "step_count": 1}
    record.began(None)
    assert record.counters() == {"episode": 1, "step_count": 0}
    assert record.seq == 0


@pytest.mark.parametrize(("begins", "when"), [(False, "before reset"), (True, "after the episode ended")])
def test_a_step_without_an_episode_is_refused_by_name(begins: bool, when: str) -> None:
    record = EpisodeRecord("test/Env-v0")
    if begins:
        record.began(1)
        record.ended(0, 0.0, (), True, False)
    assert not record.live
    assert isinstance(record.refusal(), ResetNeeded)
    assert "test/Env-v0" in str(record.refusal())
    assert when in str(record.refusal())


def test_a_lost_step_ends_the_episode_with_its_fault() -> None:
    record = begun()
    info = record.lost(FAULT, (1, 2), (message("user", "last words"),))
    assert info["fault"] == FAULT
    assert kinds(info["stream"]) == ["act", "message", "fault", "episode_end"]
    assert info["stream"].events[0].data == {"action": [1, 2]}
    assert info["seq"] == record.seq == info["stream"].requests[0].seq == 4
    assert not record.live


def test_a_lost_reset_is_reported_by_the_next_step_whose_action_is_ignored() -> None:
    record = begun()
    info = record.lost_reset(FAULT, 9)
    assert kinds(info["stream"]) == ["episode_start", "fault"]
    assert (record.live, record.pending_fault) == (False, FAULT)
    info = record.report_loss(0)
    assert kinds(info["stream"]) == ["ignored", "fault", "episode_end"]
    assert record.pending_fault is None


def test_a_row_may_start_and_be_lost_in_one_step() -> None:
    record = EpisodeRecord()
    info = record.lost_at_start(FAULT, 4)
    assert kinds(info["stream"]) == ["episode_start", "fault", "episode_end"]
    assert info["stream"].requests == (Request(2, RequestKind.RESET, None, 0),)
    assert info["seq"] == 2


def test_too_many_faults_in_a_row_are_a_storm_and_a_good_end_counts_anew() -> None:
    record = EpisodeRecord("test/Env-v0")
    for round_ in range(2):
        for _ in range(MAX_FAULTS_IN_A_ROW - 1):
            record.began(0)
            record.lost(FAULT, 0)
        if round_ == 0:
            record.began(0)
            record.ended(0, 0.0, (), True, False)
    record.began(0)
    with pytest.raises(FaultStorm, match=r"test/Env-v0: 10 faults in a row, the last: it fell over"):
        record.lost(FAULT, 0)
    assert not record.live


def test_a_client_takes_over_the_numbers_of_its_server() -> None:
    server, client = begun(), EpisodeRecord("test/Env-v0")
    for _ in range(2):
        stream = server.began(3)
        client.adopt_reset({"stream": stream, "seq": server.seq})
        stream = server.acted(1, 2.0)
        client.adopt_step({"stream": stream, "seq": server.seq}, False)
        assert (client.live, client.seq, client.turn) == (True, server.seq, server.turn)
        stream = server.ended(1, 0.0, (), True, False)
        client.adopt_step({"stream": stream, "seq": server.seq}, True)
        assert not client.live
    assert client.episode == 1


def test_a_client_reports_a_reset_that_its_server_has_lost() -> None:
    server, client = begun(), EpisodeRecord("test/Env-v0")
    client.adopt_reset(server.lost_reset(FAULT, 3))
    assert client.report_loss(5) == server.report_loss(5)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda record: pickle.loads(pickle.dumps(record))])
def test_a_copy_goes_on_in_mid_episode(duplicate: Any) -> None:
    record = begun()
    record.acted(0, 1.0)
    other = duplicate(record)
    assert other.acted(1, 0.0) == record.acted(1, 0.0)
    assert other.counters() == record.counters()
