"""The sources of a data set's rows: the Hugging Face hub, a local file or folder, or a generator.

The argument ``dataset=`` of an ID is the path of a file or folder, ``"synthetic"``, or the name of a data set on the
hub. The package ``datasets`` reads the hub. For an ID's default data set, the folder in the environment variable
``ENVWEAVE_DATA`` is searched before the hub.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic

from envweave_gym.core.faults import InvalidArgument, MissingExtra, NotAvailable, need, shown
from envweave_gym.data.rows import SUFFIXES, Records, Row, Rows, Table, checked, table_of

SYNTHETIC = "synthetic"
FOLDER = "ENVWEAVE_DATA"
"""Name of the environment variable with the folder that is searched before the hub."""
HUB_TIMEOUT_S = 5.0
"""Seconds that a request waits for the hub to answer at all."""

_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")


@dataclass(frozen=True)
class Source(Generic[Row]):
    """The description of a data set: names of its files and splits, type of its rows, name on the hub, generator."""

    name: str
    """The stem of its files, which are called ``{name}_{split}.jsonl``, ``.json`` or ``.parquet``."""
    row: type[Row]
    """The ``msgspec.Struct`` that each row is parsed into."""
    hub: str
    """The name of the data set on the hub."""
    splits: tuple[str, ...]
    synthetic: Callable[[str], Sequence[Row]] = field(repr=False)
    """The function that generates the synthetic rows of a split; every call must return equal rows."""
    config: str | None = None
    """The name of the configuration to request from the hub; ``None`` requests the default one."""


def rows_of(source: Source[Row], dataset: str, split: str) -> Rows[Row]:
    """Return the rows of a split; raise ``NotAvailable``, with the possible values of ``dataset``, if not found."""
    if split not in source.splits:
        there_are = ", ".join(map(repr, source.splits))
        raise InvalidArgument(f"split={shown(split)} is unknown; {source.name} has {there_are}")
    return Rows(_table(source, dataset, split), (rows_of, (source, dataset, split)))


def _table(source: Source[Any], dataset: str, split: str) -> Table | Sequence[Any]:
    if not isinstance(dataset, str):
        raise InvalidArgument(f"dataset={shown(dataset)} is not a string; {_ways(source, split)}")
    if dataset == SYNTHETIC:
        return _generated(source, split)
    if dataset == source.hub and (found := _in_folder(source, split)):
        return table_of(found, source.row)
    path = Path(dataset).expanduser()
    if path.exists() or not may_be_on_hub(dataset):
        return table_of(_file(source, path, split), source.row)
    return _from_hub(source, dataset, split)


def may_be_on_hub(dataset: str) -> bool:
    """Return whether a value of ``dataset`` is the name of a data set on the hub, unless it is a path that exists."""
    return bool(_HUB_NAME.fullmatch(dataset)) and Path(dataset).suffix not in SUFFIXES


@lru_cache(maxsize=32)
def _generated(source: Source[Any], split: str) -> Sequence[Any]:
    return source.synthetic(split)


def _in_folder(source: Source[Any], split: str) -> Path | None:
    folder = os.environ.get(FOLDER)
    return _named(Path(folder).expanduser(), source, split) if folder else None


def _named(folder: Path, source: Source[Any], split: str) -> Path | None:
    names = (f"{stem}{suffix}" for stem in (f"{source.name}_{split}", split) for suffix in SUFFIXES)
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _file(source: Source[Any], path: Path, split: str) -> Path:
    found = _named(path, source, split) if path.is_dir() else path if path.is_file() else None
    if found is None:
        what = "the folder has no such split" if path.is_dir() else "there is no such file or folder"
        raise NotAvailable(f"dataset={shown(str(path))}: {what}; {_ways(source, split)}")
    return found


def _ways(source: Source[Any], split: str) -> str:
    """Return the part of an error that lists the three kinds of values that ``dataset`` accepts."""
    return (
        f"give dataset={source.hub!r} where the hub can be reached, dataset={SYNTHETIC!r}, or the path of a "
        f"{', '.join(SUFFIXES)} file or of a folder with {source.name}_{split}.jsonl, which {FOLDER} may name"
    )


# The hub


def _from_hub(source: Source[Any], dataset: str, split: str) -> Table:
    config = source.config if dataset == source.hub else None
    try:
        return _downloaded(dataset, config, split, source.row)
    except MissingExtra as error:
        raise MissingExtra(f"dataset={shown(dataset)}: {error}; or {_ways(source, split)}") from None
    except InvalidArgument:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        why = " ".join(str(error).split()).replace("OfflineModeIsEnabled", "it does not answer")
        raise NotAvailable(
            f"dataset={shown(dataset)}: the hub does not give it ({why}), and {_folder_says(source, split)}; "
            f"{_ways(source, split)}"
        ) from None


def _folder_says(source: Source[Any], split: str) -> str:
    folder = os.environ.get(FOLDER)
    return f"{FOLDER}={folder} has no {source.name}_{split}.jsonl" if folder else f"{FOLDER} is not set"


@lru_cache(maxsize=32)
def _downloaded(dataset: str, config: str | None, split: str, row: type[Any]) -> Table:
    datasets = need("datasets", "datasets", "reading the hub")
    with _as_reachable(datasets):
        rows = datasets.load_dataset(dataset, config, split=split)
    return checked(Records(rows, row), f"{dataset} ({split})", row)


_hub = threading.Lock()  # the switches of the libraries are global to the process


@contextmanager
def _as_reachable(datasets: Any) -> Generator[None]:
    """Set the hub's libraries offline in the block if the hub does not answer; they would retry for 20 seconds."""
    constants: Any = need("huggingface_hub.constants", "datasets", "reading the hub")
    with _hub:
        before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
        if not (any(before) or _answers(constants.ENDPOINT)):
            datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
        try:
            yield
        finally:
            datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _answers(url: str) -> bool:
    import requests  # here, because few programs use the hub and the import is slow

    try:
        return requests.head(url, timeout=HUB_TIMEOUT_S).status_code < 500
    except requests.RequestException:
        return False
