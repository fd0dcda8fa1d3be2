"""``envweave atlas``: tries the rules of the atlas on all IDs of suites, and writes a table with reproductions."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envweave_gym.core.faults import EnvweaveError, InvalidArgument, nearest, shown

if TYPE_CHECKING:
    from envweave_gym.testing.atlas.atlas_file import Atlas
    from envweave_gym.testing.atlas.survey import Effort, InstalledSuite


def add_options(parser: Any) -> None:
    """Add the options of the command."""
    _add_suites(parser.add_argument)
    _add_scope(parser.add_argument)
    _add_limits_and_outputs(parser.add_argument)


def _add_suites(add: Any) -> None:
    add("suite", metavar="SUITE", nargs="*", help="a requirement such as minigrid==3.2.0, or a suite's name")
    add(
        "--from",
        metavar="FILE",
        dest="file",
        type=Path,
        help="make the run that this TOML file describes; SUITE names some of its suites",
    )
    add("--here", action="store_true", help="the suites are packages that are installed in this Python")
    add(
        "--module",
        metavar="MODULE",
        dest="modules",
        action="append",
        default=[],
        help="import it too, as it registers IDs",
    )
    add("--with", metavar="REQUIREMENT", dest="extra", action="append", default=[], help="install it too")
    add("--python", metavar="VERSION", help="the Python of the suites, by default that of this process")
    add("--install", action="store_true", help="make virtual environments that are missing")


def _add_scope(add: Any) -> None:
    add(
        "--ids",
        metavar="PATTERN",
        action="append",
        default=[],
        help="only these IDs, such as 'ALE/*'; given again, more",
    )
    add("--limit", metavar="N", type=_positive, help="at most N IDs of a suite, at equal distances")
    add("--rule", metavar="RULE", action="append", default=[], help="only this rule and the first, contract")
    add("--no-kit", action="store_true", help="leave out the conformance kit, which takes most of the time")


def _add_limits_and_outputs(add: Any) -> None:
    add("--jobs", metavar="N", type=_positive, default=os.cpu_count() or 1, help="IDs that are tried at once")
    add(
        "--deadline",
        metavar="SECONDS",
        type=_positive,
        default=60,
        help="processor time that a script may take (default: 60), the kit five times and an ID ten times that",
    )
    add(
        "--memory",
        metavar="MB",
        type=_positive,
        default=4096,
        help="memory that a script may hold with all its processes (default: 4096)",
    )
    add(
        "--out",
        metavar="FOLDER",
        type=Path,
        default=Path("atlas"),
        help="folder of atlas.jsonl, atlas.md and scripts/ (default: atlas); a run goes on with what is there",
    )
    add(
        "--page",
        metavar="FILE",
        type=Path,
        help="also write the table between the markers of this Markdown file, and its data beside it",
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a whole number above 0")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Survey the suites and write the files; the exit code is 0 whatever is found, and 1 if a suite was left out."""
    from envweave_gym.testing.atlas.atlas_file import opened
    from envweave_gym.testing.atlas.survey import Effort

    if args.page is not None:
        from envweave_gym.testing.atlas.atlas_page import filled_page

        filled_page(args.page, None)  # refuse it before anything is tried
    effort = Effort(
        rules=_rules(args.rule, args.no_kit),
        jobs=args.jobs,
        deadline_s=args.deadline,
        memory_mb=args.memory,
    )
    suites = _of_command_line(args) if args.file is None else _of_file(args)
    with opened(args.out / "atlas.jsonl") as atlas:
        try:
            left_out = _survey_all(atlas, suites, effort)
        finally:
            _write(atlas, args.out)
        if args.page is not None:  # only after a whole run
            _write_page(atlas, args.page)
    return 1 if left_out else 0


def _survey_all(
    atlas: Atlas, suites: Sequence[tuple[str, Callable[[], InstalledSuite]]], effort: Effort
) -> int:
    """Survey the suites one after the other; return the number of those that cannot be surveyed here."""
    from envweave_gym.testing.atlas.survey import survey, without_ids

    left_out = 0
    for name, installed in suites:
        try:
            survey(atlas, installed(), effort, partial(print, flush=True))
        except EnvweaveError as error:
            if len(suites) == 1:
                raise
            left_out += 1
            print(f"{name} is left out: {error}", file=sys.stderr, flush=True)
            atlas.add(without_ids(atlas, name, str(error)))
    return left_out


def _rules(given: list[str], no_kit: bool) -> list[str]:
    from envweave_gym.testing.atlas.survey import ALL_RULES

    for rule in given:
        if rule not in ALL_RULES:
            raise InvalidArgument(
                f"there is no rule {rule!r}{nearest(rule, ALL_RULES)}; there are {', '.join(ALL_RULES)}"
            )
    wanted = {*given, ALL_RULES[0]} if given else set(ALL_RULES)
    return [rule for rule in ALL_RULES if rule in wanted and not (no_kit and rule == "kit")]


def _write(atlas: Atlas, folder: Path) -> None:
    from envweave_gym.testing.atlas.atlas_page import page, rules_table, write_scripts

    text = f"# Atlas\n\n{page(atlas)}\n## Rules\n\n{rules_table()}\n"
    (folder / "atlas.md").write_text(text, encoding="utf-8")
    number = write_scripts(atlas.ids.values(), folder / "scripts")
    print(f"{folder / 'atlas.md'}: {len(atlas.ids)} IDs; {number} scripts in {folder / 'scripts'}")


def _write_page(atlas: Atlas, file: Path) -> None:
    from envweave_gym.testing.atlas.atlas_page import filled_page

    file.write_text(filled_page(file, atlas), encoding="utf-8")
    file.with_suffix(".jsonl").write_bytes(atlas.brief())


# Suites


def _of_command_line(args: argparse.Namespace) -> list[tuple[str, Callable[[], InstalledSuite]]]:
    from envweave_gym.testing.atlas.survey import InstalledSuite

    if not args.suite:
        raise InvalidArgument("give a SUITE, such as minigrid==3.2.0, or --from FILE")
    chosen = {"modules": tuple(args.modules), "ids": tuple(args.ids), "limit": args.limit}
    if args.here:
        return [
            (name, partial(InstalledSuite, name=name, distributions=(name,), python=sys.executable, **chosen))
            for name in args.suite
        ]
    # Suites that are missing, or misspelled, are refused before the first is tried.
    found = [_named(name, args, chosen) for name in args.suite]
    return [(one.name, partial(_itself, one)) for one in found]


def _itself(suite: InstalledSuite) -> InstalledSuite:
    return suite


def _named(name: str, args: argparse.Namespace, chosen: dict[str, Any]) -> InstalledSuite:
    """Return the suite that a word of the command line means, with the interpreter that has it."""
    from envweave_gym.suites.requirement_lists import (
        check_requirements,
        is_url,
        name_of,
        without_credentials,
    )
    from envweave_gym.suites.suite_files import known_suites

    known = known_suites().get(name)
    what = f"the suite {without_credentials(name)}"
    own, base = ([name], None) if known is None else (known.requirements, known.file.parent)
    requirements = list(check_requirements(what, own, base))
    title = name
    if known is None:  # the package's own name, which is known of a path or URL when it is installed
        title = (
            None if requirements[0].startswith("/") or is_url(requirements[0]) else name_of(requirements[0])
        )
    requirements += check_requirements(what, args.extra) if args.extra else ()
    python = args.python if known is None else args.python or known.python
    command = f"envweave atlas {without_credentials(name)} --install"
    return _installed(title, requirements, python, args.install, what, command, chosen)


def _of_file(args: argparse.Namespace) -> list[tuple[str, Callable[[], InstalledSuite]]]:
    """Return the suites of a file; each is installed when its turn has come."""
    from envweave_gym.suites.requirement_lists import check_requirements
    from envweave_gym.testing.atlas.run_file import suites_in

    given = {"--here": args.here, "--module": args.modules, "--with": args.extra, "--python": args.python}
    given["--ids"] = args.ids
    for option, value in given.items():
        if value:
            raise InvalidArgument(f"{option} is of no use with --from: the file says it of each suite")
    found: list[tuple[str, Callable[[], InstalledSuite]]] = []
    for name, suite in suites_in(args.file, args.suite).items():
        what = f"the suite {name} of {args.file}"
        requirements = check_requirements(what, suite.requirements, args.file.parent)
        limits = [one for one in (suite.limit, args.limit) if one is not None]
        chosen: dict[str, Any] = {"modules": suite.modules, "ids": suite.ids, "note": suite.note}
        chosen["limit"] = min(limits) if limits else None
        command = f"envweave atlas --from {args.file} --install"
        rest = (suite.python, args.install, what, command, chosen)
        found.append((name, partial(_installed, name, list(requirements), *rest)))
    return found


def _distributions(requirements: list[str], interpreter: Path) -> tuple[str, ...]:
    """Return the names of the packages that the requirements mean; a folder's own name may be another."""
    from envweave_gym.suites.requirement_lists import distributions_of, is_url
    from envweave_gym.suites.virtual_environments import cache_folder, marker_of

    if not any(one.startswith("/") or is_url(one) for one in requirements):
        return distributions_of(requirements, ())
    marker = marker_of(interpreter.parent.parent)
    built = (cache_folder() / "wheels").as_uri()  # of dependencies that uv cannot install as they are
    return distributions_of(requirements, [pin for pin in marker.pins if built not in pin] if marker else ())


def _installed(
    title: str | None,
    requirements: list[str],
    python: str | None,
    install: bool,
    what: str,
    command: str,
    chosen: dict[str, Any],
) -> InstalledSuite:
    from envweave_gym.suites.requirement_lists import with_inside
    from envweave_gym.suites.virtual_environments import interpreter_of
    from envweave_gym.testing.atlas.survey import InstalledSuite

    interpreter = interpreter_of(
        with_inside(requirements), python=python, install=install, what=what, command=command
    )
    given = {"backend": "venv", "requirements": requirements, "python": python}
    distributions = _distributions(requirements, interpreter)
    return InstalledSuite(
        name=distributions[0] if title is None else title,
        distributions=distributions,
        python=str(interpreter),
        make={key: value for key, value in given.items() if value is not None},
        **chosen,
    )
