"""Builds and caches checkouts for local evaluations: a repository at its base commit, and a virtual environment.

Each checkout is built once and cached in a folder that all processes of this user share. Cloning and installing
need the network and run outside of the sandbox. They are safe there: their commands contain values of the data
set and of the operator, and no text of a model.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from envweave_gym.core.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.data.swebench_lite import Instance
from envweave_gym.data.toy_files import FILES
from envweave_gym.data.toy_repo import COMMIT_ENVIRONMENT, MESSAGE, REPO
from envweave_gym.os_support.file_lock import file_lock
from envweave_gym.os_support.xdg_folders import cache_home

GITHUB = "https://github.com/{repo}.git"
_FETCH_TIMEOUT_S, _INSTALL_TIMEOUT_S = 900.0, 3600.0
_ERROR_CHARS = 600
_NAME = re.compile(r"[\w.-]{1,150}")
_GIT = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
_PIP = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
_PIP_PIN = re.compile(r"^pip\s*==\s*[\w.]+", re.MULTILINE)


@dataclass(frozen=True)
class Checkout:
    """The paths of one instance's cached repository and virtual environment."""

    tree: Path
    """The root of the repository; evaluations run in copies of it."""
    environment: Path
    """The root of the virtual environment, which evaluations only read."""
    paths: tuple[str, ...]
    """Folders that ``pip install -e`` put on the import path, relative to the repository."""


@dataclass(frozen=True)
class Recipe:
    """The interpreter, repositories and packages to build checkouts from, and the folder to cache them in."""

    python: str
    """The path of the interpreter that makes the virtual environments."""
    repos: str = GITHUB
    """The URL or folder of the repositories, with ``{repo}`` or ``{instance_id}`` in it."""
    requirements: str | None = None
    """The path of a requirements file, with ``{instance_id}``, ``{repo}`` or ``{version}`` in it. It is
    installed first, and then the repository; without a file nothing is installed."""
    cache: str | None = None
    """The folder of all checkouts; by default in the cache folder of this user."""

    def __post_init__(self) -> None:
        for name in ("python", "repos", "requirements", "cache"):
            value = getattr(self, name)
            if not isinstance(value, str | None) or (value is None and name in ("python", "repos")):
                raise InvalidArgument(f"{name}={shown(value)} is no text; give a path, or a URL of repos")

    @property
    def folder(self) -> Path:
        """The absolute path of the folder of all checkouts."""
        return Path(os.path.abspath(self.cache or _default_cache()))

    @property
    def environments(self) -> Path:
        """The folder of all virtual environments."""
        return self.folder / "environments"

    def checkout(self, instance: Instance) -> Checkout:
        """Return the checkout of an instance; build it first, under a file lock, if it is not in the cache.

        Raise ``NotAvailable`` if the repository cannot be fetched, its packages cannot be installed, or the
        cache folder is not private to this user.
        """
        requirements = self._requirements_of(instance)
        name = self._name(instance, requirements)
        _require_own(self.folder)
        _require_own(self.environments)
        done = self.folder / f"{name}.json"  # written last, so it exists only if the build succeeded
        with file_lock(self.folder / f"{name}.lock", _FETCH_TIMEOUT_S + _INSTALL_TIMEOUT_S):
            tree, environment = self.folder / name, self.environments / name
            if not done.exists():
                for old in (tree, environment):
                    shutil.rmtree(old, ignore_errors=True)
                _clone(instance, self.repos, tree)
                paths = _install(instance, self.python, requirements, tree, environment)
                done.write_text(json.dumps(paths))
            return Checkout(tree, environment, tuple(json.loads(done.read_text())))

    def _requirements_of(self, instance: Instance) -> Path | None:
        if self.requirements is None:
            return None
        path = Path(os.path.abspath(_filled(self.requirements, instance)))
        if not path.is_file():
            raise NotAvailable(
                f"{instance.instance_id} has no requirements: there is no file {path}; write it, or give "
                "another requirements="
            )
        return path

    def _name(self, instance: Instance, requirements: Path | None) -> str:
        """Return the folder name of a checkout: the instance's ID and a hash of all inputs of the build."""
        packages = "" if requirements is None else requirements.read_text()
        source, python = _filled(self.repos, instance), os.path.realpath(self.python)
        parts = [instance.instance_id, instance.base_commit, instance.version, source, python, packages]
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
        stem = instance.instance_id if _NAME.fullmatch(instance.instance_id) else "instance"
        return f"{stem}-{digest}"


def _filled(template: str, instance: Instance) -> str:
    # Not str.format: paths of users may have other braces.
    for name in ("repo", "instance_id", "version"):
        template = template.replace(f"{{{name}}}", getattr(instance, name))
    return template


# Folders


def _default_cache() -> str:
    """Return the default folder of checkouts: below ``~/.cache``, for root ``/var/cache``, else the temp folder.

    Root's home is left out, because sandboxed programs run as another user, which cannot enter it.
    """
    folder = Path("/var/cache") if os.getuid() == 0 else cache_home()
    with suppress(OSError):  # a container may not have it
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return str(folder / "envweave-swebench")
    return os.path.join(tempfile.gettempdir(), f"envweave-swebench-{os.getuid()}")


def _require_own(folder: Path) -> None:
    """Create a folder with mode 755; raise ``NotAvailable`` if others may write to it, or cannot enter it.

    Whoever can write to it could replace the programs that later evaluations run.
    """
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise NotAvailable(f"{folder} is no folder that this user alone writes to; give another cache=")
    if os.getuid() == 0 and not all(above.stat().st_mode & stat.S_IXOTH for above in folder.parents):
        raise NotAvailable(f"programs are no root, and do not get to {folder}; give another cache=")


# The repository


def _clone(instance: Instance, repos: str, tree: Path) -> None:
    """Fetch the base commit into ``tree``, without later history, which would give the solution away."""
    tree.mkdir(mode=0o755)
    _git(tree, "init", "-q", "--template=")
    if instance.repo == REPO:
        _make_toy(tree)
    else:
        source = _filled(repos, instance)
        url = Path(source).resolve().as_uri() if os.path.isdir(source) else source
        try:
            _git(tree, "fetch", "-q", "--depth", "1", "--no-tags", url, instance.base_commit)
        except NotAvailable as error:
            raise NotAvailable(
                f"{instance.instance_id}: its repository cannot be fetched from {source}: {error}; name with "
                "repos= where it is"
            ) from None
        _git(tree, "checkout", "-q", "--detach", "FETCH_HEAD")
        (tree / ".git" / "FETCH_HEAD").unlink()
    found = _git(tree, "rev-parse", "HEAD").strip()
    if found != instance.base_commit:
        raise NotAvailable(f"{instance.instance_id}: the repository is at {found}, not at its base commit")


def _make_toy(tree: Path) -> None:
    for name, text in FILES.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    _git(tree, "add", ".")
    _commit(tree, "-m", MESSAGE.strip())


def _commit(tree: Path, *arguments: str) -> None:
    _git(tree, "-c", "commit.gpgSign=false", "commit", "-q", *arguments, **COMMIT_ENVIRONMENT)


def _git(tree: Path, *arguments: str, **environment: str) -> str:
    return _run(["git", "-C", str(tree), *arguments], _FETCH_TIMEOUT_S, {**_GIT, **environment})


def _run(command: Sequence[str], timeout: float, environment: dict[str, str]) -> str:
    """Run a program and return its stdout; raise ``NotAvailable`` with the end of its stderr if it fails."""
    try:
        done = subprocess.run(
            command,
            env={**_host_environment(), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            umask=0o022,
        )
    except FileNotFoundError:
        raise NotAvailable(
            f"there is no {command[0]} here, which local evaluations need; install it"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotAvailable(f"{command[0]} does not run: {error}") from None
    if done.returncode:
        output = (done.stderr or done.stdout).strip()[-_ERROR_CHARS:]
        raise NotAvailable(f"{os.path.basename(command[0])} failed: {output}")
    return done.stdout


def _host_environment() -> dict[str, str]:
    """Return ``os.environ`` without ``PYTHON*``: a ``PYTHONPATH`` would let the build import our packages."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


# The environment


def _install(
    instance: Instance, python: str, requirements: Path | None, tree: Path, environment: Path
) -> list[str]:
    """Create the virtual environment and install the packages and the repository (``pip install -e``) in it.

    Return the value of :attr:`Checkout.paths`. Without ``requirements`` nothing is installed.
    """
    with _name_instance(instance):
        bare = ["--without-pip"] if requirements is None else []
        _run([python, "-m", "venv", *bare, str(environment)], _INSTALL_TIMEOUT_S, {})
        if requirements is None:
            return []
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "-q"]
        if pin := _PIP_PIN.search(requirements.read_text()):
            _run([*pip, pin[0]], _INSTALL_TIMEOUT_S, _PIP)
        _run([*pip, "-r", str(requirements)], _INSTALL_TIMEOUT_S, _PIP)
        # The clone has no tags to read the version from.
        version = {"SETUPTOOLS_SCM_PRETEND_VERSION": instance.version}
        _run([*pip, "--no-deps", "-e", str(tree)], _INSTALL_TIMEOUT_S, {**_PIP, **version})
        # Building may change tracked files. The official images commit the changes too.
        if _git(tree, "status", "--porcelain", "--untracked-files=no"):
            _commit(tree, "-a", "-m", "Installed")
        return _unlink_tree(environment, tree)


@contextmanager
def _name_instance(instance: Instance) -> Generator[None]:
    """Prefix ``NotAvailable`` errors of an installation with the instance's ID."""
    try:
        yield
    except NotAvailable as error:
        raise NotAvailable(f"{instance.instance_id}: its packages cannot be installed: {error}") from None


def _unlink_tree(environment: Path, tree: Path) -> list[str]:
    """Delete the ``.pth`` and similar files by which ``pip install -e`` puts the repository on the import path.

    Evaluations import from patched copies, and must never find the original. Return the folders that the
    deleted files named, relative to the repository.
    """
    path_in_tree = re.compile(re.escape(str(tree)) + r"(?:/[^'\"\n]*)?")
    folders: dict[str, None] = {}
    for site in environment.glob("lib/python*/site-packages"):
        for file in [*site.glob("*.pth"), *site.glob("*.egg-link"), *site.glob("__editable__*.py")]:
            paths = path_in_tree.findall(file.read_text(errors="replace"))
            for path in paths:
                folder = Path(path).parent if file.suffix == ".py" else Path(path)
                folders[os.path.relpath(folder, tree)] = None
            if paths or file.name.startswith("__editable__"):
                file.unlink()
    return [folder for folder in folders if not folder.startswith("..")]
