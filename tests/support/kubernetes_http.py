"""How the stand-in of an API server is spoken with: HTTP, watches, and ports forwarded through WebSockets."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection
from wsproto.utilities import LocalProtocolError, generate_accept_token

CLUSTER_TOKEN = "token-of-the-cluster"
V4 = "v4.channel.k8s.io"


class Refused(Exception):
    """What the API server says instead of doing it."""

    def __init__(self, code: int, reason: str, message: str, retry_after: int | None = None) -> None:
        self.code, self.retry_after = code, retry_after
        self.status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        self.status |= {"message": message, "reason": reason, "code": code}


class HttpServer(ThreadingHTTPServer):
    api: Any
    request_queue_size = 512

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._connections: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """End all connections, also those that clients keep for what they may ask later."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):  # the other side has done so
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who hangs up is no error."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: HttpServer

    def do_GET(self) -> None:
        self._answer("get")

    def do_POST(self) -> None:
        self._answer("create")

    def do_DELETE(self) -> None:
        self._answer("delete")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base class has it
        """Nobody reads it."""

    def _answer(self, verb: str) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            self._do(verb, url.path, query, json.loads(body) if body else {})
        except Refused as refused:
            self._send(refused.code, json.dumps(refused.status).encode(), retry_after=refused.retry_after)

    def _do(self, verb: str, path: str, query: dict[str, str], body: dict[str, Any]) -> None:
        api = self.server.api
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if (scheme.lower(), token) != ("bearer", CLUSTER_TOKEN):
            raise Refused(401, "Unauthorized", "Unauthorized")
        api_part, v1, plural, namespace, resource, *rest = path.strip("/").split("/")
        assert (api_part, v1, plural) == ("api", "v1", "namespaces"), path
        name, sub = rest[0] if rest else "", rest[1] if len(rest) > 1 else ""
        if verb == "get" and not name:
            verb = "watch" if query.get("watch", "").lower() == "true" else "list"
        what = f"{resource}/{sub}" if sub else resource
        api.asked.append((verb, what))
        api.admit(verb, what, namespace, name or body.get("metadata", {}).get("name", ""))
        if what == "pods/portforward":
            self._forward(api.place_of(namespace, name), int(query["ports"]))
        elif what == "pods/log":
            self._send(200, api.log(namespace, name, query.get("container")), "text/plain")
        elif verb == "watch":
            self._stream(api.watched(namespace, query), cut=api.is_cut())
        elif verb == "list":
            self._send(200, json.dumps(api.listed(resource, namespace, query)).encode())
        elif verb == "create":
            self._send(201, json.dumps(api.create(resource, namespace, body)).encode())
        else:
            do = api.read if verb == "get" else api.delete
            self._send(200, json.dumps(do(resource, namespace, name)).encode())

    def _send(
        self, code: int, body: bytes, kind: str = "application/json", retry_after: int | None = None
    ) -> None:
        self.send_response(code)
        if retry_after is not None:
            self.send_header("Retry-After", str(retry_after))
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, events: Iterator[dict[str, Any]], *, cut: bool) -> None:
        """Send each event as a chunk; one that is ``cut`` ends in the middle of its first."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            line = json.dumps(event).encode() + b"\n"
            if cut:
                self.wfile.write(f"{len(line):x}\r\n".encode() + line[: len(line) // 2])
                self.close_connection = True
                return
            self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def _forward(self, ip: str, port: int) -> None:
        """Channels 0 and 1 are the data and the errors of the port; each begins with its number."""
        self.close_connection = True
        offered = [one.strip() for one in self.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        assert V4 in offered, offered
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        key = self.headers["Sec-WebSocket-Key"].encode()
        self.send_header("Sec-WebSocket-Accept", generate_accept_token(key).decode())
        self.send_header("Sec-WebSocket-Protocol", V4)
        self.end_headers()
        tunnel = _Tunnel(self, port)
        try:
            with socket.create_connection((ip, port), timeout=5) as pod:
                pod.settimeout(None)
                tunnel.carry(pod)
        except OSError as error:
            tunnel.send(1, f"error forwarding port {port} to pod: {error}".encode())
        tunnel.close()


class _Tunnel:
    """The server's side of a WebSocket whose messages begin with the number of a channel."""

    def __init__(self, handler: Handler, port: int) -> None:
        self._handler, self._websocket = handler, Connection(ConnectionType.SERVER)
        self._lock = threading.Lock()
        for channel in (0, 1):
            self.send(channel, port.to_bytes(2, "little"))

    def send(self, channel: int, data: bytes) -> None:
        with self._lock, contextlib.suppress(OSError, LocalProtocolError):  # who came, or the Pod, has left
            self._handler.wfile.write(self._websocket.send(BytesMessage(bytes([channel]) + data)))

    def close(self) -> None:
        with self._lock, contextlib.suppress(OSError, LocalProtocolError):
            self._handler.wfile.write(self._websocket.send(CloseConnection(1000)))

    def carry(self, pod: socket.socket) -> None:
        back = threading.Thread(target=self._carry_back, args=(pod,), daemon=True)
        back.start()
        while data := self._handler.rfile.read1(1 << 16):
            with self._lock:
                self._websocket.receive_data(data)
                events = list(self._websocket.events())
            for event in events:
                if isinstance(event, CloseConnection):
                    return
                if isinstance(event, BytesMessage):
                    self._take(pod, bytes(event.data), event.message_finished)
        with contextlib.suppress(OSError):
            pod.shutdown(socket.SHUT_RDWR)
        back.join(5)

    _part = b""

    def _take(self, pod: socket.socket, data: bytes, is_whole: bool) -> None:
        self._part += data
        if is_whole:
            assert self._part[0] == 0, self._part[:10]
            pod.sendall(self._part[1:])
            self._part = b""

    def _carry_back(self, pod: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := pod.recv(1 << 15):
                self.send(0, data)
        self.close()
        with contextlib.suppress(OSError):
            self._handler.connection.shutdown(socket.SHUT_RDWR)
