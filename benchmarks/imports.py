"""What ``import envweave_gym`` costs over the four packages it always needs, in time of its own process."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.rounds import interleave, show

ROUNDS = 15
BASE = "import gymnasium, pettingzoo, numpy, msgspec"
PROBE = """
import resource, sys, time
{base}
def memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
before, started = memory(), time.process_time()
{measured}
print((time.process_time() - started) * 1e3, (memory() - before) / 2**20)
"""


def probe(measured: str, which: int) -> float:
    code = PROBE.format(base=BASE, measured=measured)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[which])


def main() -> None:
    values = interleave(
        {
            "milliseconds": lambda: probe("import envweave_gym", 0),
            "mebibytes": lambda: probe("import envweave_gym", 1),
        },
        ROUNDS,
    )
    row = {"import": "envweave_gym", "ms more": values["milliseconds"], "MiB more": values["mebibytes"]}
    show(f"Imports: over `{BASE}`", [row])


if __name__ == "__main__":
    main()
