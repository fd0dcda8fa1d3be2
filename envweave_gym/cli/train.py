"""``envweave train``: runs a demo that trains a policy or a language model, with the demo's own options."""

from __future__ import annotations

import argparse
import importlib
from typing import NamedTuple

from envweave_gym.cli.tables import screen_width, table
from envweave_gym.core.faults import InvalidArgument, nearest, shown


class Demo(NamedTuple):
    """A module of ``envweave_gym.training`` with a ``main``, and one line about it."""

    module: str
    doc: str


DEMOS = {
    "lineworld": Demo("lineworld", "a linear policy walks to the goal; NumPy alone, seconds"),
    "codefix": Demo("codefix", "a small transformer chooses operators that fix programs; torch"),
    "kuhn": Demo("kuhn", "Kuhn poker in self-play, with exact NashConv"),
    "kuhn-tinker": Demo("kuhn_tinker", "a language model plays Kuhn poker against itself; Tinker"),
    "tinker": Demo("tinker.__main__", "a language model on any ID, `--env ID`; Tinker"),
    "gsm8k": Demo("gsm8k_tinker", "a language model solves word problems; Tinker"),
    "gsm8k-mcq": Demo("gsm8k_mcq_tinker", "a language model solves word problems with four options; Tinker"),
    "swebench-loc": Demo("swebench_loc_mcq_tinker", "a language model finds the file of an issue; Tinker"),
    "swebench-patch": Demo(
        "swebench_patch_tinker", "a language model writes patches, which tests decide; Tinker"
    ),
}
"""The demos, by the name that the command takes; the name of the module works too."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the name of the demo and the rest of the command line, which is the demo's."""
    parser.epilog = (
        "Without NAME the demos are listed; `envweave train NAME --help` shows the options of one."
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="the demo")
    parser.add_argument("options", metavar="OPTION", nargs=argparse.REMAINDER, help="options of the demo")


def run(args: argparse.Namespace) -> int:
    """List the demos, or run one and return its exit code."""
    if args.name is None:
        rows = [(name, demo.doc) for name, demo in DEMOS.items()]
        print(table([("NAME", "WHAT IT TRAINS"), *rows], screen_width()))
        return 0
    module = importlib.import_module(f"envweave_gym.training.{_module_of(args.name)}")
    try:
        return module.main(args.options)
    except SystemExit as stopped:  # argparse has printed the help, or the problem
        return stopped.code if isinstance(stopped.code, int) else 0


def _module_of(name: str) -> str:
    modules = [demo.module for demo in DEMOS.values()]
    if name in DEMOS or name in modules:
        return DEMOS[name].module if name in DEMOS else name
    close = nearest(name, [*DEMOS])
    raise InvalidArgument(f"there is no demo {shown(name)}{close}; there are {', '.join(DEMOS)}")
