"""A session on a server, from the client's side: numbered calls, asked again until they are answered."""

from __future__ import annotations

import logging
import math
import os
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from envweave_gym.core.faults import AtCapacity, EnvweaveError, NotAvailable, SessionLost
from envweave_gym.remote import upkeep
from envweave_gym.remote.abandoned_sessions import delete_abandoned
from envweave_gym.remote.address import Address
from envweave_gym.remote.errors import raise_refused
from envweave_gym.remote.transports import Transport, lost
from envweave_gym.wire.messages import (
    DONE_ALL_THE_SAME,
    NUMBERLESS,
    Answer,
    Ask,
    Close,
    Create,
    Refused,
    Reply,
    Reset,
    Step,
    encode,
    read_reply,
)
from envweave_gym.wire.values import pack

_CLOSE_DEADLINE = 5.0
_ATTEMPTS = 4
_HANDSHAKE = 0.5
"""So many seconds the first handshake of a call may take, and twice as many after each attempt that was lost,
be it in a handshake or for want of a reply: a server that has just died may leave its connections to the next
one unanswered."""
_START = 0.25
"""So many seconds a server that is just being started is waited for, until it is the turn of others."""
_GRACE = 0.125
"""So many seconds at least a reply is looked for, which has had all the time that others were waited for."""
_SAY_AFTER_S = 0.4
"""A call that has not reached its server for this long says so; attempts are at most 0.25 s apart by then."""
_unreached: set[str] = set()
"""URLs of servers of which that was said, and which have not been reached since."""
_log = logging.getLogger(__name__)

Build = Callable[[int], Reset | Step]
"""The call with a number."""


class _Call(msgspec.Struct, gc=False):
    """A call or a question that is under way."""

    frame: bytes
    number: int
    what: str
    """``Reset``, ``Step``, or the name of a question."""
    deadline: float
    patience: float
    """After so many seconds without a word it is sent again, over another connection."""
    opening: bytes = b""
    """What goes before it: the call that makes the session, whose refusal is that of both."""
    until: float = 0.0
    """When its patience is over."""
    pause: float = 0.0
    """So many seconds pass before it is sent again."""
    handshake: float = _HANDSHAKE
    """So many seconds the next connection may take."""
    hope: float = math.inf
    """Until when a server that is not there may come back; the time on a connection puts it off."""
    tried: float = 0.0
    """When it was sent last, or was to be sent."""
    start: upkeep.Start | None = None
    """A start of the server that is waited for."""
    missed: float = math.inf
    """Since when its server cannot be reached."""
    was_refused: bool = False
    """Whether a connection was refused, from when on its deadline counts."""


class RemoteSession:
    """One session: made by the first call, gone after :meth:`close`, a loss, or a fork."""

    _read = staticmethod(read_reply)
    """Reads the frame of a reply."""

    def __init__(self, address: Address, create: Create, deadline: float) -> None:
        self._transport: Transport | None = None
        self.address, self.id = address, uuid.uuid4().hex
        self._create, self._env_id = encode(create), create.env_id
        self._deadline = deadline
        self._committed = -1
        self._asked = NUMBERLESS
        self._maybe_there = False
        """Whether the server may have this session: something was sent that makes it."""
        self._since = math.inf
        """Since when."""
        self._unsent: Exception | None = None
        """Why what is under way could not be sent."""
        self._is_leaving = False
        self._pid = os.getpid()

    @property
    def begun(self) -> bool:
        """Whether an episode was begun in it."""
        return self._committed > 0

    @property
    def is_sent(self) -> bool:
        """Whether what is under way was sent; what was not is sent by the next :meth:`attempt`."""
        return self._transport is not None

    # What is called

    def reset(self, seed: Any, options: Any, *, hope: float = math.inf) -> Reply:
        """Start an episode; a new session is created with it.

        A server that is not there is given up after ``hope`` seconds.
        """
        self.send(lambda number: Reset(number, seed, pack(options)), hope)
        return self.receive()

    def step(self, action: Any) -> Reply:
        """Act, with an action that is packed already."""
        self.send(lambda number: Step(number, action))
        return self.receive()

    def ask(self, question: str, argument: Any = None) -> Any:
        """The answer to a question; a new session is created for it."""
        if self._committed < 0:
            self._begin(self._create, 0, question, self._deadline)
            self.receive()
        self._asked -= 1
        frame = encode(Ask(self._asked, question, pack(argument)))
        self._begin(frame, self._asked, question, self._deadline)
        reply = self.receive()
        return reply.value if isinstance(reply, Answer) else None

    def send(self, build: Build, hope: float = math.inf) -> None:
        """Send the next call; where it is lost on its way it is sent again by the next :meth:`attempt`."""
        opening = b"" if self._committed >= 0 else self._create
        number = max(self._committed, 0) + 1
        message = build(number)
        self._begin(encode(message), number, type(message).__name__, self._deadline, opening, hope)

    def receive(self) -> Reply:
        """The reply to what was sent last: the server does it once, however often it comes."""
        while (reply := self.attempt()) is None:
            pass
        return reply

    def attempt(self, grace: float = 0.0) -> Reply | None:
        """The reply to what was sent last; ``None`` where none came, and it has been sent again if it could.

        A reply may be lost without a word, so after a part of the time the frame is sent again over another
        connection. One that may be there by now is looked for in the seconds of ``grace`` even after that.
        """
        call = self._call
        try:
            until = max(call.until, time.monotonic() + grace) if grace else call.until
            reply = self._reply(call, until)
        except OSError as error:
            now = time.monotonic()
            if now + call.pause > call.deadline or call.tried > call.hope:
                self._hang_up()
                raise lost(self.address.url, error) from None
            if self._is_gone():
                stopped = "this process has stopped that server; make the environment on another"
                raise ConnectionError(f"{self.address.url}: {stopped}") from None
            if self.is_sent:
                call.hope += now - call.tried
                self._hang_up()
            self._send_again(call)
            return None
        except BaseException:
            self._hang_up()  # a reply that is still to come must not be taken for that to another call
            raise
        if isinstance(reply, Refused):
            self._refused(reply)
        if call.number >= 0:
            self._committed = call.number
        return reply

    def _is_gone(self) -> bool:
        """Whether nobody was reached where this process has stopped the server for good."""
        return not self.is_sent and self.address.is_stopped()

    # How frames go

    def _begin(
        self,
        frame: bytes,
        number: int,
        what: str,
        seconds: float,
        opening: bytes = b"",
        hope: float = math.inf,
    ) -> None:
        """Send a frame, as far as there is a way."""
        if os.getpid() != self._pid:
            self._transport = None
            raise SessionLost(f"{self.address.url}: the session belongs to the process that opened it")
        now = time.monotonic()
        self._call = _Call(
            frame, number, what, now + seconds, seconds / _ATTEMPTS, opening, hope=now + hope, tried=now
        )
        self._put()

    def _send_again(self, call: _Call) -> None:
        """Send once more what is under way, after a pause that grows; for the last time when hope ends."""
        time.sleep(min(call.pause, max(call.hope - time.monotonic(), 0.0)))
        call.pause = min(1.5 * call.pause + 0.002, 1.0)
        call.handshake *= 2
        call.tried = now = time.monotonic()
        call.handshake = min(call.handshake, max(call.hope - now, _HANDSHAKE))
        self._put()

    def _put(self) -> None:
        """Send what is under way, if there is a way or one can be made."""
        call = self._call
        try:
            transport = self._transport
            if transport is None:
                self._revive(call)
                self._transport = transport = self._connected(
                    min(call.deadline, time.monotonic() + call.handshake)
                )
                call.missed = math.inf
                _unreached.discard(self.address.url)
            if self._committed < 0 and not self._maybe_there:
                self._maybe_there, self._since = True, time.monotonic()
            until = self._until(call)
            transport.send(call.frame, until, call.opening)
            call.until = self._until(call)
        except OSError as given:
            self._hang_up()
            self._unsent = error = lost(self.address.url, given)
            if call.start is None and not self._is_leaving:
                self._missed(call, error)
        except BaseException:
            self._hang_up()
            raise

    def _missed(self, call: _Call, error: Exception) -> None:
        """Log one warning when a server is not reached, and count the deadline from the first refusal.

        A server that went away late in a long call has as much time to come back as any.
        """
        url, now = self.address.url, time.monotonic()
        call.missed = min(call.missed, now)
        if isinstance(error, ConnectionRefusedError) and not call.was_refused:
            call.was_refused, call.deadline = True, now + self._deadline
        if now - call.missed >= _SAY_AFTER_S and url not in _unreached:
            _unreached.add(url)
            why, left = (
                str(error).removeprefix(f"{url} does not answer: "),
                min(call.deadline, call.hope) - now,
            )
            what = f"{call.what.lower()} of {self._env_id or 'its environment'}"
            _log.warning("%s cannot be reached (%s); %s waits %.0f s more for it", url, why, what, left)

    def _until(self, call: _Call) -> float:
        """When it is time to send once more what is under way."""
        again = time.monotonic() + call.patience
        return again if again < call.deadline else call.deadline

    def _revive(self, call: _Call) -> None:
        """Start the server again where it has died; none is started to say goodbye to it.

        While it takes long this call is tried again, and so are those of other sessions meanwhile: it is not
        there yet, but will be. That it cannot be started is a loss as any, and may pass.
        """
        if self._is_leaving:
            return
        asked = time.monotonic()
        try:
            call.start = call.start or upkeep.begin(self.address.url)
            if call.start is not None:
                call.start.wait(min(_START, max(call.deadline - asked, 0.0)))
        except NotAvailable as error:
            call.start = None
            raise ConnectionError(f"{self.address.url}: {error}") from None
        except TimeoutError:
            call.handshake /= 2  # none was tried, so the next one need not be longer
            call.hope += time.monotonic() - asked
            raise
        call.start = None

    def _connected(self, deadline: float) -> Transport:
        try:
            return self.address.connector().connect(self.id, deadline)
        except NotAvailable as error:
            if upkeep.is_kept(self.address.url) and self.address.token is None:
                raise ConnectionError(f"somebody else answers where a server has ended: {error}") from None
            raise
        except (
            AtCapacity
        ) as error:  # of connections, which come and go: a session that is there has its place
            if self._committed < 0:
                raise
            raise ConnectionError(f"{self.address.url}: {error}") from None

    def _reply(self, call: _Call, until: float) -> Reply:
        transport = self._transport
        if transport is None:
            raise self._unsent or ConnectionError(f"{self.address.url} is not connected")
        while True:
            reply = self._reply_in(transport.receive(until))
            if call.opening and isinstance(reply, Refused) and reply.number < 1:
                self._hang_up()  # the refusal of the second frame is still to come
                return reply
            if _answers(reply, call.number):
                return reply

    def _reply_in(self, frame: bytes) -> Reply:
        """The reply in a frame; what is none has come from something else on the way, and counts as lost."""
        try:
            return self._read(frame)
        except (ValueError, RecursionError) as error:
            told = f"{self.address.url}: what came back is no reply of a server: {error}"
            raise ConnectionError(told) from None

    def _refused(self, reply: Refused) -> None:
        if reply.number == 0:
            self._maybe_there = False
        elif reply.kind in DONE_ALL_THE_SAME and reply.number > 0:
            self._committed = reply.number
        elif reply.number > 0:
            self._committed = max(self._committed, 0)
        raise_refused(reply, self.address.url, upkeep.why_ended(self.address.url, self._since))

    def _hang_up(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    # How it ends

    def drop(self) -> None:
        """Hang up, so that a reply that is still to come is not taken for that to another call."""
        if os.getpid() == self._pid:
            self._hang_up()

    def close(self) -> None:
        """Close the session, as far as the server can be reached."""
        if os.getpid() == self._pid and self._maybe_there:
            self._asked, self._is_leaving = self._asked - 1, True
            try:
                self._say_close(min(self._deadline, _CLOSE_DEADLINE))
            except (OSError, EnvweaveError) as error:
                _log.debug("session %s of %s was not closed: %s", self.id, self.address.url, error)
                if not isinstance(error, SessionLost):
                    self.discard()
            finally:
                self._is_leaving = False
        self.abandon()

    def _say_close(self, seconds: float) -> None:
        """Say so, and once more over another connection: the first may have been cut while nobody looked."""
        self._begin(encode(Close(self._asked)), self._asked, "close", seconds)
        call = self._call
        try:
            self._reply(call, call.deadline - seconds / 2)
        except (ConnectionError, TimeoutError):
            self._hang_up()
            call.handshake = seconds
            self._put()
            self._reply(call, call.deadline)

    def discard(self) -> None:
        """Leave a session that is lost; its server is told meanwhile, so that its place is free."""
        if os.getpid() == self._pid and self._maybe_there:
            delete_abandoned(self.address, self.id)
        self.abandon()

    def abandon(self) -> None:
        """Leave the session to its lease."""
        self.drop()
        self._committed, self._maybe_there = -1, False

    def __del__(self) -> None:
        self._hang_up()


def at_once(
    sessions: Sequence[RemoteSession], builds: Sequence[Build], hope: float = math.inf
) -> list[Reply | Exception]:
    """Send a call in every session, then wait for all replies; what one raises stands in its place.

    They are waited for in rounds, in which none keeps the others from being asked again. Servers that have
    to be started all are at the same time.
    """
    try:
        for session in sessions if len(sessions) > 1 else ():
            if not session.is_sent:
                upkeep.begin(session.address.url)
        told: list[Any] = [
            _tried(session.send, build, hope) for session, build in zip(sessions, builds, strict=True)
        ]
        while waiting := [place for place, reply in enumerate(told) if reply is None]:
            waiting.sort(key=lambda place: sessions[place].is_sent)
            for place in waiting:
                told[place] = _tried(sessions[place].attempt, _GRACE)
        return told
    except BaseException:
        for session in sessions:
            session.drop()
        raise


def _tried(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Exception as error:  # noqa: BLE001 - it is raised once the replies of the others are read
        return error


def _answers(reply: Reply, number: int) -> bool:
    """Whether this is the reply to that call, and no late copy of another."""
    given = reply.number if isinstance(reply, Answer | Refused) else reply.call
    return given == number or (isinstance(reply, Refused) and given == NUMBERLESS)
