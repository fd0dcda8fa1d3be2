"""A server in a Pod, reached through a port of this machine's loopback that is forwarded to it.

The Pod is its owner's: labels say so, and whatever an owner that was killed leaves behind is deleted by the
next one that starts, or ended by the cluster when its time is over. One that dies is replaced by another
behind the same port.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
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
from envweave_gym.providers.replica import stop_at_exit, wait_until_healthy
from envweave_gym.providers.shared import numbers_in, shared_urls
from envweave_gym.remote.address import remember_token
from envweave_gym.remote.upkeep import Upkeep, keep_up

_PATIENCE = 120.0
"""So many seconds a Pod may take until it serves: nodes pull images, and clusters add nodes."""
_LOOK = 2.0
"""So many seconds a Pod is watched before it is asked for anew, and whether it is still wanted."""
_REFUSALS = range(400, 500)
"""What the cluster answers where it has made nothing."""
_RESTED, _STOPPED = "there is none", "it was stopped meanwhile"
_PLACE = ("namespace", "context", "patience")
OPTIONS = ("image", *_PLACE, *(field.name for field in fields(PodTemplate)))
"""What ``make`` takes beside ``backend="kubernetes"``, ``replicas`` and ``warm``."""
_log = logging.getLogger(__name__)


class KubernetesReplica:
    """One Pod."""

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

        ``template`` says what it may use, ``namespace`` and ``context`` where it is, ``token`` what it asks
        for, and ``ids`` what it serves: by default one that is made up, and what the image has.
        """
        self.image, self._template, self._ids = image, template or PodTemplate(), ids
        self._patience, self._cluster = patience, cluster(context, namespace)
        self._token = token or secrets.token_urlsafe(32)
        # the same thread may come again: collecting garbage closes environments, which may be the last ones
        self._owner, self._lock = os.getpid(), threading.RLock()
        self.starts, self._is_over = 0, False
        self._name: str | None = None
        self._place: tuple[str, int] | None = None
        self._door = Door(self._dial)
        self.url = f"http://127.0.0.1:{self._door.port}"
        try:
            stop_at_exit(self)
            with self._lock:
                self._start()
        except BaseException:
            self.stop()
            raise
        remember_token(self.url, self._token)
        self.upkeep = Upkeep(self.ensure, place=self.place)
        keep_up(self.url, self.upkeep)

    def place(self) -> tuple[str, int] | None:
        """Where the Pod itself is, which only those reach who are in the cluster too."""
        return self._place if self._cluster.inside else None

    def ensure(self) -> None:
        """Start another where it has died; a process that was forked from the owner leaves that to it."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            why = None if self._is_over else self._ended()
            if why is not None and why is not _RESTED:
                _log.warning("the Pod of %s is replaced: %s", self.image, why)
                self._remove()
            if why is not None:
                self._start()

    def _start(self) -> None:
        try:
            self._start_one()
        except BaseException:
            self._remove()
            raise
        self.starts += 1

    def _start_one(self) -> None:
        what, deadline = f"a Pod of {self.image}", time.monotonic() + self._patience
        with told(f"{what} cannot be started in the namespace {self._cluster.namespace}", self._cluster):
            sweep_now_and_then(self._cluster)
            self._create()
            self._place = self._ready(deadline), PORT
        with told(f"{what} cannot be reached in the namespace {self._cluster.namespace}", self._cluster):
            self._dial().close()
        self._door.open()
        wait_until_healthy(self.url, max(1.0, deadline - time.monotonic()), self._ended, what, self.logs)
        if self._is_over:
            raise NotAvailable(f"{what} cannot be started: {_STOPPED}")

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
        self._cluster.create_secret(manifests.secret(name, self._token, labels=marks, owners=[owner]))

    def _ready(self, deadline: float) -> str:
        """Wait until the Pod is ready; its address."""
        name, pod = self._name or "", None
        while (left := deadline - time.monotonic()) > 0:
            for pod in self._cluster.watch(name, min(left, _LOOK)):
                why = _STOPPED if self._is_over else why_over(pod, self._template, self.logs)
                if why is not None:
                    raise NotAvailable(f"the Pod {name} of {self.image} ended before it served: {why}")
                if is_ready(pod):
                    return pod.status.pod_ip
        late = "the cluster says nothing of it" if pod is None else why_late(pod)
        events = "; ".join(self._cluster.events(name)[-3:])
        raise NotAvailable(
            f"the Pod {name} of {self.image} did not serve within {self._patience:g} s: {late}"
            + (f"; its last events: {events}" if events else "")
        )

    def _dial(self) -> Pipe:
        """A connection to the Pod that there is now."""
        name, place = self._name, self._place
        if name is None or place is None:
            raise ConnectionError("there is no Pod now")
        if self._cluster.inside:
            return Direct(place)
        return Tunnel(self._cluster.forwarded(name, PORT))

    def _ended(self) -> str | None:
        """Why the Pod runs no more; ``None`` while it does, as it is taken to where nobody can say."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        if self._is_over:
            return _STOPPED
        if self._name is None:
            return _RESTED
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

    def stop(self) -> None:
        """Stop the Pod for good; one that is just being started too."""
        if os.getpid() == self._owner:
            self._is_over = True
            keep_up(self.url, None)
            self.rest()
            self._door.close()
            stop_at_exit(self, False)

    def rest(self) -> None:
        """Stop the Pod, and delete it and its Secret; the next connection starts another."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._door.shut()
            self._remove()

    def _remove(self) -> None:
        """Delete the Pod; where the cluster does not listen, say what will become of it."""
        name, self._name, self._place = self._name, None, None
        if name is None:
            return
        try:
            with told(f"the Pod {name} cannot be deleted", self._cluster):
                self._cluster.delete_pod(name)
        except NotAvailable as error:
            _log.warning("%s; the cluster ends it after %g s", error, self._template.lifetime)


# What asks for it


def kubernetes_urls(name: str, image: str | None, kwargs: dict[str, Any]) -> list[str]:
    """The URLs of Pods that are shared, whose options are taken out of ``kwargs``."""
    count, warm = numbers_in(name, kwargs)
    return _urls(kubernetes_start(name, image, kwargs), count, warm)


def kubernetes_start(name: str, image: str | None, kwargs: dict[str, Any]) -> partial[KubernetesReplica]:
    """What starts a Pod, whose options are taken out of ``kwargs``."""
    options = {key: kwargs.pop(key) for key in OPTIONS if key in kwargs}
    image = options.pop("image", image)
    if not isinstance(image, str):
        given = "is in no image that is known" if image is None else f"has image={shown(image)}"
        raise InvalidArgument(f"{name} {given}; name the image whose server has it with image='…'")
    place = {key: options.pop(key) for key in _PLACE if key in options}
    try:
        _check_place(**place)
        return partial(KubernetesReplica, image, PodTemplate(**options), **place)
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}") from None


def _check_place(namespace: Any = None, context: Any = None, patience: Any = _PATIENCE) -> None:
    if namespace is not None:
        check_name("namespace", namespace)
    if context is not None and not isinstance(context, str):
        raise InvalidArgument(f"context={shown(context)} is not the name of a context of the kubeconfig")
    if type(patience) not in (int, float) or not 0 < patience < threading.TIMEOUT_MAX:
        raise InvalidArgument(f"patience={shown(patience)} is no number of seconds above 0")


def _urls(start: partial[KubernetesReplica], count: int, warm: int | None = None) -> list[str]:
    return shared_urls(("kubernetes", repr(start)), count, start, partial(_again, start), warm)


def _again(start: partial[KubernetesReplica]) -> str:
    return _urls(start, 1)[0]
