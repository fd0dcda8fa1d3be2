"""Base class of environments over the rows of a data set, which chooses the task of each episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from gymnasium.core import ActType, ObsType

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.seeding import HashedRandomness, mix
from envweave_gym.episode.emitter import Emitter

Task = TypeVar("Task")

AS_JSON = 7
"""Upper bound of the ratio between a rendered chat and its content, in characters."""
TASK_OPTIONS = ("index", "group")
"""The reset options of all these environments."""

_GROUPS_END = 1 << 64  # group numbers are seeds


class TaskEnv(Emitter, HashedRandomness[ObsType, ActType], Generic[Task, ObsType, ActType]):
    """Environment whose episodes play one task each, a row of ``tasks``.

    The task is a hash of the seed of a reset, and each is equally likely. ``options={"index": i}`` chooses task
    ``i``. ``options={"group": g}`` chooses the task that the seed ``g`` would, so environments with different
    seeds can play the same task (GRPO). All other random choices depend on the seed alone.
    """

    name = "this environment"
    """The name of the environment in error messages."""

    def __init__(self, tasks: Sequence[Task], *, dataset: str, split: str) -> None:
        self.tasks, self.dataset, self.split = tasks, dataset, split
        self.index, self.key = 0, 0

    def choose(self, seed: int | None, options: Mapping[str, Any] | None) -> Task:
        """Choose the task of the next episode, and set ``self.key``; other random choices are hashes of that key."""
        index = self._index(options or {})
        self.key = self.episode_key(seed)
        self.index = mix(self.key) % len(self.tasks) if index is None else index
        return self.tasks[self.index]

    def _index(self, options: Mapping[str, Any]) -> int | None:
        index, group = options.get("index"), options.get("group")
        if index is not None and group is not None:
            raise InvalidArgument(f"{self.name}: options have index= and group=; give one of them")
        if group is not None:
            return mix(self._number("group", group, _GROUPS_END)) % len(self.tasks)
        return None if index is None else self._number("index", index, len(self.tasks))

    def _number(self, option: str, value: Any, end: int) -> int:
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or not 0 <= value < end:
            raise InvalidArgument(
                f"{self.name}: options[{option!r}]={shown(value)} is none of the "
                f"{self.split!r} split; give an int from 0 to {end - 1}"
            )
        return int(value)

    def task_info(self) -> dict[str, Any]:
        """Return the fields about the task in every ``info``."""
        return {"index": self.index, "split": self.split}

    def episode_state(self) -> dict[str, Any]:
        """Return the number of tasks, the current one and the data set."""
        return {"tasks": len(self.tasks), **self.task_info(), "dataset": self.dataset}
