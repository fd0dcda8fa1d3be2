"""``envweave suites``: options of the commands that list, add, remove and sweep suites."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

_EPILOG = (
    "A suite is a set of packages with environments of Gymnasium, gym or PettingZoo, in a virtual environment of its "
    "own: envweave_gym.make(ID, backend='venv') steps them next to whatever else is installed."
)


def add_options(parser: argparse.ArgumentParser, add: Callable[..., Any]) -> None:
    """Add the subcommands to ``parser``; ``add`` creates a subcommand."""
    parser.epilog = _EPILOG
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    add(commands, "list", "List suites, and virtual environments that no suite names.").set_defaults(
        act="list_suites"
    )
    new = add(commands, "add", "Install a suite, and remember it under a name.")
    new.add_argument("name", metavar="NAME", help="name of the suite")
    new.add_argument(
        "requirements",
        metavar="REQUIREMENT",
        nargs="*",
        default=[],  # else argparse says that it is required
        help="as for pip; none installs a known suite",
    )
    new.add_argument(
        "--ids",
        metavar="PATTERN",
        action="append",
        help="IDs made in it, such as 'NetHack*'; given again, more of them",
    )
    new.add_argument("--python", metavar="VERSION", help="version of its Python, such as 3.10")
    new.add_argument("--project", action="store_true", help="write envweave.toml here, not the user's file")
    new.add_argument(
        "--replace", action="store_true", help="replace a suite of this name, and look for newer versions"
    )
    new.set_defaults(act="add")
    old = add(
        commands, "remove", "Forget a suite, and remove its virtual environment unless another suite has it."
    )
    old.add_argument("name", metavar="NAME", help="name of the suite")
    old.set_defaults(act="remove")
    sweep = add(commands, "sweep", "Remove virtual environments that were not used for a while.")
    sweep.add_argument(
        "--days",
        metavar="N",
        type=float,
        default=30.0,
        help="days since the last use (30)",
    )
    sweep.set_defaults(act="sweep")


def run(args: argparse.Namespace) -> int:
    """Run a subcommand; what they need is imported then."""
    from envweave_gym.cli import suite_actions

    return getattr(suite_actions, args.act)(args)
