"""Placement of actors on a Ray cluster: nodes, and the resources reserved for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envweave_gym.core.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.providers.ray.cluster import is_own

WAYS = ("SPREAD", "PACK", "DEFAULT")
_NODE = re.compile(r"node:([0-9a-f]{56})")


@dataclass(frozen=True)
class Placement:
    """Resources and node that each actor requests."""

    num_cpus: float | None = None
    """Cores reserved for an actor; ``None`` reserves none, but one must be free when it starts."""
    num_gpus: float | None = None
    """GPUs reserved for an actor."""
    resources: Mapping[str, float] | None = None
    """Custom Ray resources, amounts by name."""
    placement: str = "SPREAD"
    """``SPREAD`` over the nodes; ``PACK``, which prefers this node; ``DEFAULT``, Ray's own; or ``node:<id>``."""
    runtime_env: Mapping[str, Any] | None = None
    """Ray's runtime environment, as in ``{"pip": ["my-package"]}``."""
    ray_address: str | None = None
    """Address of the cluster: ``host:port``, or ``auto`` for the one that this machine is part of."""

    def __post_init__(self) -> None:
        for name in ("num_cpus", "num_gpus"):
            if (value := getattr(self, name)) is not None and not _is_amount(value):
                raise InvalidArgument(f"{name}={shown(value)} is not a number >= 0")
        if not _is_mapping(self.resources) or not all(map(_is_amount, (self.resources or {}).values())):
            raise InvalidArgument(f"resources={shown(self.resources)} is not a dict of names to numbers")
        if not _is_mapping(self.runtime_env):
            raise InvalidArgument(f"runtime_env={shown(self.runtime_env)} is not a dict like {{'pip': […]}}")
        if self.placement not in WAYS and not (
            isinstance(self.placement, str) and _NODE.fullmatch(self.placement)
        ):
            raise InvalidArgument(
                f"placement={shown(self.placement)} is unknown; there are {', '.join(map(repr, WAYS))} and "
                "'node:<id of a node>'"
            )
        if self.ray_address is not None and not (isinstance(self.ray_address, str) and self.ray_address):
            raise InvalidArgument(f"ray_address={shown(self.ray_address)} is not 'host:port' or 'auto'")

    def options(self, ray: Any) -> dict[str, Any]:
        """Return the options for ``ray.remote(Actor).options``."""
        given = {
            "num_cpus": self.num_cpus,
            "num_gpus": self.num_gpus,
            "resources": dict(self.resources or {}) or None,
            "runtime_env": dict(self.runtime_env or {}) or None,
        }
        options = {name: value for name, value in given.items() if value is not None}
        return {**options, "scheduling_strategy": self._strategy(ray)}

    def _strategy(self, ray: Any) -> Any:
        if self.placement in ("SPREAD", "DEFAULT"):
            return self.placement
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if self.placement == "PACK":
            here = ray.get_runtime_context().get_node_id()
            may_spill = any(self.wanted().values())  # without wants Ray would spill it to any node
            return NodeAffinitySchedulingStrategy(here, soft=True, _spill_on_unavailable=may_spill)
        return NodeAffinitySchedulingStrategy(self.placement.partition(":")[2], soft=False)

    def wanted(self) -> dict[str, float]:
        """Return the amounts of resources that must be free on one node."""
        cpus = 1 if self.num_cpus is None else self.num_cpus
        return {"CPU": cpus, **({"GPU": self.num_gpus} if self.num_gpus else {}), **(self.resources or {})}


def check_room(ray: Any, placement: Placement) -> None:
    """Raise ``NotAvailable`` if no node is large enough, on a cluster that this process has started.

    Other clusters are not checked, because a node may be added to them later.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = placement.wanted().items()
    if is_own(ray) and not any(all(node.get(name, 0) >= most for name, most in wanted) for node in nodes):
        raise no_room(ray, placement, "ever")


def no_room(ray: Any, placement: Placement, when: str) -> NotAvailable:
    """Return an error that no node has the resources, with those that the cluster has.

    ``when`` ends the statement, as in ``"within 60 s"``.
    """

    def listed(amounts: dict[str, float]) -> str:
        known = {name: f"{amount:g}" for name, amount in sorted(amounts.items()) if "node:" not in name}
        known = {name: amount for name, amount in known.items() if "memory" not in name}
        return ", ".join(f"{amount} {name}" for name, amount in known.items()) or "nothing"

    wanted = listed(placement.wanted())
    has, free = listed(ray.cluster_resources()), listed(ray.available_resources())
    slow = ", or give what runtime_env= installs more time with patience=" if placement.runtime_env else ""
    return NotAvailable(
        f"an actor of backend='ray' asks for {wanted} on one node and finds no room {when}; the cluster has "
        f"{has}, and of that {free} are free: ask for less, or add a node{slow}"
    )


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 1e6


def _is_mapping(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping) and all(isinstance(name, str) for name in value))
