"""What a step of a program came to, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.program_result import Result


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the machine an episode may take."""

    memory: int = 512 << 20
    """Bytes of memory of its own."""
    file_size: int = 64 << 20
    """Bytes a file may have."""
    files: int = 256
    """Files it may have open."""
    processes: int = 64
    """Processes and threads, where a profile lets it have processes and the episode is a user of its own."""
    output: int = 8192
    """Bytes of what a step prints that are kept, of output and of errors each: the first and the last."""
    most_output: int = 64 << 20
    """Bytes a step may print until it is interrupted."""
    text: int = 4096
    """Characters of a value that are shown."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if type(value) is not int or not 0 < value < 1 << 48:
                raise InvalidArgument(f"limits: {name}={shown(value)} is no number from 1 on")


class Final(msgspec.Struct, frozen=True):
    """The last answer of a program."""

    text: str
    """As ``str`` gives it."""
    value: Any = None
    """As JSON, where it is."""


class Variable(msgspec.Struct, frozen=True):
    """A variable of a program."""

    kind: str
    """What its class is called."""
    shown: str = ""
    """How it shows, where that was asked for."""


class Execution(Result, frozen=True, kw_only=True):
    """What a step came to, as far as it is the same whenever the same is run.

    ``value`` is that of the last expression: as JSON where it has such a form, else the text of its ``repr``.
    """

    shown: str = ""
    """The ``repr`` of the value, empty where there is none."""
    stderr: str = ""
    error: str = ""
    """The traceback."""
    error_type: str = ""
    """The name of the class of what was raised; or what ended the step: ``StepTimeout``, ``OutputLimit``,
    ``WorkerDied``."""
    timed_out: bool = False
    state_lost: bool = False
    """Whether all variables are gone: the process had to be killed, or died."""
    restored: bool = False
    """Whether all is as before the step: the process was lost, and a copy of it has taken its place."""
    variables: dict[str, Variable] = {}
    """What the program has defined so far."""
    watched: dict[str, Any] = {}
    """The variables that were asked for, as JSON."""
    final: Final | None = None

    def answers(self) -> Iterator[Any]:
        """The final answer, where that was given; else the value, or what was printed last."""
        if self.final is None:
            yield from super().answers()
        else:
            yield self.final.text if self.final.value is None else self.final.value


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a step cost; it is never the same twice."""

    seconds: float = 0.0
    """Of the program, without what it waited for the host."""
    wall: float = 0.0
    """All of it."""
    cpu: float = 0.0
    """Processor time, as the worker says."""
    calls: int = 0
    """Of tools."""
    written: int = 0
    """Bytes of output and errors."""
    threads: int = 0
    """That go on, as the worker says."""
