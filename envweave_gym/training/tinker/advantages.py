"""Group-centred advantages: from the episodes of an update to the rows that are trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envweave_gym.training.tinker.datums import (
    TrainingRow,
    centred,
    mean_reply_logprob,
    with_entropy_bonus,
)
from envweave_gym.training.tinker.episodes import Episode


def training_rows(episodes: Sequence[Episode], entropy: float = 0.0) -> dict[str, list[TrainingRow]]:
    """Return the rows of each agent, with advantages that are centred in its group.

    ``entropy`` is the weight of the entropy bonus.
    """
    groups: dict[tuple[int, str], list[Any]] = {}
    for episode in episodes:
        for agent, trajectory in episode.trajectories.items():
            if episode.fault is None and trajectory.trainable:
                groups.setdefault((episode.task.group, agent), []).append(trajectory)
    rows: dict[str, list[TrainingRow]] = {}
    for (index, agent), group in groups.items():
        advantages = centred([trajectory.reward for trajectory in group])
        if not any(advantages) and not entropy:
            continue
        baseline = mean_reply_logprob([row for trajectory in group for row in trajectory.rows])
        rows.setdefault(agent, []).extend(
            with_entropy_bonus(row, advantage, entropy, baseline, index)
            for trajectory, advantage in zip(group, advantages, strict=True)
            for row in trajectory.rows
        )
    return rows
