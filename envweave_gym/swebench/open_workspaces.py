"""An LRU cache, one for each process, that retains the open workspaces of episodes between their steps.

An episode reuses its workspace as long as its commands only read. If the workspace was evicted, or the
environment was copied or is in a forked process, the next command opens another one with the same content.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict

from envweave_gym.data.swebench_lite import Instance
from envweave_gym.os_support.process_local import ProcessLocal
from envweave_gym.swebench.evaluation import Trial
from envweave_gym.swebench.workspace import Workspace

MAX_RETAINED = 32
"""Limit of the cached workspaces of a process; the least recently used one beyond it is closed."""


class _Cache:
    """LRU cache of open workspaces that no command uses now, by the ``id()`` of their owner."""

    def __init__(self) -> None:
        self._workspaces: OrderedDict[int, Workspace] = OrderedDict()
        self._lock = threading.RLock()  # a finalizer of the same thread may run in the middle of a call

    def take(self, key: int) -> Workspace | None:
        with self._lock:
            return self._workspaces.pop(key, None)

    def put(self, key: int, workspace: Workspace) -> None:
        with self._lock:
            self._workspaces[key] = workspace
            is_full = len(self._workspaces) > MAX_RETAINED
            surplus = self._workspaces.popitem(last=False)[1] if is_full else None
        if surplus is not None:
            surplus.close()  # outside of the lock: removing a container takes a while

    def drop(self, key: int) -> None:
        workspace = self.take(key)
        if workspace is not None:
            workspace.close()


_CACHE = ProcessLocal(_Cache)


def _drop(key: int) -> None:
    _CACHE.value.drop(key)


class EpisodeWorkspace:
    """The workspace of one environment, opened when it is needed and retained in the cache between uses.

    The environment holds only the key of the cache entry, so environments that wait, or are garbage, hold no container.
    """

    def __init__(self) -> None:
        self._finalizer = weakref.finalize(self, _drop, id(self))
        self._opened: Workspace | None = None

    def __reduce__(self) -> tuple[type[EpisodeWorkspace], tuple[()]]:
        return EpisodeWorkspace, ()  # a copy opens a workspace of its own

    def open(self, instance: Instance, trial: Trial) -> Workspace:
        """Return the workspace from the cache, or a new one; the caller then calls :meth:`put_back`, or closes it."""
        self._opened = workspace = _CACHE.value.take(id(self)) or trial.open_workspace(instance)
        return workspace

    def put_back(self, workspace: Workspace) -> None:
        """Put a workspace into the cache again; allowed only if its files are unchanged."""
        _CACHE.value.put(id(self), workspace)

    def close(self) -> None:
        """Close the workspace, even if another thread uses it, because the episode is over."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()  # closing twice is allowed
        _drop(id(self))
