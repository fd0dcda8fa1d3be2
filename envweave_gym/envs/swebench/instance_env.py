"""Base class of both SWE-bench environments, with the reset option ``instance_id``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic

from gymnasium.core import ActType, ObsType

from envweave_gym.core.faults import InvalidArgument, nearest, shown
from envweave_gym.data.swebench_lite import Instance
from envweave_gym.envs.swebench.file_distractors import Candidates
from envweave_gym.envs.tasks.task_env import TASK_OPTIONS, TaskEnv

INSTANCE_OPTIONS = (*TASK_OPTIONS, "instance_id")
"""The reset options of both environments."""


class InstanceEnv(TaskEnv[Instance, ObsType, ActType], Generic[ObsType, ActType]):
    """Environment over SWE-bench rows whose reset takes ``options={"instance_id": "psf__requests-3362"}``."""

    def _index(self, options: Mapping[str, Any]) -> int | None:
        name = options.get("instance_id")
        if name is None:
            return super()._index(options)
        if other := next((option for option in TASK_OPTIONS if options.get(option) is not None), None):
            raise InvalidArgument(f"{self.name}: options have instance_id= and {other}=; give one of them")
        known = indices_of(self.tasks)
        if not isinstance(name, str) or name not in known:
            near = nearest(name, known) if isinstance(name, str) else ""
            raise InvalidArgument(
                f"{self.name}: options['instance_id']={shown(name)} is none of the {self.split!r} split"
                f"{near}; give one like {next(iter(known))!r}"
            )
        return known[name]


@lru_cache(maxsize=16)
def indices_of(rows: Sequence[Instance] | Sequence[Candidates]) -> dict[str, int]:
    """Return the index of each row by its ``instance_id``."""
    return {row.instance_id: index for index, row in enumerate(rows)}


def shortened(text: str, max_chars: int) -> str:
    """Cut a text that is longer than ``max_chars``, with a mark at its end, for an observation."""
    return text if len(text) <= max_chars else f"{text[:max_chars]}\n[…]"
