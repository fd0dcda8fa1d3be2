"""The state machine of a client's session, input by input."""

from __future__ import annotations

import pytest

from envweave_gym.remote.session_protocol import Operation, SessionCore
from envweave_gym.wire.messages import Answer, Began, Created, Refused, Stepped

CREATE, SECONDS = b"create", 60.0


def connected_core(committed: int = 0) -> SessionCore:
    """A core with a connection and this many calls done; with none the first is under way."""
    core = SessionCore(CREATE, SECONDS)
    core.begin(b"call", 1, 0.0)
    core.connected(0.0)
    core.sent(0.0)
    for number in range(1, committed + 1):
        if number > 1:
            core.begin(b"call", number, 0.0)
        assert core.received(Began(number, 0, {})) is Operation.DELIVER
    return core


def test_the_first_call_brings_the_create_along_and_later_ones_do_not() -> None:
    core = SessionCore(CREATE, SECONDS)
    assert core.begin(b"call", core.next_number, 0.0) is Operation.CONNECT
    assert not core.may_exist
    assert core.connected(0.0) is Operation.SEND
    assert (core.call.opening, core.may_exist) == (CREATE, True)
    assert core.sent(0.0) is Operation.RECEIVE
    assert core.received(Created(0)) is Operation.RECEIVE  # the reply to the create
    assert core.received(Began(1, 0, {})) is Operation.DELIVER
    assert core.begin(b"call", core.next_number, 0.0) is Operation.SEND
    assert (core.call.number, core.call.opening) == (2, b"")


def test_the_reply_to_another_call_is_dropped() -> None:
    core = connected_core(committed=1)
    core.begin(b"call", 2, 0.0)
    for late in (Began(1, 0, {}), Stepped(3, 0, 0.0, False, False, {}), Answer(-2, None), Refused(1, "", "")):
        assert core.received(late) is Operation.RECEIVE
    assert core.received(Stepped(2, 0, 0.0, False, False, {})) is Operation.DELIVER
    assert core.next_number == 3


def test_a_refusal_of_the_create_is_that_of_the_call_and_ends_the_connection() -> None:
    core = connected_core()
    assert core.received(Refused(0, "AtCapacity", "full")) is Operation.REFUSE
    assert (core.may_exist, core.is_connected, core.committed) == (False, False, -1)


def test_a_call_that_was_stopped_before_its_reply_ends_the_connection_of_the_next_one() -> None:
    core = connected_core(committed=1)
    core.begin(b"step", 2, 0.0)
    core.sent(0.0)
    assert core.begin(b"reset", 2, 0.0) is Operation.CONNECT
    assert not core.is_connected


@pytest.mark.parametrize(("kind", "committed"), [("InvalidAction", 1), ("EnvironmentCrashed", 2)])
def test_a_refused_call_has_a_number_only_if_it_was_done(kind: str, committed: int) -> None:
    core = connected_core(committed=1)
    core.begin(b"call", 2, 0.0)
    assert core.received(Refused(2, kind, "no", 1)) is Operation.REFUSE
    assert (core.committed, core.next_number, core.is_connected) == (committed, committed + 1, True)


def test_a_frame_without_a_reply_is_sent_again_after_a_quarter_of_the_time() -> None:
    core = connected_core()
    assert core.call.until == SECONDS / 4
    assert core.unanswered(15.0) is Operation.PAUSE
    assert core.paused(15.0) is Operation.CONNECT
    assert core.connected(15.5) is Operation.SEND
    assert core.call.frame == b"call"
    core.sent(20.0)
    assert core.call.until == 35.0  # a large frame takes long, and the reply has its time after that


def test_the_deadline_counts_from_the_first_refused_connection() -> None:
    core, now = connected_core(), 50.0
    operation = core.unanswered(now)
    while operation is Operation.PAUSE:
        now += core.call.pause_s
        core.paused(now)
        operation = core.unsent(now, was_refused=True)
    assert operation is Operation.GIVE_UP
    assert 50.0 + SECONDS - 1.0 <= now <= 50.0 + SECONDS


def test_a_server_that_is_not_there_is_given_up_sooner_than_one_that_is_slow() -> None:
    core, now = SessionCore(CREATE, SECONDS), 0.0
    operation = core.begin(b"call", 1, now, give_up_s=2.0)
    while operation is Operation.CONNECT:
        now += 0.1
        operation = core.unsent(now)
        if operation is Operation.PAUSE:
            now += core.call.pause_s
            operation = core.paused(now)
    assert (operation, 2.0 <= now < 2.3) == (Operation.GIVE_UP, True)


def test_a_start_that_is_waited_for_is_no_attempt() -> None:
    core = SessionCore(CREATE, SECONDS)
    core.begin(b"call", 1, 0.0, give_up_s=1.0)
    for now in (10.0, 20.0, 30.0):
        assert core.still_starting(now, 10.0) is Operation.PAUSE
        core.paused(now)
        assert core.call.handshake_s == 0.5


def test_closing_takes_two_attempts() -> None:
    core = connected_core(committed=1)
    core.begin(b"close", core.next_question(), 0.0, 0.0, seconds=5.0, waits=2)
    assert core.unanswered(0.0) is Operation.PAUSE
    core.paused(0.1)
    assert core.unsent(0.2) is Operation.GIVE_UP
