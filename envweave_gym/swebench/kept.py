"""Places that episodes look at between their steps.

The looks of an episode, and its patch if nothing has been tested before, share one workspace: reading changes
nothing in it. A process keeps only a few, those that were used last; an episode whose place is gone opens
another at its next look, which is the same. A copy of an episode, or one in a forked process, does so too.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict

from envweave_gym.data.swebench_lite import Instance
from envweave_gym.os_support.process_local import ProcessLocal
from envweave_gym.swebench.evaluation import Trial
from envweave_gym.swebench.workspace import Workspace

MOST_KEPT = 32
"""Limit of workspaces that a process retains between steps."""


class _Kept:
    """The places of a process that nobody uses at the moment, the last used last."""

    def __init__(self) -> None:
        self._places: OrderedDict[int, Workspace] = OrderedDict()
        self._lock = threading.RLock()  # an environment may be collected in the middle of a call

    def take(self, key: int) -> Workspace | None:
        with self._lock:
            return self._places.pop(key, None)

    def give(self, key: int, workspace: Workspace) -> None:
        with self._lock:
            self._places[key] = workspace
            surplus = self._places.popitem(last=False)[1] if len(self._places) > MOST_KEPT else None
        if surplus is not None:
            surplus.close()

    def drop(self, key: int) -> None:
        workspace = self.take(key)
        if workspace is not None:
            workspace.close()


_KEPT = ProcessLocal(_Kept)


def _drop(key: int) -> None:
    _KEPT.value.drop(key)


class Place:
    """Where one environment looks and tries its patches: a workspace that is opened when it is needed.

    Between two uses it belongs to nobody, so environments that are dropped, or that wait, hold nothing.
    """

    def __init__(self) -> None:
        self._end = weakref.finalize(self, _drop, id(self))
        self._taken: Workspace | None = None

    def __reduce__(self) -> tuple[type[Place], tuple[()]]:
        return Place, ()  # a copy has a place of its own

    def taken(self, instance: Instance, trial: Trial) -> Workspace:
        """The workspace, which is the caller's until it is given back with :meth:`keep`, or closed."""
        self._taken = workspace = _KEPT.value.take(id(self)) or trial.opened(instance)
        return workspace

    def keep(self, workspace: Workspace) -> None:
        """Have it for the next use, if nothing in it has changed."""
        _KEPT.value.give(id(self), workspace)

    def leave(self) -> None:
        """Close the workspace, also one that another thread uses: another episode begins, or none."""
        taken, self._taken = self._taken, None
        if taken is not None:
            taken.close()  # a second time does nothing
        _drop(id(self))
