"""``envweave doctor --sweep``: what owners that were killed have left behind, removed."""

from __future__ import annotations

from typing import Any

from envweave_gym.cli.fleet_files import find_all
from envweave_gym.cli.tables import print_json
from envweave_gym.containers.engine import engine
from envweave_gym.containers.network import NAME, remove_unused
from envweave_gym.containers.sweep import sweep


def sweep_all(*, as_json: bool) -> int:
    """Remove it, and say what it was."""
    client = engine()
    before = _networks(client)
    containers = sweep(client)
    remove_unused(client)
    networks = [name for name in before if name not in _networks(client)]
    removed = {"containers": containers, "networks": networks, "fleets": _fleets()}
    if as_json:
        print_json({"removed": removed})
        return 0
    lines = [f"removed {kind.removesuffix('s')} {name}" for kind, names in removed.items() for name in names]
    print("\n".join(lines) or "nothing was left behind")
    return 0


def _networks(client: Any) -> list[str]:
    return [network.name for network in client.networks.list(names=[f"^{NAME}$"])]


def _fleets() -> list[str]:
    """The fleets whose keepers are gone, which are forgotten."""
    gone = [known for known in find_all() if not known.is_kept()]
    for known in gone:
        known.remove()
    return [known.name for known in gone]
