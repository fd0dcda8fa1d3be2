"""The options of a demo: one dataclass, which is also its ``--help`` page."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from envweave_gym.faults import EnvweaveError

Options = TypeVar("Options")


def option(default: Any, help: str) -> Any:  # noqa: A002 - argparse's own word
    """A field of an options dataclass, with its line on the help page."""
    return dataclasses.field(default=default, metadata={"help": help})


@dataclasses.dataclass
class CommonOptions:
    """What every demo takes."""

    seed: int = option(0, "decides the policy's first weights, the episodes and the actions drawn")
    backend: str = option("inproc", "where the environments run")
    run: str = option("", "name of the run; its files go to OUT/RUN (default: the demo's name)")
    out: str = option("runs", "folder of all runs")

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be: every whole number but the seed counts something."""
        for field in dataclasses.fields(self):
            value, least = getattr(self, field.name), 0 if field.name == "seed" else 1
            if isinstance(field.default, int) and value < least:
                flag = f"--{field.name.replace('_', '-')}"
                raise ValueError(f"{flag} {value} is too small; give a number >= {least}")


def parse_options(kind: type[Options], description: str, argv: Sequence[str] | None = None) -> Options:
    """Read ``kind`` from the command line; a wrong value ends the program with one line."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        flag, default = f"--{field.name.replace('_', '-')}", field.default
        line = field.metadata["help"] + (f" (default: {default})" if default != "" else "")
        parser.add_argument(flag, type=type(default), default=default, help=line)
    values = vars(parser.parse_args(argv))
    try:
        return kind(**values)
    except ValueError as error:
        parser.error(str(error))


def run_demo(train: Callable[[Any], Any], options: Any) -> int:
    """Run a demo; Ctrl-C ends it early with what was measured so far, an error of ours is one line."""
    try:
        train(options)
    except KeyboardInterrupt:
        print("\nstopped early; the metrics so far are written", file=sys.stderr)
        return 130
    except EnvweaveError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
