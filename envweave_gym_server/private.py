"""``python -m envweave_gym_server.private FD``: a server for the process that starts it, which it trusts.

Its owner gives it a listening socket, and a token over the pipe that is its standard input. When the pipe
closes the owner is gone, or wants it to go: then the whole process group ends at once.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from typing import Any

import envweave_gym
from envweave_gym.wire.messages import Create
from envweave_gym_server.app import create_app
from envweave_gym_server.offers import Offer
from envweave_gym_server.serve import Server
from envweave_gym_server.state import ServerState


class Everything(dict[str, Offer]):
    """Offers whatever this machine can make, with any arguments: the client is the operator."""

    def get(self, name: str, default: Any = None) -> Any:
        """The offer of any name that is asked for."""
        return Trusted(name, name, name, ("gym", "vector", "parallel", "aec"))


class Trusted(Offer):
    """An offer that takes any arguments."""

    def make(self, create: Create) -> Any:
        """Make what the owner asks for."""
        api: Any = "gym" if create.api == "vector" else create.api or None
        return envweave_gym.make(self.target, api=api, **create.kwargs)


class PrivateProcess(Server):
    """The server process, which ends with its owner."""

    def _let_it_drain(self, worker: Any) -> None:
        super()._let_it_drain(worker)
        threading.Thread(target=_end_with_owner, name="owner", daemon=True).start()


def _end_with_owner() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Serve until the pipe closes."""
    told = json.loads(sys.stdin.buffer.readline())
    sys.path[:] = told["paths"]
    listener = socket.socket(fileno=int(sys.argv[1]))
    app = create_app(token=told["token"], max_sessions=4096, max_rows=1 << 20, idle_timeout=60.0)
    state: ServerState = app.extensions["envweave"]
    state.offers = Everything()
    PrivateProcess(app, listener).run()


if __name__ == "__main__":
    main()
