"""Cache of virtual environments made by uv, by a hash of their pinned packages and their Python version.

A *resolution* is a file that maps requirements as they were given to the environment that satisfies them, so that
uv resolves them once. An environment is complete when its marker file stands. The lock file beside it is locked
exclusively by the process that makes or removes the environment, and shared by all that use it: these are *leases*.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from envweave_gym.core.faults import NotAvailable
from envweave_gym.os_support import xdg_folders
from envweave_gym.os_support.file_lock import file_lock, shared_lock, try_lock, unlock
from envweave_gym.suites.requirement_lists import (
    check_python,
    check_requirements,
    content_digest_of,
    for_uv,
    name_of,
    without_credentials,
)
from envweave_gym.suites.uv_commands import Uv, uv_program

CONSENT = "ENVWEAVE_INSTALL"
"""Variable that consents to all installs if it is ``1``."""
FOLDER = "ENVWEAVE_SUITES"
"""Variable that names the folder of the cache."""
UNUSED_DAYS = 30.0
"""Age at which an environment that no process uses is removed by the next install, in days since its last use."""
_INSTALL_TIMEOUT_S = 7200.0
_LEASE_TIMEOUT_S = 60.0
_TRIES = 3
_DAY_S = 86400.0
_MARKER = "envweave.json"
_MOST_LISTED = 6
"""Requirements in a message; the pins of a hub package may be a hundred."""


class Marker(msgspec.Struct, frozen=True):
    """Content of the marker file of a complete environment."""

    requirements: tuple[str, ...]
    """Requirements that it was made for, as they were given."""
    pins: tuple[str, ...]
    python: str
    """Version of its Python."""
    key_without_content: str
    """That of the :class:`VenvSpec` that it was made for."""


class _Resolution(msgspec.Struct, frozen=True):
    environment: str


class VenvSpec(msgspec.Struct, frozen=True):
    """Checked requirements and interpreter of a virtual environment."""

    what: str
    """Name in errors: whose environment it is."""
    requirements: tuple[str, ...]
    python: str | None
    content: str
    """Digest of the content of local packages, or an empty text."""

    @property
    def key_without_content(self) -> str:
        """Digest of requirements and interpreter, without the content of local packages.

        The interpreter is ``python``, or else the version of this one, whichever environment it runs in.
        """
        interpreter = self.python or f"{platform.python_implementation()} {platform.python_version()}"
        return _digest([sorted(self.requirements), interpreter])

    @property
    def key(self) -> str:
        """Name of the resolution's file: a digest of requirements, interpreter and content."""
        whole = self.key_without_content
        return f"{whole}-{self.content}" if self.content else whole

    def pins(self, uv: Uv, interpreter: str) -> list[str]:
        """Return the pins, one for each package, that satisfy the requirements."""
        return uv.resolve([for_uv(one) for one in self.requirements], interpreter)

    def fill(self, uv: Uv, folder: Path, interpreter: str, pins: Sequence[str]) -> None:
        """Make the virtual environment in ``folder`` with exactly these packages."""
        uv.make(folder, interpreter, pins)


def venv_spec(
    what: str, requirements: Sequence[str], python: str | None = None, base: Path | None = None
) -> VenvSpec:
    """Check requirements and interpreter, and read the local packages among them.

    Relative paths are relative to ``base``, by default the working directory.
    """
    lines = check_requirements(what, requirements, base)
    return VenvSpec(what, lines, check_python(what, python, base), content_digest_of(lines))


class VirtualEnvironment:
    """Complete environment that this process holds a lease of: no sweep removes it until :meth:`release`."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder, self.lock = folder, lock
        """``lock``: descriptor of the lease; child processes that inherit it (``pass_fds``) hold the lease too."""

    @property
    def python(self) -> Path:
        """Path of its interpreter."""
        return self.folder / "bin" / "python"

    def release(self) -> None:
        """End this object's lease; child processes that have inherited it keep theirs."""
        if self.lock >= 0:
            lock, self.lock = self.lock, -1
            os.close(lock)


_held_until_exit: dict[Path, VirtualEnvironment] = {}
"""Environments whose interpreters :func:`hold` has returned."""


def interpreter_of(
    requirements: Sequence[str],
    *,
    python: str | None = None,
    install: bool = False,
    what: str = "this environment",
    command: str | None = None,
) -> Path:
    """Return the interpreter of a cached virtual environment that has these requirements.

    The requirements are those of pip: names with versions, URLs, and paths of wheels or of packages. ``python`` is a
    version such as ``"3.10"``, by default that of this process.

    If there is no such environment, it is made with ``install=True`` or ``ENVWEAVE_INSTALL=1``. Otherwise raise
    ``NotAvailable``, which says that ``what`` needs it and which ``command`` makes it. The environment is held in use
    until this process ends; a child process holds it longer if it inherits a lease (:func:`acquire`).
    """
    return hold(acquire(venv_spec(what, requirements, python), install=install, command=command))


def hold(environment: VirtualEnvironment) -> Path:
    """Hold an environment in use until this process ends, and return its interpreter."""
    if _held_until_exit.setdefault(environment.folder, environment) is not environment:
        environment.release()
    return environment.python


def acquire(
    spec: VenvSpec, *, install: bool = False, command: str | None = None, refresh: bool = False
) -> VirtualEnvironment:
    """Return a lease of the environment that has the requirements, as :func:`interpreter_of` does.

    With ``refresh`` the requirements are resolved again, so that those without a version get newer ones.
    """
    with _cache_errors_explained(spec.what):
        if not refresh and (found := _find(spec)) is not None:
            return found
        if not (install or os.environ.get(CONSENT, "").strip().lower() in ("1", "true", "yes")):
            raise _needs_consent(spec, command)
        for _ in range(_TRIES):
            _install(spec, refresh)
            if (found := _find(spec)) is not None:
                return found
            refresh = False
    raise NotAvailable(
        f"{spec.what}: its virtual environment was removed {_TRIES} times while it was made; end the other "
        "'envweave suites sweep', and try again"
    )


def lease_of(folder: Path, what: str) -> VirtualEnvironment:
    """Return a lease of an environment in the cache; raise ``NotAvailable`` if it was removed."""
    with _cache_errors_explained(what):
        found = _leased(folder, _LEASE_TIMEOUT_S, what)
    if found is None:
        raise NotAvailable(
            f"{what}: its virtual environment {folder} was removed; make the environment again"
        )
    return found


def is_installed(requirements: Sequence[str], *, python: str | None = None) -> bool:
    """Return whether :func:`interpreter_of` would find an environment without an install."""
    return installed_folder(venv_spec("this environment", requirements, python)) is not None


def installed_folder(spec: VenvSpec) -> Path | None:
    """Return the folder of the environment that has the requirements, or ``None`` if there is none.

    This takes no lease and is no use of the environment, which the age for the sweep counts from.
    """
    with _cache_errors_explained(spec.what):
        folder = _resolved(spec)
        return None if folder is None or marker_of(folder) is None else folder


def _needs_consent(spec: VenvSpec, command: str | None) -> NotAvailable:
    lines = spec.requirements
    command = command or add_command(name_of(lines[0]), lines, spec.python)
    from_python = (
        "" if command.endswith(" --install") else "give install=True, or "
    )  # else it is the same command
    return NotAvailable(
        f"{spec.what} needs {_listed(spec)} in a virtual environment of its own, which is not made yet: "
        f"{from_python}set {CONSENT}=1, or run: {command}"
    )


def _listed(spec: VenvSpec) -> str:
    """Return the first requirements for a message, without user names and passwords in URLs."""
    lines = [without_credentials(line) for line in spec.requirements]
    more = len(lines) - _MOST_LISTED
    return ", ".join([*lines[:_MOST_LISTED], *([f"and {more} more"] if more > 0 else [])])


def add_command(name: str, requirements: Sequence[str], python: str | None, *options: str) -> str:
    """Return the command that adds the requirements as the suite ``name`` and installs them, without passwords."""
    lines = map(without_credentials, requirements)
    interpreter = [] if python is None else ["--python", python]
    return shlex.join(["envweave", "suites", "add", name.lower(), *lines, *interpreter, *options])


# The cache


def cache_folder() -> Path:
    """Return the folder of the cache, which may not exist: ``ENVWEAVE_SUITES``, or one in the user's cache."""
    given = os.environ.get(FOLDER)
    return (
        Path(os.path.abspath(os.path.expanduser(given))) if given else xdg_folders.cache_folder() / "suites"
    )


def _environment(key: str) -> Path:
    return cache_folder() / "environments" / key


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _resolution_file(key: str) -> Path:
    return cache_folder() / "resolutions" / f"{key}.json"


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:20]


@contextmanager
def _cache_errors_explained(what: str) -> Generator[None]:
    """Turn an ``OSError`` about the cache's folder into one sentence."""
    try:
        yield
    except OSError as error:
        raise NotAvailable(
            f"{what}: the folder {cache_folder()} of virtual environments cannot be used: {error}; name another "
            f"in {FOLDER}"
        ) from error


def _find(spec: VenvSpec) -> VirtualEnvironment | None:
    """Return a lease of the complete environment that the resolution names, or ``None``."""
    folder = _resolved(spec)
    return None if folder is None else _leased(folder, _LEASE_TIMEOUT_S, spec.what)


def _resolved(spec: VenvSpec) -> Path | None:
    """Return the folder that the resolution names, or ``None`` without a resolution."""
    try:
        known = msgspec.json.decode(_resolution_file(spec.key).read_bytes(), type=_Resolution)
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
        return None
    return _environment(known.environment)


def _leased(folder: Path, timeout_s: float, what: str) -> VirtualEnvironment | None:
    """Return a lease of a complete environment, which counts as a use of it, or ``None`` if there is none."""
    does = f"installs or removes the virtual environment of {what}"
    lock = shared_lock(_lock_of(folder), timeout_s, holder_does=does)
    if lock is None:
        return None
    if marker_of(folder) is None:
        os.close(lock)
        return None
    with suppress(OSError):  # a cache that this user may only read
        os.utime(folder / _MARKER)  # the time of its last use
    return VirtualEnvironment(folder, lock)


def marker_of(folder: Path) -> Marker | None:
    """Return the marker of a complete environment whose interpreter exists, else ``None``."""
    try:
        marker = msgspec.json.decode((folder / _MARKER).read_bytes(), type=Marker)
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
        return None
    return marker if (folder / "bin" / "python").exists() else None


def _install(spec: VenvSpec, refresh: bool) -> None:
    """Resolve the requirements, make their environment unless it exists, and write the resolution.

    Whatever is interrupted leaves no environment: without its marker a folder is never used, and removed.
    """
    root = _made_cache_folder(spec.what)
    resolution = _resolution_file(spec.key)
    with _install_lock(resolution.with_suffix(".lock"), spec) as lock:
        if not refresh and (found := _find(spec)) is not None:  # another process was faster
            found.release()
            return
        version = spec.python or f"{sys.version_info.major}.{sys.version_info.minor}"
        print(f"envweave: installing {_listed(spec)} (Python {version})", file=sys.stderr, flush=True)
        uv = Uv(root, spec.what, lock)
        interpreter, version = uv.interpreter(spec.python)
        pins = spec.pins(uv, interpreter)
        key = _digest([pins, version, spec.content])
        _make(spec, _environment(key), interpreter, version, pins)
        _write(resolution, _Resolution(key))
    failed = _remove_replaced(spec, key)
    sweep(UNUSED_DAYS, failed)
    for reason in failed:  # the environment is there, whatever of others cannot be removed
        print(f"envweave: {reason}", file=sys.stderr, flush=True)


def uv_in_cache(what: str) -> Uv:
    """Return uv for commands that install nothing; ``what`` is for error messages."""
    with _cache_errors_explained(what):
        return Uv(_made_cache_folder(what), what)


def _made_cache_folder(what: str) -> Path:
    uv_program(what)  # before anything is written
    root = cache_folder()
    for part in ("environments", "resolutions"):
        (root / part).mkdir(parents=True, exist_ok=True)
    (root / "uv.toml").touch()
    return root


@contextmanager
def _install_lock(path: Path, spec: VenvSpec) -> Generator[int]:
    """Hold the lock of an install in the block, and remove its file at the end."""
    with file_lock(path, _INSTALL_TIMEOUT_S, holder_does=f"installs {_listed(spec)}") as lock:
        try:
            yield lock
        finally:
            path.unlink(missing_ok=True)


def _make(spec: VenvSpec, folder: Path, interpreter: str, version: str, pins: list[str]) -> None:
    found = _leased(folder, _INSTALL_TIMEOUT_S, spec.what)
    if found is not None:  # it exists, for other requirements
        found.release()
        return
    does = f"installs {_listed(spec)}"
    with file_lock(_lock_of(folder), _INSTALL_TIMEOUT_S, holder_does=does) as lock:
        if marker_of(folder) is not None:
            return
        try:
            _remove_tree(folder)
            spec.fill(Uv(cache_folder(), spec.what, lock), folder, interpreter, pins)
            marker = Marker(spec.requirements, tuple(pins), version, spec.key_without_content)
            _write(folder / _MARKER, marker)
        except BaseException:
            _remove_tree(folder)
            _lock_of(folder).unlink(missing_ok=True)
            raise


def _write(path: Path, value: object) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(msgspec.json.encode(value))
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _remove_replaced(spec: VenvSpec, key: str) -> list[str]:
    """Remove the environments of earlier contents of the same local packages, unless they are in use.

    Return why some cannot be removed.
    """
    failed: list[str] = []
    for folder, marker in installed() if spec.content else ():
        if marker.key_without_content == spec.key_without_content and folder.name != key:
            with _collected(failed, folder):
                remove_unused(folder)
    return failed


# Removal


def installed() -> list[tuple[Path, Marker]]:
    """Return the folder and the marker of every complete environment in the cache."""
    try:
        folders = sorted((cache_folder() / "environments").iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [(folder, marker) for folder in folders if (marker := marker_of(folder)) is not None]


def remove_unused(folder: Path) -> bool:
    """Remove an environment and its resolutions unless a process uses it; return whether it was removed."""
    lock = try_lock(_lock_of(folder))
    if lock is None:
        return False
    try:
        for file in _resolutions_of(folder.name):
            file.unlink(missing_ok=True)
        (folder / _MARKER).unlink(missing_ok=True)  # first of all: what is half removed is not complete
        _remove_tree(folder)
        _lock_of(folder).unlink(missing_ok=True)
    finally:
        unlock(lock)
    return True


def is_in_use(folder: Path) -> bool:
    """Return whether a process holds a lease of the environment."""
    lock = try_lock(_lock_of(folder))
    if lock is not None:
        unlock(lock)
    return lock is None


@contextmanager
def _collected(failed: list[str], path: Path) -> Generator[None]:
    """Append the reason to ``failed`` if a path cannot be removed."""
    try:
        yield
    except NotAvailable as error:
        failed.append(str(error))
    except OSError as error:
        failed.append(f"{path} cannot be removed: {error}")


def sweep(days: float = UNUSED_DAYS, failed: list[str] | None = None) -> list[str]:
    """Remove environments that were not used for ``days`` and that no process uses, and what was left half-made.

    Return the names of the removed folders. Why others cannot be removed is appended to ``failed``; without that list
    it is raised as ``NotAvailable`` at the end.
    """
    reasons: list[str] = [] if failed is None else failed
    environments = cache_folder() / "environments"
    try:
        entries = sorted(environments.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    removed: list[str] = []
    for entry in entries:
        with _collected(reasons, entry):
            if entry.suffix == ".lock":
                folder = entry.with_suffix("")
                if not folder.exists():
                    remove_unused(folder)
            elif _is_old(entry, days) and remove_unused(entry):
                removed.append(entry.name)
    with _collected(reasons, cache_folder() / "resolutions"):
        _sweep_resolutions()
    if reasons and failed is None:
        raise NotAvailable("; ".join(reasons))
    return removed


def _is_old(folder: Path, days: float) -> bool:
    """Return whether a folder was not used for ``days``, or was left half-made; other files are not removed."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    try:
        return (folder / _MARKER).stat().st_mtime <= time.time() - days * _DAY_S
    except OSError:
        return True


def _sweep_resolutions() -> None:
    """Remove resolutions of environments that are gone, and locks and drafts of killed processes."""
    folder = cache_folder() / "resolutions"
    for file in list(folder.glob("*.lock")):
        if (lock := try_lock(file)) is not None:
            file.unlink(missing_ok=True)
            unlock(lock)
    for file in list(folder.glob(".*")):
        with suppress(FileNotFoundError):  # its process goes on
            if time.time() - file.stat().st_mtime > _DAY_S:
                file.unlink()
    for file in list(folder.glob("*.json")):
        known = _environment_in(file)
        if known is None or not _environment(known).exists():
            file.unlink(missing_ok=True)


def _resolutions_of(environment: str) -> list[Path]:
    files = (cache_folder() / "resolutions").glob("*.json")
    return [file for file in files if _environment_in(file) == environment]


def _environment_in(file: Path) -> str | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Resolution).environment
    except (OSError, msgspec.MsgspecError):
        return None


def _remove_tree(folder: Path) -> None:
    """Remove a folder; raise ``NotAvailable`` naming what cannot be removed."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise NotAvailable(f"{folder} cannot be removed: {error}") from error
