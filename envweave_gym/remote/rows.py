"""The rows of a remote vector that one server steps, and their resets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envweave_gym.core.faults import Fault, FaultCount
from envweave_gym.remote.served import FAULTS, ServedEnvironment
from envweave_gym.remote.session import at_once
from envweave_gym.wire.messages import Reply, Reset
from envweave_gym.wire.values import pack


class RowGroup(ServedEnvironment):
    """Some rows of a vector, and the server that steps them: when its session is lost all of them end."""

    live = False
    """Whether the session is there, with an episode in every row or one that has ended as usual."""
    broken: Fault | None = None
    """A loss that the next step has to tell."""
    shaky = False
    """Whether an episode was lost and none has come to its end since."""
    resumed = False
    """Whether the session is new, and some rows were not meant to be reset in it yet."""
    last: Any = None
    """The observations that were given last."""

    def __init__(self, rows: slice, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.rows, self.size = rows, rows.stop - rows.start
        self.numbers = range(rows.start, rows.stop)
        self.faults = FaultCount(self.name)

    def lost(self, error: Exception) -> Fault:
        """All rows are lost: leave the session, and count the fault or raise ``error``."""
        self.live = False
        return super().lost(error)

    def _fault_of(self, error: Exception) -> Fault:
        self.shaky = True
        return self.faults.add(super()._fault_of(error))

    def _leave(self) -> None:
        super()._leave()
        self.live, self.broken = False, None


@dataclass
class RowReset:
    """A reset of rows of one group."""

    group: RowGroup
    seed: Any
    """What :func:`envweave_gym_server.environments.rows.reset_rows` takes, packed."""
    options: dict[str, Any] | None
    anew: bool
    """Whether every row is reset, so that it can be in another session just as well."""

    def message(self) -> Reset:
        """The call, which its session numbers."""
        return Reset(0, self.seed, pack(self.options))

    def again(self, error: Exception, started: float) -> Reply | Fault:
        """After a loss: reset in another session, where that is possible and there is time left."""
        group = self.group
        if self.anew and time.monotonic() - started < group._reset_deadline:
            group._part(error)
            return group.reset(self.seed, self.options, started=started)
        return group.lost(error)


def reset_at_once(resets: Sequence[RowReset]) -> list[Any]:
    """Reset many groups: their replies, or the :class:`Fault` that was counted."""
    started, sessions = time.monotonic(), [one.group.fresh_session() for one in resets]
    hope = max((one.group._reset_deadline for one in resets), default=0.0)
    replies = at_once(sessions, [one.message() for one in resets], hope)
    raise_refusal(replies)
    return [
        one.again(result, started) if isinstance(result, Exception) else result
        for one, result in zip(resets, replies, strict=True)
    ]


def raise_refusal(results: Sequence[Any]) -> None:
    """Raise the first exception among the results that is no loss, such as the refusal of an action."""
    for result in results:
        if isinstance(result, Exception) and not isinstance(result, FAULTS):
            raise result
