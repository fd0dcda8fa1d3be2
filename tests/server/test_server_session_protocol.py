"""The state machines of sessions, driven without threads on a virtual clock."""

from __future__ import annotations

import pytest

from envweave_gym.core.faults import AtCapacity, InvalidArgument
from envweave_gym.wire.messages import Ask, Close, Create, Refused, Reset, Step, encode, read_reply
from envweave_gym_server.sessions.session_protocol import (
    CREATED,
    SessionCore,
    SlotState,
    TableCore,
    Verdict,
)

CREATE = encode(Create("envweave/Counter-v0"))


def session(now: float = 0.0) -> SessionCore:
    return SessionCore("one", CREATE, now)


def send(core: SessionCore, message: Reset | Step, reply: bytes = b"") -> Verdict:
    """Receive a message and, where it is to be done, commit a reply to it."""
    frame = encode(message)
    verdict, _ = core.receive(message, frame)
    if verdict is Verdict.DO:
        core.commit(frame, reply or b"reply %d" % message.call, 0.0)
    return verdict


def test_calls_are_done_in_the_order_of_their_numbers():
    core = session()
    assert [send(core, Reset(1)), send(core, Step(2, "a")), send(core, Step(3, "b"))] == [Verdict.DO] * 3
    assert core.committed == 3


def test_the_same_frame_again_gets_the_stored_reply():
    core = session()
    send(core, Reset(1, 7), b"began")
    frame = encode(Reset(1, 7))
    assert core.receive(Reset(1, 7), frame) == (Verdict.REPEAT, b"began")
    assert core.committed == 1


def test_another_call_with_the_same_number_is_a_conflict():
    core = session()
    send(core, Reset(1, 7))
    verdict, reply = core.receive(Reset(1, 8), encode(Reset(1, 8)))
    refused = read_reply(reply)
    assert isinstance(refused, Refused)
    assert (verdict, refused.kind, refused.committed) == (Verdict.REFUSE, "Conflict", 1)
    assert "another call had that number" in refused.message


@pytest.mark.parametrize("number", [-1, 0, 1, 4, 2**40])
def test_a_call_out_of_order_is_refused_with_the_last_number_that_was_done(number: int):
    core = session()
    send(core, Reset(1))
    send(core, Step(2, 0))
    verdict, reply = core.receive(Step(number, 0), encode(Step(number, 0)))
    refused = read_reply(reply)
    assert isinstance(refused, Refused)
    assert (verdict, refused.committed) == (Verdict.REFUSE, 2)
    assert "the next call is 3" in refused.message


def test_a_call_that_was_not_done_may_come_again_as_another():
    core = session()
    assert core.receive(Reset(1, "x"), encode(Reset(1, "x")))[0] is Verdict.DO  # the environment refuses it
    assert send(core, Reset(1, 3)) is Verdict.DO


def test_the_call_that_made_the_session_is_answered_whenever_it_comes_again():
    core = session()
    create = Create("envweave/Counter-v0")
    assert core.receive(create, CREATE) == (Verdict.REPEAT, CREATED)
    send(core, Reset(1))
    send(core, Step(2, 0))
    assert core.receive(create, CREATE) == (Verdict.REPEAT, CREATED)


def test_another_create_of_the_same_session_is_a_conflict():
    core, other = session(), Create("envweave/LineWorld-v0")
    assert core.receive(other, encode(other))[0] is Verdict.REFUSE


def test_questions_and_close_have_no_number():
    core = session()
    for number in (-2, 7):
        assert core.receive(Ask(number, "state"), b"")[0] is Verdict.ANSWER
    assert core.receive(Close(-3), b"")[0] is Verdict.CLOSE
    assert core.committed == 0


def test_a_lease_runs_only_while_no_client_uses_the_session():
    core = session(now=100.0)
    assert core.idle_s(130.0, wanted=False) == 30.0
    assert core.idle_s(140.0, wanted=True) == 0.0
    assert core.idle_s(150.0, wanted=False) == 10.0, "it began anew"


def test_a_create_reserves_a_slot_and_the_same_one_waits_for_it():
    table = TableCore(2, 10)
    assert table.create("one", 1) is SlotState.RESERVED
    assert table.create("one", 1) is SlotState.BEING_MADE
    table.opened("one")
    assert table.create("one", 1) is SlotState.OPEN
    assert (len(table), table.environments, table.being_made) == (1, 1, 0)


def test_a_session_that_was_not_made_frees_its_slot():
    table = TableCore(1, 10)
    table.create("one", 1)
    table.release("one")
    assert table.create("two", 1) is SlotState.RESERVED


def test_sessions_beyond_the_limit_are_refused_until_one_closes():
    table = TableCore(1, 10)
    table.create("one", 1)
    table.opened("one")
    with pytest.raises(AtCapacity, match="1 of 1 sessions"):
        table.create("two", 1)
    assert table.create("one", 1) is SlotState.OPEN, "who has a session reaches it"
    table.release("one")
    assert table.create("two", 1) is SlotState.RESERVED


def test_rows_of_all_sessions_count_together():
    table = TableCore(9, 10)
    table.create("one", 6)
    with pytest.raises(AtCapacity, match="6 of 10 environments are open, and 5 more"):
        table.create("two", 5)
    assert table.create("two", 4) is SlotState.RESERVED
    assert table.environments == 10


def test_a_vector_that_never_fits_counts_nothing_because_making_it_is_refused():
    table = TableCore(9, 10)
    assert table.create("huge", 11) is SlotState.RESERVED
    assert table.environments == 0


@pytest.mark.parametrize("name", ["", "..", ".", "a/b", "x" * 129, "ä"])
def test_an_invalid_session_id_is_refused(name: str):
    with pytest.raises(InvalidArgument, match="no id of a session"):
        TableCore(1, 1).create(name, 1)


def test_a_server_that_stops_takes_no_new_session_but_knows_the_old():
    table = TableCore(2, 10)
    table.create("one", 1)
    table.opened("one")
    table.stopping = True
    assert table.create("one", 1) is SlotState.OPEN
    with pytest.raises(AtCapacity, match="is stopping"):
        table.create("two", 1)
