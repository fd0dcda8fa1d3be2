"""Writes the metrics of a training run to ``metrics.jsonl``, an object per update, and their curves to a picture."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from envweave_gym.core.faults import EnvweaveError, InvalidArgument, need
from envweave_gym.training.run_lock import RunLock, made_by, remove_empty


class NotWritten(EnvweaveError):
    """Raised if a file of a run cannot be written, such as on a full disk."""


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Raise ``NotWritten``, which names the file, for an ``OSError`` of a write."""
    try:
        yield
    except OSError as error:
        raise NotWritten(f"{path} cannot be written: {error.strerror or error}") from error


class RunMetrics:
    """Context manager that appends each update to a file at once, and draws curves at the end, also after Ctrl-C."""

    def __init__(
        self,
        folder: str | Path,
        curves: tuple[str, ...],
        *,
        resume: bool = False,
        lock: RunLock | None = None,
        replacing: Callable[[], Any] | None = None,
        report: Callable[[str], Any] = lambda line: print(line, file=sys.stderr),
    ) -> None:
        """Create the folder and the file; ``curves`` are the metrics to draw, each in its own panel.

        ``resume`` goes on with the rows of an earlier run instead of replacing them. A folder that cannot be
        written to raises an error here, before the training. Without ``lock``, the one that the caller holds on the
        folder, one is held in the ``with`` block.

        The rows of an earlier run stay until the first row is written. ``replacing`` is called before that, to remove
        its other files, and ``report`` with a line about it.
        """
        need("matplotlib", "demo", "drawing metrics.png")
        self.folder = Path(folder)
        self._path = self.folder / "metrics.jsonl"
        try:
            made = made_by(self.folder)
            is_new = not self._path.exists()
            self._path.open("a").close()  # tries to write, and leaves an earlier run as it is
            if is_new:
                self._path.unlink()  # the run may be refused yet
            remove_empty(made)
        except OSError as error:
            problem = error.strerror or str(error)
            raise InvalidArgument(
                f"no run can be written to {folder} ({problem}); give another --out"
            ) from error
        self.rows: list[dict[str, Any]] = []
        self._curves = curves
        self._file: TextIO | None = None
        self._resume = resume
        self._replacing, self._report = replacing, report
        self._is_open = False
        self._lock = lock
        self._own_lock: RunLock | None = None
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """The seconds since the run started."""
        return time.perf_counter() - self._started

    def __enter__(self) -> RunMetrics:
        self._own_lock = RunLock(self.folder) if self._lock is None else None
        try:
            self._begin()
        except BaseException:
            self._unlock()
            raise
        return self

    def _begin(self) -> None:
        if self._resume and self._path.exists():
            self.rows = _rows_in(self._path)
        before = self.rows[-1]["seconds"] if self.rows else 0.0
        self._started = time.perf_counter() - before
        self._is_open = True
        if self._resume:
            self._rewrite(self.rows)

    @property
    def replaces_earlier(self) -> bool:
        """Whether the first row is still to be written, and will replace an earlier run."""
        return self._file is None and self._path.exists()

    def _remove_earlier(self) -> None:
        """Remove the other files of an earlier run, whose metrics are replaced next."""
        if self.replaces_earlier:
            self._report(f"replacing the earlier run in {self.folder}; another --run retains both")
        if self._replacing is not None:
            self._replacing()

    def _unlock(self) -> None:
        if self._own_lock is not None:
            self._own_lock.close()

    def keep(self, count: int) -> None:
        """Drop all rows but the first ``count``: training goes on from an earlier state."""
        del self.rows[count:]
        if self._file is not None:  # else there are no rows yet
            self._file.close()
            self._rewrite(self.rows)

    def _rewrite(self, rows: list[dict[str, Any]], *, removes_earlier: bool = False) -> None:
        """Write the rows to a new file, which stays open; on a full disk an earlier run stays as it is."""
        scratch = self._path.with_name(f"{self._path.name}.new")
        lines = [json.dumps(row, allow_nan=False) + "\n" for row in rows]
        with writing(self._path):
            try:
                scratch.write_text("".join(lines), encoding="utf-8")
            except OSError:
                with suppress(OSError):
                    scratch.unlink(missing_ok=True)
                raise
            if removes_earlier:
                self._remove_earlier()
            scratch.replace(self._path)  # a kill leaves either the old rows or the new ones
            self._file = self._path.open("a", encoding="utf-8")

    def sync(self) -> None:
        """Wait until the rows are on the disk: what is written after this never knows more updates than they do."""
        assert self._file is not None, "sync() belongs after a write()"
        with writing(self._path):
            os.fsync(self._file.fileno())

    def write(self, **values: float | str) -> None:
        """Append the metrics of one update; numbers that are not finite, which JSON cannot hold, become ``None``."""
        assert self._is_open, "write() belongs inside the with block"
        finite = {name: value if _is_writable(value) else None for name, value in values.items()}
        row = {"update": len(self.rows), **finite, "seconds": round(self.seconds, 3)}
        if self._file is None:
            self._rewrite([row], removes_earlier=True)
            self.rows.append(row)
            return
        self.rows.append(row)
        with writing(self._path):
            self._file.write(json.dumps(row, allow_nan=False) + "\n")
            self._file.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        try:
            if self._file is not None:
                with writing(self._path):  # closing tries again to write what a full disk has refused
                    self._file.close()
            if self.rows:
                draw(self.rows, self._curves, self.folder / "metrics.png")
        finally:
            self._unlock()


def _rows_in(path: Path) -> list[dict[str, Any]]:
    """Return the rows of an earlier run, without a last line that a kill has cut."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    except ValueError as error:  # also bytes that are not UTF-8
        raise InvalidArgument(
            f"--resume: {path} cannot be read: {error}; mend it, or begin again without --resume"
        ) from error
    if not all(isinstance(row, dict) and isinstance(row.get("seconds"), int | float) for row in rows):
        raise InvalidArgument(
            f"--resume: {path} has lines that are not metrics of a run; begin again without --resume"
        )
    return rows


def _is_writable(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def draw(rows: list[dict[str, Any]], curves: tuple[str, ...], path: Path) -> None:
    """Draw each of ``curves`` over the updates, and save the picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(curves), 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, name in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves, strict=True):
        points = [(row["update"], row[name]) for row in rows if row.get(name) is not None]
        axes.plot(*zip(*points, strict=True), color="tab:blue") if points else None
        axes.set(title=name.replace("_", " "), xlabel="update")
        axes.grid(alpha=0.3)
    with writing(path):
        figure.savefig(path, dpi=110)


def summary(title: str, values: dict[str, Any]) -> str:
    """Return a short table of the results of a run."""
    width = max(map(len, values))
    lines = [f"  {name:<{width}}  {_shown(value)}" for name, value in values.items()]
    return "\n".join([title, *lines])


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
