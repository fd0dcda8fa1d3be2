"""Manifests of Pods, Secrets, Deployments and Services as dicts; this module sends no requests."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envweave_gym.containers.endpoints import PORT, USER
from envweave_gym.containers.ownership import LEASE_S
from envweave_gym.core.config import one_of
from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.sizes import memory_of

Manifest = dict[str, Any]

CONTAINER = "server"
"""Name of the server's container; a cluster may inject others into the Pod."""
MANAGED_BY = {"app.kubernetes.io/managed-by": "envweave"}
INSTANCE = "app.kubernetes.io/instance"
"""Key of the label with the name of the replica or deployment."""
TOKEN = "token"
"""Key of the access token in its Secret."""
GRACE_S = 2
"""Time for steps under way to finish when a replica's Pod is deleted."""

_PULL_POLICIES = ("IfNotPresent", "Always", "Never")
# The syntax that the API server checks.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LABEL_KEY = re.compile(r"([a-z0-9][-a-z0-9.]{0,252}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LEAST_CPU = "100m"
_SCRATCH_SIZE = "256Mi"
_DRAIN_S = 35
"""Time for a Deployment's server to end: 30 seconds for calls under way, and some more."""
_MAX_LIFETIME_S = 10 * 365 * 86400
_TOKEN_DIGEST = "envweave/token-digest"
"""Key of the annotation with the token's digest; a new token changes it, so the Deployment replaces its Pods."""
_DIGEST_ROUNDS = 100_000
_LIVENESS = {"periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6}
"""Liveness probe: a server without an answer for a minute is restarted; a busy one may miss a few probes."""


@dataclass(frozen=True)
class PodTemplate:
    """Resources of a Pod, and the nodes that it may run on.

    The security settings are the same for all Pods: a user that is not root and gains no privileges, no
    capabilities, a read-only root with scratch space in ``/tmp``, and no credentials for the cluster.
    """

    memory: int | str = "2g"
    """Memory limit in bytes, or as text like ``"512m"`` or ``"2Gi"``; a server that exceeds it is killed."""
    cpus: float | None = None
    """CPU limit in cores; ``None`` sets no limit."""
    lifetime: float = LEASE_S
    """Longest life of a Pod in seconds (``activeDeadlineSeconds``), which the cluster enforces."""
    pull_policy: str = "IfNotPresent"
    """Kubernetes' ``imagePullPolicy``: when a node fetches the image."""
    pull_secret: str | None = None
    """Name of the Secret with the credentials for the image registry."""
    node_selector: Mapping[str, str] = field(default_factory=dict[str, str])
    """Labels that a node must have to run the Pod."""

    def __post_init__(self) -> None:
        _bytes_of(self.memory)
        if self.cpus is not None and not (type(self.cpus) in (int, float) and 0.001 <= self.cpus < 1e6):
            raise InvalidArgument(
                f"cpus={shown(self.cpus)} is no number of cores; give one from 0.001, like 1.5"
            )
        if type(self.lifetime) not in (int, float) or not 1 <= self.lifetime <= _MAX_LIFETIME_S:
            raise InvalidArgument(
                f"lifetime={shown(self.lifetime)} is no number of seconds from 1 to ten years"
            )
        one_of("pull_policy", self.pull_policy, _PULL_POLICIES)
        if self.pull_secret is not None:
            check_name("pull_secret", self.pull_secret)
        _check_labels("node_selector", self.node_selector)

    def spec(self, image: str, secret: str, args: Sequence[str], **more: Any) -> Manifest:
        """Return the ``spec`` of a Pod.

        ``secret`` is the name of the Secret with the access token, ``args`` are the arguments of the image's
        entry point, and ``more`` are further fields.
        """
        pull = {"imagePullSecrets": [{"name": self.pull_secret}]} if self.pull_secret else {}
        where = {"nodeSelector": dict(self.node_selector)} if self.node_selector else {}
        return {
            "containers": [self._container(image, secret, args)],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": _SCRATCH_SIZE}}],
            **pull,
            **where,
            **more,
        }

    def _container(self, image: str, secret: str, args: Sequence[str]) -> Manifest:
        reference = {"secretKeyRef": {"name": secret, "key": TOKEN}}
        return {
            "name": CONTAINER,
            "image": image,
            "imagePullPolicy": self.pull_policy,
            **({"args": list(args)} if args else {}),
            "env": [{"name": "ENVWEAVE_TOKEN", "valueFrom": reference}],
            "ports": [{"name": "http", "containerPort": PORT}],
            "resources": self._resources(),
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "readinessProbe": {
                "httpGet": {"path": "/health", "port": PORT},
                "periodSeconds": 1,
                "timeoutSeconds": 3,
            },
            "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
        }

    def _resources(self) -> Manifest:
        """Return the resources; requests equal limits, so that the scheduler does not overcommit a node."""
        memory = {"memory": str(_bytes_of(self.memory))}
        if self.cpus is None:
            return {"requests": {"cpu": _LEAST_CPU, **memory}, "limits": memory}
        share = {"cpu": f"{round(self.cpus * 1000)}m", **memory}
        return {"requests": share, "limits": dict(share)}


def pod(
    name: str,
    image: str,
    template: PodTemplate,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    owners: Sequence[Manifest] = (),
    args: Sequence[str] = (),
) -> Manifest:
    """Return the manifest of a Pod that is not restarted; its access token is in the Secret of the same name.

    ``owners`` are references by :func:`owned_by`, and ``args`` are the arguments of the image's entry point.
    """
    metadata = _metadata(name, labels, annotations, owners)
    spec = template.spec(
        image,
        name,
        args,
        restartPolicy="Never",
        activeDeadlineSeconds=max(1, round(template.lifetime)),
        terminationGracePeriodSeconds=GRACE_S,
    )
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def secret(
    name: str,
    token: str,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    owners: Sequence[Manifest] = (),
    immutable: bool = False,
) -> Manifest:
    """Return the manifest of a Secret with an access token.

    Applying another token to an ``immutable`` one fails.
    """
    metadata = _metadata(name, labels, annotations, owners)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": "Opaque",
        "stringData": {TOKEN: token},
        **({"immutable": True} if immutable else {}),
    }


def deployment(
    name: str, image: str, template: PodTemplate, replicas: int, *, token: str, args: Sequence[str] = ()
) -> Manifest:
    """Return the manifest of a Deployment, whose Pods run until it is deleted; ``template.lifetime`` is not used.

    A Pod reads its Secret only when it starts. So the Pod template contains a digest of ``token``: applying
    another token replaces the Pods.
    """
    spec = template.spec(image, name, args, terminationGracePeriodSeconds=_DRAIN_S)
    (container,) = spec["containers"]
    container["livenessProbe"] = {"httpGet": {"path": "/health", "port": PORT}, **_LIVENESS}
    metadata = {"labels": labels_of(name), "annotations": {_TOKEN_DIGEST: _digest(name, token)}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(name, None),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {INSTANCE: name}},
            "template": {"metadata": metadata, "spec": spec},
        },
    }


def service(name: str) -> Manifest:
    """Return the manifest of a Service: one address for the Pods of the Deployment ``name``.

    A session lives in one Pod, so all connections from one client address go to the same Pod.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(name, None),
        "spec": {
            "selector": {INSTANCE: name},
            "ports": [{"name": "http", "port": PORT, "targetPort": PORT}],
            "sessionAffinity": "ClientIP",
        },
    }


def owned_by(kind: str, name: str, uid: str) -> Manifest:
    """Return an owner reference; the cluster deletes an object when the owner in its reference is deleted."""
    return {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid}


def labels_of(name: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the labels for an object of the replica or deployment ``name``, with ``more`` made legal."""
    ours = {"app.kubernetes.io/name": "envweave", INSTANCE: name, **MANAGED_BY}
    return ours | {key: label_value(value) for key, value in (more or {}).items()}


def label_value(text: str) -> str:
    """Return a text as a label value; an illegal one is cut and gets a digest."""
    if _LABEL_VALUE.fullmatch(text):
        return text
    legal = re.sub(r"[^-A-Za-z0-9_.]", "-", text)[:50].strip("-_.")
    return f"{legal}-{hashlib.sha256(text.encode()).hexdigest()[:8]}".lstrip("-")


def check_service_name(option: str, name: Any) -> str:
    """Return ``name``, or raise ``InvalidArgument`` if it is no legal Service name; ``option`` is for the message."""
    if check_name(option, name)[0].isdigit():
        raise InvalidArgument(f"{option}={shown(name)} is no name of a Service; begin it with a letter")
    return name


def check_name(option: str, name: Any) -> str:
    """Return ``name``, or raise ``InvalidArgument`` if it is no legal object name; ``option`` is for the message."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{option}={shown(name)} is no name; give up to 63 lower-case letters, digits and '-'"
        )
    return name


def _metadata(
    name: str,
    labels: Mapping[str, str] | None,
    annotations: Mapping[str, str] | None = None,
    owners: Sequence[Manifest] = (),
) -> Manifest:
    metadata: Manifest = {"name": name, "labels": labels_of(name, labels)}
    if annotations:
        metadata["annotations"] = dict(annotations)
    if owners:
        metadata["ownerReferences"] = list(owners)
    return metadata


def _digest(name: str, token: str) -> str:
    """Return a salted, slow digest (PBKDF2); annotations are readable, and must not help to guess a weak token."""
    return hashlib.pbkdf2_hmac("sha256", token.encode(), name.encode(), _DIGEST_ROUNDS, 16).hex()


def _bytes_of(memory: Any) -> int:
    """Return a size in bytes, from a number or text like ``"2g"`` or Kubernetes' ``"2Gi"``."""
    if isinstance(memory, str) and re.fullmatch(r"\d+[kmgKMG]i", memory):
        return memory_of(memory[:-1])
    return memory_of(memory)


def _check_labels(option: str, labels: Any) -> None:
    if not isinstance(labels, Mapping):
        raise InvalidArgument(f"{option}={shown(labels)} is not a dict of labels")
    for key, value in labels.items():
        legal = isinstance(key, str) and isinstance(value, str) and _LABEL_KEY.fullmatch(key)
        if not (legal and _LABEL_VALUE.fullmatch(value)):
            raise InvalidArgument(f"{option}={{{shown(key)}: {shown(value)}}} is no label and its value")
