"""A server in a Pod, reached through a port of this machine's loopback that is forwarded to it.

The Pod is its owner's: labels say so, and whatever an owner that was killed leaves behind is deleted by the
next one that starts, or ended by the cluster when its time is over. One that dies is replaced by another
behind the same port.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from envweave_gym.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.providers import manifests
from envweave_gym.providers.kubernetes_access import cluster, told
from envweave_gym.providers.kubernetes_forward import Direct, Door, Pipe, Tunnel
from envweave_gym.providers.kubernetes_pods import is_ready, why_late, why_over
from envweave_gym.providers.kubernetes_sweep import marks_of_owner, own_pod, sweep_now_and_then
from envweave_gym.providers.manifests import PORT, PodTemplate, check_name
from envweave_gym.providers.options import check_patience, image_in, named, numbers_in, options_in
from envweave_gym.providers.replica import AT_REST, NO_SERVER, STOPPED, Replica
from envweave_gym.providers.shared import shared_urls

_PATIENCE = 120.0
"""So many seconds a Pod may take until it serves: nodes pull images, and clusters add nodes."""
_LOOK = 2.0
"""So many seconds a Pod is watched before it is asked for anew, and whether it is still wanted."""
_BREATH = 0.1
"""So many seconds pass between two watches: a proxy may end each at once."""
_REFUSALS = range(400, 500)
"""What the cluster answers where it has made nothing."""
_PLACE = ("namespace", "context", "patience")
OPTIONS = ("image", *_PLACE, *(field.name for field in fields(PodTemplate)))
"""What ``make`` takes beside ``backend="kubernetes"``, ``replicas`` and ``warm``."""
_log = logging.getLogger(__name__)


class KubernetesReplica(Replica):
    """One Pod."""

    check_every = 10.0  # each look is a connection through the API server, which has others to serve

    def __init__(
        self,
        image: str,
        template: PodTemplate | None = None,
        *,
        namespace: str | None = None,
        context: str | None = None,
        token: str | None = None,
        ids: Sequence[str] = (),
        patience: float = _PATIENCE,
    ) -> None:
        """Start it, and wait until it serves.

        ``template`` says what it may use, ``namespace`` and ``context`` where it is, and ``ids`` what it
        serves: by default what the image has.
        """
        super().__init__(f"a Pod of {image}", token)
        self.image, self._template, self._ids = image, template or PodTemplate(), ids
        self._patience, self._where = patience, (context, namespace)
        self._cluster = cluster(*self._where)
        self._name: str | None = None
        self._place: tuple[str, int] | None = None
        self._door = Door(self._dial)
        self.url = f"http://127.0.0.1:{self._door.port}"
        self._begin()

    def place(self) -> tuple[str, int] | None:
        """Where the Pod itself is, which only those reach who are in the cluster too."""
        return self._place if self._cluster.inside else None

    def _make(self) -> None:
        self._cluster = cluster(*self._where)  # it may be another, or know us by other names, by now
        where, deadline = f"in the namespace {self._cluster.namespace}", time.monotonic() + self._patience
        with told(f"{self.what} cannot be started {where}", self._cluster):
            sweep_now_and_then(self._cluster)
            self._create()
            self._place = self._ready(deadline), PORT
        with told(f"{self.what} cannot be reached {where}", self._cluster):
            self._dial().close()
        self._door.open()
        self._wait_until_healthy(self.url, max(1.0, deadline - time.monotonic()))

    def _create(self) -> None:
        """The Pod first: it owns its Secret, for which it waits if need be, so that none is left over."""
        from kubernetes.client import ApiException

        name = f"envweave-{secrets.token_hex(6)}"
        marks, owners = marks_of_owner(self._template.lifetime), own_pod(self._cluster)
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
            uid = self._cluster.create_pod(manifest).metadata.uid
        except BaseException as error:
            if not (isinstance(error, ApiException) and error.status in _REFUSALS):
                self._name = name  # no answer has come, or only that of a proxy: it may be there
            raise
        self._name, owner = name, manifests.owned_by("Pod", name, uid)
        self._cluster.create_secret(manifests.secret(name, self.token, labels=marks, owners=[owner]))

    def _ready(self, deadline: float) -> str:
        """Wait until the Pod is ready; its address."""
        name, pod, advice = self._name or "", None, "" if self.starts else NO_SERVER
        while (left := deadline - time.monotonic()) > 0:
            for pod in self._cluster.watch(name, min(left, _LOOK)):
                self._expect_more(why_over(pod, self._template, self.logs, advice))
                if is_ready(pod):
                    return pod.status.pod_ip
            self._expect_more(None)
            time.sleep(_BREATH)
        late = "the cluster says nothing of it" if pod is None else why_late(pod)
        events = "; ".join(self._cluster.events(name)[-3:])
        raise NotAvailable(
            f"the Pod {name} of {self.image} did not serve within {self._patience:g} s: {late}"
            + (f"; its last events: {events}" if events else "")
        )

    def _expect_more(self, why: str | None) -> None:
        """Raise where it will not serve, for the reason that is given or as nobody wants it any more."""
        why = STOPPED if self._is_over else why
        if why is not None:
            raise NotAvailable(f"the Pod {self._name} of {self.image} ended before it served: {why}")

    def _dial(self) -> Pipe:
        """A connection to the Pod that there is now."""
        name, place = self._name, self._place
        if name is None or place is None:
            raise ConnectionError("there is no Pod now")
        if self._cluster.inside:
            return Direct(place)
        return Tunnel(self._cluster.forwarded(name, PORT))

    def _ended(self) -> str | None:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        if self._name is None:
            return AT_REST
        try:
            return why_over(self._cluster.pod(self._name), self._template, self.logs)
        except (ApiException, HTTPError, ValueError) as error:
            _log.warning("the cluster does not say what has become of the Pod %s: %s", self._name, error)
            return None

    def logs(self) -> str:
        """What the Pod has written."""
        name = self._name
        if name is None:
            return ""
        with told(f"the log of the Pod {name} cannot be read", self._cluster):
            return self._cluster.logs(name)

    def _end(self) -> None:
        self._door.shut()
        self._remove()

    def _remove(self) -> None:
        """Where the cluster does not listen, say what will become of it."""
        name, self._name, self._place = self._name, None, None
        if name is None:
            return
        try:
            with told(f"the Pod {name} cannot be deleted", self._cluster):
                self._cluster.delete_pod(name)
        except NotAvailable as error:
            _log.warning("%s; the cluster ends it after %g s", error, self._template.lifetime)

    def _close(self) -> None:
        self._door.close()


# What asks for it


def kubernetes_urls(name: str, image: str | None, kwargs: dict[str, Any]) -> list[str]:
    """The URLs of Pods that are shared, whose options are taken out of ``kwargs``."""
    count, warm = numbers_in(name, kwargs)
    return shared_urls(kubernetes_start(name, image, kwargs), count, warm)


def kubernetes_start(name: str, image: str | None, kwargs: dict[str, Any]) -> partial[KubernetesReplica]:
    """What starts a Pod, whose options are taken out of ``kwargs``."""
    options = options_in(kwargs, OPTIONS)
    image = image_in(name, options, image)
    place = options_in(options, _PLACE)
    with named(name):
        _check_place(**place)
        return partial(KubernetesReplica, image, PodTemplate(**options), **place)


def _check_place(namespace: Any = None, context: Any = None, patience: Any = _PATIENCE) -> None:
    if namespace is not None:
        check_name("namespace", namespace)
    if context is not None and not isinstance(context, str):
        raise InvalidArgument(f"context={shown(context)} is not the name of a context of the kubeconfig")
    check_patience(patience)
