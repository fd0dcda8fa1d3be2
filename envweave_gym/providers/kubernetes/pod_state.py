"""Explains the state of a Pod in one sentence, with what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from envweave_gym.providers.kubernetes.manifests import CONTAINER, PodTemplate
from envweave_gym.providers.replica import with_code

DELETED = "somebody has deleted it"
_IMAGE = "push it to a registry that the cluster reaches and name it with image=, or give pull_secret="
_PULL_FAILED = "ErrImagePull"
"""The first failure, which has the cause; ``ImagePullBackOff``, which follows, names none."""
_BACK_OFF = "ImagePullBackOff"
_PULL_EVENT = "Failed to pull image"
_NEVER_STARTS = {
    _BACK_OFF: f"its image cannot be pulled; {_IMAGE}",
    "ErrImageNeverPull": "its image is not on the node; load it there, or leave pull_policy='Never' out",
    "InvalidImageName": "the name of its image is none; give another with image=",
    "CreateContainerError": "its container cannot be created",
    "RunContainerError": "its container cannot be run; is it an image of ours, or made from one?",
}
"""Why a container waits that will not start, and what to do; without restarts no CrashLoopBackOff."""
_DISRUPTIONS = ("TaintManagerEviction", "Preempted", "Evicted")
"""Reasons of events that say why a cluster has deleted a Pod."""


def is_ready(pod: Any) -> bool:
    """Whether its readiness probe has succeeded."""
    return any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions or [])


def pull_error(pod: Any, events: Callable[[], list[str]]) -> str:
    """Why the image of a container could not be pulled at first; empty where it could, or that is not said.

    Where the first failure was not seen, the events of the Pod have it.
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
    """Why a Pod runs no more, or never will; ``None`` while it does or may.

    ``advice`` is what to do where its server has ended by itself, ``cause`` the first :func:`pull_error`.
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
        # Before the exit code: the server of a Pod that is being deleted is asked to end, and exits with 0.
        return _why_deleted(pod)
    return _why_ended(pod, template, logs, advice) or _why_not_started(pod, cause)


def why_deleted(events: list[str]) -> str:
    """Why the cluster has deleted a Pod, if one of its events says so; else somebody has."""
    known = [event for event in events if event.startswith(_DISRUPTIONS)]
    return f"the cluster has deleted it ({_sentence(known[-1])})" if known else DELETED


def _why_deleted(pod: Any) -> str:
    """Clusters from 1.26 on say in a condition if a Pod was drained or preempted."""
    for condition in pod.status.conditions or []:
        if condition.type == "DisruptionTarget" and condition.status == "True":
            return f"the cluster has deleted it ({condition.reason}: {_sentence(condition.message)})"
    return DELETED


def _why_ended(pod: Any, template: PodTemplate, logs: Callable[[], str], advice: str) -> str | None:
    """The end of our container; one that the cluster has injected may end when it likes."""
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
    """The containers that wait, by name, with why they do; those that run before the others too."""
    for one in [*(pod.status.init_container_statuses or []), *(pod.status.container_statuses or [])]:
        if one.state is not None and one.state.waiting is not None:
            yield one.name, one.state.waiting


def why_late(pod: Any) -> str:
    """What a Pod that has not ended is still waiting for."""
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
