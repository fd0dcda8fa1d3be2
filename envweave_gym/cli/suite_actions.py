"""Actions of ``envweave suites``: named suites in files, and the cache of virtual environments."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from envweave_gym.cli.tables import print_json, screen_width, table
from envweave_gym.core.faults import InvalidArgument, NotAvailable
from envweave_gym.suites import virtual_environments
from envweave_gym.suites.requirement_lists import check_python, check_requirements, relative_to
from envweave_gym.suites.suite_files import (
    PROJECT_FILE,
    NamedSuite,
    add_suite,
    known_suites,
    project_file,
    remove_suite,
    suite_named,
    user_file,
)
from envweave_gym.suites.virtual_environments import Marker, acquire, installed_folder


def _folder_of(suite: NamedSuite) -> Path | None:
    """Return the folder of a suite's environment, or ``None`` if it is not installed."""
    try:
        return installed_folder(suite.venv_spec(f"suite {suite.name!r}"))
    except InvalidArgument:  # a path that is not there any more
        return None


def list_suites(args: argparse.Namespace) -> int:
    """Print suites, and virtual environments that no suite names."""
    markers = dict(virtual_environments.installed())
    rows = [
        _document(suite, folder := _folder_of(suite), markers.pop(folder, None) if folder else None)
        for suite in known_suites().values()
    ]
    rows += [_unnamed(folder, marker) for folder, marker in markers.items()]
    if args.json:
        print_json(rows)
    elif rows:
        cells = [
            (
                row["name"] or "-",
                row["python"] or "-",
                row["state"],
                " ".join([*row["requirements"], *row["ids"]]),
            )
            for row in rows
        ]
        print(table([("SUITE", "PYTHON", "STATE", "REQUIREMENTS AND IDS"), *cells], screen_width()))
    else:
        print("no suites; add one with: envweave suites add NAME REQUIREMENT…")
    return 0


def _document(suite: NamedSuite, folder: Path | None, marker: Marker | None) -> dict[str, Any]:
    return {
        "name": suite.name,
        "requirements": list(suite.requirements),
        "python": marker.python if marker else suite.python,
        "ids": list(suite.ids),
        "file": str(suite.file),
        "state": "installed" if folder else "missing",
        "folder": str(folder) if folder else None,
        "pins": list(marker.pins) if marker else [],
    }


def _unnamed(folder: Path, marker: Marker) -> dict[str, Any]:
    state = "in use" if virtual_environments.is_in_use(folder) else "unnamed"
    lines = [one for one in marker.requirements if not one.startswith("msgspec")]
    about = {"name": None, "requirements": lines, "python": marker.python, "ids": [], "file": None}
    return {**about, "state": state, "folder": str(folder), "pins": list(marker.pins)}


def add(args: argparse.Namespace) -> int:
    """Install a suite, and write it into its file when that has worked."""
    if not args.requirements:
        return _add_known(args)
    file = (project_file() or Path.cwd() / PROJECT_FILE) if args.project else user_file()
    what = f"suite {args.name!r}"
    requirements = check_requirements(what, args.requirements)
    python = check_python(what, args.python)
    if args.project:  # which may lie elsewhere on another machine, with what is beside it
        pairs = zip(args.requirements, requirements, strict=True)
        requirements = tuple(_for_project(given, checked, file) for given, checked in pairs)
        python = python and _for_project(args.python, python, file)
    suite = NamedSuite(
        name=args.name,
        requirements=requirements,
        python=python,
        ids=tuple(args.ids or ()),
        file=file,
    )
    add_suite(suite, replace=args.replace, check_only=True)
    code = _install(suite, refresh=args.replace)
    add_suite(suite, replace=args.replace)
    return code


def _add_known(args: argparse.Namespace) -> int:
    """Install the suite that a file names."""
    options = {"--ids": args.ids, "--python": args.python, "--project": args.project}
    if given := [option for option, value in options.items() if value]:
        raise InvalidArgument(
            f"suite {args.name!r}: {', '.join(given)} without requirements; give these too, or leave "
            "the options out, to install the suite that a file names"
        )
    return _install(suite_named(args.name), refresh=args.replace)


def _for_project(given: str, checked: str, file: Path) -> str:
    """Return a requirement or interpreter for a project's file: a relative path stays relative, to the file."""
    return checked if given.startswith(("/", "~")) else relative_to(file.parent, checked)


def _install(suite: NamedSuite, *, refresh: bool) -> int:
    environment = acquire(suite.venv_spec(f"suite {suite.name!r}"), install=True, refresh=refresh)
    print(f"suite {suite.name!r} is installed in {environment.folder}")
    environment.release()
    return 0


def remove(args: argparse.Namespace) -> int:
    """Remove a suite from its file, and its environment unless another suite has it."""
    suite = suite_named(args.name)
    folder = _folder_of(suite)
    remove_suite(suite)
    others = {_folder_of(one) for one in known_suites().values()}
    if folder is None or folder in others:
        print(f"suite {suite.name!r} is removed from {suite.file}")
    elif virtual_environments.remove_unused(folder):
        print(f"suite {suite.name!r} is removed from {suite.file}, and its environment {folder}")
    else:
        print(f"suite {suite.name!r} is removed from {suite.file}; a process uses its environment {folder}")
    return 0


def sweep(args: argparse.Namespace) -> int:
    """Remove virtual environments that were not used for a while."""
    if not args.days >= 0:
        raise InvalidArgument(f"--days {args.days} is not a number of days from 0")
    failed: list[str] = []
    removed = virtual_environments.sweep(args.days, failed)
    if args.json:
        print_json({"removed": removed})
    elif removed or not failed:
        print("\n".join(f"removed {name}" for name in removed) or "nothing to remove")
    if failed:
        raise NotAvailable("; ".join(failed))
    return 0
