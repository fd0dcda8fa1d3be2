"""A bare flask-sock echo, for gunicorn: what a WebSocket on Flask costs without any environment."""

from __future__ import annotations

from typing import Any

from flask import Flask
from flask_sock import Sock

app = Flask(__name__)
_sock = Sock(app)


@_sock.route("/echo")
def echo(ws: Any) -> None:
    while True:
        ws.send(ws.receive())
