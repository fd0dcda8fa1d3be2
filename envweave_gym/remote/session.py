"""A session on a server, from the client's side: carries out what its state machine decides."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from envweave_gym.core.faults import AtCapacity, EnvweaveError, NotAvailable, SessionLost
from envweave_gym.os_support.process_local import in_forked_child
from envweave_gym.remote import upkeep
from envweave_gym.remote.abandoned_sessions import delete_abandoned
from envweave_gym.remote.address import Address
from envweave_gym.remote.errors import raise_refused
from envweave_gym.remote.session_core import (
    Action,
    Connect,
    Deliver,
    GiveUp,
    Pause,
    Receive,
    Refuse,
    Send,
    SessionCore,
)
from envweave_gym.remote.transports import Transport, lost
from envweave_gym.wire.messages import Answer, Ask, Close, Create, Reply, Reset, Step, encode, read_reply
from envweave_gym.wire.values import pack

_CLOSE_TIMEOUT_S = 5.0
_START_WAIT_S = 0.25
"""A server that is being started is waited for this long, until it is the turn of other sessions."""
_GRACE_S = 0.125
"""A reply whose time has passed while others were waited for is still looked for this long."""
_WARN_AFTER_S = 0.4
"""A call that has not reached its server for this long logs it; its attempts are 0.25 s apart by then."""
_warned_of: set[str] = set()
"""URLs of servers of which that was logged, and which have not been reached since."""
_log = logging.getLogger(__name__)

Build = Callable[[int], Reset | Step]
"""Returns the call with a number."""


class RemoteSession:
    """One session: made by the first call, gone after :meth:`close`, a loss, or a fork."""

    _read = staticmethod(read_reply)
    """Reads the frame of a reply."""

    def __init__(self, address: Address, create: Create, deadline: float) -> None:
        """``deadline`` is the time of each call in seconds."""
        self._transport: Transport | None = None
        self.address, self.id = address, uuid.uuid4().hex
        self._create, self._env_id, self._deadline_s = create, create.env_id, deadline
        self._core = SessionCore(encode(create), deadline)
        self._next: Action | None = None
        self._start: upkeep.Start | None = None
        """A start of the server that is waited for."""
        self._message: Create | Reset | Step | Ask | Close = create
        self._is_disowned = self._is_closing = False
        in_forked_child(self, RemoteSession._disown)

    def _disown(self) -> None:
        """In a forked process: leave the session to the parent."""
        self._transport, self._is_disowned = None, True
        self._core.forget()

    @property
    def begun(self) -> bool:
        """Whether an episode was begun in it."""
        return self._core.committed > 0

    @property
    def is_sent(self) -> bool:
        """Whether the call was sent; one that was not is sent by the next :meth:`attempt`."""
        return self._transport is not None

    @property
    def overdue_at(self) -> float:
        """When the reply is overdue, and the call is sent again."""
        return self._core.call.until

    # Calls

    def reset(self, seed: Any, options: Any, *, hope: float = math.inf) -> Reply:
        """Start an episode; a new session is created with it.

        A server that is not there is given up after ``hope`` seconds.
        """
        self.send(lambda number: Reset(number, seed, pack(options)), hope)
        return self.receive()

    def step(self, action: Any) -> Reply:
        """Act, with an action that is packed already."""
        number = self._core.next_call()
        self._begin(Step(number, action), number)
        return self.receive()

    def ask(self, question: str, argument: Any = None) -> Any:
        """The answer to a question; a new session is created for it."""
        if self._core.committed < 0:
            self._begin(self._create, 0)
            self.receive()
        number = self._core.next_question()
        self._begin(Ask(number, question, pack(argument)), number)
        reply = self.receive()
        return reply.value if isinstance(reply, Answer) else None

    def send(self, build: Build, hope: float = math.inf) -> None:
        """Send the next call; one that is lost on its way is sent again by the next :meth:`attempt`."""
        number = self._core.next_call()
        self._begin(build(number), number, give_up_s=hope)

    def receive(self) -> Reply:
        """The reply to the call that was sent last."""
        while (reply := self.attempt()) is None:
            pass
        return reply

    def attempt(self, grace: float = 0.0) -> Reply | None:
        """The reply to the call that was sent last; ``None`` if none came, and it may have been sent again.

        A reply that may be there by now is looked for in the seconds of ``grace`` even after its time.
        """
        action = self._next
        if isinstance(action, Receive):
            until = max(action.until, time.monotonic() + grace) if grace else action.until
            outcome = self._receive(until)
            if isinstance(outcome, Deliver):
                return outcome.reply
            if isinstance(outcome, Refuse):
                self._raise_refusal(outcome)
            self._next = action = outcome
        if isinstance(action, Pause):
            if action.seconds > 0:
                time.sleep(action.seconds)
            self._advance(self._core.paused(time.monotonic()))
        elif isinstance(action, GiveUp):
            raise action.error
        return None

    # Actions

    def _begin(
        self,
        message: Create | Reset | Step | Ask | Close,
        number: int,
        *,
        seconds: float | None = None,
        give_up_s: float = math.inf,
        waits: int | None = None,
    ) -> None:
        if self._is_disowned:
            raise SessionLost(f"{self.address.url}: the session belongs to the process that opened it")
        self._start, self._message = None, message
        now = time.monotonic()
        self._advance(self._core.begin(encode(message), number, now, seconds, give_up_s, waits))

    def _advance(self, action: Action) -> None:
        """Carry out actions up to the next one that waits: for the reply, or before another attempt."""
        try:
            while True:
                if isinstance(action, Send):
                    transport, call = self._transport, self._core.call
                    assert transport is not None
                    transport.send(call.frame, action.until, call.opening)
                    action = Receive(action.until)
                elif isinstance(action, Connect):
                    action = self._connect(action.until)
                else:
                    break
        except OSError as error:
            self._hang_up()
            action = self._unsent(lost(self.address.url, error))
        except BaseException:
            self._hang_up()
            raise
        self._next = action

    def _connect(self, until: float) -> Action:
        started = time.monotonic()
        try:
            if not self._is_closing:
                self._wait_for_start()
        except TimeoutError as error:
            now = time.monotonic()
            return self._core.still_starting(error, now, now - started)
        self._transport = self._connected(until)
        _warned_of.discard(self.address.url)
        return self._core.connected(time.monotonic())

    def _wait_for_start(self) -> None:
        """Start the server if this process keeps it up and it has died; one that starts slowly is waited for.

        That it cannot be started is a loss as any, and may pass.
        """
        self._start = self._start or upkeep.begin(self.address.url)
        if self._start is None:
            return
        left = self._core.call.deadline - time.monotonic()
        try:
            self._start.wait(min(_START_WAIT_S, max(left, 0.0)))
        except NotAvailable as error:
            self._start = None
            raise ConnectionError(f"{self.address.url}: {error}") from None
        self._start = None

    def _connected(self, until: float) -> Transport:
        try:
            return self.address.connector().connect(self.id, until)
        except NotAvailable as error:
            if upkeep.is_kept(self.address.url) and self.address.token is None:
                raise ConnectionError(f"another server answers where one has ended: {error}") from None
            raise
        except AtCapacity as error:  # of connections: they come and go, and an open session has its slot
            if self._core.committed < 0:
                raise
            raise ConnectionError(f"{self.address.url}: {error}") from None

    def _unsent(self, error: Exception) -> Action:
        action = self._core.unsent(error, time.monotonic())
        if self.address.is_stopped():
            why = "this process has stopped that server; make the environment on another"
            return GiveUp(ConnectionError(f"{self.address.url}: {why}"))
        if isinstance(action, Pause) and not self._is_closing and action.unreached_s >= _WARN_AFTER_S:
            self._warn(error, action.left_s)
        return action

    def _warn(self, error: Exception, left_s: float) -> None:
        """Log that the server is not reached, once until it is."""
        url = self.address.url
        if url not in _warned_of:
            _warned_of.add(url)
            message, whose = self._message, self._env_id or "its environment"
            what = message.question if isinstance(message, Ask) else type(message).__name__.lower()
            why = str(error).removeprefix(f"{url} does not answer: ")
            text = "%s cannot be reached (%s); %s of %s waits %.0f s more for it"
            _log.warning(text, url, why, what, whose, left_s)

    def _receive(self, until: float) -> Deliver | Refuse | Pause | GiveUp:
        """Receive replies until the one to this call."""
        transport = self._transport
        assert transport is not None
        try:
            while True:
                outcome = self._core.received(self._reply_in(transport.receive(until)))
                if not isinstance(outcome, Receive):
                    return outcome
        except OSError as error:
            self._hang_up()
            return self._core.unanswered(lost(self.address.url, error), time.monotonic())
        except BaseException:
            self._hang_up()  # a reply that is still to come must not be taken for that to another call
            raise

    def _reply_in(self, frame: bytes) -> Reply:
        """The reply in a frame; another frame comes from something else on the way, and counts as lost."""
        try:
            return self._read(frame)
        except (ValueError, RecursionError) as error:
            why = f"what came back is no reply of a server: {error}"
            raise ConnectionError(f"{self.address.url}: {why}") from None

    def _raise_refusal(self, refuse: Refuse) -> NoReturn:
        if refuse.hang_up:
            self._hang_up()
        raise_refused(refuse.reply, self.address.url, upkeep.why_ended(self.address.url, self._core.since))

    def _hang_up(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport, self._core.is_connected = None, False

    # Ends

    def drop(self) -> None:
        """Hang up, so that a reply that is still to come is not taken for that to another call."""
        self._hang_up()

    def close(self) -> None:
        """Close the session, as far as the server can be reached.

        It is sent twice at most: the connection may have been cut while nobody looked.
        """
        if self._core.may_exist:
            number, seconds = self._core.next_question(), min(self._deadline_s, _CLOSE_TIMEOUT_S)
            self._is_closing = True
            try:
                self._begin(Close(number), number, seconds=seconds, give_up_s=0.0, waits=2)
                self.receive()
            except (OSError, EnvweaveError) as error:
                _log.debug("session %s of %s was not closed: %s", self.id, self.address.url, error)
                if not isinstance(error, SessionLost):
                    self.discard()
            finally:
                self._is_closing = False
        self.abandon()

    def discard(self) -> None:
        """Leave a session that is lost; the server deletes it in the background, which frees its slot."""
        if self._core.may_exist:
            delete_abandoned(self.address, self.id)
        self.abandon()

    def abandon(self) -> None:
        """Leave the session to its lease."""
        self._hang_up()
        self._core.forget()

    def __del__(self) -> None:
        self._hang_up()


def at_once(
    sessions: Sequence[RemoteSession], builds: Sequence[Build], hope: float = math.inf
) -> list[Reply | Exception]:
    """Send a call in every session, then wait for all replies; an exception takes the index of its reply.

    They are waited for in rounds, in which none keeps the others from being sent again. Servers that have to
    be started start at the same time.
    """
    try:
        for session in sessions if len(sessions) > 1 else ():
            if not session.is_sent:
                upkeep.begin(session.address.url)
        replies: list[Any] = [
            _tried(session.send, build, hope) for session, build in zip(sessions, builds, strict=True)
        ]
        while waiting := [index for index, reply in enumerate(replies) if reply is None]:
            waiting.sort(key=lambda index: sessions[index].is_sent)
            for index in waiting:
                replies[index] = _tried(sessions[index].attempt, _GRACE_S)
        return replies
    except BaseException:
        for session in sessions:
            session.drop()
        raise


def _tried(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Exception as error:  # noqa: BLE001 - it is raised once the replies of the others are read
        return error
