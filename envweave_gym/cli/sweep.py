"""``envweave doctor --sweep``: removes containers, networks, Pods and fleet files of killed owners."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from envweave_gym.cli.fleet_files import FleetFile, find_all
from envweave_gym.cli.tables import print_json
from envweave_gym.containers.engine import engine
from envweave_gym.containers.network import NAME, remove_unused
from envweave_gym.containers.sweep import sweep
from envweave_gym.core.faults import EnvweaveError

Names = list[str]


def sweep_all(*, as_json: bool) -> int:
    """Remove the leftovers and list them; 1 if some could not be looked for, or removed."""
    fleets, unseen = find_all()
    gone = [known for known in fleets if not known.is_kept()]
    removed: dict[str, Names] = {kind: [] for kind in ("containers", "networks", "pods", "fleets")}
    left_containers(removed["containers"], unseen, removed["networks"])
    left_pods(gone, removed["pods"], unseen)
    removed["fleets"] += [known.name for known in gone if known.remove()]
    lines = [f"removed {kind.removesuffix('s')} {name}" for kind, names in removed.items() for name in names]
    if as_json:
        print_json({"removed": removed, "unseen": unseen})
    elif lines or not unseen:
        print("\n".join(lines) or "nothing was left behind")
    for why in unseen:
        print(f"envweave: {why}", file=sys.stderr)
    return 1 if unseen else 0


def left_containers(removed: Names, unseen: Names, networks: Names | None = None) -> None:
    """Remove containers of owners that are gone, and with ``networks`` their unused networks."""
    try:
        client = engine()
        before = [] if networks is None else _networks(client)
        removed += sweep(client)
        if networks is not None:
            remove_unused(client)
            networks += [name for name in before if name not in _networks(client)]
    except EnvweaveError as error:
        unseen.append(f"containers could not be looked for: {error}")


def _networks(client: Any) -> Names:
    return [network.name for network in client.networks.list(names=[f"^{NAME}$"])]


def left_pods(gone: Iterable[FleetFile], removed: Names, unseen: Names) -> None:
    """Delete Pods in the clusters of those fleets, and in that of the kubeconfig if there is one."""
    from envweave_gym.providers.kubernetes.api_errors import told
    from envweave_gym.providers.kubernetes.cluster_access import cluster, is_known
    from envweave_gym.providers.kubernetes.leftover_pods import sweep as sweep_pods

    places = {tuple(sorted(known.place.items())) for known in gone if known.backend == "kubernetes"}
    if is_known() and find_spec("kubernetes") is not None:
        places.add(())
    for place in sorted(places):
        try:
            where = cluster(**dict(place))
            with told(f"the namespace {where.namespace}", where):
                removed += [name for name in sweep_pods(where, unseen) if name not in removed]
        except EnvweaveError as error:
            unseen.append(f"Pods could not be looked for: {error}")
