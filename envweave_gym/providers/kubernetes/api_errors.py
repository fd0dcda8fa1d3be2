"""Errors of the Kubernetes API server: retries of requests that may succeed later, explanations for all others."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from envweave_gym.core.faults import EnvweaveError, NotAvailable

if TYPE_CHECKING:
    from envweave_gym.providers.kubernetes.cluster_access import Cluster

_T = TypeVar("_T")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
"""Pauses between two attempts: they double from the first to the longest, which also limits a ``Retry-After``."""
_MAX_MESSAGE_CHARS = 300
_QUOTA = "exceeded quota"
_SETTING_UP = "error looking up service account"
"""Text of a refusal by a namespace that was just created and has no service account yet."""
_REFUSAL_MEANINGS = (
    (
        _QUOTA,
        "a ResourceQuota of the namespace {namespace} is used up ({says}); close what uses it, ask for "
        "less with replicas=, memory= or cpus=, or have it raised",
    ),
    (
        "failed quota",
        "a ResourceQuota of the namespace {namespace} wants each Pod to say what it takes ({says}); "
        "give memory= and cpus=",
    ),
    (
        "because it is being terminated",
        "the namespace {namespace} is being deleted ({says}); create it again when it is gone, or name "
        "another with namespace=",
    ),
    (
        r"(maximum|minimum) \S+ usage per|limit to request ratio per",
        "a LimitRange of the namespace {namespace} does not allow this share ({says}); "
        "change memory= or cpus=",
    ),
    (
        r"PodSecurity|pod security policy|admission webhook|AdmissionPolicy",
        "an admission policy of the cluster refuses it ({says}); ask who runs the cluster what it wants of a "
        "Pod, or name another namespace with namespace=",
    ),
    (
        r"cannot \S+ resource",
        "the cluster forbids it, as a right is missing ({says}); ask for a Role in the namespace {namespace} "
        "as in docs/kubernetes.md, or name another with namespace= if there is no such namespace",
    ),
)
"""Pairs of a pattern of the API server's message and an explanation: most refusals have the same status, 403."""


def is_busy(error: Exception) -> bool:
    """Return whether the API server refused a request without carrying it out and may accept it later."""
    from kubernetes.client import ApiException

    return isinstance(error, ApiException) and (error.status == 429 or _SETTING_UP in message_of(error))


def is_transient(error: Exception) -> bool:
    """Return whether the error may pass: the API server is busy or failed, or the connection to it broke."""
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    if isinstance(error, ApiException):
        return is_busy(error) or error.status in (500, 502, 503, 504)
    return isinstance(error, HTTPError | ConnectionError)


def is_quota(error: Exception) -> bool:
    """Return whether the API server refused a Pod because a ResourceQuota is used up."""
    from kubernetes.client import ApiException

    return isinstance(error, ApiException) and _QUOTA in message_of(error)


def patiently(
    call: Callable[[], _T],
    deadline: float,
    *,
    worth: Callable[[Exception], bool],
    pause: Callable[[float], None] = time.sleep,
) -> _T:
    """Call ``call`` until it succeeds or ``deadline`` (monotonic time), with growing pauses.

    An error is raised at once unless ``worth(error)`` says that a retry may help; the last error is raised at
    the deadline. A ``Retry-After`` of the API server makes pauses longer. ``pause`` sleeps, and may raise to
    give up.
    """
    seconds = _FIRST_PAUSE_S
    while True:
        try:
            return call()
        except Exception as error:
            left = deadline - time.monotonic()
            if left <= 0 or not worth(error):
                raise
            wanted = max(seconds, _retry_after(error))
        pause(min(left, wanted, _LONGEST_PAUSE_S))
        seconds *= 2


def _retry_after(error: Any) -> float:
    """Return the seconds in a ``Retry-After`` header; 0 if it is missing or a date."""
    headers = getattr(error, "headers", None) or {}
    given = str(headers.get("Retry-After", ""))
    return float(given) if given.isdecimal() else 0.0


@contextmanager
def explain_errors(what: str, where: Cluster) -> Generator[None]:
    """Turn an error of the API server in the block into ``NotAvailable`` with its message and advice.

    ``what`` begins the sentence, as in ``"the Pod x cannot be deleted"``; ``where`` is the cluster.
    """
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        raise NotAvailable(f"{what}: {_refusal(error, where)}") from None
    except HTTPError as error:
        raise NotAvailable(
            f"{what}: no cluster answers at {where.host}; see whether 'kubectl cluster-info' does, or set "
            f"KUBECONFIG to another ({message_of(error)})"
        ) from None
    except EnvweaveError:
        raise
    except OSError as error:
        raise NotAvailable(
            f"{what}: {_cut(str(error))}; see whether a NetworkPolicy or a firewall is in the way"
        ) from None
    except ValueError as error:
        raise NotAvailable(
            f"{what}: what answers at {where.host} is no Kubernetes; set KUBECONFIG to the cluster's "
            f"({_cut(str(error))})"
        ) from None


def _refusal(error: Any, where: Cluster) -> str:
    says = message_of(error)
    if error.status == 401:
        return f"the cluster at {where.host} does not accept these credentials; log in to it again"
    if error.status == 404 and "namespaces" in says:
        return (
            f"the cluster at {where.host} has no namespace {where.namespace}; create it with "
            f"'kubectl create namespace {where.namespace}', or name another with namespace="
        )
    if error.status == 429:
        return f"the cluster at {where.host} takes no more requests for now ({says}); try again later"
    if 400 <= error.status < 500:  # webhooks choose their own code
        for pattern, sentence in _REFUSAL_MEANINGS:
            if re.search(pattern, says):
                return sentence.format(says=says, namespace=where.namespace)
    if error.status == 403:
        return f"the cluster forbids it ({says}); ask who runs it, or name another namespace with namespace="
    return f"the cluster at {where.host} says: {says}"


def message_of(error: Any) -> str:
    """Return the message in an error: that of the API server's ``Status`` object, or else the reason."""
    try:
        said = json.loads(error.body)["message"]
    except (AttributeError, TypeError, ValueError, LookupError):
        said = getattr(error, "body", None) or getattr(error, "reason", None) or error
    return _cut(str(said))


def _cut(text: str) -> str:
    """Return at most :data:`_MAX_MESSAGE_CHARS` characters of a text, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_MESSAGE_CHARS else f"{line[:_MAX_MESSAGE_CHARS]}…"
