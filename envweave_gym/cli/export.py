"""``envweave export verifiers``: writes an environment as a package for the library ``verifiers``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from envweave_gym.cli.tables import print_json

_EPILOG = "Install the package where verifiers is, then: vf-eval NAME --env.taskset.num-tasks 10. Each task is a seed."


def add_options(
    parser: argparse.ArgumentParser, add: Callable[..., Any], kwarg: Callable[[str], Any]
) -> None:
    """Add the subcommands to ``parser``; ``add`` creates one, and ``kwarg`` reads an argument ``NAME=VALUE``."""
    commands = parser.add_subparsers(metavar="verifiers", required=True)
    about = "Write a package that verifiers (0.4 or later), its vf-eval and prime-rl use."
    command = add(commands, "verifiers", about)
    command.epilog = _EPILOG
    option = command.add_argument
    option("id", metavar="ID", help="the environment or game, any name of envweave_gym.make")
    option("--out", metavar="DIR", type=Path, help="the folder to write (NAME, in this folder)")
    option("--name", metavar="NAME", help="the name of the package (derived from the ID)")
    option("--max-turns", metavar="N", type=int, default=32, help="replies of an agent at most (32)")
    option(
        "--kwarg",
        metavar="NAME=VALUE",
        type=kwarg,
        action="append",
        default=[],
        help="an argument of the environment; the value is JSON, or else text; may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    """Write the package, and print its folder."""
    from envweave_gym.integrations.verifiers_export import export

    written = export(args.id, dict(args.kwarg), out=args.out, name=args.name, max_turns=args.max_turns)
    if args.json:
        print_json({"folder": str(written)})
    else:
        print(f"wrote {written}; install it with: pip install {written}")
        print("it needs envweave-gym: where the package index does not have that, give its path or URL too")
    return 0
