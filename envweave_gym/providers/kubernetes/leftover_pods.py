"""Deletion of Pods: those of this process, and leftovers of owner processes that were killed."""

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
    processes_seen,
)
from envweave_gym.core.faults import NotAvailable
from envweave_gym.os_support.process_local import ProcessLocal
from envweave_gym.providers.kubernetes.api_errors import explain_errors, is_transient, patiently
from envweave_gym.providers.kubernetes.cluster_access import ACCOUNT, Cluster
from envweave_gym.providers.kubernetes.manifests import Manifest, owned_by

_SWEEP_INTERVAL_S = 60.0
"""Least time between two sweeps of a namespace, because many replicas may start together."""
_DELETE_WITHIN_S = 5.0
"""Time for which the calling thread retries a deletion; then a background thread goes on."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_log = logging.getLogger(__name__)


class _Pods:
    """Pods that this process must still delete, and the time of its last sweep of each namespace."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.undeleted: dict[str, Cluster] = {}
        self.swept: dict[tuple[str, str], float] = {}


_pods = ProcessLocal(_Pods)


def was_left_behind(marks: Mapping[str, str]) -> bool:
    """Return whether a Pod's owner is known to have ended, or its lease has expired.

    ``marks`` are the Pod's annotations. Machines that share a cluster may have equal host names, and processes
    equal PIDs. So only a process in the owner's PID namespace can know that the owner has ended.
    """
    if marks.get(BOOT) == processes_seen():
        return is_left_behind(marks)
    return is_left_behind({UNTIL: marks.get(UNTIL, "")})


def delete(cluster: Cluster, name: str) -> None:
    """Delete a Pod; raise ``NotAvailable`` if the API server stays busy or unreachable for some seconds."""
    deadline = time.monotonic() + _DELETE_WITHIN_S
    with explain_errors(f"the Pod {name} cannot be deleted", cluster):
        patiently(lambda: cluster.delete_pod(name), deadline, worth=is_transient)


def delete_eventually(cluster: Cluster, name: str, lifetime: float) -> None:
    """Delete a Pod; if that fails, a background thread retries while this process runs.

    ``lifetime`` is for the log message: seconds until the cluster ends the Pod by itself.
    """
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
    """Delete the remaining Pods, with growing pauses between attempts, until none is left."""
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
    """Delete the Pods whose owners have ended, with their Secrets, and return the Pods' names.

    Error messages are added to ``failed``, or logged if that is ``None``. Pods that are being deleted already
    are left out.
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
    """Return the names of a process's Pods, including those that are being deleted.

    ``owner`` is the owner label of a process in this process's PID namespace.
    """
    mine = {OWNER: owner, BOOT: processes_seen()}
    return [
        pod.metadata.name
        for pod in cluster.owned()
        if mine.items() <= (pod.metadata.annotations or {}).items()
    ]


def sweep_now_and_then(cluster: Cluster) -> None:
    """Sweep the namespace, unless this process has swept it less than a minute ago."""
    pods, namespace, now = _pods.value, (cluster.host, cluster.namespace), time.monotonic()
    with pods.lock:
        if now - pods.swept.get(namespace, -_SWEEP_INTERVAL_S) < _SWEEP_INTERVAL_S:
            return
        sweep(cluster)
        pods.swept[namespace] = now


def own_pod(cluster: Cluster) -> list[Manifest]:
    """Return a list with an owner reference to the Pod that this process runs in; empty if there is none.

    The cluster then deletes the new Pod with this one. Owners must be in the same namespace. The Pod's name is
    ``POD_NAME`` (set by the downward API), or else the host name.
    """
    from kubernetes.client import ApiException

    if not cluster.inside or (ACCOUNT / "namespace").read_text().strip() != cluster.namespace:
        return []
    name = os.environ.get("POD_NAME") or socket.gethostname()
    try:
        pod: Any = cluster.pod(name)
    except ApiException:  # the Pod may not be read, or has another name
        return []
    return [] if pod is None else [owned_by("Pod", name, pod.metadata.uid)]
