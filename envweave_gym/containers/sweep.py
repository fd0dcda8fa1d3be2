"""What owners that were killed have left behind."""

from __future__ import annotations

import logging
from typing import Any

from envweave_gym.containers.entrance import SOCKETS
from envweave_gym.containers.lease import lease_of
from envweave_gym.containers.network import remove_unused
from envweave_gym.containers.ownership import OWNER, is_left_behind
from envweave_gym.os_support.owned_folders import remove_left_behind

_log = logging.getLogger(__name__)


def sweep(client: Any) -> list[str]:
    """Remove the containers whose owners are gone, and the network where it is empty; their names."""
    removed = [container.name for container in left_behind(client) if _is_removed(container)]
    remove_left_behind(SOCKETS)
    if removed:
        remove_unused(client)
    return removed


def _is_removed(container: Any) -> bool:
    """Remove it; one that cannot be is left to the next sweep, as nothing else depends on it."""
    from docker.errors import APIError

    try:
        container.remove(force=True, v=True)
    except APIError as error:
        if error.status_code not in (404, 409):  # gone already, or somebody else is removing it
            _log.warning("the container %s of an owner that is gone stays: %s", container.name, error)
            return False
    return True


def left_behind(client: Any) -> list[Any]:
    """The containers whose owners are gone."""
    ours = client.containers.list(all=True, filters={"label": OWNER}, ignore_removed=True)
    return [container for container in ours if is_left_behind(container.labels, lease_of(container))]
