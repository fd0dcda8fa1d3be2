"""The class of Ray actors that serve environments."""

from __future__ import annotations

import importlib
import os
import secrets
import sys
from collections.abc import Sequence
from typing import Any

from envweave_gym.core.faults import NotAvailable

SERVER = "envweave_gym_server.protocols.native.actor"
"""The module of the server, which actors import on their nodes."""
_LOG_BYTES = 64 << 10


class Actor:
    """Forwards calls to the server, which it imports by name: the client package does not import the server."""

    def __init__(self, server: str, ids: Sequence[str], paths: Sequence[str], socket_name: str) -> None:
        try:
            self._server = importlib.import_module(server).ActorServer(ids, paths)
        except ImportError as error:
            raise NotAvailable(
                f"the node has no envweave-gym that can serve ({error}); install 'envweave-gym[server]' and "
                "what the environments need there, or name it in runtime_env={'pip': […]}"
            ) from None
        node = importlib.import_module("ray").get_runtime_context().get_node_id()
        self._identity = (secrets.token_hex(8), node)
        self._server.listen_locally(socket_name)

    def frames(self, frame: bytes, before: Any = None) -> Any:
        """Return the reply to a frame, which begins with the prefix of its channel.

        ``before`` is the result of the previous call: Ray waits for it, so calls keep their order.
        """
        return self._server.frames(frame)

    def describe(self, frame: bytes) -> bytes:
        """Return the frame that describes an environment."""
        return self._server.describe(frame)

    def leave(self, channel: bytes) -> None:
        """Close the channel of a client that has hung up."""
        self._server.leave(channel)

    def ready(self) -> tuple[str, str]:
        """Return a random id of this process, which changes when Ray restarts the actor, and the id of its node."""
        return self._identity

    def logs(self) -> str:
        """Return the end of the output of the process."""
        written = b""
        for descriptor in (sys.__stdout__, sys.__stderr__):
            path = "" if descriptor is None else os.path.realpath(f"/proc/self/fd/{descriptor.fileno()}")
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    file.seek(max(os.path.getsize(path) - _LOG_BYTES, 0))
                    written += file.read()
        return written.decode(errors="replace")

    def stop(self) -> None:
        """Close all environments."""
        self._server.stop()
