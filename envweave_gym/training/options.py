"""Command-line options of the demos, declared as dataclasses from which the ``--help`` pages are made."""

from __future__ import annotations

import argparse
import atexit
import dataclasses
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Protocol, TypeVar

from envweave_gym.core.faults import EnvweaveError, InvalidArgument, UnknownEnvironment, shown
from envweave_gym.providers.base import provider_of

Options = TypeVar("Options")

_LARGEST_SEED = 2**63 - 1


def option(
    default: Any,
    help: str,  # noqa: A002 - argparse's own word
    *,
    least: float | None = None,
    most: float = sys.float_info.max,
) -> Any:
    """Return a field of an options dataclass, with its line on the help page.

    A number must be finite and from ``least`` to ``most``; without ``least`` it must be above zero.
    """
    return dataclasses.field(default=default, metadata={"help": help, "least": least, "most": most})


@dataclasses.dataclass
class CommonOptions:
    """The options that every demo takes."""

    demo: ClassVar[str] = "demo"
    """The name of the demo, and the default name of its runs."""

    seed: int = option(
        0,
        "decides the policy's first weights, the episodes and the actions drawn",
        least=0,
        most=_LARGEST_SEED,
    )
    backend: str = option(
        "inproc",
        "where the environments run: inproc, subprocess, docker, kubernetes, ray or http://host:port",
    )
    docker_image: str = option("", "image of the containers, with --backend docker (default: the ID's own)")
    run: str = option("", "name of the run; its files go to OUT/RUN (default: the demo's name)")
    out: str = option("runs", "folder of all runs")

    def __post_init__(self) -> None:
        """Raise ``InvalidArgument`` for numbers out of range, a run name that is a path, or an image without Docker."""
        for field in dataclasses.fields(self):
            if isinstance(field.default, int | float) and not isinstance(field.default, bool):
                _check_number(field, getattr(self, field.name))
        if self.run in (".", "..") or {"/", "\\"} & {*self.run}:
            raise ValueError(
                f"--run {shown(self.run)} is a path; give a name, and the folder of all runs as --out"
            )
        if self.docker_image and not getattr(provider_of(self.backend), "uses_images", False):
            raise ValueError(
                f"--docker-image {shown(self.docker_image)} is for a --backend whose servers run in container "
                f"images, such as docker or kubernetes, not {shown(self.backend)}"
            )

    @property
    def backend_arguments(self) -> dict[str, Any]:
        """The arguments of ``make`` that select the backend."""
        image = {"image": self.docker_image} if self.docker_image else {}
        return {"backend": self.backend, **image}

    @property
    def folder(self) -> Path:
        """The folder for the files of the run."""
        return Path(self.out) / (self.run or self.demo)


def _check_number(field: dataclasses.Field[Any], value: float) -> None:
    least, most = field.metadata["least"], field.metadata["most"]
    if (value > 0 if least is None else value >= least) and value <= most:
        return
    kind = "an int" if isinstance(field.default, int) else "a finite number"
    bounds = "> 0" if least is None else f">= {least}"
    bounds += "" if most == sys.float_info.max else f" and <= {most}"
    raise ValueError(f"--{field.name.replace('_', '-')} {value} is out of range; give {kind} {bounds}")


class _Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong, without the page of all options."""

    def error(self, message: str) -> NoReturn:
        """Exit with the message."""
        self.exit(2, f"error: {message}; --help names all options\n")


def parse_options(kind: type[Options], description: str, argv: Sequence[str] | None = None) -> Options:
    """Parse the command line (by default ``sys.argv``) into ``kind``; a wrong value exits with one line on stderr."""
    parser = _Parser(
        prog=_program(), description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        flag, default = f"--{field.name.replace('_', '-')}", field.default
        line = field.metadata["help"] + (f" (default: {default})" if default != "" else "")
        if isinstance(default, bool):
            parser.add_argument(
                flag, action=argparse.BooleanOptionalAction, default=default, help=field.metadata["help"]
            )
        else:
            parser.add_argument(flag, type=type(default), default=default, help=line)
    values = vars(parser.parse_args(argv))
    try:
        return kind(**values)
    except (ValueError, EnvweaveError) as error:
        parser.exit(2, f"error: {error}\n")


def _program() -> str | None:
    """Return how the demo was called with ``envweave train``, else ``None``, argparse's own choice."""
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    is_cli = words[0] in ("envweave", "__main__.py") and words[1:2] == ["train"] and len(words) > 2
    return f"envweave train {words[2]}" if is_cli else None


class Main(Protocol):
    """The function that runs a demo with a command line, by default ``sys.argv``, and returns its exit code."""

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """Run the demo."""
        ...


def demo_main(train: Callable[[Any], Any], kind: type[Any], description: str) -> Main:
    """Return the ``main`` of a demo, which parses a command line into ``kind``, trains, and returns the exit code."""

    def main(argv: Sequence[str] | None = None) -> int:
        """Run the demo from the command line, and return its exit code."""
        return run_demo(train, parse_options(kind, description, argv))

    return main


def run_demo(train: Callable[[Any], Any], options: Any) -> int:
    """Run a demo and return its exit code; print an error of this package as one line.

    Ctrl-C ends it early and retains the metrics so far, and so does SIGTERM. Exit codes: 0 done, 1 something is missing
    or failed, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM.
    """
    # Its last garbage collections would visit all objects of torch and transformers: seconds on a busy machine.
    atexit.register(gc.freeze)
    before = _metrics_written(options)
    terminations: list[int] = []
    try:
        with _sigterm_as_ctrl_c(terminations):
            train(options)
    except KeyboardInterrupt as stop:
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # it ends anyway, without a traceback
        written = ["the metrics so far are written"] if _metrics_written(options) != before else []
        print("; ".join(["\nstopped early", *written, *map(str, stop.args)]), file=sys.stderr)
        return 143 if terminations else 130
    except (EnvweaveError, ConnectionError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidArgument | UnknownEnvironment) else 1
    return 0


@contextmanager
def _sigterm_as_ctrl_c(received: list[int]) -> Generator[None]:
    """Handle SIGTERM like Ctrl-C in the block, and note it; only in the main thread, and if nothing else handles it."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    owner = os.getpid()

    def handle(number: int, frame: Any) -> None:
        if os.getpid() != owner:  # a forked child that has inherited this
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        received.append(number)
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # Ctrl-C is ignored, as in the background of a shell
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)

    signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _metrics_written(options: Any) -> int:
    """Return when the metrics of the run were written last, in nanoseconds; 0 if they never were."""
    folder = getattr(options, "folder", None)
    try:
        return (folder / "metrics.jsonl").stat().st_mtime_ns if folder else 0
    except OSError:
        return 0
