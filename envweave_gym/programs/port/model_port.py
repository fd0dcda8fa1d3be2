"""Loopback HTTP endpoint that poses as a language model: each completion call of a program waits for an agent's reply.

A thread for each connection reads its requests; replies are sent by the thread that has them. A random token is
compared before the body of a request is received. One more thread accepts connections, keeps slow answers alive and
closes connections that ask nothing.
"""

from __future__ import annotations

import hmac
import math
import secrets
import select
import socket
import threading
import time
from contextlib import suppress
from urllib.parse import parse_qs

import msgspec

from envweave_gym.os_support.process_local import in_forked_child
from envweave_gym.programs.dialects.dialect import BadRequest
from envweave_gym.programs.dialects.routes import Route, json_bytes, models_body, route_of
from envweave_gym.programs.port.call import HEAD_DELAY_S, KEEP_ALIVE_S, Call, Receive
from envweave_gym.programs.port.connection import Connection
from envweave_gym.programs.port.http_requests import HttpRequest, Refused, response
from envweave_gym.programs.port.remembered_chats import RememberedChats
from envweave_gym.programs.port.retries import Retries

MAX_CONNECTIONS = 512
_READ_DEADLINE_S = 60.0
"""Longest time in which a request must arrive, once its first byte has."""
_FIRST_HEAD_DEADLINE_S = 10.0
"""Longest time in which the head of a connection's first request must arrive."""
_CLOSE_DEADLINE_S = 10.0
_TICK_S = 0.25
_PAUSE_S = 0.05
"""Pause after a failed accept, as when the process has no descriptors left."""


class ModelPort:
    """The endpoint; ``receive`` is called with each :class:`Call`, in the thread of its connection."""

    def __init__(
        self,
        receive: Receive,
        models: tuple[str, ...] = ("agent",),
        *,
        listener: socket.socket | None = None,
        only_models: bool = False,
        head_delay_s: float = HEAD_DELAY_S,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        """Open the port on a free number of the loopback, or on ``listener``, which the port closes at its end.

        A listener may have been made in another network namespace. ``only_models`` refuses all models but ``models``.
        """
        self.token = secrets.token_urlsafe(24)
        self._receive, self.models, self._only_models = receive, models, only_models
        self._head_delay_s, self._keep_alive_s = head_delay_s, keep_alive_s
        self._connections: dict[Connection, threading.Thread] = {}
        self._retries = Retries()
        self._remembered = RememberedChats()
        self._numbers = 0
        self._lock = threading.Lock()
        self._closing = False
        self._wake, self._woken = socket.socketpair()
        try:
            self._listener = listener or socket.create_server(("127.0.0.1", 0), backlog=128)
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
        return f"{self.root(prefix)}/v1"

    def root(self, prefix: str = "") -> str:
        """Return the base URL for clients that add the version themselves, as those of Anthropic and Gemini do."""
        return f"http://127.0.0.1:{self.number}{f'/{prefix}' if prefix else ''}"

    def drop_calls(self, text: str) -> None:
        """Refuse all calls that wait for a reply, and forget all calls: a new episode begins."""
        former, self._retries = self._retries, Retries()
        for call in former.all():
            call.refuse(text)
        self._remembered.clear()

    def close(self) -> None:
        """Close the port and all connections, without an answer to what waits; repeated calls do nothing."""
        if self._closing:
            return
        self._closing = True
        with suppress(OSError):
            self._wake.send(b"!")
        deadline = time.monotonic() + _CLOSE_DEADLINE_S
        _join(self._thread, deadline)
        for one in (self._listener, self._wake, self._woken):
            one.close()
        connections = list(self._connections.items())
        for connection, _ in connections:
            connection.hang_up()
        for _, thread in connections:
            _join(thread, deadline)

    def _forget(self) -> None:
        """Close the descriptors in a forked process."""
        self._closing = True
        for one in (self._listener, self._wake, self._woken):
            one.close()
        for connection in self._connections:
            connection.forget()

    # The thread that accepts

    def _serve(self) -> None:
        poll = select.poll()
        woken = self._woken.fileno()
        for descriptor in (self._listener.fileno(), woken):
            poll.register(descriptor, select.POLLIN)
        tick_ms = math.ceil(1000 * min(_TICK_S, self._head_delay_s, self._keep_alive_s))
        while not self._closing:
            for descriptor, _ in poll.poll(tick_ms if self._connections else None):
                if descriptor == woken:
                    return
                self._accept()
            self._check_connections()

    def _accept(self) -> None:
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
        connection = Connection(accepted, self._check, self._handle, self._error)
        thread = threading.Thread(
            target=self._serve_connection, args=(connection,), name="model call", daemon=True
        )
        self._connections[connection] = thread
        try:
            thread.start()
        except RuntimeError:  # no threads left
            del self._connections[connection]
            accepted.close()

    def _check_connections(self) -> None:
        """Send what slow answers need, and close connections whose requests do not arrive."""
        now = time.monotonic()
        for connection in list(self._connections):
            if (call := connection.call) is not None:
                call.keep_alive(now, self._head_delay_s, self._keep_alive_s)
            limit = _READ_DEADLINE_S if connection.has_asked else _FIRST_HEAD_DEADLINE_S
            if (since := connection.since) is not None and now - since > limit:
                connection.hang_up()

    # The threads of connections

    def _serve_connection(self, connection: Connection) -> None:
        try:
            connection.serve()
        finally:
            self._connections.pop(connection, None)

    def _check(self, head: HttpRequest) -> None:
        """Refuse a request without the token, or for a WebSocket."""
        if _is_probe(head):
            return
        if not self._has_token(head):
            raise Refused(401, "the token is missing or wrong")
        if head.headers.get("upgrade", "").lower() == "websocket":
            raise Refused(426, "this endpoint has no WebSockets; use HTTP")

    def _has_token(self, head: HttpRequest) -> bool:
        given = _token_in(head)
        return hmac.compare_digest(given.encode(errors="replace"), self.token.encode())

    def _handle(self, http: HttpRequest, connection: Connection) -> None:
        if http.method == "HEAD":
            # Whoever has no token gets no connection to hold.
            closes = not self._has_token(http)
            connection.send(response(200, "text/plain", b"", closes=closes), close=closes)
            return
        route = route_of(http.method, http.path, http.query, http.headers)
        if route.kind == "models":
            body = models_body(route.dialect, self.models, route.model)
            if body is None:
                raise Refused(404, self._no_model(route.model))
            connection.send(response(200, "application/json", json_bytes(body)))
        elif route.kind:
            self._ask(http, route, connection)
        else:
            shown = f"{http.method} {http.path[:200]}"
            raise Refused(404, f"there is no {shown}; there is POST /v1/chat/completions, for example")

    def _ask(self, http: HttpRequest, route: Route, connection: Connection) -> None:
        dialect = route.dialect
        try:
            target = route.target(http.path, http.headers, http.body)
            request = dialect.request_in(target, self._remembered.chats)
        except BadRequest as error:
            raise Refused(400, str(error)) from None
        if self._only_models and request.model not in self.models:
            raise Refused(404, self._no_model(request.model))
        if route.kind == "count":
            connection.send(response(200, "application/json", json_bytes(dialect.count_body(request))))
        elif (joined := self._retries.joined(request, connection)) is not None:
            joined.resume()
        else:
            with self._lock:
                self._numbers += 1
                number = self._numbers
            request = msgspec.structs.replace(request, serial=number)
            call = Call(request, number, dialect, connection, self._remembered.add)
            self._retries.add(call)
            self._receive(call)

    def _no_model(self, name: str) -> str:
        return f"there is no model {name[:80]!r}; there is {', '.join(self.models)}"

    def _error(self, head: HttpRequest | None, error: Refused) -> bytes:
        method, path, query = (head.method, head.path, head.query) if head else ("", "", "")
        route = route_of(method, path, query, head.headers if head else {})
        return json_bytes(route.dialect.error_body(error.status, str(error)))


def _is_probe(head: HttpRequest) -> bool:
    """Return whether a request asks for nothing but a status, and needs no token for that."""
    return head.method == "HEAD" and head.headers.get("content-length", "0") == "0"


def _token_in(head: HttpRequest) -> str:
    kind, _, given = head.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return given.strip()
    for name in ("x-api-key", "x-goog-api-key"):
        if name in head.headers:
            return head.headers[name]
    return parse_qs(head.query).get("key", [""])[0]


def _join(thread: threading.Thread, deadline: float) -> None:
    if thread is not threading.current_thread():
        thread.join(max(0.0, deadline - time.monotonic()))
