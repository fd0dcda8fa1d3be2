"""Class of the Ray actors that serve environments."""

from __future__ import annotations

import importlib
import os
import secrets
import sys
from collections.abc import Sequence
from typing import Any

from envweave_gym.core.faults import NotAvailable

SERVER = "envweave_gym_server.protocols.native.actor"
"""Module of the server, which actors import by name on their nodes."""
_LOG_BYTES = 64 << 10


class Actor:
    """Ray actor that forwards calls to a server.

    It imports the server by name, because the client package must not depend on the server package.
    """

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
        """Return the reply to one frame; the frame begins with its channel prefix (:func:`channel_prefix`).

        ``before`` is the result of the previous call. Ray starts a call when its arguments are available, so
        calls keep their order.
        """
        return self._server.frames(frame)

    def describe(self, frame: bytes) -> bytes:
        """Return a frame with the spaces and metadata of the environment that a create message would make."""
        return self._server.describe(frame)

    def leave(self, channel: bytes) -> None:
        """Close the channel (a connection to one session) of a client that has disconnected."""
        self._server.leave(channel)

    def ready(self) -> tuple[str, str]:
        """Return a random id of this process, which changes when Ray restarts the actor, and the node's id."""
        return self._identity

    def logs(self) -> str:
        """Return the end of this process's stdout and stderr."""
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
