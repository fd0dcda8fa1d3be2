"""``python -m envweave_gym_server.program.private FD``: a server of the process that starts it and trusts it.

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
from contextlib import suppress
from typing import Any

from envweave_gym.sandbox.inside.kernel import end_with_parent
from envweave_gym_server.app.app import create_app
from envweave_gym_server.gunicorn.server import GunicornServer
from envweave_gym_server.offers.everything import Everything


class PrivateProcess(GunicornServer):
    """The server process, which ends with its owner."""

    def _begin(self, worker: Any) -> None:
        super()._begin(worker)
        threading.Thread(target=_end_with_owner, name="owner", daemon=True).start()


def _end_with_owner() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


def _end_with_owner_though_stopped() -> None:
    """See that the group ends with its owner also where it was stopped (SIGSTOP), and reads no pipe.

    Linux sends the signal when the thread ends that has started this process, which may be long before the
    owner does: so it is one that wakes and does no harm, and who is woken looks whether there is an owner.
    """
    own, owner = os.getpid(), os.getppid()

    def wake(*_: Any) -> None:
        if os.getpid() == own and os.getppid() != owner:
            os.killpg(0, signal.SIGKILL)

    signal.signal(signal.SIGCONT, wake)
    with suppress(OSError):  # where this is not allowed, the pipe alone tells
        end_with_parent(signal.SIGCONT, owner)


def main() -> None:
    """Serve until the pipe closes."""
    if sys.platform == "linux":
        _end_with_owner_though_stopped()
    start = json.loads(sys.stdin.buffer.readline())
    sys.path[:] = start["paths"]
    listener = socket.socket(fileno=int(sys.argv[1]))
    limits: dict[str, Any] = {"max_sessions": 4096, "idle_timeout": 60.0}
    limits |= {"max_rows": 1 << 20, "max_environments": 1 << 24}
    what = start["ids"] or [Everything()]
    PrivateProcess(create_app(*what, token=start["token"], **limits), listener).run()


if __name__ == "__main__":
    main()
