"""``epoch``: reset options for an evaluation that plays each task of a data set once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.protocols import name_of, state_of
from envweave_gym.core.seeding import checked_seed, mix, mix_many
from envweave_gym.vector.row_groups import Groups


class Epoch(Sequence[dict[str, Any]]):
    """Sequence of the reset options of an epoch; an item is built when it is accessed."""

    def __init__(self, tasks: Sequence[int], rows: int | None, repeats: int) -> None:
        """Prepare the sequence for the task numbers ``tasks``.

        ``rows`` rows (``None`` for a single environment) share the tasks, and ``repeats`` consecutive rows play
        the same task.
        """
        self._tasks, self._rows, self._repeats = tasks, rows, repeats
        self._at_once = 1 if rows is None else rows // repeats

    def __len__(self) -> int:
        return -(-len(self._tasks) // self._at_once)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        chosen = range(len(self))[index]
        return self._options(chosen) if isinstance(chosen, int) else [self._options(one) for one in chosen]

    def _options(self, index: int) -> dict[str, Any]:
        first = index * self._at_once
        tasks = [{"index": int(one)} for one in self._tasks[first : first + self._at_once]]
        return (
            tasks[0] if self._rows is None else {"rows": [one for one in tasks for _ in range(self._repeats)]}
        )


def epoch(env: Any, *, seed: int | None = None) -> Epoch:
    """Return reset options to play each task of ``env``'s data set once: in order, or shuffled by ``seed``.

    ``for options in epoch(env): observation, info = env.reset(options=options)``. At each reset a vector plays
    a task in every row, or in every group of rows. At the last reset fewer tasks may be left: rows beyond
    ``len(options["rows"])`` then repeat the first tasks and do not count.
    """
    if not hasattr(env, "unwrapped"):
        raise InvalidArgument(f"epoch({shown(env)}): that is no environment of Gymnasium; give one")
    name = name_of(env)
    states = state_of(env)
    known = [one.get("tasks") for one in (states if isinstance(states, tuple) else (states,))]
    tasks = next((one for one in known if type(one) is int and one > 0), None)
    if tasks is None:
        raise InvalidArgument(
            f"epoch({name}): its state tells of no tasks; give an environment over a data set, as "
            "envweave/GSM8K-v0 is"
        )
    order: Sequence[int] = range(tasks)
    if seed is not None:
        keys = np.arange(tasks, dtype=np.uint64) + np.uint64(mix(checked_seed(seed, name, "epoch")))
        order = np.argsort(mix_many(keys), kind="stable").tolist()
    rows: int | None = getattr(env.unwrapped, "num_envs", None)
    if rows is None:
        return Epoch(order, None, 1)
    if not hasattr(env.unwrapped, "groups"):
        raise InvalidArgument(
            f"epoch({name}): {type(env.unwrapped).__name__} gives all rows the same options; make the vector "
            "with envweave_gym.make"
        )
    groups: Groups | None = env.unwrapped.groups
    return Epoch(order, rows, 1 if groups is None else groups.size)
