"""The rows of one file, shared by all who read them in this process and in those it forks.

A file of JSON lines is memory-mapped, and a row is parsed when it is asked for: 256 environments over one
file hold it once. Every row is read once when the file is opened, so that a wrong row is an error
then, with its line number, and not in the middle of a training.
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
"""The suffixes of files that can be read."""


class Table(Protocol):
    """The rows of a file, each parsed when it is read."""

    unit: str
    """The word for a row's position in errors: line or row."""

    def __len__(self) -> int:
        """How many rows there are."""
        ...

    def read(self, number: int) -> Any:
        """The row with this number, from 0; :class:`msgspec.MsgspecError` says what is wrong with it."""
        ...

    def place(self, number: int) -> int:
        """Where errors say that row is, from 1."""
        ...


class Rows(Sequence[Row]):
    """The rows of a table. It pickles as ``again``, which opens it anew, and a copy of it is itself."""

    def __init__(
        self, table: Table | Sequence[Row], again: tuple[Callable[..., Any], tuple[Any, ...]]
    ) -> None:
        self._read: Callable[[int], Row] = table.__getitem__ if isinstance(table, Sequence) else table.read
        self._size, self._again = len(table), again

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> list[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | list[Row]:
        if isinstance(place, slice):
            return [self._read(number) for number in range(*place.indices(self._size))]
        number = place + self._size if place < 0 else place
        if not 0 <= number < self._size:
            raise IndexError(f"there is no row {place}; there are {self._size}")
        try:
            return self._read(number)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidArgument(
                f"row {number} was right and is wrong now ({error}): its file was written over while in use; "
                "put another in its place instead"
            ) from None

    def __eq__(self, other: object) -> bool:
        """Whether both are the rows of the same table, as those of one file are in a process."""
        return self._read == other._read if isinstance(other, Rows) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._read)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._again

    def __deepcopy__(self, memo: Any) -> Rows[Row]:
        return self


def table_of(path: Path, row: type[Any]) -> Table:
    """The rows of a file, each a ``row``; opened and checked once a process, until the file changes."""
    try:
        resolved = path.expanduser().resolve(strict=True)
        found = resolved.stat()
        return _opened(resolved, row, found.st_size, found.st_mtime_ns)
    except OSError as error:
        raise NotAvailable(f"{shown(str(path))} cannot be read ({error}); give a file that can") from None


@lru_cache(maxsize=32)
def _opened(path: Path, row: type[Any], size: int, changed: int) -> Table:
    if path.suffix not in _TABLES:
        raise InvalidArgument(f"{shown(path.name)} is no file of rows; one ends in {' or '.join(SUFFIXES)}")
    return checked(_TABLES[path.suffix](path, row), str(path), row)


def checked(table: Table, name: str, row: type[Any]) -> Table:
    """``table``, once every row of it has been read."""
    if not len(table):
        raise InvalidArgument(f"{name} has no rows; give a file with at least one")
    for number in range(len(table)):
        try:
            table.read(number)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidArgument(
                f"{name}, {table.unit} {table.place(number)}: {error}; every row is an object with "
                f"{', '.join(_required(row))}"
            ) from None
    return table


def _required(row: type[Any]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(row) if field.required]


class _Lines:
    """JSON lines; empty ones do not count."""

    unit = "line"

    def __init__(self, path: Path, row: type[Any]) -> None:
        self._decode = msgspec.json.Decoder(row).decode
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise InvalidArgument(f"{path} has no rows; give a file with at least one")
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        text = np.frombuffer(self._bytes, np.uint8)
        ends = np.append(np.flatnonzero(text == ord("\n")), len(text))
        starts = np.append(0, ends[:-1] + 1)
        filled = [bool(self._bytes[a:b].strip()) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        self._places = np.flatnonzero(filled)
        self._starts, self._ends = starts[self._places], ends[self._places]

    def __len__(self) -> int:
        return len(self._places)

    def read(self, number: int) -> Any:
        end = self._ends[number]
        if end > self._bytes.size():  # whoever reads what a file has lost is killed
            raise msgspec.DecodeError(f"the file ends before line {self.place(number)}")
        return self._decode(self._bytes[self._starts[number] : end])

    def place(self, number: int) -> int:
        return int(self._places[number]) + 1


class _Array:
    """One JSON array of objects."""

    unit = "row"

    def __init__(self, path: Path, row: type[Any]) -> None:
        self._decode = msgspec.json.Decoder(row).decode
        try:
            self._rows = msgspec.json.decode(path.read_bytes(), type=list[msgspec.Raw])
        except msgspec.MsgspecError as error:
            raise InvalidArgument(
                f"{path}: {error}; a .json file is one array of objects, a .jsonl file has one in every line"
            ) from None

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, number: int) -> Any:
        return self._decode(self._rows[number])

    def place(self, number: int) -> int:
        return number + 1


class Records:
    """Rows that come as mappings, as those of Arrow tables do."""

    unit = "row"

    def __init__(self, rows: Any, row: type[Any]) -> None:
        self._rows, self._row = rows, row

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, number: int) -> Any:
        """The row, of the fields that have a value."""
        fields: Mapping[str, Any] = self._rows[number]
        return msgspec.convert(
            {name: _as_json(value) for name, value in fields.items() if value is not None}, self._row
        )

    def place(self, number: int) -> int:
        """Its number, from 1."""
        return number + 1


def _as_json(value: Any) -> Any:
    """A timestamp as the text that JSON has for it; parquet files have columns of timestamps."""
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, date) else value


class _ArrowRows:
    """The rows of an Arrow table as mappings."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __len__(self) -> int:
        return self._table.num_rows

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self._table.slice(number, 1).to_pylist()[0]


def _parquet(path: Path, row: type[Any]) -> Records:
    parquet = need("pyarrow.parquet", "datasets", f"reading {path.name}")
    try:
        table = parquet.read_table(path, memory_map=True)
    except ValueError as error:  # what pyarrow raises is a ValueError too
        raise InvalidArgument(f"{path} is no whole parquet file: {' '.join(str(error).split())}") from None
    return Records(_ArrowRows(table), row)


_TABLES: dict[str, Callable[[Path, type[Any]], Table]] = {
    ".jsonl": _Lines,
    ".json": _Array,
    ".parquet": _parquet,
}
