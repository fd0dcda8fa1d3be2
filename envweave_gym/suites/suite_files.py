"""Named suites in configuration files: the user's, and the ``envweave.toml`` of a project.

A suite is a table: ``[suites.nle]`` with ``requirements``, and perhaps ``python`` and ``ids``, patterns of its IDs.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tomllib
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from envweave_gym.core.faults import InvalidArgument, NotAvailable, nearest, shown
from envweave_gym.os_support.file_lock import file_lock, user_folder
from envweave_gym.os_support.xdg_folders import configuration_folder
from envweave_gym.suites.requirement_lists import with_inside
from envweave_gym.suites.virtual_environments import VenvSpec, venv_spec

PROJECT_FILE = "envweave.toml"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_HEADER = re.compile(r"\s*\[")
_FIELDS = ("requirements", "python", "ids")


class NamedSuite(msgspec.Struct, frozen=True, kw_only=True):
    """A named suite and the file that it comes from."""

    name: str
    requirements: tuple[str, ...]
    python: str | None = None
    ids: tuple[str, ...] = ()
    """Patterns of IDs, such as ``NetHack*``, that are made in this suite without being asked to."""
    file: Path

    def venv_spec(self, what: str) -> VenvSpec:
        """Return the spec of its virtual environment; relative paths are relative to the file."""
        return venv_spec(what, with_inside(self.requirements), self.python, self.file.parent)


def user_file() -> Path:
    """Return the path of the user's file, which may not exist."""
    return configuration_folder() / "suites.toml"


def project_file() -> Path | None:
    """Return the nearest ``envweave.toml`` in the working directory or above it, up to the project's root.

    A root has ``.git``, or is the home folder. Only files that nobody else may write are read: the requirements in
    them are installed and run.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        file = folder / PROJECT_FILE
        if file.is_file():
            return file if _is_own(file) and _is_own(folder) else None
        if (folder / ".git").exists() or folder == Path.home():
            return None
    return None


def _is_own(path: Path) -> bool:
    status = path.stat()
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def known_suites() -> dict[str, NamedSuite]:
    """Return all suites by name; those of the project replace the user's of the same name."""
    project = project_file()
    return {**_suites_in(user_file()), **({} if project is None else _suites_in(project))}


def suite_named(name: Any) -> NamedSuite:
    """Return the suite with a name; raise ``InvalidArgument`` if there is none."""
    known = known_suites()
    if not isinstance(name, str) or name not in known:
        hint = nearest(name, known) if isinstance(name, str) else ""
        raise InvalidArgument(
            f"there is no suite {shown(name)}{hint}; there are {', '.join(known) or 'none'}; add one with "
            "'envweave suites add NAME REQUIREMENT…'"
        )
    return known[name]


def suite_of(env_id: str) -> NamedSuite | None:
    """Return the suite whose patterns match an ID; raise ``InvalidArgument`` if several do."""
    bare = env_id.rpartition(":")[2]
    fitting = [one for one in known_suites().values() if any(fnmatchcase(bare, ids) for ids in one.ids)]
    if len(fitting) > 1:
        names = ", ".join(repr(one.name) for one in fitting)
        raise InvalidArgument(f"{env_id} is in the suites {names}; choose one with suite=")
    return fitting[0] if fitting else None


def free_name(name: str) -> str:
    """Return ``name``, or ``name-2`` and so on if there is such a suite already."""
    name = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_") or "suite"
    known, number, free = known_suites(), 1, name
    while free in known:
        number += 1
        free = f"{name}-{number}"
    return free


def _suites_in(file: Path) -> dict[str, NamedSuite]:
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8")).get("suites", {})
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{file} is not valid TOML: {error}; correct it") from error
    except OSError as error:
        raise NotAvailable(f"{file} cannot be read: {error}") from error
    if not isinstance(tables, dict):
        raise InvalidArgument(f"{file}: suites is no table; write [suites.NAME] with requirements = [...]")
    return {name: _suite(file, name, table) for name, table in tables.items()}


def _suite(file: Path, name: str, table: Any) -> NamedSuite:
    where = f"{file}: [suites.{name}]"
    if not isinstance(table, dict):
        raise InvalidArgument(f"{where} is no table; give it requirements = [...]")
    for key in table:
        if key not in _FIELDS:
            raise InvalidArgument(
                f"{where} has {key!r}{nearest(key, _FIELDS)}; there are {', '.join(_FIELDS)}"
            )
    lists: list[Any] = [table.get("requirements"), table.get("ids", [])]
    if (
        not all(isinstance(one, list) and all(isinstance(item, str) for item in one) for one in lists)
        or not lists[0]
    ):
        raise InvalidArgument(
            f"{where}: requirements and ids are lists of texts, and requirements is not empty"
        )
    python = table.get("python")
    if not isinstance(python, str | None):
        raise InvalidArgument(f"{where}: python={shown(python)} is not a version as a text, such as '3.10'")
    return NamedSuite(name=name, requirements=tuple(lists[0]), python=python, ids=tuple(lists[1]), file=file)


# Changes


def add_suite(suite: NamedSuite, *, replace: bool = False, check_only: bool = False) -> None:
    """Write a suite at the end of its file; raise ``InvalidArgument`` if there is one, unless ``replace``.

    With ``check_only`` nothing is written.
    """
    if not _NAME.fullmatch(suite.name):
        raise InvalidArgument(f"{suite.name!r} is not a name of a suite; give letters, digits, - and _")

    def change(text: str, present: bool) -> str:
        if present and not replace:
            raise InvalidArgument(
                f"{suite.file} has a suite {suite.name!r} already; give another name, or --replace"
            )
        kept = _without(text, suite.name) if present else text
        if kept and not kept.endswith("\n"):
            kept += "\n"
        return f"{kept}{chr(10) if kept.strip() else ''}{_table_of(suite)}"

    _change(suite.file, suite.name, change, _plain(suite), check_only=check_only)


def remove_suite(suite: NamedSuite) -> None:
    """Remove a suite's table from its file, and nothing else."""
    _change(suite.file, suite.name, lambda text, present: _without(text, suite.name), None)


def _change(
    file: Path, name: str, change: Callable[[str, bool], str], expected: Any, *, check_only: bool = False
) -> None:
    """Change a file under a lock; refuse a change that would do anything else than set or remove the suite."""
    target = Path(os.path.realpath(file))  # the file behind a link of somebody's dotfiles
    digest = hashlib.sha256(str(target).encode()).hexdigest()[:16]
    with file_lock(user_folder() / f"envweave-suites-{digest}.lock"):
        _suites_in(target)  # refuse a broken file
        text = target.read_text(encoding="utf-8") if target.exists() else ""
        before = tomllib.loads(text)
        wanted = {**before.get("suites", {})}
        present = wanted.pop(name, None) is not None
        if expected is not None:
            wanted[name] = expected
        changed = change(text, present)
        try:
            after = tomllib.loads(changed)
        except tomllib.TOMLDecodeError:
            after = None
        if after is None or {**after, "suites": after.get("suites", {})} != {**before, "suites": wanted}:
            raise InvalidArgument(
                f"{file} has the suite {name!r} in a form that cannot be changed here; edit it by hand"
            )
        if not check_only:
            _replace_file(target, changed)


def _replace_file(target: Path, text: str) -> None:
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        if target.exists():
            draft.chmod(stat.S_IMODE(target.stat().st_mode))
        draft.replace(target)
    except OSError as error:
        raise NotAvailable(f"{target} cannot be written: {error}") from error
    finally:
        draft.unlink(missing_ok=True)


def _plain(suite: NamedSuite) -> dict[str, Any]:
    plain: dict[str, Any] = {"requirements": list(suite.requirements)}
    if suite.python is not None:
        plain["python"] = suite.python
    if suite.ids:
        plain["ids"] = list(suite.ids)
    return plain


def _table_of(suite: NamedSuite) -> str:
    lines = [f"{key} = {_toml(value)}" for key, value in _plain(suite).items()]
    return "\n".join([f"[suites.{suite.name}]", *lines]) + "\n"


def _toml(value: str | Sequence[str]) -> str:
    """Return a text or a list of texts in TOML; the strings of JSON are strings of TOML."""
    return msgspec.json.encode(value).decode().replace('","', '", "')


def _without(text: str, name: str) -> str:
    """Return the text without the table of a suite; comments right above the next table belong to that."""
    lines = text.splitlines(keepends=True)
    header = re.compile(rf"""\s*\[\s*suites\s*\.\s*(["']?){re.escape(name)}\1\s*\]\s*(#.*)?$""")
    start = next((index for index, line in enumerate(lines) if header.fullmatch(line.rstrip("\r\n"))), None)
    if start is None:
        return text
    end = next((index for index in range(start + 1, len(lines)) if _HEADER.match(lines[index])), len(lines))
    if end < len(lines):
        while end - 1 > start and lines[end - 1].lstrip().startswith("#"):
            end -= 1
    while start and not lines[start - 1].strip() and (end == len(lines) or not lines[end].strip()):
        start -= 1
    return "".join(lines[:start] + lines[end:])
