"""Loopback HTTP endpoint that poses as a language model: each completion call of a program waits for an agent's reply.

One thread reads all connections; replies are sent by the thread that has them. A random token is compared before the
body of a request is received. Retries are not recognised yet: clients must be set to make none.
"""

from __future__ import annotations

import hmac
import re
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from envweave_gym.os_support.process_local import in_forked_child
from envweave_gym.programs.chat_completions import (
    CHAT,
    LEGACY,
    BadRequest,
    CompletionRequest,
    error_body,
    models_body,
    read_request,
    write_reply,
)
from envweave_gym.programs.http_requests import HttpRequest, Refused, RequestReader, response
from envweave_gym.programs.reply import Reply

MAX_CONNECTIONS = 512
_READ_DEADLINE_S = 60.0
"""Longest time in which a request must arrive, once its first byte has."""
_FIRST_HEAD_DEADLINE_S = 10.0
"""Longest time in which the head of a connection's first request must arrive."""
_SEND_DEADLINE_S = 30.0
_PIECE_BYTES = 1 << 18
_TICK_S = 1.0
_PAUSE_S = 0.05
"""Pause after a failed accept, as when the process has no descriptors left."""
_PATH = re.compile(r"(?:/(?P<prefix>\w+))?/v1(?P<route>/[\w/.-]+)")


class Call:
    """A completion call that waits for its reply."""

    def __init__(self, request: CompletionRequest, number: int, prefix: str, connection: _Connection) -> None:
        self.request, self.number, self.prefix, self._connection = request, number, prefix, connection
        """``number`` is part of IDs in the reply, and counts the calls of the port unless the owner sets another;
        ``prefix`` is the first part of the path, before ``/v1``."""

    @property
    def is_gone(self) -> bool:
        """Whether the program has hung up, or was answered."""
        return self._connection.call is not self

    def answer(self, reply: Reply) -> bool:
        """Send the reply; return whether the program was still there to take it."""
        kind, body = write_reply(self.request, reply, self.number)
        return self._connection.finish(self, response(200, kind, body))

    def refuse(self, text: str) -> bool:
        """Send an error that is not worth another try; return whether the program was there to take it."""
        data = response(400, "application/json", error_body(text), closes=True)
        return self._connection.finish(self, data, close=True)


class ModelPort:
    """The endpoint; ``receive`` is called with each :class:`Call`, in the thread of the port."""

    def __init__(self, receive: Callable[[Call], None], models: tuple[str, ...] = ("agent",)) -> None:
        self.token = secrets.token_urlsafe(24)
        self._receive, self.models = receive, models
        self._connections: dict[int, _Connection] = {}
        self._numbers = 0
        self._closing = False
        self._wake, self._woken = socket.socketpair()
        try:
            self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        except BaseException:
            self._wake.close()
            self._woken.close()
            raise
        self._listener.setblocking(False)
        self.number = self._listener.getsockname()[1]
        in_forked_child(self, ModelPort._forget)
        self._thread = threading.Thread(target=self._serve, name="model port", daemon=True)
        self._thread.start()

    def url(self, prefix: str = "") -> str:
        """Return the base URL for clients, which ends with ``/v1``; a prefix marks their calls."""
        return f"http://127.0.0.1:{self.number}{f'/{prefix}' if prefix else ''}/v1"

    def drop_calls(self, text: str) -> None:
        """Refuse all calls that wait for a reply."""
        for connection in list(self._connections.values()):
            if (call := connection.call) is not None:
                call.refuse(text)

    def close(self) -> None:
        """Close the port and all connections; repeated calls do nothing."""
        if self._closing:
            return
        self._closing = True
        with suppress(OSError):
            self._wake.send(b"!")
        if self._thread is not threading.current_thread():
            self._thread.join(_SEND_DEADLINE_S)
        for one in (self._listener, self._wake, self._woken):
            one.close()
        for connection in list(self._connections.values()):
            connection.hang_up()

    def _forget(self) -> None:
        """Close the descriptors in a forked process."""
        self._closing = True
        for one in (self._listener, self._wake, self._woken):
            one.close()
        for connection in self._connections.values():
            connection.forget()

    # The thread of the port

    def _serve(self) -> None:
        poll = select.poll()
        listener, woken = self._listener.fileno(), self._woken.fileno()
        for descriptor in (listener, woken):
            poll.register(descriptor, select.POLLIN)
        while not self._closing:
            for descriptor, _ in poll.poll(1000 * _TICK_S):
                if descriptor == woken:
                    return
                if descriptor == listener:
                    self._accept(poll)
                elif (connection := self._connections.get(descriptor)) is not None:
                    self._read(connection, poll)
            self._close_slow(poll)

    def _accept(self, poll: select.poll) -> None:
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError, InterruptedError):
            return
        except OSError:  # no descriptors left, or no memory: the peer waits in the backlog
            time.sleep(_PAUSE_S)
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            accepted.close()
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(accepted, self._check)
        self._connections[connection.descriptor] = connection
        poll.register(connection.descriptor, select.POLLIN)

    def _check(self, head: HttpRequest) -> None:
        """Refuse a request without the token, or for a path that the port does not have."""
        if head.method == "HEAD" and head.path == "/":
            return
        kind, _, given = head.headers.get("authorization", "").partition(" ")
        given = given.strip() if kind.lower() == "bearer" else head.headers.get("x-api-key", "")
        if not hmac.compare_digest(given.encode("latin-1"), self.token.encode()):
            raise Refused(401, "the token is missing or wrong")
        if head.headers.get("upgrade"):
            raise Refused(426, "this endpoint has no WebSockets; use HTTP")

    def _read(self, connection: _Connection, poll: select.poll) -> None:
        try:
            data = connection.socket.recv(_PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            request = connection.reader.feed(data) if data else None
            if request is not None and connection.call is not None:
                raise Refused(400, "the call before this one has no reply yet")
            if request is not None:
                self._handle(request, connection)
        except Refused as error:
            connection.send(response(error.status, "application/json", error_body(str(error)), closes=True))
            data = b""
        if not data:
            poll.unregister(connection.descriptor)
            self._connections.pop(connection.descriptor, None)
            connection.hang_up()
        else:
            connection.since = None if connection.reader.is_idle else connection.since or time.monotonic()

    def _handle(self, request: HttpRequest, connection: _Connection) -> None:
        if request.method == "HEAD":
            connection.send(response(200, "text/plain", b""))
            return
        found = _PATH.fullmatch(request.path)
        route = found["route"] if found else ""
        if found is not None and request.method == "GET" and route == "/models":
            connection.send(response(200, "application/json", models_body(self.models)))
        elif found is not None and request.method == "POST" and route in (CHAT, LEGACY):
            try:
                completion = read_request(route, request.body)
            except BadRequest as error:
                raise Refused(400, str(error)) from None
            self._numbers += 1
            call = Call(completion, self._numbers, found["prefix"] or "", connection)
            connection.call = call
            self._receive(call)
        else:
            raise Refused(404, f"there is no {request.method} {request.path}; there is POST /v1{CHAT}")

    def _close_slow(self, poll: select.poll) -> None:
        now = time.monotonic()
        for connection in list(self._connections.values()):
            limit = _READ_DEADLINE_S if connection.has_asked else _FIRST_HEAD_DEADLINE_S
            if connection.since is not None and now - connection.since > limit:
                poll.unregister(connection.descriptor)
                self._connections.pop(connection.descriptor, None)
                connection.hang_up()


class _Connection:
    """One connection, which the thread of the port reads, and any thread sends a reply on."""

    def __init__(self, connected: socket.socket, check: Callable[[HttpRequest], None]) -> None:
        self.socket, self.descriptor = connected, connected.fileno()
        self._check = check
        self.reader = RequestReader(self._checked)
        self.call: Call | None = None
        """The call that waits for its reply."""
        self.since: float | None = time.monotonic()
        """When the request that is arriving began, or the connection, which must bring one."""
        self.has_asked = False
        """Whether the head of a request has arrived."""
        self._sending = threading.Lock()

    def _checked(self, head: HttpRequest) -> None:
        self._check(head)
        self.has_asked = True

    def finish(self, call: Call, data: bytes, *, close: bool = False) -> bool:
        """Send the response to ``call`` unless it is gone; return whether it was sent as a whole."""
        with self._sending:
            if self.call is not call:
                return False
            self.call = None  # before the peer can send its next request
            sent = self._send(data)
            if close:  # the thread of the port reads the end, and closes it
                with suppress(OSError):
                    self.socket.shutdown(socket.SHUT_RDWR)
            return sent

    def send(self, data: bytes) -> None:
        """Send a response that the port gives itself."""
        with self._sending:
            self._send(data)

    def _send(self, data: bytes) -> bool:
        left, deadline = memoryview(data), time.monotonic() + _SEND_DEADLINE_S
        poll = select.poll()
        poll.register(self.descriptor, select.POLLOUT)
        try:
            while left:
                try:
                    left = left[self.socket.send(left) :]
                except BlockingIOError:
                    if not poll.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
                        return False
        except (OSError, ValueError):
            return False
        return True

    def hang_up(self) -> None:
        """Close the connection; a thread that sends on it fails first."""
        self.call = None
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        with self._sending:
            self.socket.close()

    def forget(self) -> None:
        """Close the descriptor in a forked process, where no other thread is left."""
        self.call = None
        self.socket.close()
