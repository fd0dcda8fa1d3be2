"""Run all benchmarks, or those that are named: ``python -m benchmarks steps vectors``."""

from __future__ import annotations

import importlib
import sys

NAMES = (
    "steps",
    "vectors",
    "imports",
    "walks",
    "training",
    "tinker_learning",
    "tinker_faults",
    "tinker_server",
    "tinker_throughput",
    "remote",
    "openenv",
    "suites",
    "docker",
    "ray",
    "sandbox",
    "hostile",
    "waiting",
    "hub",
    "programs",
    "gsm8k",
    "swebench_loc",
    "swebench",
)


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"no benchmark is called {unknown[0]!r}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    for name in names or NAMES:
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
