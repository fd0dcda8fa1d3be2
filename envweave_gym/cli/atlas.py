"""``envweave atlas``: tries the rules of the atlas on all IDs of suites, and writes a table with reproductions."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from envweave_gym.core.faults import InvalidArgument, nearest, shown


def add_options(parser: Any) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add("suite", metavar="SUITE", nargs="+", help="a requirement such as minigrid==3.2.0, or a suite's name")
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
    add("--ids", metavar="PATTERN", action="append", default=[], help="only these IDs, such as 'ALE/*'")
    add("--limit", metavar="N", type=_positive, help="at most N IDs of a suite, at equal distances")
    add("--rule", metavar="RULE", action="append", default=[], help="only this rule and the first, contract")
    add("--kit", action="store_true", help="run the conformance kit on each ID, too; this takes longer")
    add("--jobs", metavar="N", type=_positive, default=os.cpu_count() or 1, help="IDs that are tried at once")
    add(
        *("--deadline",),
        metavar="SECONDS",
        type=_positive,
        default=60,
        help="processor time that a script may take (default: 60); five times as much altogether",
    )
    add(
        *("--out",),
        metavar="FOLDER",
        type=Path,
        default=Path("atlas"),
        help="folder of atlas.jsonl, atlas.md and scripts/ (default: atlas); a run goes on with what is there",
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a whole number above 0")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Survey the suites and write the files; the exit code is 0 whatever is found."""
    from envweave_gym.testing.atlas.survey import opened, survey

    rules = _rules(args.rule)
    suites = [_suite(name, args) for name in args.suite]
    with opened(args.out / "atlas.jsonl") as atlas:
        try:
            survey(
                atlas,
                suites,
                patterns=args.ids,
                limit=args.limit,
                jobs=args.jobs,
                deadline_s=args.deadline,
                rules=rules,
                report=partial(print, flush=True),
            )
        finally:
            _write(atlas, args.out)
    return 0


def _rules(given: list[str]) -> list[str]:
    from envweave_gym.testing.atlas.script_composition import RULES

    for rule in given:
        if rule not in RULES:
            raise InvalidArgument(
                f"there is no rule {rule!r}{nearest(rule, RULES)}; there are {', '.join(RULES)}"
            )
    return [rule for rule in RULES if rule in given or rule == RULES[0]] if given else [*RULES]


def _write(atlas: Any, folder: Path) -> None:
    from envweave_gym.testing.atlas.atlas_page import page, rules_table, write_scripts

    text = f"# Atlas\n\n{page(atlas)}\n## Rules\n\n{rules_table()}\n"
    (folder / "atlas.md").write_text(text, encoding="utf-8")
    number = write_scripts(atlas.ids.values(), folder / "scripts")
    print(f"{folder / 'atlas.md'}: {len(atlas.ids)} IDs; {number} scripts in {folder / 'scripts'}")


def _suite(name: str, args: argparse.Namespace) -> Any:
    """Return the suite that a word of the command line means, with the interpreter that has it."""
    from envweave_gym.suites.requirement_lists import (
        check_requirements,
        name_of,
        with_inside,
        without_credentials,
    )
    from envweave_gym.suites.suite_files import known_suites
    from envweave_gym.suites.virtual_environments import interpreter_of
    from envweave_gym.testing.atlas.survey import Suite

    modules = tuple(args.modules)
    if args.here:
        return Suite(name, (name,), sys.executable, modules, {} if args.kit else None)
    known = known_suites().get(name)
    what = f"the suite {without_credentials(name)}"
    own, base = ([name], None) if known is None else (known.requirements, known.file.parent)
    requirements = list(check_requirements(what, own, base))
    title = name_of(requirements[0]) if known is None else name
    requirements += check_requirements(what, args.extra) if args.extra else ()
    python = args.python if known is None else args.python or known.python
    interpreter = interpreter_of(
        with_inside(requirements),
        python=python,
        install=args.install,
        what=what,
        command=f"envweave atlas {without_credentials(name)} --install",
    )
    given = {"backend": "venv", "requirements": requirements, "python": python}
    kit = {key: value for key, value in given.items() if value is not None} if args.kit else None
    return Suite(title, tuple(map(name_of, requirements)), str(interpreter), modules, kit)
