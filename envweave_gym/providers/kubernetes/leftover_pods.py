"""Owner labels of Pods, their deletion, and the sweep of Pods whose owners were killed."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from envweave_gym.containers.ownership import (
    BOOT,
    OWNER,
    UNTIL,
    is_left_behind,
    labels_of_owner,
    processes_seen,
)
from envweave_gym.core.faults import NotAvailable
from envweave_gym.os_support.process_local import ProcessLocal
from envweave_gym.providers.kubernetes.api_errors import explain_errors, is_transient, patiently
from envweave_gym.providers.kubernetes.cluster_access import ACCOUNT, Cluster
from envweave_gym.providers.kubernetes.manifests import Manifest, owned_by

_OFTEN = 60.0
"""Seconds between two sweeps, as many replicas may start at once."""
_DELETE_WITHIN_S = 5.0
"""How long the calling thread repeats a deletion; a thread in the background goes on after that."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_log = logging.getLogger(__name__)


class _Pods:
    """The Pods of this process that remain to be deleted, and when it has swept which namespace."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.undeleted: dict[str, Cluster] = {}
        self.swept: dict[tuple[str, str], float] = {}


_pods = ProcessLocal(_Pods)


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


def delete(cluster: Cluster, name: str) -> None:
    """Delete a Pod, repeatedly for a while where the API server is busy or out; raises ``NotAvailable``."""
    deadline = time.monotonic() + _DELETE_WITHIN_S
    with explain_errors(f"the Pod {name} cannot be deleted", cluster):
        patiently(lambda: cluster.delete_pod(name), deadline, worth=is_transient)


def delete_in_the_end(cluster: Cluster, name: str, lifetime: float) -> None:
    """Delete a Pod; one that cannot be deleted now is deleted by a thread, as soon as that is possible."""
    try:
        delete(cluster, name)
    except NotAvailable as error:
        cluster.warn(
            "%s; it is tried again while this process runs, 'envweave doctor --sweep' deletes it later, and "
            "the cluster ends it after %g s",
            error,
            lifetime,
        )
        pods = _pods.value
        with pods.lock:
            is_first = not pods.undeleted
            pods.undeleted[name] = cluster
        if is_first:
            try:
                threading.Thread(target=_delete_later, name="deletion of Pods", daemon=True).start()
            except RuntimeError as full:  # this machine has no more threads, or the process is ending
                _log.warning("%s is left to 'envweave doctor --sweep': %s", name, full)
                pods.undeleted.clear()


def _delete_later() -> None:
    """Delete what could not be deleted, with growing pauses, until nothing is left."""
    pods, pause = _pods.value, _FIRST_PAUSE_S
    while True:
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
        for name, cluster in list(pods.undeleted.items()):
            try:
                with explain_errors(f"the Pod {name} cannot be deleted", cluster):
                    cluster.delete_pod(name)
            except NotAvailable as error:
                _log.debug("%s", error)
                continue
            with pods.lock:
                del pods.undeleted[name]
                if not pods.undeleted:
                    return


def sweep(cluster: Cluster, failed: list[str] | None = None) -> list[str]:
    """Delete the Pods whose owners are gone, and their Secrets with them; their names.

    What cannot be deleted is added to ``failed``, else logged. Pods that are being deleted are left alone.
    """
    removed: list[str] = []
    for pod in cluster.owned():
        if pod.metadata.deletion_timestamp or not was_left_behind(pod.metadata.annotations or {}):
            continue
        try:
            delete(cluster, pod.metadata.name)
            removed.append(pod.metadata.name)
        except NotAvailable as error:
            if failed is None:
                cluster.warn("%s", error)
            else:
                failed.append(str(error))
    return removed


def pods_of(cluster: Cluster, owner: str) -> list[str]:
    """The Pods of a process of this machine or container, those too that are being deleted."""
    mine = {OWNER: owner, BOOT: processes_seen()}
    return [
        pod.metadata.name
        for pod in cluster.owned()
        if mine.items() <= (pod.metadata.annotations or {}).items()
    ]


def sweep_now_and_then(cluster: Cluster) -> None:
    """Sweep, unless this process has just done so."""
    pods, place, now = _pods.value, (cluster.host, cluster.namespace), time.monotonic()
    with pods.lock:
        if now - pods.swept.get(place, -_OFTEN) < _OFTEN:
            return
        sweep(cluster)
        pods.swept[place] = now


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
