"""The isolation levels: checks whether this machine supports them, and builds the command for namespaces."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from envweave_gym.core.config import one_of
from envweave_gym.core.faults import NotAvailable, shown
from envweave_gym.sandbox.inside import landlock
from envweave_gym.sandbox.inside.confinement import unused_user
from envweave_gym.sandbox.inside.syscall_numbers import machine

LEVELS = ("process", "landlock", "namespace", "container")
"""Names of the levels, from the weakest to the strongest; each applies all layers of those before it.

``container`` leaves out layers that the container's kernel does not have."""
_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
"""Files that exist only inside containers of Docker and Podman."""
_TIMEOUT_S = 20.0
_HERE = Path(__file__).parent
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime", "/etc/ssl")
_OLDEST = 3, 6
"""Version of the oldest Python that can run ``sandbox/inside``."""
_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"
_TREES = """
import json, site, sys, sysconfig
print(json.dumps([sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *site.getsitepackages()]))
"""


def require(level: str) -> None:
    """Raise if the level is unknown (``InvalidArgument``) or this machine does not support it (``NotAvailable``).

    A weaker level is never used instead.
    """
    one_of("isolation", level, LEVELS)
    if why := why_missing(level):
        raise NotAvailable(f"isolation={level!r} is not available: {why}")


def why_missing(level: str) -> str:
    """Return why this machine does not support a level, and the remedy; ``""`` if it does."""
    if sys.platform != "linux":
        return "only Linux can confine processes; make the environment with backend='docker'"
    if level in ("landlock", "namespace") and landlock.version() == 0:
        return "the kernel has no Landlock (it is in Linux 5.13 and later); ask for isolation='process'"
    if level != "process" and machine() is None:
        return "it supports only x86-64 and 64-bit ARM; ask for isolation='process'"
    if level == "namespace":
        try:
            return _why_no_bubblewrap()
        except (OSError, subprocess.SubprocessError) as error:
            return f"bubblewrap does not run here: {error}"
    if level == "container" and not is_container():
        return "this process does not run in a container; make the environment with backend='docker'"
    return ""


def inner(level: str) -> str:
    """Return the confinement of a worker at this level: ``"process"``, ``"seccomp"`` or ``"landlock"``.

    ``"seccomp"`` is for containers whose kernel has no Landlock, such as gVisor.
    """
    if level == "process":
        return "process"
    return "seccomp" if landlock.version() == 0 else "landlock"


def is_container() -> bool:
    """Return whether this process runs in a container."""
    return any(map(os.path.exists, _CONTAINER_MARKS)) or "KUBERNETES_SERVICE_HOST" in os.environ


@cache
def _why_no_bubblewrap() -> str:
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (Debian: apt-get install bubblewrap)"
    command = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    return f"bubblewrap does not work here: {tried.stderr.strip()}" if tried.returncode else ""


def user_of_namespace(level: str, python: str) -> int:
    """Return an unused UID for a zygote in namespaces, or 0 if it keeps the user of this process.

    It gets one only if this process is root, and other users may read the interpreter ``python`` and this package.
    """
    readable = level == "namespace" and os.getuid() == 0 and is_for_all(python) and _is_open(_HERE)
    return unused_user() if readable else 0


def around(root: str, trees: Sequence[str], writable: Sequence[str]) -> list[str]:
    """Return the bubblewrap command that starts a zygote in namespaces, where only these trees can be seen.

    The zygote can write to ``root`` and ``writable``, and read the rest.
    """
    command = ["bwrap", "--unshare-all", "--die-with-parent", "--proc", "/proc", "--dev", "/dev"]
    for tree in dict.fromkeys([*_SYSTEM, *trees]):
        command += ["--ro-bind-try", tree, tree]
    for tree in (root, *writable):
        command += ["--bind", tree, tree]
    return [*command, "--"]


@cache
def trees_of(python: str) -> tuple[str, ...]:
    """Return the folders that an interpreter reads; raise ``NotAvailable`` if it does not run."""
    try:
        version = _output_of(python, "-c", _VERSION)
        if tuple(map(int, version.split("."))) < _OLDEST:
            oldest = ".".join(map(str, _OLDEST))
            raise NotAvailable(
                f"python={shown(python)} is Python {version.strip()}, and the sandbox runs on Python "
                f"{oldest} or newer; name another interpreter"
            )
        trees = json.loads(_output_of(python, "-I", "-c", _TREES))
        found = [os.path.dirname(os.path.realpath(python)), *trees]
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise NotAvailable(
            f"python={shown(python)} does not run: {error}; name another interpreter"
        ) from None
    return tuple(dict.fromkeys(path for path in found if os.path.isdir(path)))


def _output_of(python: str, *arguments: str) -> str:
    """Return the standard output of the interpreter run with these arguments."""
    command = [python, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout


@cache
def is_for_all(python: str) -> bool:
    """Return whether every user may run this interpreter and read its library."""
    return all(_is_open(Path(path)) for path in (os.path.realpath(python), *trees_of(python)))


def _is_open(path: Path) -> bool:
    needed = stat.S_IXOTH | stat.S_IROTH
    ways = all(above.stat().st_mode & stat.S_IXOTH for above in path.parents)
    return ways and path.stat().st_mode & needed == needed
