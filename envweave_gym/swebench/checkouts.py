"""What local evaluations start from: the repository of an instance at its base commit, and a Python for it.

Both are made once and kept in a folder of this user, where all of his processes find them. They are made of
the data set and of what the operator names, never of what a model has written, and outside of any sandbox:
cloning and installing need the network.
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

GITHUB = "https://github.com/{repo}.git"
_FETCHING, _INSTALLING = 900.0, 3600.0
"""Seconds that a clone, and the installation of packages, may take."""
_TOLD = 600
_NAME = re.compile(r"[\w.-]{1,150}")
_GIT = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
_PIP = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
_PIN_OF_PIP = re.compile(r"^pip\s*==\s*[\w.]+", re.MULTILINE)


@dataclass(frozen=True)
class Checkout:
    """What an evaluation of one instance starts from."""

    tree: Path
    """The repository; it is copied, never used."""
    environment: Path
    """The virtual environment, which programs read."""
    paths: tuple[str, ...]
    """The folders of the repository that its installation lets programs import from."""


@dataclass(frozen=True)
class Recipe:
    """How checkouts are made."""

    python: str
    """The interpreter."""
    repos: str = GITHUB
    """Where git finds the repositories: a URL or a folder, with ``{repo}`` or ``{instance_id}`` in it."""
    requirements: str | None = None
    """A file of requirements, with ``{instance_id}``, ``{repo}`` or ``{version}`` in its path. They are
    installed first, and then the repository; without them nothing is."""
    cache: str | None = None
    """The folder that checkouts are kept in, by default where this user keeps what can be made again."""

    def __post_init__(self) -> None:
        for name in ("python", "repos", "requirements", "cache"):
            value = getattr(self, name)
            if not isinstance(value, str | None) or (value is None and name in ("python", "repos")):
                raise InvalidArgument(f"{name}={shown(value)} is no text; give a path, or a URL of repos")

    @property
    def folder(self) -> Path:
        """The folder that checkouts are kept in."""
        return Path(os.path.abspath(self.cache or _default_cache()))

    @property
    def environments(self) -> Path:
        """The folder of all virtual environments."""
        return self.folder / "environments"

    def checkout(self, instance: Instance) -> Checkout:
        """That of an instance, which is made where it is not there yet."""
        requirements = self._requirements_of(instance)
        name = self._name(instance, requirements)
        _own(self.folder)
        _own(self.environments)
        made = self.folder / f"{name}.json"
        with file_lock(self.folder / f"{name}.lock", _FETCHING + _INSTALLING):
            tree, environment = self.folder / name, self.environments / name
            if not made.exists():
                for old in (tree, environment):
                    shutil.rmtree(old, ignore_errors=True)
                _clone(instance, self.repos, tree)
                paths = _install(instance, self.python, requirements, tree, environment)
                made.write_text(json.dumps(paths))
            return Checkout(tree, environment, tuple(json.loads(made.read_text())))

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
        """The name of a checkout, which is another whenever anything is that it is made of."""
        wanted = "" if requirements is None else requirements.read_text()
        source, python = _filled(self.repos, instance), os.path.realpath(self.python)
        parts = [instance.instance_id, instance.base_commit, instance.version, source, python, wanted]
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
        known = instance.instance_id if _NAME.fullmatch(instance.instance_id) else "instance"
        return f"{known}-{digest}"


def _filled(template: str, instance: Instance) -> str:
    for name in ("repo", "instance_id", "version"):
        template = template.replace(f"{{{name}}}", getattr(instance, name))
    return template


# Folders


def _default_cache() -> str:
    """A folder that nobody tidies up; what others are not to see is no place for what all programs read."""
    caches = "/var/cache" if os.getuid() == 0 else os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    place = Path(caches).expanduser()
    with suppress(OSError):  # a container may have no such place
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
        if os.access(place, os.W_OK):
            return str(place / "envweave-swebench")
    return os.path.join(tempfile.gettempdir(), f"envweave-swebench-{os.getuid()}")


def _own(folder: Path) -> None:
    """Have a folder that only this user writes to and everybody reads, as programs are users of their own."""
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise NotAvailable(f"{folder} is no folder that this user alone writes to; give another cache=")
    if os.getuid() == 0 and not all(above.stat().st_mode & stat.S_IXOTH for above in folder.parents):
        raise NotAvailable(f"programs are no root, and do not get to {folder}; give another cache=")


# The repository


def _clone(instance: Instance, repos: str, tree: Path) -> None:
    """The repository with one commit, and nothing that came after it."""
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
    return _run(["git", "-C", str(tree), *arguments], _FETCHING, {**_GIT, **environment})


def _run(command: Sequence[str], timeout: float, environment: dict[str, str]) -> str:
    """What a program prints; ``NotAvailable`` with its last words where it fails."""
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
        words = (done.stderr or done.stdout).strip()[-_TOLD:]
        raise NotAvailable(f"{os.path.basename(command[0])} failed: {words}")
    return done.stdout


def _host_environment() -> dict[str, str]:
    """The host's variables without ``PYTHONPATH`` and the like, which would hide what is to be installed."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


# The environment


def _install(
    instance: Instance, python: str, requirements: Path | None, tree: Path, environment: Path
) -> list[str]:
    """Make the virtual environment; the folders of the repository that programs are to import from."""
    with _name_instance(instance):
        bare = ["--without-pip"] if requirements is None else []
        _run([python, "-m", "venv", *bare, str(environment)], _INSTALLING, {})
        if requirements is None:
            return []
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "-q"]
        if pin := _PIN_OF_PIP.search(requirements.read_text()):
            _run([*pip, pin[0]], _INSTALLING, _PIP)
        _run([*pip, "-r", str(requirements)], _INSTALLING, _PIP)
        version = {"SETUPTOOLS_SCM_PRETEND_VERSION": instance.version}
        _run([*pip, "--no-deps", "-e", str(tree)], _INSTALLING, {**_PIP, **version})
        if _git(tree, "status", "--porcelain", "--untracked-files=no"):  # as the official images do
            _commit(tree, "-a", "-m", "Installed")
        return _taken_out(environment, tree)


@contextmanager
def _name_instance(instance: Instance) -> Generator[None]:
    """Put the instance into errors of its installation."""
    try:
        yield
    except NotAvailable as error:
        raise NotAvailable(f"{instance.instance_id}: its packages cannot be installed: {error}") from None


def _taken_out(environment: Path, tree: Path) -> list[str]:
    """Take out of an environment what an editable installation says of the repository.

    Evaluations import from copies of it, and must never find what is not patched. The folders that were
    named come back, as paths in the repository.
    """
    named = re.compile(re.escape(str(tree)) + r"(?:/[^'\"\n]*)?")
    found: dict[str, None] = {}
    for site in environment.glob("lib/python*/site-packages"):
        for file in [*site.glob("*.pth"), *site.glob("*.egg-link"), *site.glob("__editable__*.py")]:
            places = named.findall(file.read_text(errors="replace"))
            for place in places:
                folder = Path(place).parent if file.suffix == ".py" else Path(place)
                found[os.path.relpath(folder, tree)] = None
            if places or file.name.startswith("__editable__"):
                file.unlink()
    return [one for one in found if not one.startswith("..")]
