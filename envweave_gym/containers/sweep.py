"""Removal of containers, socket folders and the network that owner processes left behind when they were killed."""

from __future__ import annotations

import logging
from typing import Any

from envweave_gym.containers.endpoints import SOCKET_FOLDERS
from envweave_gym.containers.network import remove_unused
from envweave_gym.containers.ownership import OWNER, is_left_behind, lease_of
from envweave_gym.os_support.owned_folders import remove_left_behind

_log = logging.getLogger(__name__)


def sweep(client: Any) -> list[str]:
    """Remove the containers whose owners have ended, and the unused network; return the containers' names."""
    removed = [container.name for container in left_behind(client) if _is_removed(container)]
    remove_left_behind(SOCKET_FOLDERS)
    if removed:
        remove_unused(client)
    return removed


def _is_removed(container: Any) -> bool:
    """Force-remove a container; return ``False`` if that failed, for the next sweep to retry."""
    from docker.errors import APIError

    try:
        container.remove(force=True, v=True)
    except APIError as error:
        if error.status_code not in (404, 409):  # gone already, or another process is removing it
            _log.warning("the container %s of an owner that is gone stays: %s", container.name, error)
            return False
    return True


def left_behind(client: Any) -> list[Any]:
    """Return the containers whose owners have ended."""
    ours = client.containers.list(all=True, filters={"label": OWNER}, ignore_removed=True)
    return [container for container in ours if is_left_behind(container.labels, lease_of(container))]
