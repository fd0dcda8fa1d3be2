"""Checkpoints on disk: ``tinker://RUN/weights/NAME`` for training, ``tinker://RUN/sampler_weights/NAME`` for sampling.

A checkpoint is a safetensors file and a JSON file that names it. Each is written under another name, flushed to disk
and renamed, the JSON file last; so a checkpoint is there as a whole or not at all, whenever the server is killed.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from safetensors.torch import load_file, save_file
from torch import Tensor

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.os_support.file_lock import try_lock, unlock
from envweave_gym_server.tinker.api_errors import BadInput, NotFound
from envweave_gym_server.tinker.request_bodies import LoraConfig

SCHEME = "tinker://"
KINDS = {"weights": "training", "sampler_weights": "sampler"}
"""The middle part of a path, and the SDK's word for it."""
_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.:-]{0,127}")
_OWN_FILE = re.compile(r"([^/]+)\.(?:[0-9a-f]{8}\.safetensors(\.part)?|json(\.part))")
"""The name of a file that :class:`Checkpoints` wrote beside a description: weights, or what is half written."""
_log = logging.getLogger(__name__)


class CheckpointFile(msgspec.Struct):
    """The JSON file of a checkpoint."""

    run: str
    kind: str
    name: str
    weights: str
    """Name of the safetensors file beside it."""
    size: int
    base_model: str
    lora: LoraConfig
    steps: int
    created: datetime
    with_optimizer: bool = False
    expires: datetime | None = None
    metadata: dict[str, str] | None = None

    @property
    def path(self) -> str:
        """The checkpoint's URI."""
        return f"{SCHEME}{self.run}/{self.kind}/{self.name}"

    def is_expired(self) -> bool:
        """Return whether its time to live is over."""
        return self.expires is not None and self.expires <= datetime.now(UTC)

    def listed(self) -> dict[str, Any]:
        """Return the SDK's description of a checkpoint."""
        return {
            "checkpoint_id": f"{self.kind}/{self.name}",
            "checkpoint_type": KINDS[self.kind],
            "time": self.created.isoformat(),
            "tinker_path": self.path,
            "size_bytes": self.size,
            "public": False,
            "user_metadata": self.metadata,
            "expires_at": None if self.expires is None else self.expires.isoformat(),
        }


def expiry(ttl_seconds: int | None) -> datetime | None:
    """Return when a checkpoint with this time to live expires."""
    if ttl_seconds is None:
        return None
    if ttl_seconds <= 0:
        raise BadInput(f"ttl_seconds {ttl_seconds} is no time to live; give a positive number, or None")
    try:
        return datetime.now(UTC) + timedelta(seconds=ttl_seconds)
    except OverflowError:
        raise BadInput(f"ttl_seconds {ttl_seconds} is beyond the calendar; give None for never") from None


def checked_name(name: str) -> str:
    """Return the name of a checkpoint if it can be the name of a file everywhere."""
    if _PART.fullmatch(name) is None or ":" in name:
        raise BadInput(
            f"{shown(name)} is no name of a checkpoint; use 1 to 128 letters, digits, '_', '-' and '.', "
            "and begin with another than '.'"
        )
    return name


def parts_of(path: str) -> tuple[str, str, str]:
    """Return run, kind and name of a checkpoint's URI."""
    parts = path.removeprefix(SCHEME).split("/")
    if not path.startswith(SCHEME) or len(parts) != 3 or any(_PART.fullmatch(part) is None for part in parts):
        raise BadInput(f"{shown(path)} is no path of a checkpoint; those look like tinker://RUN/weights/NAME")
    run, kind, name = parts
    if kind not in KINDS:
        raise BadInput(f"{shown(path)} is of the kind {kind!r}; this server keeps {' and '.join(KINDS)}")
    return run, kind, name


class Checkpoints:
    """A folder of checkpoints, with a folder for each run."""

    def __init__(self, folder: Path) -> None:
        """Make the folder, and remove what a killed server has left half written."""
        self.folder = folder
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgument(f"--checkpoints {folder} cannot be made: {error.strerror}") from None
        self._in_use = try_lock(folder / ".in-use")
        if self._in_use is not None:  # no other server is writing there
            folders = (self.folder.glob(f"*+train+*/{kind}/*") for kind in KINDS)
            self._remove_leftovers(itertools.chain.from_iterable(folders))

    def close(self) -> None:
        """Let another server remove leftovers."""
        if self._in_use is not None:
            unlock(self._in_use)
            self._in_use = None

    def save(self, tensors: Mapping[str, Tensor], about: CheckpointFile, *, overwrite: bool = False) -> str:
        """Write a checkpoint and return its URI; ``about`` gets the name and size of the file."""
        where = self._file(about.run, about.kind, about.name)
        if not overwrite and self._is_there(where):
            raise BadInput(f"{about.path} exists; save under another name, or with overwrite=True")
        where.parent.mkdir(parents=True, exist_ok=True)
        about.weights = f"{about.name}.{secrets.token_hex(4)}.safetensors"
        weights = where.parent / about.weights
        unfinished = weights.with_name(f"{about.weights}.part")
        try:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, unfinished)
            about.size = unfinished.stat().st_size
            _flush(unfinished)
            unfinished.rename(weights)
            with self._lock:
                before = self._read(where)
                self._write(where, about)
                if before is not None:
                    (where.parent / before.weights).unlink(missing_ok=True)
        except BaseException:  # such as a full disk, which what is left over would keep full
            self._remove_leftovers(where.parent.glob(f"{about.name}.*"))
            raise
        return about.path

    def find(self, path: str) -> CheckpointFile:
        """Return the description of a checkpoint; raise :class:`NotFound`."""
        about = self._read(self._file(*parts_of(path)))
        if about is None or about.is_expired():
            raise NotFound(f"there is no checkpoint {path} on this server; rest_client lists those that are")
        return about

    def load(self, path: str) -> tuple[CheckpointFile, dict[str, Tensor]]:
        """Return the description and the tensors of a checkpoint."""
        about = self.find(path)
        file = self._file(about.run, about.kind, about.name).parent / about.weights
        try:
            return about, load_file(file)
        except FileNotFoundError:  # overwritten or deleted since
            raise NotFound(f"there is no checkpoint {path} on this server any more") from None

    def delete(self, path: str) -> None:
        """Remove a checkpoint; raise :class:`NotFound`."""
        with self._lock:
            self._remove(self.find(path))

    def set_expiry(self, path: str, expires: datetime | None) -> None:
        """Set when a checkpoint expires."""
        with self._lock:
            about = self.find(path)
            about.expires = expires
            self._write(self._file(about.run, about.kind, about.name), about)

    def all(self, run: str | None = None) -> list[CheckpointFile]:
        """Return the checkpoints of a run, or all, the newest first."""
        found = (self._read(file) for file in self._descriptions())
        ours = [one for one in found if one is not None and run in (None, one.run) and not one.is_expired()]
        return sorted(ours, key=lambda one: one.created, reverse=True)

    def sweep(self) -> None:
        """Remove checkpoints that have expired."""
        with self._lock:
            for file in self._descriptions():
                about = self._read(file)
                if about is not None and about.is_expired():
                    self._remove(about)

    def _descriptions(self) -> Iterator[Path]:
        return (file for kind in KINDS for file in self.folder.glob(f"*/{kind}/*.json"))

    def _file(self, run: str, kind: str, name: str) -> Path:
        """Return the JSON file of a checkpoint; not every file system takes the colons of a run."""
        return self.folder / run.replace(":", "+") / kind / f"{name}.json"

    def _is_there(self, where: Path) -> bool:
        about = self._read(where)
        return where.exists() if about is None else not about.is_expired()

    def _read(self, file: Path) -> CheckpointFile | None:
        try:
            about = msgspec.json.decode(file.read_bytes(), type=CheckpointFile)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, msgspec.DecodeError) as error:  # damaged, of another version, or not of this server
            _log.warning("a checkpoint cannot be read", extra={"file": str(file), "detail": str(error)})
            return None
        if _OWN_FILE.fullmatch(about.weights) is None:
            _log.warning("a checkpoint names weights elsewhere", extra={"file": str(file)})
            return None
        return about

    def _write(self, file: Path, about: CheckpointFile) -> None:
        unfinished = file.with_name(f"{file.name}.part")
        unfinished.write_bytes(msgspec.json.encode(about))
        _flush(unfinished)
        unfinished.rename(file)
        _flush(file.parent)

    def _remove(self, about: CheckpointFile) -> None:
        file = self._file(about.run, about.kind, about.name)
        file.unlink(missing_ok=True)
        (file.parent / about.weights).unlink(missing_ok=True)

    def _remove_leftovers(self, files: Iterable[Path]) -> None:
        """Remove what this class left half written: files with names that it makes, in folders that it makes.

        Weights stay if their description names them or cannot be read, and so do all files of others.
        """
        for file in files:
            match = _OWN_FILE.fullmatch(file.name)
            if match is not None and (match[2] or match[3] or self._is_unnamed(file, match[1])):
                file.unlink(missing_ok=True)

    def _is_unnamed(self, weights: Path, name: str) -> bool:
        """Return whether weights have no description, or one that names others."""
        description = weights.with_name(f"{name}.json")
        about = self._read(description)
        return not description.exists() if about is None else about.weights != weights.name


def _flush(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
