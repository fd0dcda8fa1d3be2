"""Checks of requirements, and a digest of the local packages among them, whose content may change at the same path."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from envweave_gym.core.faults import InvalidArgument, shown

INSIDE_REQUIREMENT = "msgspec>=0.18"
"""Requirement of the code that runs in a suite's Python (``envweave_gym/suites/inside``)."""
_EXAMPLE = "such as 'nle==1.3.0', 'name @ https://…' or '/path/of/a/package'"
_PYTHON = re.compile(r"[A-Za-z0-9_./~+@-][A-Za-z0-9_./~+@ -]*")
_EXTRAS = re.compile(r"(?P<path>.+?)(?P<extras>\[[\w\s,.-]*\])?", re.DOTALL)
_FILE_URL = re.compile(r"(?P<name>[\w.\-\[\], ]+?)\s*@\s*file://(?P<path>/[^#;]*)(?P<rest>.*)")
_ARCHIVES = (".whl", ".tar.gz", ".zip")
_GENERATED = {
    *(".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", "build", "dist", ".tox", ".nox"),
    *(".pytest_cache", ".mypy_cache", ".ruff_cache", ".idea", ".vscode"),
}
"""Folders that are not part of a package's source: caches, environments, and what building it writes there."""


def check_requirements(what: str, requirements: Any, base: Path | None = None) -> tuple[str, ...]:
    """Return the requirements with absolute paths; raise ``InvalidArgument`` for one that is not a requirement.

    Relative paths are relative to ``base``, by default the working directory. ``what`` is for error messages.
    """
    if isinstance(requirements, str | bytes) or not isinstance(requirements, Sequence) or not requirements:
        raise InvalidArgument(
            f"{what}: requirements={shown(requirements)} is not a list of requirements; give one, {_EXAMPLE}"
        )
    return tuple(_checked(what, one, base or Path.cwd()) for one in requirements)


def check_python(what: str, python: Any, base: Path | None = None) -> str | None:
    """Return the version, name or absolute path of an interpreter; raise ``InvalidArgument`` if it is none of these.

    A relative path is relative to ``base``, by default the working directory.
    """
    if python is None:
        return None
    if isinstance(python, os.PathLike):
        python = os.fspath(python)
    if not isinstance(python, str) or not _PYTHON.fullmatch(python) or python.startswith("-"):
        raise InvalidArgument(
            f"{what}: python={shown(python)} is not an interpreter; give a version as a text, such as '3.10', "
            "or the path of one"
        )
    if "/" not in python:
        return python
    return os.path.abspath((base or Path.cwd()) / os.path.expanduser(python))


def _checked(what: str, given: Any, base: Path) -> str:
    text = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(text, str) or not text.isprintable() or not (line := text.strip()):
        raise InvalidArgument(f"{what}: {shown(given)} is not a requirement; give a text, {_EXAMPLE}")
    if isinstance(given, os.PathLike) or _looks_local(line):
        return _absolute(what, line, base)
    # A line of a requirements file may be an option, have options at its end, or go on in the next line.
    if line.startswith(("-", "#")) or line.endswith("\\") or re.search(r"\s(-|#)", line):
        raise InvalidArgument(
            f"{what}: {shown(line)} is an option or a comment; give a requirement, {_EXAMPLE}"
        )
    if (url := _FILE_URL.fullmatch(line)) and not Path(unquote(url["path"].strip())).exists():
        raise InvalidArgument(f"{what}: there is no file or folder {url['path'].strip()} of {shown(line)}")
    return line


def _looks_local(line: str) -> bool:
    if line.startswith(("/", "./", "../", "~/")) or line in (".", ".."):
        return True
    return "://" not in line and "@" not in line and line.endswith(_ARCHIVES)


def _absolute(what: str, line: str, base: Path) -> str:
    found = _EXTRAS.fullmatch(line)
    assert found is not None
    path = Path(os.path.abspath(base / os.path.expanduser(found["path"].strip())))
    if not path.exists():
        raise InvalidArgument(f"{what}: there is no file or folder {path} of the requirement {shown(line)}")
    if path.is_dir() and not any((path / name).is_file() for name in ("pyproject.toml", "setup.py")):
        raise InvalidArgument(f"{what}: {path} is no package: it has neither pyproject.toml nor setup.py")
    return f"{path}{found['extras'] or ''}"


def with_inside(requirements: Any) -> Any:
    """Return the requirements of a suite, followed by that of the code that runs in it."""
    if isinstance(requirements, list | tuple) and requirements:
        return [*requirements, INSIDE_REQUIREMENT]
    return requirements  # which are refused


def relative_to(folder: Path, requirement: str) -> str:
    """Return an absolute path as one that is relative to ``folder``, for a file there; other requirements stay."""
    if not requirement.startswith("/"):
        return requirement
    found = _EXTRAS.fullmatch(requirement)
    assert found is not None
    path = os.path.relpath(found["path"], folder)
    if path in (".", ".."):
        path = f"{path}/"
    elif not path.startswith("../"):
        path = f"./{path}"
    return f"{path}{found['extras'] or ''}"


def is_url(requirement: str) -> bool:
    """Return whether a requirement is a URL without a project's name before it."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", requirement) is not None


def without_credentials(requirement: str) -> str:
    """Return a requirement with ``***`` in place of the user name and password in its URL."""
    return re.sub(r"://[^/\s]*@", "://***@", requirement)


def name_of(requirement: str) -> str:
    """Return the project's name in a requirement, or the last part of a path or URL, for names and messages."""
    if is_url(requirement):
        url, _, fragment = requirement.partition("://")[2].partition("#")
        if egg := re.search(r"(?:^|&)egg=([\w.-]+)", fragment):
            return egg[1]
        path = url.partition("/")[2].partition("?")[0].partition("@")[0]  # after @ there is a revision
        requirement = "/" + unquote(path).rstrip("/")
    if requirement.startswith("/"):
        stem = Path(re.sub(r"\[[^]]*\]$", "", requirement)).name
        return re.split(r"-\d|\.whl$|\.tar\.gz$|\.zip$|\.git$", stem)[0]
    return re.split(r"[\s\[<>=!~;@(]", requirement, maxsplit=1)[0]


def distributions_of(requirements: Sequence[str], pins: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the packages that requirements mean; the pins know those of paths and URLs."""
    named = [name_of(one) for one in requirements if not (one.startswith("/") or is_url(one))]
    of_urls = [name_of(pin) for pin in pins if " @ " in pin]
    return tuple(dict.fromkeys([*of_urls, *(one for one in named if one != "msgspec")]))


def for_uv(requirement: str) -> str:
    """Return a requirement as a line for uv; a path becomes a URL, so that no character of it has a meaning."""
    if not requirement.startswith("/"):
        return requirement
    found = _EXTRAS.fullmatch(requirement)
    assert found is not None
    return f"file://{quote(found['path'])}{found['extras'] or ''}"


def content_digest_of(requirements: Sequence[str]) -> str:
    """Return a digest of the local packages among the requirements, or an empty text if there is none.

    A folder is read as the names, sizes and times of its files, an archive as its bytes.
    """
    paths = [path for one in requirements if (path := _local_path(one)) is not None]
    if not paths:
        return ""
    digest = hashlib.sha256()
    for path in paths:
        if path.is_dir():
            for name, status in sorted(_files_in(path)):
                digest.update(
                    f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode(errors="surrogateescape")
                )
        elif path.is_file():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def _local_path(requirement: str) -> Path | None:
    if requirement.startswith("/"):
        found = _EXTRAS.fullmatch(requirement)
        return None if found is None else Path(found["path"])
    url = _FILE_URL.fullmatch(requirement)
    return None if url is None else Path(unquote(url["path"].strip()))


def _files_in(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if name not in _GENERATED
            and not name.endswith(".egg-info")
            and not os.path.exists(os.path.join(parent, name, "pyvenv.cfg"))
        ]
        for name in files:
            path = os.path.join(parent, name)
            if not name.endswith((".pyc", ".pyo")):
                try:
                    yield path, os.stat(path)
                except OSError:  # a link to nothing, or removed meanwhile
                    continue
