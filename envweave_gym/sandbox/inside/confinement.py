"""The confinement of a worker: rlimits, user, Landlock and seccomp.

A worker applies it to itself before it runs programs, and cannot undo it.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Dict

from . import landlock, seccomp
from .kernel import be_killed_first, end_with_parent, syscall
from .syscall_numbers import machine

Confinement = Dict[str, Any]
"""The rules of a confinement, as the host sends them.

The keys are ``level`` (``process``, ``seccomp`` or ``landlock``), ``profile``, ``drops_user``, the folders ``readable``
and ``writable``, and the limits ``memory``, ``file_size``, ``files`` and ``processes``."""

SLACK_BYTES = 32 << 20
"""Bytes between the soft and the hard memory limit, which the worker uses to report a ``MemoryError``."""
_MAPPED_BYTES = 1 << 30
"""Bytes of address space beyond the memory limit, for mapped files and stacks."""
_FIRST_USER, _USERS = 0x70000000, 1 << 28
"""First number and size of the range of UIDs for workers of root, which no real user has.

Higher numbers would be negative to programs that read them as signed, such as bubblewrap."""
_NOBODY = 65534
OWN_USER = "user"
"""Name of the layer that means that no other process has the worker's UID."""
_MAX_PENDING_SIGNALS = 1024
"""Limit of pending signals and timers."""
_PROCESS_MARGIN = {"code": 512, "shell": 128}
"""Number of processes that the host's user may start elsewhere before an episode cannot start any, by profile.

The kernel counts processes per user. With ``shell`` it is smaller, as an episode could use up the user's limit."""
_CAPABILITIES_VERSION = 0x20080522
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def apply(rules: Confinement, folder: str, parent: int) -> tuple[list[str], int | None]:
    """Confine this process to ``folder``, and have it killed when its parent ends.

    Return the names of the layers in force, and the descriptor on which the kernel reports each fork for the host
    process to allow or deny; ``None`` if forks are not reported.
    """
    # The order matters: limits need files of /proc, which Landlock closes; a change of user clears the signal at
    # the parent's death; and the seccomp filter denies the calls that make Landlock rules.
    _limit(rules)
    layers = ["process"]
    if os.getuid() == 0:
        layers.append(_drop_privileges(rules, folder))
    else:
        room = rules["processes"] + _PROCESS_MARGIN[rules["profile"]]
        _set(resource.RLIMIT_NPROC, _count_processes(os.getuid()) + room)
    end_with_parent(signal.SIGKILL, parent)
    if rules["level"] == "process":
        return [*layers, *_deny_access_to_others()], None
    spoken = 0
    if rules["level"] == "landlock":
        spoken = landlock.confine(_trees(rules, os.path.dirname(folder)))
        layers.append(f"landlock {spoken}")
    is_code = rules["profile"] == "code"
    signals_stay = spoken >= landlock.SIGNALS_STAY
    forks = seccomp.confine(
        programs=not is_code, signals=signals_stay, attributes=OWN_USER in layers, notify=is_code
    )
    return [*layers, "seccomp"], forks


def _deny_access_to_others() -> Iterator[str]:
    """Deny access to other processes: their memory, limits and scheduling. Used at the level ``process``.

    Without this, a worker could change its host process if both run under one user. Yield the names of the layers
    that the kernel supports; it is no error if there are none.
    """
    if landlock.keep_out_of_others():
        yield "no tracing"
    if machine() is not None:
        try:
            seccomp.keep_off_others()
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EINVAL):  # the kernel has no seccomp
                raise
            return
        yield "no memory of others"


def ruleset(rules: Confinement, folder: str) -> int | None:
    """Create the Landlock ruleset for a copy (a fork of a worker) that works in ``folder``; return its descriptor.

    Return ``None`` if the isolation level uses no Landlock. The host process calls this, because the seccomp filter
    lets workers apply rulesets but not create them.
    """
    if rules["level"] != "landlock":
        return None
    return landlock.ruleset(_trees(rules, os.path.dirname(folder)))


def restrict_copy(ruleset: int) -> None:
    """Apply a Landlock ruleset to this forked copy of a worker, which denies it the folders of other copies."""
    try:
        landlock.restrict(ruleset)
    except OSError as error:
        if error.errno == errno.E2BIG:
            deep = (
                "a fork of a fork, this deep, cannot be forked again: the kernel limits the nesting of rules"
            )
            raise OSError(error.errno, deep) from None
        raise


def _limit(rules: Confinement) -> None:
    memory = rules["memory"]
    _set(resource.RLIMIT_DATA, memory, memory + SLACK_BYTES)
    _set(resource.RLIMIT_AS, memory + _MAPPED_BYTES)
    _set(resource.RLIMIT_FSIZE, rules["file_size"])
    _set(resource.RLIMIT_NOFILE, rules["files"])
    for none in (resource.RLIMIT_CORE, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_MEMLOCK):
        _set(none, 0)
    _set(resource.RLIMIT_SIGPENDING, _MAX_PENDING_SIGNALS)
    be_killed_first()


def _set(limit: int, soft: int, hard: int | None = None) -> None:
    """Set an rlimit; a lower one that is in force stays."""
    most = resource.getrlimit(limit)[1]
    hard = soft if hard is None else hard
    hard = hard if most == resource.RLIM_INFINITY else min(hard, most)
    resource.setrlimit(limit, (min(soft, hard), hard))


def unused_user() -> int:
    """Return a random UID of the range for workers.

    A UID computed from a PID could be in use: PIDs are reused while copies of earlier workers are alive.
    """
    return _FIRST_USER + int.from_bytes(os.urandom(4), "little") % _USERS


def _drop_privileges(rules: Confinement, folder: str) -> str:
    """Change from root to an unused user who owns only ``folder``; return the name of the layer.

    If only root can read the interpreter, or no other user is possible, stay root without capabilities.
    """
    for uid in (unused_user(), _NOBODY) if rules["drops_user"] else ():
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.chown(folder, uid, uid)
            os.setresuid(uid, uid, uid)
        except OSError:  # a user namespace may map only a few UIDs, such as _NOBODY
            continue
        _set(resource.RLIMIT_NPROC, rules["processes"])
        return OWN_USER if uid != _NOBODY else "nobody"
    header, nothing = struct.pack("<Ii", _CAPABILITIES_VERSION, 0), bytes(24)
    syscall("capset", header, nothing)
    return "no capabilities"


def _count_processes(uid: int) -> int:
    """Return the number of a user's threads in all processes, which is the number that the kernel limits."""
    count = 0
    for entry in os.scandir("/proc"):
        with suppress(OSError):  # it has ended meanwhile
            if entry.name.isdecimal() and entry.stat().st_uid == uid:
                count += len(os.listdir(f"{entry.path}/task"))
    return count


def _trees(rules: Confinement, folder: str) -> list[tuple[str, int]]:
    """Return the paths that Landlock allows, each with its rights.

    ``folder`` contains the folders of the episode and of its copies.
    """
    may_run = landlock.EXECUTE if rules["profile"] == "shell" else 0
    return [
        *((path, landlock.READ | may_run) for path in rules["readable"]),
        *((path, landlock.ALL | may_run) for path in (folder, *rules["writable"])),
        *((device, landlock.USE) for device in _DEVICES),
    ]
