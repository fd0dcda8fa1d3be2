"""Session on a server, client side: carries out the I/O that the state machine ``SessionCore`` decides."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from envweave_gym.core.faults import AtCapacity, EnvweaveError, NotAvailable, SessionLost
from envweave_gym.os_support.process_local import in_forked_child
from envweave_gym.remote import started_servers
from envweave_gym.remote.abandoned_sessions import delete_abandoned
from envweave_gym.remote.address import Address
from envweave_gym.remote.errors import raise_refused
from envweave_gym.remote.session_protocol import Call, Operation, SessionCore
from envweave_gym.remote.transports import Transport, lost
from envweave_gym.wire.frame_limits import SMALL_REPLY, check_reply
from envweave_gym.wire.messages import Answer, Ask, Close, Create, Reply, Reset, Step, encode, read_reply
from envweave_gym.wire.values import pack

_CLOSE_TIMEOUT_S = 5.0
_START_WAIT_S = 0.25
"""Longest wait at a time for a server that is starting, so that other sessions have their turn."""
_GRACE_S = 0.125
"""Time to look for a reply that became overdue while the loop waited for other sessions."""
_WARN_AFTER_S = 0.4
"""Time without reaching the server after which a call logs a warning; attempts are 0.25 s apart by then."""
_warned_of: set[str] = set()
"""URLs of servers that were logged as unreachable, and have not been reached since."""
_of_parent: list[Transport | None] = []
"""Transports inherited by a forked process; referenced here so that they are neither closed nor collected."""
_log = logging.getLogger(__name__)
_SEND, _RECEIVE, _DELIVER = Operation.SEND, Operation.RECEIVE, Operation.DELIVER


class RemoteSession:
    """One session on a server: opened by the first call, ended by :meth:`close`, by a loss or in a forked child."""

    _read = staticmethod(read_reply)
    """Decoder of reply frames."""

    def __init__(self, address: Address, create: Create, deadline: float) -> None:
        """``create`` is the message that creates the environment; ``deadline`` limits each call, in seconds."""
        self._transport: Transport | None = None
        self.address, self.id = address, uuid.uuid4().hex
        self._create, self._deadline_s = create, deadline
        self._core = SessionCore(encode(create), deadline)
        self._next = Operation.GIVE_UP
        self._error: Exception = ConnectionError(f"{address.url}: nothing was sent")
        """The error of the last lost connection or reply."""
        self._failed: Call | None = None
        """The call that ``_error`` belongs to, if that call did not reach the server."""
        self._start: started_servers.Start | None = None
        """The start of the server that this session waits for, or ``None``."""
        self._message: Create | Reset | Step | Ask | Close = create
        self._is_disowned = False
        in_forked_child(self, RemoteSession._disown)

    def _disown(self) -> None:
        """Give the session up in a forked child, because the parent still uses its connection."""
        # Closing the transport may shut down the connection, which the parent still uses; collecting it warns.
        _of_parent.append(self._transport)
        self._transport, self._is_disowned = None, True
        self._core.forget()

    @property
    def begun(self) -> bool:
        """Whether this session has begun an episode."""
        return self._core.committed > 0

    @property
    def is_sent(self) -> bool:
        """Whether the call was sent; if not, the next :meth:`attempt` sends it."""
        return self._transport is not None

    @property
    def overdue_at(self) -> float:
        """Time at which the reply is overdue and the call is sent again."""
        return self._core.call.until

    # Calls

    def reset(self, seed: Any, options: Any, *, give_up_s: float = math.inf) -> Reply:
        """Start an episode; if the server does not have the session yet, the same call creates it.

        Give up on a server that cannot be reached after ``give_up_s`` seconds.
        """
        return self.call(Reset(0, seed, pack(options)), give_up_s)

    def call(self, message: Reset | Step, give_up_s: float = math.inf) -> Reply:
        """Number a call, send it and return its reply; every step takes this path."""
        core = self._core
        message.call, self._message = core.next_number, message
        self._send(core.begin(encode(message), core.next_number, time.monotonic(), give_up_s))
        while (reply := self.attempt()) is None:
            pass
        return reply

    def ask(self, question: str, argument: Any = None) -> Any:
        """Return the answer to a question; if the server does not have the session yet, create it first.

        A question changes no state and has no number in the sequence of calls.
        """
        if self._core.committed < 0:
            self._begin(self._create, 0)
            self.receive()
        message = Ask(self._core.next_question(), question, pack(argument))
        self._begin(message, message.number)
        reply = self.receive()
        return reply.value if isinstance(reply, Answer) else None

    def send(self, message: Reset | Step, give_up_s: float = math.inf) -> None:
        """Number a call and send it; if it cannot be sent, the next :meth:`attempt` sends it again."""
        message.call = number = self._core.next_number
        self._begin(message, number, give_up_s)

    def receive(self) -> Reply:
        """Return the reply to the call that was sent last, and send that again as often as needed."""
        while (reply := self.attempt()) is None:
            pass
        return reply

    def attempt(self, grace_s: float = 0.0) -> Reply | None:
        """Return the reply to the last call, or ``None`` after the call was sent again.

        An overdue reply is still looked for during ``grace_s`` seconds.
        """
        operation, core, transport = self._next, self._core, self._transport
        if operation is _RECEIVE and transport is not None:
            until = max(core.call.until, time.monotonic() + grace_s) if grace_s else core.call.until
            try:
                while True:
                    frame = transport.receive(until)
                    try:
                        if len(frame) > SMALL_REPLY:
                            check_reply(frame)
                        reply = self._read(frame)
                    except (ValueError, RecursionError) as error:  # from a device on the way: as good as lost
                        raise ConnectionError(
                            f"{self.address.url} sent no reply of a server: {error}"
                        ) from None
                    operation = core.received(reply)
                    if operation is _DELIVER:
                        return reply
                    if operation is not _RECEIVE:
                        break
            except OSError as error:
                self._hang_up()
                self._error, operation = lost(self.address.url, error), core.unanswered(time.monotonic())
            except BaseException:
                self._hang_up()  # a late reply to this call must not be taken for the reply to the next
                raise
            else:
                self._raise_refusal(reply)
        if operation is not Operation.PAUSE:
            raise self._error
        time.sleep(core.call.pause_s)
        self._send(core.paused(time.monotonic()))
        return None

    # Operations

    def _begin(
        self, message: Create | Reset | Step | Ask | Close, number: int, give_up_s: float = math.inf
    ) -> None:
        self._message = message
        self._send(self._core.begin(encode(message), number, time.monotonic(), give_up_s))

    def _send(self, operation: Operation) -> None:
        """Carry out ``operation`` and those that follow, until the call waits for its reply or for another attempt."""
        core = self._core
        try:
            if operation is not _SEND:
                operation = self._connect()
            transport = self._transport
            if operation is _SEND and transport is not None:
                call = core.call
                transport.send(call.frame, call.until, call.opening)
                operation = core.sent(time.monotonic())
        except OSError as error:
            operation = self._unsent(lost(self.address.url, error))
        except BaseException:
            self._hang_up()
            raise
        self._next = operation

    def _connect(self) -> Operation:
        """Connect to the server, and return the next operation of the state machine.

        A server that this process has started and that has died is started again first.
        """
        core, url, began = self._core, self.address.url, time.monotonic()
        self._hang_up()
        if self._is_disowned:
            raise SessionLost(f"{url}: the session belongs to the process that opened it")
        if not isinstance(self._message, Close):
            try:
                self._wait_for_start()
            except TimeoutError as error:
                now = time.monotonic()
                self._error = lost(url, error)
                return core.still_starting(now, now - began)
            core.started(time.monotonic())
        self._transport = self._connected(core.call.until)
        _warned_of.discard(url)
        return core.connected(time.monotonic())

    def _wait_for_start(self) -> None:
        """Start the server if this process owns it, and wait at most ``_START_WAIT_S`` for it.

        Raise ``TimeoutError`` if it takes longer, and ``ConnectionError`` if the start fails, as the cause may
        pass.
        """
        # A start that is over is kept until its error was raised; begin() would start the server once more.
        start, self._start = self._start or started_servers.begin(self.address.url), None
        if start is None:
            return
        left = self._core.call.deadline - time.monotonic()
        try:
            start.wait(min(_START_WAIT_S, max(left, 0.0)))
        except TimeoutError:
            self._start = start
            raise
        except NotAvailable as error:
            raise ConnectionError(f"{self.address.url}: {error}") from None

    def _connected(self, until: float) -> Transport:
        try:
            return self.address.connector().connect(self.id, until)
        except NotAvailable as error:
            if started_servers.is_kept(self.address.url) and self.address.token is None:
                raise ConnectionError(f"another server answers where one has ended: {error}") from None
            raise
        except AtCapacity as error:  # the limit of connections: wait, as an open session keeps its slot
            if self._core.committed < 0:
                raise
            raise ConnectionError(f"{self.address.url}: {error}") from None

    def _unsent(self, error: Exception) -> Operation:
        """Return the next operation after a call did not reach the server; log a warning if that has lasted."""
        self._hang_up()
        core, now = self._core, time.monotonic()
        call = core.call
        # The error of an attempt that the deadline cut short says less than the error of the attempt before.
        if not (isinstance(error, TimeoutError) and call.until >= call.deadline and self._failed is call):
            self._error, self._failed = error, call
        operation = core.unsent(now, was_refused=isinstance(error, ConnectionRefusedError))
        if operation is Operation.PAUSE and self.address.is_stopped():
            why = "this process has stopped that server; make the environment on another"
            self._error = ConnectionError(f"{self.address.url}: {why}")
            return Operation.GIVE_UP
        if now - call.unreached_since >= _WARN_AFTER_S and not isinstance(self._message, Close):
            self._warn(error, min(call.deadline, call.give_up_at) - now)
        return operation

    def _warn(self, error: Exception, left_s: float) -> None:
        """Log that the server cannot be reached, once until it is reached again; ``left_s`` is the call's time left."""
        url = self.address.url
        if url not in _warned_of:
            _warned_of.add(url)
            message, whose = self._message, self._create.env_id or "its environment"
            what = message.question if isinstance(message, Ask) else type(message).__name__.lower()
            why = str(error).removeprefix(f"{url} does not answer: ")
            text = "%s cannot be reached (%s); %s of %s waits %.0f s more for it"
            _log.warning(text, url, why, what, whose, left_s)

    def _raise_refusal(self, reply: Any) -> NoReturn:
        if not self._core.is_connected:
            self._hang_up()
        raise_refused(reply, self.address.url, started_servers.why_ended(self.address.url, self._core.since))

    def _hang_up(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport, self._core.is_connected = None, False

    # Ends

    def drop(self) -> None:
        """Close the connection, so that a late reply is not taken for the reply to the next call."""
        self._hang_up()
        self._next = Operation.GIVE_UP

    def close(self) -> None:
        """Close the session on the server; if the server cannot be reached, delete it in the background."""
        core = self._core
        if core.may_exist:
            close, seconds = Close(core.next_question()), min(self._deadline_s, _CLOSE_TIMEOUT_S)
            self._message = close
            try:
                # Two attempts: the connection may have been cut while no call was under way.
                self._send(
                    core.begin(encode(close), close.number, time.monotonic(), 0.0, seconds=seconds, waits=2)
                )
                self.receive()
            except (OSError, EnvweaveError) as error:
                _log.debug("session %s of %s was not closed: %s", self.id, self.address.url, error)
                if not isinstance(error, SessionLost):
                    self.discard()
        self.abandon()

    def discard(self) -> None:
        """Give up a lost session and delete it in the background, which frees its slot on the server."""
        if self._core.may_exist:
            delete_abandoned(self.address, self.id)
        self.abandon()

    def abandon(self) -> None:
        """Give up the session without a message to the server, which ends it when its lease expires."""
        self.drop()
        self._core.forget()

    def __del__(self) -> None:
        self._hang_up()


def call_all(
    sessions: Sequence[RemoteSession], messages: Sequence[Reset | Step], give_up_s: float = math.inf
) -> list[Reply | Exception]:
    """Send a call in each session, then wait for all replies; return replies, and exceptions of failed calls.

    The sessions are waited for in rounds, so that a slow session does not keep others from sending again.
    Servers that have to be started start in parallel.
    """
    if len(sessions) == 1:
        return [_tried(sessions[0].call, messages[0], give_up_s)]
    try:
        for session in sessions:
            if not session.is_sent:
                started_servers.begin(session.address.url)
        replies: list[Any] = [
            _tried(session.send, message, give_up_s)
            for session, message in zip(sessions, messages, strict=True)
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
