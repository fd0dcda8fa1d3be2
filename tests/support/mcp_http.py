"""An MCP server behind a URL that does what a test wants of it."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VERSION, STATELESS = "2025-11-25", "2026-07-28"
ECHO: dict[str, Any] = {
    "name": "écho",
    "inputSchema": {
        "type": "object",
        "properties": {
            "text": {"type": "string", "x-mcp-header": "Text"},
            "place": {"type": "object", "properties": {"deep": {"type": "boolean", "x-mcp-header": "Deep"}}},
        },
        "required": ["text"],
    },
}


class HttpServer(ThreadingHTTPServer):
    """Answers as ``how`` says, and remembers what was asked."""

    daemon_threads = True

    def __init__(self, how: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.how = how
        self.seen: list[tuple[str, dict[str, str], Any]] = []
        self.replies: list[Any] = []
        self.sessions = 0
        self.hung_up = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/mcp"

    def methods(self) -> list[str]:
        """What was asked, in turn."""
        return [message["method"] for _, _, message in self.seen if message and "method" in message]


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server: HttpServer

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_DELETE(self) -> None:
        self.server.seen.append(("DELETE", dict(self.headers), None))
        self._reply(200, b"")

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(("POST", dict(self.headers), message))
        if "method" not in message:
            self.server.replies.append(message)
        if "id" not in message or "method" not in message:
            self._reply(202, b"")
        else:
            getattr(self, f"_{self.server.how}")(message)

    # How

    def _json(self, message: Any) -> None:
        self._reply(200, json.dumps(self._answer(message)).encode())

    def _sse(self, message: Any) -> None:
        """Events, with a first one that is empty, comments, and lines that end in two ways."""
        answer = json.dumps(self._answer(message))
        progress = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": {}})
        events = (
            f"id: 1\r\ndata:\r\n\r\n: comment\r\n\r\nevent: message\ndata: {progress}\n\ndata: {answer}\n\n"
        )
        self._stream([events[:30].encode(), events[30:].encode()])

    def _asking(self, message: Any) -> None:
        """Asks for a ping before it answers."""
        if message["method"] != "tools/call":
            self._json(message)
            return
        self._begin_stream()
        self._chunk(b'data: {"jsonrpc": "2.0", "id": "q", "method": "ping"}\n\n')
        until = time.monotonic() + 3
        while not self.server.replies and time.monotonic() < until:
            time.sleep(0.01)
        self._chunk(f"data: {json.dumps(self._answer(message))}\n\n".encode())
        self._chunk(b"")

    def _session(self, message: Any) -> None:
        """Gives out sessions, of which it knows the last."""
        if message["method"] == "initialize":
            self.server.sessions += 1
            session = {"Mcp-Session-Id": str(self.server.sessions)}
            self._reply(200, json.dumps(self._answer(message)).encode(), **session)
        elif self.headers.get("Mcp-Session-Id") != str(self.server.sessions):
            self._reply(
                404, b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32001, "message": "Session"}}'
            )
        else:
            self._json(message)

    def _stateless(self, message: Any) -> None:
        """Takes no greeting, and wants to see in the headers what is in the body."""
        params, number = message["params"], message["id"]
        if message["method"] == "initialize":
            self._refuse(400, number, -32022, {"supported": [STATELESS], "requested": VERSION})
        elif not self._has_headers_of(message):
            self._refuse(400, number, -32020, None)
        elif message["method"] == "server/discover":
            self._result(number, {"supportedVersions": [STATELESS], "capabilities": {}})
        elif message["method"] == "tools/list":
            self._result(number, {"tools": [ECHO]})
        elif params["name"] == "écho":
            self._result(number, {"content": [{"type": "text", "text": params["arguments"]["text"]}]})
        else:
            self._refuse(404, number, -32601, None)

    def _has_headers_of(self, message: Any) -> bool:
        params = message["params"]
        expected = {
            "MCP-Protocol-Version": params["_meta"]["io.modelcontextprotocol/protocolVersion"],
            "Mcp-Method": message["method"],
            "Mcp-Name": params.get("name"),
            "Mcp-Param-Text": params.get("arguments", {}).get("text"),
        }
        return {name: decoded(self.headers.get(name)) for name in expected} == expected

    def _silent(self, message: Any) -> None:
        time.sleep(2)
        self.close_connection = True

    def _slow_calls(self, message: Any) -> None:
        """A stream that never gets to the answer, until who waits hangs up."""
        if message["method"] != "tools/call":
            self._stateless(message) if self.headers.get("Mcp-Method") else self._json(message)
            return
        self._begin_stream()
        try:
            for _ in range(100):
                self._chunk(b": still at it\n\n")
                time.sleep(0.05)
        except OSError:
            self.server.hung_up.set()

    def _slow_stateless(self, message: Any) -> None:
        if message["method"] == "tools/call":
            self._slow_calls(message)
        else:
            self._stateless(message)

    def _drip(self, message: Any) -> None:
        """One byte now and then, of a header that never ends."""
        self.close_connection = True
        try:
            for byte in b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 1000:
                self.wfile.write(bytes([byte]))
                time.sleep(0.05)
        except OSError:
            self.server.hung_up.set()

    def _drip_body(self, message: Any) -> None:
        self.close_connection = True
        try:
            self.wfile.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n"
            )
            for _ in range(1000):
                self.wfile.write(b" ")
                time.sleep(0.05)
        except OSError:
            self.server.hung_up.set()

    def _huge(self, message: Any) -> None:
        if message["method"] != "tools/call":
            self._json(message)
            return
        self.close_connection = True
        piece = b"x" * (1 << 20)
        try:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
            for _ in range(80):
                self.wfile.write(piece)
        except OSError:
            self.server.hung_up.set()

    def _huge_event(self, message: Any) -> None:
        if message["method"] != "tools/call":
            self._json(message)
            return
        piece = b"data: " + b"x" * (1 << 20) + b"\n"
        self._begin_stream()
        try:
            for _ in range(80):
                self._chunk(piece)
        except OSError:
            self.server.hung_up.set()

    def _page(self, message: Any) -> None:
        self._reply(200, b"<html>Welcome</html>", **{"Content-Type": "text/html"})

    def _forbidden(self, message: Any) -> None:
        self._reply(401, b"no key")

    def _moved(self, message: Any) -> None:
        if self.path == "/mcp":
            self._reply(307, b"", Location="/mcp/")
        else:
            self._json(message)

    def _moved_away(self, message: Any) -> None:
        self._reply(308, b"", Location="http://elsewhere.invalid/mcp")

    def _wrong_id(self, message: Any) -> None:
        self._reply(200, json.dumps({"jsonrpc": "2.0", "id": 999, "result": {}}).encode())

    def _hangs_up(self, message: Any) -> None:
        if message["method"] == "tools/call":
            self._stream([b": nothing\n\n"])
        else:
            self._json(message)

    # The pieces

    def _answer(self, message: Any) -> dict[str, Any]:
        result: dict[str, Any] = {}
        if message["method"] == "initialize":
            result = {"protocolVersion": VERSION, "capabilities": {}}
        elif message["method"] == "tools/list":
            result = {"tools": [ECHO]}
        elif message["method"] == "tools/call":
            result = {"content": [{"type": "text", "text": message["params"]["arguments"]["text"]}]}
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}

    def _result(self, number: Any, result: dict[str, Any]) -> None:
        answer = {"jsonrpc": "2.0", "id": number, "result": {"resultType": "complete", **result}}
        self._reply(200, json.dumps(answer).encode())

    def _refuse(self, status: int, number: Any, code: int, data: Any) -> None:
        error = {"code": code, "message": "refused", "data": data}
        self._reply(status, json.dumps({"jsonrpc": "2.0", "id": number, "error": error}).encode())

    def _reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, pieces: list[bytes]) -> None:
        self._begin_stream()
        for piece in pieces:
            self._chunk(piece)
        self._chunk(b"")

    def _begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, piece: bytes) -> None:
        self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")


def decoded(value: str | None) -> str | None:
    """A header as it was before it was made fit for HTTP."""
    if value is None or not value.startswith("=?base64?"):
        return value
    return base64.b64decode(value.removeprefix("=?base64?").removesuffix("?=")).decode()


@contextmanager
def http_server(how: str) -> Iterator[HttpServer]:
    """A server that runs."""
    with HttpServer(how) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
