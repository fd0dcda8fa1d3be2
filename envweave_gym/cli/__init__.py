"""The program ``envweave``, with the commands list, play, info, train, doctor, serve, suites, atlas, tinker, fleet,
k8s, hub and export.

Exit codes: 0 done, 1 the environment or the command failed, 2 wrong usage or an unknown name. As shells count
signals, 130 means Ctrl-C, and 141 that the reader of the output went away. An error is one line on stderr;
``--debug`` adds its traceback. Each command is a module that is imported when it runs.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import re
import select
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from envweave_gym.cli import atlas, export, fleet, hub, k8s, suites, tinker, train
from envweave_gym.cli.serve import add_options
from envweave_gym.core.faults import EnvweaveError, InvalidArgument, UnknownEnvironment, shown
from envweave_gym.core.version import __version__

FAILED, USAGE, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program with these arguments (by default ``sys.argv``), and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    return reported(lambda: _run(words), debug="--debug" in words)


def reported(run: Callable[[], int], *, debug: bool) -> int:
    """Run a program and return its exit code; an exception becomes one line on stderr."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115 - as they are
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = run()
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - an environment may raise anything
        if isinstance(error, BrokenPipeError) and _output_is_closed():
            # At exit the interpreter flushes the rest of the output, which would raise again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return PIPE_CLOSED
        return _report(error, debug=debug)
    return code


def _run(words: list[str]) -> int:
    try:
        args = _parser().parse_args(words)
    except SystemExit:  # argparse has printed the text of --help or --version
        return 0
    return importlib.import_module(f"envweave_gym.cli.{args.module}").run(args)


def _report(error: Exception, *, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    line = str(error) if isinstance(error, EnvweaveError) else f"{type(error).__name__}: {error}"
    _complain(line)
    return USAGE if isinstance(error, InvalidArgument | UnknownEnvironment) else FAILED


def _show_warning(message: Warning | str, *where: Any) -> None:
    _complain(f"warning: {message}")


def _complain(text: str) -> None:
    """Print one line on stderr, without the colour codes that some messages contain."""
    print("envweave:", " ".join(re.sub(r"\x1b\[[\d;]*m", "", text).split()), file=sys.stderr)


def _output_is_closed() -> bool:
    """Return whether the reader of stdout has gone away.

    If so, a ``BrokenPipeError`` came from printing, and is no failure of the environment.
    """
    try:
        watch = select.poll()
        watch.register(sys.stdout.fileno(), 0)
    except (AttributeError, OSError):  # no poll on Windows, no descriptor under a replaced stdout
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in watch.poll(0))


class Parser(argparse.ArgumentParser):
    """A parser that raises on wrong usage, so that the program reports it like every other error."""

    def error(self, message: str) -> NoReturn:
        """Raise :class:`InvalidArgument` with the message."""
        raise InvalidArgument(f"{message}; see {self.prog} --help")


def _parser() -> Parser:
    shared, as_json, one_id = (Parser(add_help=False) for _ in range(3))
    shared.add_argument("--debug", action="store_true", help="show the traceback of an error")
    as_json.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    one_id.add_argument("id", metavar="ID", help="an ID of envweave list, or any name of envweave_gym.make")
    one_id.add_argument(
        "--kwarg",
        metavar="NAME=VALUE",
        type=_kwarg,
        action="append",
        default=[],
        help="an argument of the environment; the value is JSON, or else text; may be repeated",
    )

    about = "Environments for Gymnasium and PettingZoo."
    parser = Parser(prog="envweave", description=about, parents=[shared])
    parser.add_argument("--version", action="version", version=f"envweave {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, module: str, text: str, *parents: Parser) -> Parser:
        added = commands.add_parser(name, help=text, description=text, parents=[shared, *parents])
        added.set_defaults(module=module)
        return added

    listing = command("list", "list_ids", "List the environments.", as_json)
    listing.add_argument("--ids", action="store_true", help="print the bare IDs, one a line")
    play = command("play", "play", "Play an episode in the terminal.", one_id)
    play.add_argument("--seed", metavar="N", type=int, help="the seed of the episode")
    command("info", "info", "Show spaces, agents and arguments of an environment.", one_id, as_json)
    train.add_options(command("train", "train", "Train a policy or a language model with a demo."))
    doctor = command("doctor", "doctor", "Show what works on this machine and what to install.", as_json)
    doctor.epilog = "Exit code 1 if something installed is broken, 0 if at most optional things are missing."
    doctor.add_argument("--sweep", action="store_true", help="remove what killed owners have left behind")
    add_options(command("serve", "serve", "Serve environments to other programs and machines."))
    atlas.add_options(
        command("atlas", "atlas", "Try on all IDs of suites whether they keep their API's promises.")
    )

    def part(commands: Any, name: str, text: str) -> Parser:
        return commands.add_parser(name, help=text, description=text, parents=[shared, as_json])

    def alone(commands: Any, name: str, text: str) -> Parser:
        return commands.add_parser(name, help=text, description=text, parents=[shared])

    tinker.add_options(
        command("tinker", "tinker", "Train language models with the Tinker SDK, on this machine."), alone
    )
    fleet.add_options(command("fleet", "fleet", "Keep several servers up together."), part, _kwarg)
    suites.add_options(
        command("suites", "suites", "Install environments in Python environments of their own."), part
    )
    k8s.add_options(command("k8s", "k8s", "Print Kubernetes manifests that serve an environment."), part)
    hub.add_options(command("hub", "hub", "Install environments of the Prime Environments Hub."), part)
    about = "Write an environment as a package for another library."
    export.add_options(command("export", "export", about), part, _kwarg)
    return parser


def _kwarg(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{shown(text)} does not look like name=value")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
