"""Endpoints that pose as a model, for the benchmark ``programs``: the model port, ``http.server`` and Flask.

    python -m benchmarks.peers.model_endpoints NAME     prints "PORT TOKEN", and serves until its stdin ends

Each gives every request to another thread, as a trainer would answer it, and sends that thread's text back.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[Any], None]


def in_another_thread(answer: Answer) -> Callable[[Any], None]:
    """A function that gives what it gets to a thread, which calls ``answer`` with it."""
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def work() -> None:
        while True:
            answer(waiting.get())

    threading.Thread(target=work, daemon=True).start()
    return waiting.put


class Pending:
    """A request of a peer: its handler waits for the text."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields, self._texts = fields, queue.SimpleQueue[str]()

    def answer(self) -> None:
        self._texts.put("ok")

    def body(self) -> bytes:
        message = {"role": "assistant", "content": self._texts.get()}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": self.fields["model"]}
        return json.dumps({**body, "choices": [choice]}).encode()


def serve_port() -> tuple[int, str]:
    from envweave_gym.programs.port.model_port import ModelPort
    from envweave_gym.programs.reply import Reply

    reply = Reply("ok")
    port = ModelPort(in_another_thread(lambda call: call.answer(reply)))
    return port.number, port.token


def serve_http_server() -> tuple[int, str]:
    ask = in_another_thread(Pending.answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # one write for head and body

        def do_POST(self) -> None:
            pending = Pending(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            ask(pending)
            body = pending.body()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port, ""


def serve_flask() -> tuple[int, str]:
    import logging

    from flask import Flask, Response, request
    from werkzeug.serving import WSGIRequestHandler, make_server

    WSGIRequestHandler.protocol_version = "HTTP/1.1"
    logging.getLogger("werkzeug").disabled = True
    ask, app = in_another_thread(Pending.answer), Flask(__name__)

    @app.post("/v1/chat/completions")
    def chat() -> Response:
        pending = Pending(request.get_json())
        ask(pending)
        return Response(pending.body(), mimetype="application/json")

    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port, ""


ENDPOINTS = {"model port": serve_port, "http.server": serve_http_server, "Flask, threaded": serve_flask}


def main(name: str) -> None:
    number, token = ENDPOINTS[name]()
    print(number, token, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
