"""The confinement of a worker: limits, user, Landlock and seccomp, applied by the worker before it runs
programs.
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
from .syscalls import machine

Confinement = Dict[str, Any]
"""The keys ``level`` (``process``, ``seccomp`` or ``landlock``), ``profile``, ``drops_user``, ``readable``
and ``writable`` trees, and the limits ``memory``, ``file_size``, ``files`` and ``processes``."""

SLACK = 32 << 20
"""Bytes above the soft limit that the worker itself may use to report a ``MemoryError``."""
_MAPPED = 1 << 30
"""Bytes of addresses beyond the memory limit, for mapped files and stacks."""
_FIRST_USER, _USERS = 0x70000000, 1 << 28
"""The range of UIDs for workers of root, which no real user has. Higher numbers are negative to some
programs, such as bubblewrap."""
_NOBODY = 65534
OWN_USER = "user"
"""The layer of a worker whose UID no other process has."""
_SIGNALS = 1024
"""The most pending signals and timers."""
_ROOM = {"code": 512, "shell": 128}
"""How many processes the same ordinary user may start elsewhere before an episode cannot start one. An
episode that may start processes could use up those of others."""
_CAPABILITIES = 0x20080522
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def apply(rules: Confinement, folder: str, parent: int) -> tuple[list[str], int | None]:
    """Confine this process, which ends with its parent and works in ``folder``.

    Returns the layers that are in force, and the descriptor on which the kernel asks whether a fork is
    allowed.
    """
    # The order matters: limits need files of /proc, which Landlock closes; a change of user clears the signal at
    # the parent's death; and the seccomp filter denies the calls that make Landlock rules.
    _limit(rules)
    layers = ["process"]
    if os.getuid() == 0:
        layers.append(_drop_privileges(rules, folder))
    else:
        room = rules["processes"] + _ROOM[rules["profile"]]
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
    """Deny reading, writing, limiting or rescheduling other processes, as an ordinary user could do to its
    host.

    Yields the layers that the kernel has; the level ``process`` works without them too.
    """
    if landlock.keep_out_of_others():
        yield "no tracing"
    if machine() is not None:
        try:
            seccomp.keep_off_others()
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EINVAL):  # from kernels without seccomp
                raise
            return
        yield "no memory of others"


def ruleset(rules: Confinement, folder: str) -> int | None:
    """In the host: create the ruleset of a copy that works in ``folder``; None at levels without Landlock.

    A worker may apply rulesets and create none.
    """
    if rules["level"] != "landlock":
        return None
    return landlock.ruleset(_trees(rules, os.path.dirname(folder)))


def restrict_copy(ruleset: int) -> None:
    """In a copy: give up the folders of the other copies of the episode."""
    try:
        landlock.restrict(ruleset)
    except OSError as error:
        if error.errno == errno.E2BIG:
            deep = "a fork of a fork, this deep, cannot be forked again: the kernel stacks no more rules"
            raise OSError(error.errno, deep) from None
        raise


def _limit(rules: Confinement) -> None:
    memory = rules["memory"]
    _set(resource.RLIMIT_DATA, memory, memory + SLACK)
    _set(resource.RLIMIT_AS, memory + _MAPPED)
    _set(resource.RLIMIT_FSIZE, rules["file_size"])
    _set(resource.RLIMIT_NOFILE, rules["files"])
    for none in (resource.RLIMIT_CORE, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_MEMLOCK):
        _set(none, 0)
    _set(resource.RLIMIT_SIGPENDING, _SIGNALS)
    be_killed_first()


def _set(limit: int, soft: int, hard: int | None = None) -> None:
    """Set a limit, unless a lower one is in force."""
    most = resource.getrlimit(limit)[1]
    hard = soft if hard is None else hard
    hard = hard if most == resource.RLIM_INFINITY else min(hard, most)
    resource.setrlimit(limit, (min(soft, hard), hard))


def unused_user() -> int:
    """Return a random UID of the range; PIDs would not do, as they are reused while copies live on."""
    return _FIRST_USER + int.from_bytes(os.urandom(4), "little") % _USERS


def _drop_privileges(rules: Confinement, folder: str) -> str:
    """Become a user who owns this folder alone, or root without capabilities if only root reads the
    interpreter.
    """
    for uid in (unused_user(), _NOBODY) if rules["drops_user"] else ():
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.chown(folder, uid, uid)
            os.setresuid(uid, uid, uid)
        except OSError:  # in a namespace of few users another may do
            continue
        _set(resource.RLIMIT_NPROC, rules["processes"])
        return OWN_USER if uid != _NOBODY else "nobody"
    header, nothing = struct.pack("<Ii", _CAPABILITIES, 0), bytes(24)
    syscall("capset", header, nothing)
    return "no capabilities"


def _count_processes(uid: int) -> int:
    """Count the processes and threads of a user, which the kernel counts together."""
    count = 0
    for entry in os.scandir("/proc"):
        with suppress(OSError):  # it has ended meanwhile
            if entry.name.isdecimal() and entry.stat().st_uid == uid:
                count += len(os.listdir(f"{entry.path}/task"))
    return count


def _trees(rules: Confinement, folder: str) -> list[tuple[str, int]]:
    """Return each tree and its rights; ``folder`` holds the folders of the episode and of its copies."""
    may_run = landlock.EXECUTE if rules["profile"] == "shell" else 0
    return [
        *((path, landlock.READ | may_run) for path in rules["readable"]),
        *((path, landlock.ALL | may_run) for path in (folder, *rules["writable"])),
        *((device, landlock.USE) for device in _DEVICES),
    ]
