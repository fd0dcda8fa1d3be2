"""Whose a Pod is, and what owners that were killed have left behind."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from envweave_gym.containers.ownership import BOOT, UNTIL, is_left_behind, labels_of_owner, processes_seen
from envweave_gym.providers.kubernetes_access import ACCOUNT, Cluster
from envweave_gym.providers.manifests import Manifest, owned_by

_OFTEN = 60.0
"""So many seconds after a sweep there is none, as many replicas start at once."""
_swept: dict[tuple[str, str], float] = {}
_lock = threading.Lock()


def marks_of_owner(lifetime: float) -> dict[str, str]:
    """The annotations of what this process starts now; as labels they may have to be cut."""
    return labels_of_owner(lifetime)


def was_left_behind(marks: Mapping[str, str]) -> bool:
    """Whether the owner is known to be gone, or the time is over that it may be unseen.

    Machines that share a cluster may have the same name and number. So only who sees the same processes as
    the owner can tell that it is gone.
    """
    if marks.get(BOOT) == processes_seen():
        return is_left_behind(marks)
    return is_left_behind({UNTIL: marks.get(UNTIL, "")})


def sweep(cluster: Cluster) -> list[str]:
    """Delete the Pods whose owners are gone, and their Secrets with them; their names."""
    removed = [
        pod.metadata.name for pod in cluster.owned() if was_left_behind(pod.metadata.annotations or {})
    ]
    for name in removed:
        cluster.delete_pod(name)
    return removed


def sweep_now_and_then(cluster: Cluster) -> None:
    """Sweep, unless this process has just done so."""
    place, now = (cluster.host, cluster.namespace), time.monotonic()
    with _lock:
        if now - _swept.get(place, -_OFTEN) < _OFTEN:
            return
        sweep(cluster)
        _swept[place] = now


def own_pod(cluster: Cluster) -> list[Manifest]:
    """The Pod that this process runs in, as the owner of what it starts; none where that cannot be said.

    Only what is in the same namespace can be an owner. Its name comes from the downward API, or is that of
    the machine.
    """
    from kubernetes.client import ApiException

    if not cluster.inside or (ACCOUNT / "namespace").read_text().strip() != cluster.namespace:
        return []
    name = os.environ.get("POD_NAME") or socket.gethostname()
    try:
        pod: Any = cluster.pod(name)
    except ApiException:  # it may not be asked, or has no such name
        return []
    return [] if pod is None else [owned_by("Pod", name, pod.metadata.uid)]
