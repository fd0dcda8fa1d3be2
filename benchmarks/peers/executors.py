"""Other people's Python executors, and what they take; run in the venv of ``make peer``.

Reads lines like ``smolagents one 200``: whose, what, and how often. Answers each with the median in
microseconds, and ``ipykernel memory 1`` with kilobytes.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyter_client.manager import start_new_kernel
from openenv.core.tools.local_python_executor import PyExecutor
from programs import CODE
from smolagents import LocalPythonExecutor

Run = Callable[[str], Any]


def smolagents() -> Run:
    executor = LocalPythonExecutor(additional_authorized_imports=[])
    executor.send_tools({})
    return executor


def openenv() -> Run:
    return PyExecutor().run


class Kernel:
    """One kernel of Jupyter, which is asked as ``nbclient`` does."""

    def __init__(self) -> None:
        self._manager, self._client = start_new_kernel(kernel_name="python3")

    def __call__(self, code: str) -> Any:
        return self._client.execute_interactive(code, timeout=60, output_hook=lambda _: None)

    def memory(self) -> float:
        """Kilobytes of its own."""
        pid = self._manager.provisioner.process.pid
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith("Private_"))

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


def median(call: Callable[[], Any], times: int) -> float:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken) * 1e6


def fresh_kernel() -> None:
    Kernel().close()


def main() -> None:
    made: dict[str, Callable[[], Run]] = {"smolagents": smolagents, "openenv": openenv}
    kernel = Kernel()
    runs: dict[str, Run] = {**{name: make() for name, make in made.items()}, "ipykernel": kernel}
    for line in sys.stdin:
        who, what, times = line.split()
        if what == "memory":
            found = kernel.memory()
        elif what == "fresh":
            found = median(made.get(who, fresh_kernel), int(times))
        else:
            found = median(lambda w=who, c=CODE[what]: runs[w](c), int(times))
        print(found, flush=True)
    kernel.close()


if __name__ == "__main__":
    main()
