"""Session on an OpenEnv server: one WebSocket, on which the server keeps one environment.

The protocol has no request numbers. So a session allows one request at a time, and after anything but a proper reply
(a timeout, a lost connection, an interrupt) it is lost for good: a late reply could be taken for that to the next
request, and a new connection would silently be a fresh environment.
"""

from __future__ import annotations

import math
import select
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from envweave_gym.core.faults import InvalidAction, InvalidArgument, NotAvailable, SessionLost, shown
from envweave_gym.core.secret_reference import Secret
from envweave_gym.hubs.openenv import idle_pings
from envweave_gym.hubs.openenv import message_dialects as messages
from envweave_gym.net.dial import GATEWAY_ERRORS
from envweave_gym.net.http import BodyTooLarge, HttpConnection
from envweave_gym.net.websocket import TEXT, ConnectionClosed, HandshakeRefused, open_websocket
from envweave_gym.os_support.process_local import Owner
from envweave_gym.remote.errors import untrusted
from envweave_gym.remote.transports import lost

_E = TypeVar("_E", bound=BaseException)

_LARGEST_DOCUMENT_BYTES = 4 << 20
_CLOSE_TIMEOUT_S = 0.5
"""Time to wait for the server's close frame: afterwards its slot is free for another session."""
_LAST_MESSAGE_TIMEOUT_S = 0.5
"""Time to wait for the message in which a server says why it has closed the connection."""
_HUNG_FOR_S, _CLOSE_TIMEOUT_OF_HUNG_S = 10.0, 0.01
"""Time for which a server counts as hung after it did not answer, and the time that other sessions wait meanwhile."""
_PING_TIMEOUT_S = 0.005
_REFUSED = (401, 403)
_REDIRECTS = (301, 302, 303, 307, 308)
_NOT_FOUND = 404
_hung: dict[str, float] = {}
"""Time at which a server last answered no message ``close``, by URL; only of the last seconds."""

DirectAddress = Callable[[], tuple[str, int] | None]
"""Function that returns a host and port to connect to in place of those of the URL, or ``None``."""


class OpenEnvSession:
    """One session on a server; :attr:`url` names the server in all errors."""

    def __init__(
        self, url: str, headers: Mapping[str, str], deadline: float, at: DirectAddress | None = None
    ) -> None:
        """Connect to the server at ``url``, or at the host and port that ``at`` returns, before the deadline."""
        self.url = url
        self._owner, self._lock = Owner(), threading.Lock()
        self._unrequested: bytes | None = None
        self._why_lost = ""
        self._secrets: list[Secret] = []
        try:
            self._socket = open_websocket(
                url, "/ws", deadline, headers, largest=messages.LARGEST_MESSAGE_BYTES, at=at
            )
        except HandshakeRefused as error:
            raise refused(url, error.status) from None
        except OSError as error:
            raise connection_error(url, error) from None
        weakref.finalize(self, self._socket.close).atexit = False
        idle_pings.answer_while_idle(self)

    @property
    def is_lost(self) -> bool:
        """Whether the session can no longer be used."""
        return bool(self._why_lost)

    def call(
        self, kind: str, data: Any, deadline: float, known: Collection[str] | None = None
    ) -> dict[str, Any]:
        """Send a request and return the data of its reply; error replies raise what they mean.

        ``known`` are the members of actions, if the server's schema names them all. After ``InvalidAction`` and
        ``InvalidArgument``, and if the server cannot tell its state, the episode goes on. After all other errors the
        session is lost.
        """
        frame = _encoded(kind, data, self._hidden)
        if not self._owner.is_here():
            raise SessionLost(f"{self.url}: the session belongs to the process that opened it")
        stays_open = False
        if not self._lock.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
            raise TimeoutError(f"{self.url}: another thread's call did not end before the deadline")
        try:
            if self._why_lost:
                raise SessionLost(f"{self.url}: the session is lost: {self._why_lost}")
            reply = self._exchange(frame, deadline)
            stays_open = kind == messages.STATE and messages.is_harmless_error(reply)
            if reply.type == "error" and self._secrets:
                reply.data, data = self._hidden(reply.data), self._hidden(data)
            return messages.data_of(self.url, kind, reply, data, known)
        except OSError as error:
            self._lose(error)
            raise self.without_secrets(connection_error(self.url, error)) from None
        except BaseException as error:
            if not stays_open and not isinstance(error, (InvalidAction, InvalidArgument)):
                self._lose(error)
            hidden = self.without_secrets(error)
            if hidden is error:
                raise
            raise hidden from None
        finally:
            self._lock.release()

    def keep_secret(self, secrets: Iterable[Secret]) -> None:
        """Replace these texts in all later errors of the session, as a server may repeat what it was sent."""
        self._secrets += [one for one in secrets if one not in self._secrets]

    def without_secrets(self, error: _E) -> _E:
        """Return the error without the secrets that were sent in this session."""
        text = str(error)
        hidden = self._hidden(text)
        return error if hidden == text else type(error)(hidden)

    def _hidden(self, value: Any) -> Any:
        """Return JSON with the secrets replaced in all its texts, before any of these is shortened."""
        if isinstance(value, list):
            return [self._hidden(one) for one in value]
        if isinstance(value, dict):
            return {self._hidden(name): self._hidden(one) for name, one in value.items()}
        if isinstance(value, str):
            for one in self._secrets:
                value = one.hidden_in(value)
        return value

    def _exchange(self, frame: bytes, deadline: float) -> messages.Reply:
        if self._unrequested is not None:
            return self._check_unrequested(messages.decode(self.url, self._unrequested))
        try:
            self._socket.send(frame, deadline, kind=TEXT)
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            return self._check_unrequested(self._last_message(error))
        return messages.decode(self.url, self._socket.receive(deadline))

    def _last_message(self, error: OSError) -> messages.Reply:
        """Return the message that a server sent before it closed the connection; raise ``error`` if there is none."""
        try:
            last = self._socket.receive(time.monotonic() + _LAST_MESSAGE_TIMEOUT_S)
        except OSError:
            raise error from None
        return messages.decode(self.url, last)

    def _check_unrequested(self, reply: messages.Reply) -> messages.Reply:
        """Return an error that a server sent on its own, as it does if it is full; other messages lose the session."""
        if reply.type != "error":
            raise SessionLost(f"{self.url} sent a message that nobody has requested: {shown(reply.type)}")
        return reply

    def answer_pings(self) -> None:
        """Answer the server's pings; called between calls by the thread that serves all sessions."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._why_lost or self._unrequested is not None:
                return
            if not self._socket.has_received and not _is_readable(self._socket.fileno()):
                return
            self._unrequested = self._socket.receive(time.monotonic() + _PING_TIMEOUT_S)
        except TimeoutError:  # it was a ping, or the beginning of something longer
            pass
        except OSError as error:
            self._lose(error)
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the session; a call of another thread fails at once."""
        if not self._owner.is_here():
            return
        if not self._lock.acquire(blocking=False):
            self._socket.cut()
            return
        try:
            if not self._why_lost:
                self._send_close()
                self._lose(SessionLost("it was closed"))
        finally:
            self._lock.release()

    def _send_close(self) -> None:
        """Send the message ``close`` and wait a moment for the server's close frame."""
        now = time.monotonic()
        is_hung = now < _hung.get(self.url, -math.inf) + _HUNG_FOR_S
        deadline = now + (_CLOSE_TIMEOUT_OF_HUNG_S if is_hung else _CLOSE_TIMEOUT_S)
        with suppress(OSError):
            try:
                self._socket.send(messages.encode(messages.CLOSE), deadline, kind=TEXT)
                while True:
                    self._socket.receive(deadline)
            except TimeoutError:
                _remember_hung(self.url, now)
            except ConnectionClosed:
                _hung.pop(self.url, None)

    def _lose(self, error: BaseException) -> None:
        self._why_lost = str(error) or type(error).__name__
        idle_pings.forget(self)
        self._socket.close()


def _encoded(kind: str, data: Any, hidden: Callable[[Any], Any]) -> bytes:
    """Return a request as JSON; ``hidden`` replaces the secrets in what an error shows."""
    try:
        return messages.encode(kind, data)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        wrong = InvalidAction if kind == messages.STEP else InvalidArgument
        if isinstance(data, dict):  # whose other values may be no JSON
            data = {name: hidden(one) if isinstance(one, str) else one for name, one in data.items()}
        raise wrong(f"{shown(data)} cannot be sent as JSON: {error}") from None


def _remember_hung(url: str, now: float) -> None:
    """Record that a server is hung, and forget those that were long ago."""
    for one, since in list(_hung.items()):
        if now >= since + _HUNG_FOR_S:
            _hung.pop(one, None)
    _hung[url] = now


def _is_readable(number: int) -> bool:
    if number < 0:
        return False
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return bool(poll.poll(0))


# Errors, and documents that need no session


def connection_error(url: str, error: OSError) -> Exception:
    """Return the exception for a connection that failed, with the URL in its message."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return untrusted(url, error)
    if isinstance(error, ConnectionClosed):
        return ConnectionError(f"{url} has hung up: {error}")
    return lost(url, error)


def refused(url: str, status: int) -> Exception:
    """Return the exception for an HTTP status other than the one that was expected."""
    if status in _REFUSED:
        return NotAvailable(f"{url} answers with HTTP {status}; give token='env:NAME' or 'file:PATH'")
    if status in GATEWAY_ERRORS:
        return ConnectionError(f"{url} is not reached: HTTP {status}")
    if status in _REDIRECTS:
        advice = "give the URL that it leads to, such as openenv+https://host"
        return NotAvailable(f"{url} answers with a redirect (HTTP {status}); {advice}")
    return ConnectionError(f"{url} is no OpenEnv server: it answers with HTTP {status}")


def fetch_schema(
    url: str, headers: Mapping[str, str], deadline: float, at: DirectAddress | None = None
) -> dict[str, Any] | None:
    """Return the JSON object at ``/schema``; ``None`` if the server has no such path."""
    try:
        with HttpConnection(url, at=at) as connection:
            response = connection.request("GET", "/schema", deadline, headers)
            if response.status == _NOT_FOUND:
                return None
            if response.status != 200:
                raise refused(url, response.status)
            body = response.body(_LARGEST_DOCUMENT_BYTES)
    except BodyTooLarge:
        raise NotAvailable(f"{url}: its /schema is larger than {_LARGEST_DOCUMENT_BYTES} bytes") from None
    except OSError as error:
        raise connection_error(url, error) from None
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NotAvailable(f"{url}: its /schema is no JSON object: {error}") from None
