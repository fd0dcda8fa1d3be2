"""``SuiteVector``: rows in processes of their suite, which step at the same time."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from numpy.typing import NDArray

from envweave_gym.episode.columns import Options, Rows
from envweave_gym.vector.singles import RowInfos, SyncVector


class SuiteVector(SyncVector):
    """Vector whose steps are sent to all rows before the first result is waited for.

    Resets, which may start processes, run in threads. Everything else is as in a vector in this process.
    """

    def _act(self, actions: list[Any], waiting: Rows) -> tuple[NDArray[Any], Any, Any, RowInfos]:
        left_out = set(waiting.tolist())
        with self._moving():
            for row, env in enumerate(self.envs):
                if row not in left_out and env.get_wrapper_attr("record").live:
                    with suppress(Exception):  # the row's own step raises it again
                        env.unwrapped.begin_step(actions[row])  # pyright: ignore[reportAttributeAccessIssue]
        return super()._act(actions, waiting)

    def _begin(
        self,
        rows: Rows,
        given: list[int | None] | None = None,
        options: Options = None,
        outcome: RowInfos | None = None,
    ) -> RowInfos:
        self.concurrent = rows.size > 1
        try:
            return super()._begin(rows, given, options, outcome)
        finally:
            self.concurrent = False
