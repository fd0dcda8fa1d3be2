"""The default limits of what a sandboxed program may use: memory, files, processes and output."""

from __future__ import annotations

import msgspec

from envweave_gym.core.faults import InvalidArgument, shown


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the resources of an episode."""

    memory: int = 512 << 20
    """Limit of private memory in bytes."""
    file_size: int = 64 << 20
    """Limit of the size of a file in bytes."""
    files: int = 256
    """Limit of open files."""
    processes: int = 64
    """Limit of processes and threads, in the profile ``shell`` and where each episode runs under its own UID."""
    output: int = 8192
    """Bytes retained of each of a step's ``stdout`` and ``stderr``; the middle of a longer output is dropped."""
    most_output: int = 64 << 20
    """Limit of bytes that a step may print before it is interrupted."""
    text: int = 4096
    """Limit of characters of a value's ``repr`` in the outcome."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if type(value) is not int or not 0 < value < 1 << 48:
                raise InvalidArgument(f"limits: {name}={shown(value)} is not an int from 1 on")
