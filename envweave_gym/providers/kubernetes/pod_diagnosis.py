"""Explanations of a Pod's state: one sentence with advice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from envweave_gym.providers.kubernetes.manifests import CONTAINER, PodTemplate
from envweave_gym.providers.replica import with_code

DELETED = "somebody has deleted it"
_IMAGE = "push it to a registry that the cluster reaches and name it with image=, or give pull_secret="
_PULL_FAILED = "ErrImagePull"
"""Reason of the first failed pull, with the cause; ``ImagePullBackOff``, which follows, has no cause."""
_BACK_OFF = "ImagePullBackOff"
_PULL_EVENT = "Failed to pull image"
_NEVER_STARTS = {
    _BACK_OFF: f"its image cannot be pulled; {_IMAGE}",
    "ErrImageNeverPull": "its image is not on the node; load it there, or leave pull_policy='Never' out",
    "InvalidImageName": "the name of its image is none; give another with image=",
    "CreateContainerError": "its container cannot be created",
    "RunContainerError": "its container cannot be run; is it an image of ours, or made from one?",
}
"""Advice by the reason of a container that never will start; Pods here have no restarts, so no CrashLoopBackOff."""
_DISRUPTIONS = ("TaintManagerEviction", "Preempted", "Evicted")
"""Reasons of events that explain why the cluster has deleted a Pod."""


def is_ready(pod: Any) -> bool:
    """Return whether the Pod's readiness probe has succeeded."""
    return any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions or [])


def pull_error(pod: Any, events: Callable[[], list[str]]) -> str:
    """Return why the image could not be pulled; empty if it could, or if no reason is known.

    Only the first failure has the reason. If that was not seen, the reason comes from the Pod's ``events()``.
    """
    waiting = [] if pod is None else [one for _, one in _waiting(pod)]
    for one in waiting:
        if one.reason == _PULL_FAILED and one.message:
            return one.message
    if all(one.reason != _BACK_OFF for one in waiting):
        return ""
    return next((event for event in events() if _PULL_EVENT in event), "")


def why_over(
    pod: Any, template: PodTemplate, logs: Callable[[], str], *, advice: str = "", cause: str = ""
) -> str | None:
    """Return why a Pod has ended or never will start; ``None`` if it runs or may still start.

    ``logs()`` returns the server's log, for the sentence. ``advice`` is added if the server ended by itself.
    ``cause`` is a result of :func:`pull_error`.
    """
    if pod is None:
        return DELETED
    if pod.status.reason == "Evicted":
        return (
            f"its node has Evicted it ({_sentence(pod.status.message)}); give it what it needs with memory=, "
            "or run fewer on a node"
        )
    if pod.status.reason == "DeadlineExceeded":
        return f"its lifetime of {template.lifetime:g} s is over; give it more with lifetime="
    if pod.metadata.deletion_timestamp is not None:
        # Before the exit code: the server of a deleted Pod gets SIGTERM and exits with 0, which explains nothing.
        return _why_deleted(pod)
    return _why_ended(pod, template, logs, advice) or _why_not_started(pod, cause)


def why_deleted(events: list[str]) -> str:
    """Return why a Pod was deleted: by the cluster, if one of its events says so, else by somebody."""
    known = [event for event in events if event.startswith(_DISRUPTIONS)]
    return f"the cluster has deleted it ({_sentence(known[-1])})" if known else DELETED


def _why_deleted(pod: Any) -> str:
    """Return why a Pod was deleted, by the condition that clusters from 1.26 on set when they drain or preempt it."""
    for condition in pod.status.conditions or []:
        if condition.type == "DisruptionTarget" and condition.status == "True":
            return f"the cluster has deleted it ({condition.reason}: {_sentence(condition.message)})"
    return DELETED


def _why_ended(pod: Any, template: PodTemplate, logs: Callable[[], str], advice: str) -> str | None:
    """Return why the server's container has ended, or ``None``; injected containers are ignored."""
    for container in pod.status.container_statuses or []:
        ended = container.state and container.state.terminated
        if container.name != CONTAINER or ended is None:
            continue
        if ended.reason == "OOMKilled":
            return f"it took more than its memory ({template.memory}); give it more with memory="
        return with_code(ended.exit_code, logs(), advice)
    if pod.status.phase in ("Failed", "Succeeded"):
        return f"the cluster has ended it: {pod.status.reason or pod.status.phase} {pod.status.message or ''}"
    return None


def _why_not_started(pod: Any, cause: str) -> str | None:
    for name, waiting in _waiting(pod):
        if waiting.reason in _NEVER_STARTS:
            injected = "" if name == CONTAINER else f" (of the container {name}, which is not ours)"
            said = cause if waiting.reason == _BACK_OFF and cause else waiting.message
            return f"{waiting.reason}{injected}, {_NEVER_STARTS[waiting.reason]} ({_sentence(said)})"
    return None


def _waiting(pod: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and waiting state of each container that waits, init containers included."""
    for one in [*(pod.status.init_container_statuses or []), *(pod.status.container_statuses or [])]:
        if one.state is not None and one.state.waiting is not None:
            yield one.name, one.state.waiting


def why_late(pod: Any) -> str:
    """Return why a Pod is not ready yet."""
    for condition in pod.status.conditions or []:
        if condition.type == "PodScheduled" and condition.reason == "Unschedulable":
            return (
                f"Unschedulable, no node takes it; ask for less with memory= and cpus=, or add nodes "
                f"({_sentence(condition.message)})"
            )
    for _, waiting in _waiting(pod):
        return f"its container waits ({waiting.reason}: {_sentence(waiting.message)})"
    if pod.status.phase == "Running":
        return "its server is not ready; is 'envweave serve' what it runs?"
    return f"it is {pod.status.phase or 'not looked at yet'}; give it longer with patience="


def _sentence(text: str | None) -> str:
    return " ".join((text or "no more is said").split()).rstrip(".")
