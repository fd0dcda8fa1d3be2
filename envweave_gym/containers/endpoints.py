"""Addresses of servers in containers: a loopback port, or a Unix socket in a private folder.

A container with ``network="none"`` cannot publish a port, so its server listens on a Unix socket.
"""

from __future__ import annotations

import os
import shutil
import socket
from typing import Any, Protocol
from urllib.parse import quote

from envweave_gym.os_support.owned_folders import owned_folder

PORT = 8000
"""Port on which the servers in all images listen."""
SOCKET_FOLDERS = "envweave-socket-"
"""Prefix of the names of folders with sockets."""
_INSIDE = "/run/envweave"
_SOCKET = "server.sock"
USER = 1000
"""User ID of the servers in our images."""


class Endpoint(Protocol):
    """Address of a server, which remains the same when its container is replaced."""

    url: str
    """URL for clients; empty until the first container has started."""

    def arguments(self) -> dict[str, Any]:
        """Return the address's part of the arguments of ``docker.containers.create``."""
        ...

    def locate(self, attributes: dict[str, Any]) -> tuple[str, int] | None:
        """Set :attr:`url` for a started container; return the container's own host and port, if it has any.

        ``attributes`` are those that the engine reports for the container.
        """
        ...

    def reserve(self) -> None:
        """Keep other programs from taking the address while there is no container."""
        ...

    def close(self) -> None:
        """Release the address."""
        ...


class LoopbackPort:
    """Port of the loopback interface, which the engine chooses when the first container starts."""

    def __init__(self) -> None:
        self.url = ""
        self._number: str | None = None
        self._reservation: socket.socket | None = None

    def arguments(self) -> dict[str, Any]:
        """Return the argument that publishes the port, and release its reservation."""
        self.close()
        return {"ports": {f"{PORT}/tcp": ("127.0.0.1", self._number)}}

    def locate(self, attributes: dict[str, Any]) -> tuple[str, int]:
        """Read the published port; return host and port of the container in its network."""
        settings = attributes["NetworkSettings"]
        self._number = settings["Ports"][f"{PORT}/tcp"][0]["HostPort"]
        self.url = f"http://127.0.0.1:{self._number}"
        (network,) = settings["Networks"].values()
        return network["IPAddress"], PORT

    def reserve(self) -> None:
        """Bind the port without listening, so that no other socket gets it and connections are refused."""
        self.close()
        if self._number is None:
            return
        self._reservation = socket.socket()
        # Connections of the last container may still be in TIME_WAIT.
        self._reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._reservation.bind(("127.0.0.1", int(self._number)))
        except OSError:  # another program has it already, which the next start reports
            self.close()

    def close(self) -> None:
        """Release the port."""
        reservation, self._reservation = self._reservation, None
        if reservation is not None:
            reservation.close()


class SocketFolder:
    """Unix socket in a private folder of this user.

    If this user is root, the server runs as another user in the container. The socket's folder then belongs to
    that user ID, and lies within a folder of root, so that a user with the same ID on this machine cannot enter
    it.
    """

    def __init__(self) -> None:
        self._folder = self._mounted = owned_folder(SOCKET_FOLDERS)
        self._user = os.getuid() or USER
        if os.getuid() != self._user:
            self._mounted = self._folder / "s"
            self._mounted.mkdir(0o700)
            os.chown(self._mounted, self._user, self._user)
        self.url = f"http+unix://{quote(str(self._mounted / _SOCKET), safe='')}"

    def arguments(self) -> dict[str, Any]:
        """Return arguments that mount the folder and make the server listen on the socket, not on its port."""
        return {
            "environment": {"ENVWEAVE_UDS": f"{_INSIDE}/{_SOCKET}"},
            "volumes": {str(self._mounted): {"bind": _INSIDE, "mode": "rw"}},
            "user": f"{self._user}:{self._user}",
        }

    def locate(self, attributes: dict[str, Any]) -> None:
        """Return ``None``: the socket is the only address."""

    def reserve(self) -> None:
        """Do nothing: no other user can create a socket in the folder."""

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
