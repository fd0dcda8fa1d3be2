"""What ``served_envs`` has, on a server that takes its time before it counts a connection."""

from __future__ import annotations

import time
from typing import Any

import served_envs  # noqa: F401 - registers what is served

from envweave_gym_server.protocols.native.websocket import WebSockets

_add = WebSockets.add


def _add_late(websockets: WebSockets, connection: Any) -> None:
    time.sleep(0.3)
    _add(websockets, connection)


WebSockets.add = _add_late
