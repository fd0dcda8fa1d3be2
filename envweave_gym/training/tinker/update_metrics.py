"""Metrics of an update: from the episodes that were played, and from the log-probabilities of the trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from envweave_gym.training.tinker.learner import Step
from envweave_gym.training.tinker.rollouts import EpisodeBatch
from envweave_gym.training.tinker.tinker_options import TinkerOptions


def episode_metrics(batch: EpisodeBatch, success_reward: float) -> dict[str, Any]:
    """Return rewards, success, tokens and faults of the episodes; without episodes only the faults.

    A return of at least ``success_reward`` is a success. That of a game is of all its agents, each of which counts as
    one.
    """
    whole = [one for one in batch.episodes if one.fault is None]
    counts: dict[str, Any] = {"faults": batch.faults, "lost_episodes": len(batch.episodes) - len(whole)}
    if batch.messages:
        counts["fault"] = batch.messages[-1]
    parts = [part for one in whole for part in one.trajectories.values() if part.trainable]
    if not parts:
        return counts
    rewards = np.array([part.reward for part in parts])
    rows = [row for part in parts for row in part.rows]
    replies = [row.logprobs[start:end] for row in rows for start, end in row.spans]
    logprobs = np.concatenate([np.array(reply) for reply in replies])
    return {
        "reward": float(rewards.mean()),
        "success": float((rewards >= success_reward).mean()),
        "turns": sum(len(row.spans) for row in rows) / len(parts),
        "invalid_replies": sum(part.invalid for part in parts) / len(parts),
        "context_overflow": sum(part.overflowed for part in parts),
        "sampled_tokens": len(logprobs),
        "tokens": sum(len(row.tokens) for row in rows),
        "entropy": float(-logprobs.mean()) if len(logprobs) else 0.0,
        **counts,
    }


def step_metrics(steps: Sequence[Step], options: TinkerOptions) -> dict[str, float]:
    """Return how far the trainer's probabilities of the sampled tokens are from the sampler's.

    ``kl`` is the estimate ``mean((log p - log q)**2) / 2``, of the first optimiser step of each adapter only if
    there are several, as the later ones see newer weights.
    """
    differences = [_differences(step) for step in steps]
    first = [one for one, step in zip(differences, steps, strict=True) if step.is_first and len(one)]
    if not first:
        return {"trained_rows": 0}
    on_policy = np.concatenate(first)
    ratios = np.exp(np.concatenate(differences))
    clipped = (ratios < options.clip_low) | (ratios > options.clip_high)
    return {
        "trained_rows": sum(len(step.rows) for step in steps),
        "kl": float((on_policy**2).mean() / 2),
        "clip_fraction": float(clipped.mean()),
    }


def _differences(step: Step) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    parts = [
        logprobs[row.mask()] - np.array(row.row.logprobs[1:])[row.mask()]
        for row, logprobs in zip(step.rows, step.logprobs, strict=True)
    ]
    return np.concatenate(parts) if parts else np.zeros(0)


def problems(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the table of a run says about faults and updates without training; what never happened is left out.

    The number of faults is always there.
    """
    last = rows[-1]
    found = {
        "last fault": next((row["fault"] for row in reversed(rows) if "fault" in row), None),
        "lost episodes": sum(row.get("lost_episodes", 0) for row in rows),
        "updates without training": sum(row.get("trained_rows") == 0 for row in rows),
        "invalid replies in an episode": last.get("invalid_replies"),
        "episodes that outgrew the context": sum(row.get("context_overflow", 0) for row in rows),
    }
    faults = sum(row.get("faults", 0) for row in rows)
    return {"faults": faults, **{name: value for name, value in found.items() if value}}
