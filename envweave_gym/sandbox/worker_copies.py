"""The resources of a worker, and the fork of a worker in mid-episode, which gives the copy resources of its own."""

from __future__ import annotations

import os
import socket
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

from envweave_gym.core.faults import NotAvailable
from envweave_gym.sandbox.folders import copied, remove
from envweave_gym.sandbox.fork_gate import ForkGate
from envweave_gym.sandbox.forkserver import Fork
from envweave_gym.sandbox.inside import confinement
from envweave_gym.sandbox.inside.kernel import children
from envweave_gym.sandbox.memory_groups import MemoryGroups
from envweave_gym.sandbox.program_output import Output
from envweave_gym.sandbox.worker_process import WorkerDied, WorkerProcess

_STOP_TIMEOUT_S, _POLL_S = 5.0, 0.0002
_STOPPED = (b"T", b"t", b"Z", b"X")
"""States in ``/proc/PID/stat`` of threads that are stopped or have ended."""


class WorkerResources:
    """The folder, the two output pipes and the cgroup of one worker."""

    def __init__(self, folder: str, output: int, groups: MemoryGroups, undo: ExitStack) -> None:
        """Create the resources, and register in ``undo`` how to release them if the worker does not start.

        ``output`` is the number of bytes that are retained of each output stream; ``groups`` creates the cgroup.
        """
        undo.callback(remove, folder)
        self.folder = folder
        self._out, self._err = (undo.enter_context(closing(Output(output))) for _ in range(2))
        self._group = groups.new()
        if self._group is not None:
            undo.callback(self._group.remove)

    @property
    def outputs(self) -> list[int]:
        """The descriptors of the worker's ends of the output pipes: ``stdout`` and ``stderr``."""
        return [self._out.worker_end, self._err.worker_end]

    @property
    def cgroups(self) -> list[int]:
        """A list with the descriptor through which the worker joins its cgroup; empty if it has no cgroup."""
        return [] if self._group is None else [self._group.descriptor]

    def worker(self, fork: Fork, gate: ForkGate | None = None) -> WorkerProcess:
        """Return this process's handle of the worker that was forked with these resources."""
        return WorkerProcess(fork, self._out, self._err, self.folder, self._group, gate)

    def close_worker_ends(self) -> None:
        """Close this process's copies of the descriptors that were passed to the worker."""
        self._out.close_worker_end()
        self._err.close_worker_end()
        if self._group is not None:
            self._group.close_entrance()


def forked(process: WorkerProcess, output: int, groups: MemoryGroups, rules: dict[str, Any]) -> WorkerProcess:
    """Fork a worker between two steps; return the copy, which is stopped (SIGSTOP) until its next step.

    ``rules`` confine the copy to its own folder; ``output`` is the number of bytes retained of each of its streams.
    Raise ``NotAvailable`` if a thread of the program is still running, as a fork would lose it.
    """
    process.resume()
    try:
        if process.thread_count() > 1:
            raise NotAvailable("a thread of the program is still running, so it cannot be forked; let it end")
        copy = _copy_of(process, output, groups, rules)
    finally:
        process.freeze()
    copy.freeze()
    copy.layers = process.layers
    return copy


def _copy_of(
    process: WorkerProcess, output: int, groups: MemoryGroups, rules: dict[str, Any]
) -> WorkerProcess:
    with ExitStack() as undo:
        given = WorkerResources(copied(process.folder), output, groups, undo)
        ours, theirs = socket.socketpair()
        undo.callback(ours.close)
        with theirs:
            fork = process.fork.expect(ours)
            undo.callback(fork.cancel)
            gate = process.fork_gate
            copy = given.worker(fork, gate.shared() if gate is not None else None)
            undo.callback(copy.close)
            # Once more, to run before copy.close, which otherwise waits for a copy that never existed.
            undo.callback(fork.cancel)
            ruleset = confinement.ruleset(rules, given.folder)
            if ruleset is not None:
                undo.callback(os.close, ruleset)
            rulesets = [] if ruleset is None else [ruleset]
            descriptors = [theirs.fileno(), *given.outputs, *rulesets, *given.cgroups]
            message = {"op": "fork", "rulesets": len(rulesets), "groups": len(given.cgroups)}
            _request_copy(process, message, descriptors)
        given.close_worker_ends()
        _start_copy(copy)
        undo.pop_all()
        if ruleset is not None:
            os.close(ruleset)
    return copy


def _request_copy(process: WorkerProcess, message: dict[str, Any], descriptors: list[int]) -> None:
    process.send(message)
    process.await_reply("ready")
    gate = process.fork_gate
    if gate is not None:
        gate.allow_copy(process.pid)
    try:
        process.send_descriptors(descriptors)
        process.await_reply("forked")
    finally:
        if gate is not None and process.fork_gate is not None:
            gate.allow_none(process.pid)  # first, so that no child can be forked after the check
            _require_no_children(process)


def _start_copy(copy: WorkerProcess) -> None:
    try:
        copy.send({"op": "begin", "folder": copy.folder, "seed": int.from_bytes(os.urandom(4))})
        copy.await_hello()
        copy.fork.adopt(copy.inner_pid())
    except (WorkerDied, OSError) as error:
        raise NotAvailable(f"the episode cannot be forked: {error}") from None


def _require_no_children(process: WorkerProcess) -> None:
    """Kill a worker that used its permission to fork for another process than the copy.

    The worker is stopped first: a permitted fork may still be in progress until all of its threads have stopped.
    """
    if not process.is_alive():
        return
    process.freeze()
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while not (has_stopped := has_stopped_threads(process.pid)) and time.monotonic() < deadline:
        if children(process.pid):
            break
        time.sleep(_POLL_S)
    if children(process.pid) or not has_stopped:
        process.kill()
        process.ending(_STOP_TIMEOUT_S)
        raise WorkerDied("was killed, because it forked a process other than its copy")


def has_stopped_threads(pid: int) -> bool:
    """Return whether all threads of a process have stopped or ended."""
    with suppress(OSError):  # it has ended meanwhile
        for thread in Path(f"/proc/{pid}/task").iterdir():
            if (thread / "stat").read_bytes().rpartition(b")")[2].split()[0] not in _STOPPED:
                return False
    return True
