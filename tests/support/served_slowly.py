"""What ``served_envs`` has, on a server that takes its time before it counts a connection."""

from __future__ import annotations

import time
from typing import Any

import served_envs  # noqa: F401 - registers what is served

from envweave_gym_server.protocols.native.websocket import Watch

_add = Watch.add


def _add_late(watch: Watch, connection: Any) -> None:
    time.sleep(0.3)
    _add(watch, connection)


Watch.add = _add_late
