"""What has become of a Pod, in words, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envweave_gym.providers.manifests import PodTemplate
from envweave_gym.providers.replica import with_code

_IMAGE = "push it to a registry that the cluster reaches and name it with image=, or give pull_secret="
_NEVER_STARTS = {
    "ImagePullBackOff": f"its image cannot be pulled; {_IMAGE}",
    "ErrImageNeverPull": "its image is not on the node; load it there, or leave pull_policy='Never' out",
    "InvalidImageName": "the name of its image is none; give another with image=",
    "CrashLoopBackOff": "its server ends as soon as it starts; see what its log says",
    "CreateContainerError": "its container cannot be created",
    "RunContainerError": "its container cannot be run; is it an image of ours, or made from one?",
}
"""What a container waits for that will not come, and what to do."""


def is_ready(pod: Any) -> bool:
    """Whether its readiness probe has succeeded."""
    return any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions or [])


def why_over(pod: Any, template: PodTemplate, logs: Callable[[], str], advice: str = "") -> str | None:
    """Why a Pod runs no more, or never will; ``None`` while it does or may.

    ``advice`` is what to do where its server has ended by itself.
    """
    if pod is None:
        return "somebody has removed it"
    if pod.status.reason == "Evicted":
        return (
            f"its node has Evicted it ({_sentence(pod.status.message)}); give it what it needs with memory=, "
            "or run fewer on a node"
        )
    if pod.status.reason == "DeadlineExceeded":
        return f"its lifetime of {template.lifetime:g} s is over; give it more with lifetime="
    for container in pod.status.container_statuses or []:
        why = _why_container_over(container.state, template, logs, advice)
        if why is not None:
            return why
    if pod.metadata.deletion_timestamp is not None:
        return "somebody is removing it"
    if pod.status.phase in ("Failed", "Succeeded"):
        return f"the cluster has ended it: {pod.status.reason or pod.status.phase} {pod.status.message or ''}"
    return None


def _why_container_over(
    state: Any, template: PodTemplate, logs: Callable[[], str], advice: str
) -> str | None:
    if state is None:
        return None
    ended, waiting = state.terminated, state.waiting
    if ended is not None and ended.reason == "OOMKilled":
        return f"it took more than its memory ({template.memory}); give it more with memory="
    if ended is not None:
        return with_code(ended.exit_code, logs(), advice)
    if waiting is None or waiting.reason not in _NEVER_STARTS:
        return None
    return f"{waiting.reason}, {_NEVER_STARTS[waiting.reason]} ({_sentence(waiting.message)})"


def why_late(pod: Any) -> str:
    """What a Pod that has not ended is still waiting for."""
    for condition in pod.status.conditions or []:
        if condition.type == "PodScheduled" and condition.reason == "Unschedulable":
            return (
                f"Unschedulable, no node takes it; ask for less with memory= and cpus=, or add nodes "
                f"({_sentence(condition.message)})"
            )
    for container in pod.status.container_statuses or []:
        waiting = container.state and container.state.waiting
        if waiting:
            return f"its container waits ({waiting.reason}: {_sentence(waiting.message)})"
    if pod.status.phase == "Running":
        return "its server is not ready; is 'envweave serve' what it runs?"
    return f"it is {pod.status.phase or 'not looked at yet'}; give it longer with patience="


def _sentence(text: str | None) -> str:
    return " ".join((text or "no more is said").split()).rstrip(".")
