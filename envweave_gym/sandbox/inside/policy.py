"""What a worker may do from now on, put over it by the worker itself before it runs what it is given."""

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
from .kernel import end_with_parent, syscall
from .syscalls import machine

Policy = Dict[str, Any]
"""``level`` (``process``, ``seccomp`` or ``landlock``), ``profile``, ``drops_user``, ``readable`` and
``writable`` trees, and the limits ``memory``, ``file_size``, ``files`` and ``processes``."""

SLACK = 32 << 20
"""So much memory more the worker itself may take, to tell that there is none."""
_MAPPED = 1 << 30
"""So many bytes of addresses more than of memory there may be: of files that are mapped, and of stacks."""
_FIRST_USER, _USERS = 0x70000000, 1 << 28
"""Users from here on are nobody's, so many of them: each process that was root is one of its own. Those after
them have numbers that some programs, as bubblewrap, take for ones below zero."""
_NOBODY = 65534
OWN_USER = "user"
"""The layer where a worker is a user whom nobody else is."""
_SIGNALS = 1024
"""So many signals and timers may wait."""
_ROOM = {"code": 512, "shell": 128}
"""So many processes an ordinary user may start elsewhere until the episode can start none; an episode that
starts processes may take those of others."""
_CAPABILITIES = 0x20080522
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def apply(policy: Policy, folder: str, parent: int) -> tuple[list[str], int | None]:
    """Put it over this process, which ends with its parent and works in ``folder``.

    Returns the layers there are now, and the descriptor that every fork is asked of.
    """
    _limit(policy)
    layers = ["process"]
    if os.getuid() == 0:
        layers.append(_give_up_rights(policy, folder))
    else:
        room = policy["processes"] + _ROOM[policy["profile"]]
        _set(resource.RLIMIT_NPROC, _processes_of(os.getuid()) + room)
    end_with_parent(signal.SIGKILL, parent)
    if policy["level"] == "process":
        return [*layers, *_keep_out_of_others()], None
    spoken = 0
    if policy["level"] == "landlock":
        spoken = landlock.confine(_rules(policy, os.path.dirname(folder)))
        layers.append(f"landlock {spoken}")
    is_code = policy["profile"] == "code"
    signals_stay = spoken >= landlock.SIGNALS_STAY
    asked = seccomp.confine(
        programs=not is_code, signals=signals_stay, attributes=OWN_USER in layers, notify=is_code
    )
    return [*layers, "seccomp"], asked


def _keep_out_of_others() -> Iterator[str]:
    """Forbid this process to read, write, limit or reschedule others, as an ordinary user could its host.

    Yields the layers that the kernel has; this level works without them too.
    """
    if landlock.keep_out_of_others():
        yield "no tracing"
    if machine() is not None:
        try:
            seccomp.keep_off_others()
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EINVAL):  # what kernels without seccomp say
                raise
            return
        yield "no memory of others"


def ruleset(policy: Policy, folder: str) -> int | None:
    """In the host: a descriptor of the rules for a copy that works in ``folder``; none where it needs none.

    A worker cannot make rulesets any more, only put one over itself.
    """
    if policy["level"] != "landlock":
        return None
    return landlock.ruleset(_rules(policy, os.path.dirname(folder)))


def narrow(ruleset: int) -> None:
    """In a copy: give up the folders of the other copies of an episode."""
    try:
        landlock.restrict(ruleset)
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise OSError(error.errno, "a fork of a fork of so many forks cannot be forked again") from None
        raise


def _limit(policy: Policy) -> None:
    memory = policy["memory"]
    _set(resource.RLIMIT_DATA, memory, memory + SLACK)
    _set(resource.RLIMIT_AS, memory + _MAPPED)
    _set(resource.RLIMIT_FSIZE, policy["file_size"])
    _set(resource.RLIMIT_NOFILE, policy["files"])
    for none in (resource.RLIMIT_CORE, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_MEMLOCK):
        _set(none, 0)
    _set(resource.RLIMIT_SIGPENDING, _SIGNALS)
    descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    try:
        os.write(descriptor, b"1000")
    finally:
        os.close(descriptor)


def _set(limit: int, soft: int, hard: int | None = None) -> None:
    """Set a limit, or leave it where it is lower already."""
    most = resource.getrlimit(limit)[1]
    hard = soft if hard is None else hard
    hard = hard if most == resource.RLIM_INFINITY else min(hard, most)
    resource.setrlimit(limit, (min(soft, hard), hard))


def new_user() -> int:
    """A user whom nobody else is: by chance, as numbers of processes come again while copies go on."""
    return _FIRST_USER + int.from_bytes(os.urandom(4), "little") % _USERS


def _give_up_rights(policy: Policy, folder: str) -> str:
    """Be a user who owns this folder alone; or root without its rights, where the interpreter is root's."""
    for uid in (new_user(), _NOBODY) if policy["drops_user"] else ():
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.chown(folder, uid, uid)
            os.setresuid(uid, uid, uid)
        except OSError:  # in a namespace of few users another may do
            continue
        _set(resource.RLIMIT_NPROC, policy["processes"])
        return OWN_USER if uid != _NOBODY else "nobody"
    header, nothing = struct.pack("<Ii", _CAPABILITIES, 0), bytes(24)
    syscall("capset", header, nothing)
    return "no capabilities"


def _processes_of(uid: int) -> int:
    """How many processes and threads a user has, all of which the kernel counts."""
    count = 0
    for entry in os.scandir("/proc"):
        with suppress(OSError):  # it has ended meanwhile
            if entry.name.isdecimal() and entry.stat().st_uid == uid:
                count += len(os.listdir(f"{entry.path}/task"))
    return count


def _rules(policy: Policy, folder: str) -> list[tuple[str, int]]:
    """What may be done with which trees; ``folder`` is that of the episode, and of copies of it."""
    may_run = landlock.EXECUTE if policy["profile"] == "shell" else 0
    return [
        *((path, landlock.READ | may_run) for path in policy["readable"]),
        *((path, landlock.ALL | may_run) for path in (folder, *policy["writable"])),
        *((device, landlock.USE) for device in _DEVICES),
    ]
