"""How a server in a container is reached: by a port of this machine's loopback, or by a socket in a folder.

A container whose network is ``"none"`` has no port to publish. Its server listens on a Unix socket then, in a
folder of this machine that nobody else may look into.
"""

from __future__ import annotations

import os
import shutil
import socket
from typing import Any, Protocol
from urllib.parse import quote

from envweave_gym.os_support.owned_folders import owned_folder

PORT = 8000
"""Where the servers of all images listen."""
_INSIDE = "/run/envweave"
_SOCKET = "server.sock"
_USER = 1000
"""Who the servers of our images are."""
SOCKETS = "envweave-socket-"
"""How the names of folders with sockets begin."""


class Entrance(Protocol):
    """One way in, which stays the same when the container is started again."""

    url: str
    """Where clients find the server; empty until the first container has started."""

    def arguments(self) -> dict[str, Any]:
        """What the client library is told of it when a container is made."""
        ...

    def found(self, attributes: dict[str, Any]) -> tuple[str, int] | None:
        """Take down what a started container is like; where it is reached without the engine's help."""
        ...

    def keep(self) -> None:
        """See that nobody else takes it while there is no container, if there ever was one."""
        ...

    def close(self) -> None:
        """Leave nothing behind."""
        ...


class LoopbackPort:
    """A port that the engine chooses once."""

    def __init__(self) -> None:
        self.url = ""
        self._number: str | None = None
        self._kept: socket.socket | None = None

    def arguments(self) -> dict[str, Any]:
        """Publish it on the loopback alone."""
        self.close()
        return {"ports": {f"{PORT}/tcp": ("127.0.0.1", self._number)}}

    def found(self, attributes: dict[str, Any]) -> tuple[str, int]:
        """Its number, and the address of the container in its network."""
        settings = attributes["NetworkSettings"]
        self._number = settings["Ports"][f"{PORT}/tcp"][0]["HostPort"]
        self.url = f"http://127.0.0.1:{self._number}"
        (network,) = settings["Networks"].values()
        return network["IPAddress"], PORT

    def keep(self) -> None:
        """Bind it without listening: no other socket is given its number, and who calls is refused."""
        self.close()
        if self._number is None:
            return
        self._kept = socket.socket()
        self._kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # calls of before may linger
        try:
            self._kept.bind(("127.0.0.1", int(self._number)))
        except OSError:  # somebody was faster, which the next start says
            self.close()

    def close(self) -> None:
        """Let go of it."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()


class SocketFolder:
    """A Unix socket in a folder that belongs to this user.

    Where that is root, the server is another user inside. Its folder is in one of root's then, as who has the
    same number on this machine is not meant.
    """

    def __init__(self) -> None:
        self._folder = self._shown = owned_folder(SOCKETS)
        self._user = os.getuid() or _USER
        if os.getuid() != self._user:
            self._shown = self._folder / "s"
            self._shown.mkdir(0o700)
            os.chown(self._shown, self._user, self._user)
        self.url = f"http+unix://{quote(str(self._shown / _SOCKET), safe='')}"

    def arguments(self) -> dict[str, Any]:
        """Show it the folder, and tell the server to listen there instead of on a port."""
        return {
            "environment": {"ENVWEAVE_UDS": f"{_INSIDE}/{_SOCKET}"},
            "volumes": {str(self._shown): {"bind": _INSIDE, "mode": "rw"}},
            "user": f"{self._user}:{self._user}",
        }

    def found(self, attributes: dict[str, Any]) -> None:
        """Nothing is shorter."""

    def keep(self) -> None:
        """Nobody else makes a socket in the folder."""

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
