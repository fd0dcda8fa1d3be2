"""Rounds that interleave all contestants, their medians, and a table and a JSON file for each benchmark."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def interleave(contestants: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median over ``rounds`` of what each contestant measures.

    Every round runs all in turn and begins with another one, so that none has the same neighbour's heat and
    garbage before it each time.
    """
    measured: dict[str, list[float]] = {name: [] for name in contestants}
    names = deque(contestants)
    for _ in range(rounds):
        for name in names:
            measured[name].append(contestants[name]())
        names.rotate(-1)
    return {name: statistics.median(values) for name, values in measured.items()}


def show(title: str, rows: list[dict[str, Any]], folder: Path = Path("runs/benchmarks")) -> None:
    """Print the rows as a table and write them with the machine they were measured on."""
    columns = list(rows[0])
    cells = [columns, *[[_shown(row[column]) for column in columns] for row in rows]]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    print(f"\n{title}")
    for line in cells:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    folder.mkdir(parents=True, exist_ok=True)
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    document = {"title": title, "date": time.strftime("%Y-%m-%d"), "machine": machine, "rows": rows}
    name = title.split(":")[0].lower().replace(" ", "_")
    (folder / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
