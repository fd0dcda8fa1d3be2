"""The network of boxes: a bridge of its own, from which the engine forwards nothing to anywhere else.

A network that is ``internal`` would do the same and publish no port. All containers of this machine share it,
as an engine has addresses for some thirty networks only; the last one that goes takes it along.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from envweave_gym.containers.ownership import OWNER

NAME = "envweave"
_NO_WAY_OUT = {"com.docker.network.bridge.enable_ip_masquerade": "false"}
_LOCK = Path(tempfile.gettempdir()) / f"envweave-network-{os.getuid()}.lock"


@contextmanager
def closed_network(client: Any) -> Generator[str]:
    """The network, made where there is none; it stays while the block puts a container in it."""
    with _alone():
        networks = client.networks.list(names=[f"^{NAME}$"]) or [
            client.networks.create(NAME, driver="bridge", options=_NO_WAY_OUT, labels={OWNER: "all"})
        ]
        yield networks[0].id


def remove_unused(client: Any) -> None:
    """Remove the network, unless there is a container that is, or will be, in it."""
    from docker.errors import APIError

    with _alone():
        if client.containers.list(all=True, filters={"label": OWNER}, ignore_removed=True):
            return
        for network in client.networks.list(names=[f"^{NAME}$"]):
            with suppress(APIError):  # another machine uses the same engine
                network.remove()


@contextmanager
def _alone() -> Generator[None]:
    """No other thread or process of this user does the same meanwhile."""
    with open(_LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
