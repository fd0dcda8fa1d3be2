"""What an actor of Ray is that serves environments."""

from __future__ import annotations

import importlib
import os
import secrets
import sys
from collections.abc import Sequence
from typing import Any

from envweave_gym.core.faults import NotAvailable

SERVER = "envweave_gym_server.protocols.native.actor"
"""The module that actors load, on the nodes that they are on."""
_LOG = 64 << 10


class Actor:
    """What the actor is: the server, which this package does not know."""

    def __init__(self, server: str, ids: Sequence[str], paths: Sequence[str], socket_name: str) -> None:
        try:
            self._server = importlib.import_module(server).ActorServer(ids, paths)
        except ImportError as error:
            raise NotAvailable(
                f"the node has no envweave-gym that can serve ({error}); install 'envweave-gym[server]' and "
                "what the environments need there, or name it in runtime_env={'pip': […]}"
            ) from None
        node = importlib.import_module("ray").get_runtime_context().get_node_id()
        self._who = (secrets.token_hex(8), node)
        self._server.listen_locally(socket_name)

    def frames(self, frame: bytes, before: Any = None) -> Any:
        """The reply to the next frame of a client, behind what tells its line."""
        return self._server.frames(frame)

    def describe(self, frame: bytes) -> bytes:
        """The frame that tells what an environment is like."""
        return self._server.describe(frame)

    def leave(self, line: bytes) -> None:
        """A client has hung up."""
        self._server.leave(line)

    def ready(self) -> tuple[str, str]:
        """Which of the processes this is that have been the actor, and the node that it is on."""
        return self._who

    def logs(self) -> str:
        """The end of what its process has written."""
        written = b""
        for descriptor in (sys.__stdout__, sys.__stderr__):
            path = "" if descriptor is None else os.path.realpath(f"/proc/self/fd/{descriptor.fileno()}")
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    file.seek(max(os.path.getsize(path) - _LOG, 0))
                    written += file.read()
        return written.decode(errors="replace")

    def stop(self) -> None:
        """Close all environments."""
        self._server.stop()
