"""``envweave doctor --sweep``: removes containers, networks, Pods and fleet files of killed owners."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from envweave_gym.cli.fleet_files import FleetFile, find_all
from envweave_gym.cli.tables import print_json
from envweave_gym.core.faults import EnvweaveError
from envweave_gym.providers.base import Leftovers, provider_names, provider_of


def sweep_all(*, as_json: bool) -> int:
    """Remove the leftovers and list them; return 1 if some could not be found or removed."""
    fleets, unseen = find_all()
    gone = [known for known in fleets if not known.has_keeper()]
    removed: dict[str, list[str]] = {}
    for name in provider_names():
        leftovers = sweep_of(name, gone)
        removed |= leftovers.removed
        unseen += leftovers.failed
    removed["fleets"] = [known.name for known in gone if known.remove()]
    lines = [f"removed {kind.removesuffix('s')} {name}" for kind, names in removed.items() for name in names]
    if as_json:
        print_json({"removed": removed, "unseen": unseen})
    elif lines or not unseen:
        print("\n".join(lines) or "nothing was left behind")
    for why in unseen:
        print(f"envweave: {why}", file=sys.stderr)
    return 1 if unseen else 0


def sweep_of(backend: str, gone: Sequence[FleetFile]) -> Leftovers:
    """Remove the leftovers of one backend, also in the clusters of fleets whose keeper has ended (``gone``)."""
    try:
        provider = provider_of(backend)
    except EnvweaveError as error:
        return Leftovers({}, [str(error)])
    if provider is None:
        return Leftovers({}, [f"there is no backend {backend!r} any more; install its package"])
    return provider.sweep(known.cluster for known in gone if provider_of(known.backend) is provider)
