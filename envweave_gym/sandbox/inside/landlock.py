"""Which files a worker may use: rules of the kernel's that no process under them can loosen."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

from .kernel import PR_SET_NO_NEW_PRIVS, prctl, syscall

SIGNALS_STAY = 6
"""From this version on signals and abstract sockets are kept in as well."""
# fmt: off
(EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE, MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK,
 MAKE_FIFO, MAKE_BLOCK, MAKE_SYM, REFER, TRUNCATE, IOCTL_DEV) = (1 << bit for bit in range(16))
# fmt: on
_SINCE = ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV))
_FIRST_13 = (1 << 13) - 1
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
READ = READ_FILE | READ_DIR
RUN = READ | EXECUTE
ALL = (_FIRST_13 | REFER | TRUNCATE) & ~(EXECUTE | MAKE_CHAR | MAKE_BLOCK)
USE = READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV
"""What is done with devices like ``/dev/null``."""
_NETWORK, _SCOPES = 0b11, 0b11
_VERSION, _PATH_BENEATH = 1, 1


def version() -> int:
    """The version of Landlock that the kernel speaks; 0 where there is none."""
    try:
        return syscall("landlock_create_ruleset", None, 0, _VERSION)
    except OSError:
        return 0


def confine(rules: Iterable[tuple[str, int]]) -> int:
    """Let this process use the trees that ``rules`` name, with the rights they say, and no others.

    It listens and connects to no port, and sends no signal to who is not under the same rules. Where a tree
    is not there, neither is its rule. Returns the version of Landlock.
    """
    spoken = version()
    if spoken < 1:
        raise OSError("the kernel has no Landlock")
    handled = _FIRST_13 | sum(right for since, right in _SINCE if spoken >= since)
    network, scopes = _NETWORK if spoken >= 4 else 0, _SCOPES if spoken >= SIGNALS_STAY else 0
    attributes = struct.pack("<QQQ", handled, network, scopes)[
        : 8 if spoken < 4 else 16 if spoken < 6 else 24
    ]
    ruleset = syscall("landlock_create_ruleset", attributes, len(attributes), 0)
    try:
        for path, rights in rules:
            _add(ruleset, path, rights & handled)
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
    return spoken


def _add(ruleset: int, path: str, rights: int) -> None:
    try:
        tree = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):
            rights &= _OF_FILES
        syscall("landlock_add_rule", ruleset, _PATH_BENEATH, struct.pack("<Qi", rights, tree), 0)
    finally:
        os.close(tree)
