"""Replica and provider of ``backend="kubernetes"``: a server in a Pod, behind a forwarded loopback port.

Labels name the Pod's owner process. Pods of a killed owner are deleted by the next owner that starts, or ended
by the cluster when their lifetime is over. A Pod that dies is replaced by another behind the same port.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar

from envweave_gym.containers.engine import is_ours
from envweave_gym.containers.ownership import labels_of_owner
from envweave_gym.core.config import named
from envweave_gym.core.faults import EnvweaveError, InvalidArgument, NotAvailable, shown
from envweave_gym.providers.base import Leftovers, Provider
from envweave_gym.providers.kubernetes import manifests
from envweave_gym.providers.kubernetes.api_errors import (
    explain_errors,
    is_busy,
    is_quota,
    is_transient,
    message_of,
    patiently,
)
from envweave_gym.providers.kubernetes.cluster_access import cluster, is_known
from envweave_gym.providers.kubernetes.leftover_pods import (
    delete_eventually,
    own_pod,
    pods_of,
    sweep,
    sweep_now_and_then,
)
from envweave_gym.providers.kubernetes.manifests import PORT, PodTemplate, check_name
from envweave_gym.providers.kubernetes.pod_diagnosis import (
    DELETED,
    is_ready,
    pull_error,
    why_deleted,
    why_late,
    why_over,
)
from envweave_gym.providers.kubernetes.port_forward import Direct, Pipe, PortForward, Tunnel
from envweave_gym.providers.options import check_start_timeout, image_in, options_in
from envweave_gym.providers.replica import AT_REST, NO_SERVER, STOPPED, Replica

_START_TIMEOUT_S = 120.0
"""Default time until a Pod must serve: nodes pull images, and clusters add nodes."""
_WATCH_S = 2.0
"""Time of one watch of a Pod; between two watches the Pod's state is read anew."""
_WATCH_PAUSE_S = 0.1
"""Pause between two watches, because a proxy may end each at once."""
_REFUSALS = range(400, 500)
"""HTTP statuses that prove that the cluster has created nothing."""
_CLUSTER_OPTIONS = ("namespace", "context", "patience")
OPTIONS = ("image", *_CLUSTER_OPTIONS, *(field.name for field in fields(PodTemplate)))
"""Options of ``backend="kubernetes"``, beside ``replicas`` and ``warm``."""
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class KubernetesReplica(Replica):
    """Replica in a Pod."""

    check_every = 10.0  # each check is a connection through the API server, which other users need too

    def __init__(
        self,
        image: str,
        template: PodTemplate | None = None,
        *,
        namespace: str | None = None,
        context: str | None = None,
        token: str | None = None,
        ids: Sequence[str] = (),
        patience: float = _START_TIMEOUT_S,
    ) -> None:
        """Start the Pod, and wait at most ``patience`` seconds until its server is healthy.

        ``namespace`` and ``context`` choose the cluster as for :func:`cluster_access.cluster`. The server
        offers the environments ``ids``, by default all in the image. ``token`` is the clients' access token, by
        default a random one.
        """
        super().__init__(f"a Pod of {image}", token)
        self.image, self._template, self._ids = image, template or PodTemplate(), ids
        self.upkeep.trusted = is_ours(image)
        self._patience, self._where = patience, (context, namespace)
        self._cluster = cluster(*self._where)
        self._name: str | None = None
        self._address: tuple[str, int] | None = None
        self._forward = PortForward(self._dial)
        self.url = f"http://127.0.0.1:{self._forward.port}"
        self._begin()

    def direct_address(self) -> tuple[str, int] | None:
        """Return the Pod's own address inside the cluster; ``None`` outside, where it cannot be reached."""
        return self._address if self._cluster.inside else None

    def _make(self) -> None:
        self._cluster = cluster(*self._where)  # the cluster or our credentials may have changed since
        where, deadline = f"in the namespace {self._cluster.namespace}", time.monotonic() + self._patience
        with explain_errors(f"{self.what} cannot be started {where}", self._cluster):
            self._patiently(lambda: sweep_now_and_then(self._cluster), deadline, is_busy)
            self._create(deadline)
            self._address = self._ready(deadline), PORT
        with explain_errors(f"{self.what} cannot be reached {where}", self._cluster):
            self._patiently(lambda: self._dial().close(), deadline, is_transient)
        self._forward.open()
        self._wait_until_healthy(self.url, max(1.0, deadline - time.monotonic()))

    def _create(self, deadline: float) -> None:
        """Create the Pod, then its Secret, which the Pod owns, so that no Secret is left over.

        The Pod does not start before its Secret exists.
        """
        from kubernetes.client import ApiException

        name = f"envweave-{secrets.token_hex(6)}"
        # As annotations too, because a label may have to be cut to a legal value.
        marks, owners = labels_of_owner(self._template.lifetime), own_pod(self._cluster)
        manifest = manifests.pod(
            name,
            self.image,
            self._template,
            labels=marks,
            annotations=marks,
            owners=owners,
            args=self._ids,
        )
        try:
            made = self._patiently(lambda: self._cluster.create_pod(manifest), deadline, self._has_room_soon)
        except BaseException as error:
            if not (isinstance(error, ApiException) and error.status in _REFUSALS):
                self._name = name  # no answer has come, or only that of a proxy, so the Pod may exist
            raise
        self._name, owner = name, manifests.owned_by("Pod", name, made.metadata.uid)
        secret = manifests.secret(name, self.token, labels=marks, owners=[owner])
        self._patiently(lambda: self._cluster.create_secret(secret), deadline, is_transient)

    def _has_room_soon(self, error: Exception) -> bool:
        """Return whether the Pod may be created later, because a quota still counts Pods being deleted."""
        return is_busy(error) or (is_quota(error) and self._cluster.is_freeing())

    def _patiently(self, call: Callable[[], _T], deadline: float, worth: Callable[[Exception], bool]) -> _T:
        """Call :func:`patiently`, which retries ``call`` after errors that ``worth`` accepts.

        Raise ``NotAvailable`` if the replica is closed meanwhile.
        """
        return patiently(call, deadline, worth=worth, pause=self._wait)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._raise_if_over(None)
            time.sleep(min(left, _WATCH_PAUSE_S))

    def _ready(self, deadline: float) -> str:
        """Watch the Pod until it is ready, and return its IP address.

        Raise ``NotAvailable`` at the deadline, or if the Pod will never serve. A watch that is cut short is
        repeated.
        """
        name, cause, silence = self._name or "", "", ""
        pod: Any = None
        advice = "" if self.starts else NO_SERVER
        while (left := deadline - time.monotonic()) > 0:
            try:
                for pod in self._cluster.watch(name, min(left, _WATCH_S)):
                    silence, cause = "", cause or pull_error(pod, lambda: self._cluster.events(name))
                    self._raise_if_over(self._why_over_now(pod, advice=advice, cause=cause))
                    if is_ready(pod):
                        return pod.status.pod_ip
            except Exception as error:
                if not is_transient(error):
                    raise
                silence = f"; the cluster has not answered at last ({message_of(error)})"
            self._wait(_WATCH_PAUSE_S)
        late = "the cluster reports no state" if pod is None else why_late(pod)
        events = "; ".join(self._cluster.events(name)[-3:])
        raise NotAvailable(
            f"the Pod {name} of {self.image} did not serve within {self._patience:g} s: {late}{silence}"
            + (f"; its last events: {events}" if events else "")
        )

    def _raise_if_over(self, why: str | None) -> None:
        """Raise ``NotAvailable`` if there is a reason ``why`` the Pod never will serve, or the replica is closed."""
        why = STOPPED if self._is_over else why
        if why is not None:
            name = f"the Pod {self._name} of {self.image}" if self._name else self.what
            raise NotAvailable(f"{name} ended before it served: {why}")

    def _dial(self) -> Pipe:
        """Connect to the server's port in the current Pod, directly or through the API server."""
        name, address = self._name, self._address
        if name is None or address is None:
            raise ConnectionError("there is no Pod now")
        if self._cluster.inside:
            return Direct(address)
        return Tunnel(self._cluster.forwarded(name, PORT))

    def _ended(self) -> str | None:
        if self._name is None:
            return AT_REST
        pod, error = self._read_pod()
        return None if error is not None else self._why_over_now(pod)

    def answers(self, timeout: float) -> bool:
        """Return whether the server is healthy, or cannot be checked because the API server does not answer."""
        if super().answers(timeout):
            return True
        error = self._read_pod()[1] if self._name is not None and not self._cluster.inside else None
        return error is not None and is_transient(error)

    def _read_pod(self) -> tuple[Any, Exception | None]:
        """Return the Pod (``None`` if it is gone) and the error if the API server could not be asked."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        name = self._name or ""
        try:
            return self._cluster.pod(name), None
        except (ApiException, HTTPError, ValueError) as error:
            self._cluster.warn(
                "the cluster does not say what has become of the Pod %s: %s", name, message_of(error)
            )
            return None, error

    def _why_over_now(self, pod: Any, **more: str) -> str | None:
        """Return why the Pod has ended or never will serve; the reason of a deletion comes from its events."""
        why = why_over(pod, self._template, self._last_log, **more)
        return why_deleted(self._cluster.events(self._name or "")) if why == DELETED else why

    def _last_log(self) -> str:
        """Return the log of the Pod; empty if it cannot be read."""
        try:
            return self.logs()
        except NotAvailable as error:
            _log.debug("%s", error)
            return ""

    def logs(self) -> str:
        """Return the log of the Pod; raise ``NotAvailable`` if it cannot be read."""
        name = self._name
        if name is None:
            return ""
        with explain_errors(f"the log of the Pod {name} cannot be read", self._cluster):
            return self._cluster.logs(name)

    def _end(self) -> None:
        self._forward.pause()
        self._remove()

    def _remove(self) -> None:
        name, self._name, self._address = self._name, None, None
        if name is not None:
            delete_eventually(self._cluster, name, self._template.lifetime)

    def _close(self) -> None:
        self._forward.close()


class KubernetesProvider(Provider):
    """Provider that starts servers in Pods."""

    name = "kubernetes"
    uses_images = True
    place_options = ("context", "namespace")

    def start(self, name: str, image: str | None, options: dict[str, Any]) -> partial[KubernetesReplica]:
        """Return a function that starts a Pod with the resources and the cluster in ``options``."""
        own = options_in(options, OPTIONS)
        image = image_in(name, own, image)
        where = options_in(own, _CLUSTER_OPTIONS)
        with named(name):
            _check_cluster_options(**where)
            return partial(KubernetesReplica, image, PodTemplate(**own), **where)

    def sweep(self, places: Iterable[Mapping[str, str]] = ()) -> Leftovers:
        """Delete leftover Pods at ``places`` (contexts and namespaces), and in the namespace of the kubeconfig."""
        removed, failed = list[str](), list[str]()
        found = {tuple(sorted(place.items())) for place in places}
        if is_known() and find_spec("kubernetes") is not None:
            found.add(())
        for place in sorted(found):
            try:
                where = cluster(**dict(place))
                with explain_errors(f"the namespace {where.namespace}", where):
                    removed += [name for name in sweep(where, failed) if name not in removed]
            except EnvweaveError as error:
                failed.append(f"Pods could not be looked for: {error}")
        return Leftovers({"pods": removed}, failed)

    def ending(self, owner: str, place: Mapping[str, str]) -> list[str]:
        """Return the names of an owner's Pods that the cluster is still deleting; ``owner`` is their owner label."""
        where = cluster(**place)
        with explain_errors("its Pods are being deleted, but cannot be looked for", where):
            return pods_of(where, owner)


def _check_cluster_options(
    namespace: Any = None, context: Any = None, patience: Any = _START_TIMEOUT_S
) -> None:
    if namespace is not None:
        check_name("namespace", namespace)
    if context is not None and not isinstance(context, str):
        raise InvalidArgument(f"context={shown(context)} is not the name of a context of the kubeconfig")
    check_start_timeout(patience)
