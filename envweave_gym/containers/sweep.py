"""What owners that were killed have left behind."""

from __future__ import annotations

from typing import Any

from envweave_gym.containers.entrance import remove_left_behind
from envweave_gym.containers.network import remove_unused
from envweave_gym.containers.ownership import OWNER, is_left_behind


def sweep(client: Any) -> list[str]:
    """Remove the containers whose owners are gone, and the network where it is empty; their names."""
    from docker.errors import APIError

    removed: list[str] = []
    for container in left_behind(client):
        try:
            container.remove(force=True, v=True)
        except APIError as error:
            if error.status_code not in (404, 409):  # gone already, or somebody else is removing it
                raise
        removed.append(container.name)
    remove_left_behind()
    if removed:
        remove_unused(client)
    return removed


def left_behind(client: Any) -> list[Any]:
    """The containers whose owners are gone."""
    ours = client.containers.list(all=True, filters={"label": OWNER}, ignore_removed=True)
    return [container for container in ours if is_left_behind(container.labels)]
