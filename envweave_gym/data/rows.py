"""The rows of one file as a sequence, shared by all readers in this process and its forked children.

A file of JSON lines is memory-mapped, and a row is parsed on each access, so 256 environments hold a file in memory
only once. Opening a file parses every row once: an invalid row is reported then, with its line number, and not in the
middle of a training.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeVar, overload

import msgspec
import numpy as np

from envweave_gym.core.faults import InvalidArgument, NotAvailable, need, shown

Row = TypeVar("Row")

SUFFIXES = (".jsonl", ".json", ".parquet")
"""Suffixes of the files that can be read."""


class Table(Protocol):
    """The interface of a file's rows; each row is parsed when it is read."""

    unit: str
    """The word that errors use for a position in the file: ``"line"`` or ``"row"``."""

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def read(self, index: int) -> Any:
        """Return the row with this index, from 0; raise :class:`msgspec.MsgspecError` if it is invalid."""
        ...

    def position(self, index: int) -> int:
        """Return the row's position in the file as errors give it, from 1; it counts empty lines too."""
        ...


class Rows(Sequence[Row]):
    """Read-only sequence of the rows of a table.

    A pickle contains no rows, but ``again``: a function and its arguments that open the same rows. ``copy.deepcopy``
    returns the same object.
    """

    def __init__(
        self, table: Table | Sequence[Row], again: tuple[Callable[..., Any], tuple[Any, ...]]
    ) -> None:
        self._read: Callable[[int], Row] = table.__getitem__ if isinstance(table, Sequence) else table.read
        self._size, self._again = len(table), again

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self._read(one) for one in range(*index.indices(self._size))]
        found = index + self._size if index < 0 else index
        if not 0 <= found < self._size:
            raise IndexError(f"there is no row {index}; there are {self._size}")
        try:
            return self._read(found)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidArgument(
                f"row {found} was valid and no longer is ({error}): its file was written over while in use; "
                "write a new file and rename it instead"
            ) from None

    def __eq__(self, other: object) -> bool:
        """Return whether both read the same table; a process opens each file only once."""
        return self._read == other._read if isinstance(other, Rows) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._read)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._again

    def __deepcopy__(self, memo: Any) -> Rows[Row]:
        return self


def table_of(path: Path, row: type[Any]) -> Table:
    """Return the table of a file whose rows are of the type ``row``.

    A process opens and checks a file once, and again when its size or time of modification has changed. Raise
    ``NotAvailable`` if the file cannot be read, ``InvalidArgument`` if a row is invalid.
    """
    try:
        resolved = path.expanduser().resolve(strict=True)
        found = resolved.stat()
        return _opened(resolved, row, found.st_size, found.st_mtime_ns)
    except OSError as error:
        raise NotAvailable(f"{shown(str(path))} cannot be read ({error}); give a file that can") from None


# Size and time are arguments so that a changed file is another key of the cache, and is read again.
@lru_cache(maxsize=32)
def _opened(path: Path, row: type[Any], size: int, changed: int) -> Table:
    if path.suffix not in _TABLES:
        raise InvalidArgument(
            f"{shown(path.name)} is no file of rows; its name must end in {' or '.join(SUFFIXES)}"
        )
    return checked(_TABLES[path.suffix](path, row), str(path), row)


def checked(table: Table, name: str, row: type[Any]) -> Table:
    """Read every row once and return ``table``; raise ``InvalidArgument`` at the first invalid row.

    ``name`` is the name of the file or data set in the error, and ``row`` the type of a row.
    """
    if not len(table):
        raise InvalidArgument(f"{name} has no rows; give a file with at least one")
    for index in range(len(table)):
        try:
            table.read(index)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidArgument(
                f"{name}, {table.unit} {table.position(index)}: {error}; every row is an object with "
                f"{', '.join(_required(row))}"
            ) from None
    return table


def _required(row: type[Any]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(row) if field.required]


class _Lines:
    """The table of a file of JSON lines, which is memory-mapped; empty lines are skipped."""

    unit = "line"

    def __init__(self, path: Path, row: type[Any]) -> None:
        self._decode = msgspec.json.Decoder(row).decode
        with path.open("rb") as file:
            if not path.stat().st_size:  # mmap cannot map an empty file
                raise InvalidArgument(f"{path} has no rows; give a file with at least one")
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        text = np.frombuffer(self._bytes, np.uint8)
        ends = np.append(np.flatnonzero(text == ord("\n")), len(text))
        starts = np.append(0, ends[:-1] + 1)
        filled = [bool(self._bytes[a:b].strip()) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        self._lines = np.flatnonzero(filled)
        self._starts, self._ends = starts[self._lines], ends[self._lines]

    def __len__(self) -> int:
        return len(self._lines)

    def read(self, index: int) -> Any:
        end = self._ends[index]
        if end > self._bytes.size():  # reading mapped bytes behind a truncated file's end raises SIGBUS
            raise msgspec.DecodeError(f"the file ends before line {self.position(index)}")
        return self._decode(self._bytes[self._starts[index] : end])

    def position(self, index: int) -> int:
        return int(self._lines[index]) + 1


class _Array:
    """The table of a file that is one JSON array of objects."""

    unit = "row"

    def __init__(self, path: Path, row: type[Any]) -> None:
        self._decode = msgspec.json.Decoder(row).decode
        try:
            self._rows = msgspec.json.decode(path.read_bytes(), type=list[msgspec.Raw])
        except msgspec.MsgspecError as error:
            raise InvalidArgument(
                f"{path}: {error}; a .json file is one array of objects, a .jsonl file has one object in every line"
            ) from None

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int) -> Any:
        return self._decode(self._rows[index])

    def position(self, index: int) -> int:
        return index + 1


class Records:
    """A table over a sequence of mappings, such as the rows of an Arrow table or of a hub data set."""

    unit = "row"

    def __init__(self, rows: Any, row: type[Any]) -> None:
        self._rows, self._row = rows, row

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int) -> Any:
        """Return the row; fields that are ``None`` get their defaults."""
        fields: Mapping[str, Any] = self._rows[index]
        return msgspec.convert(
            {name: _as_json(value) for name, value in fields.items() if value is not None}, self._row
        )

    def position(self, index: int) -> int:
        """Return the row's number, from 1."""
        return index + 1


def _as_json(value: Any) -> Any:
    """Return timestamps, which parquet files have, as the text that JSON files contain; all else unchanged."""
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, date) else value


class _ArrowRows:
    """The rows of an Arrow table as a sequence of mappings, converted one by one on access."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __len__(self) -> int:
        return self._table.num_rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._table.slice(index, 1).to_pylist()[0]


def _parquet(path: Path, row: type[Any]) -> Records:
    parquet = need("pyarrow.parquet", "datasets", f"reading {path.name}")
    try:
        table = parquet.read_table(path, memory_map=True)
    except ValueError as error:  # the base class of pyarrow's errors
        raise InvalidArgument(f"{path} is no complete parquet file: {' '.join(str(error).split())}") from None
    return Records(_ArrowRows(table), row)


_TABLES: dict[str, Callable[[Path, type[Any]], Table]] = {
    ".jsonl": _Lines,
    ".json": _Array,
    ".parquet": _parquet,
}
