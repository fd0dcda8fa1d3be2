"""Calls of Landlock: rules for files, ports and signals that a process sets for itself and cannot remove."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

from .kernel import PR_SET_NO_NEW_PRIVS, prctl, syscall

SIGNALS_STAY = 6
"""First version of Landlock that can confine signals and abstract Unix sockets."""
# fmt: off
(EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE, MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK,
 MAKE_FIFO, MAKE_BLOCK, MAKE_SYM, REFER, TRUNCATE, IOCTL_DEV) = (1 << bit for bit in range(16))
# fmt: on
_SINCE = ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV))
"""Pairs of a Landlock version and the right that it added; the first version has the 13 others."""
_FIRST_13 = (1 << 13) - 1
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
READ = READ_FILE | READ_DIR
RUN = READ | EXECUTE
ALL = (_FIRST_13 | REFER | TRUNCATE) & ~(EXECUTE | MAKE_CHAR | MAKE_BLOCK)
USE = READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV
"""Rights on devices such as ``/dev/null``."""
_NETWORK, _SCOPES, _SIGNALS = 0b11, 0b11, 0b10
_VERSION, _PATH_BENEATH = 1, 1


def version() -> int:
    """Return the Landlock version of the kernel; 0 if it has none."""
    try:
        return syscall("landlock_create_ruleset", None, 0, _VERSION)
    except OSError:
        return 0


def confine(rules: Iterable[tuple[str, int]]) -> int:
    """Restrict this process to paths, given with the rights of each; return the version of Landlock.

    The process can no longer listen on or connect to TCP ports, nor signal processes outside of its domain. Paths
    that do not exist are skipped.
    """
    made = ruleset(rules)
    try:
        restrict(made)
    finally:
        os.close(made)
    return version()


def ruleset(rules: Iterable[tuple[str, int]]) -> int:
    """Create a ruleset from pairs of a path and its rights; return the ruleset's descriptor.

    The descriptor may be passed to another process, which applies it by :func:`restrict`.
    """
    spoken = version()
    if spoken < 1:
        raise OSError("the kernel has no Landlock")
    handled = _FIRST_13 | sum(right for since, right in _SINCE if spoken >= since)
    made = _created(spoken, handled, _NETWORK, _SCOPES)
    try:
        for path, rights in rules:
            _add(made, path, rights & handled)
    except BaseException:
        os.close(made)
        raise
    return made


def keep_out_of_others() -> bool:
    """Keep this process from tracing processes outside of its Landlock domain, and so from reading their memory.

    Entering any domain has this effect, so the rules allow everything. Return whether the kernel supports it.
    """
    spoken = version()
    if spoken < 2:  # version 1 cannot allow moving files between folders
        return False
    made = _created(spoken, REFER, 0, _SIGNALS)
    try:
        _add(made, "/", REFER)
        restrict(made)
    finally:
        os.close(made)
    return True


def restrict(ruleset: int) -> None:
    """Apply a ruleset to this process, permanently."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    syscall("landlock_restrict_self", ruleset, 0)


def _created(spoken: int, handled: int, network: int, scopes: int) -> int:
    """Create an empty ruleset with the fields that the Landlock version ``spoken`` knows; return its descriptor."""
    known = 8 if spoken < 4 else 16 if spoken < SIGNALS_STAY else 24
    attributes = struct.pack("<QQQ", handled, network, scopes)[:known]  # a longer one is refused with E2BIG
    return syscall("landlock_create_ruleset", attributes, known, 0)


def _add(ruleset: int, path: str, rights: int) -> None:
    try:
        tree = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):  # rights of folders on a file are refused with EINVAL
            rights &= _OF_FILES
        syscall("landlock_add_rule", ruleset, _PATH_BENEATH, struct.pack("<Qi", rights, tree), 0)
    finally:
        os.close(tree)
