"""Times installed hub environments: start, first and second reset, a step.

The packages are those of the tests, installed from a stand-in of the hub with the real library from the package index.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import envweave_gym
from envweave_gym.hubs.prime import hub_packages

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

ROUNDS = 20
SECOND_RESET_S = 0.2
"""Goal for every reset after the first."""


def main() -> None:
    print("\n| hub environment | start | first reset | later resets | step |\n|---|---|---|---|---|")
    for generation, requires in (("v0", ["verifiers>=0.1.8", "datasets"]), ("v1", ["verifiers>=0.4"])):
        show(generation, requires)


def show(generation: str, requires: list[str]) -> None:
    from hub_wheels import V0_SOURCE, V1_SOURCE
    from prime_hub import PrimeHub, serving

    name = f"sums-{generation}"
    with tempfile.TemporaryDirectory() as home, serving(PrimeHub()) as hub:
        os.environ |= {"PRIME_API_BASE_URL": hub.url, "XDG_CONFIG_HOME": home, "ENVWEAVE_SUITES": home}
        hub.publish("acme", name, "1.0.0", V0_SOURCE if generation == "v0" else V1_SOURCE, requires=requires)
        hub_packages.install(f"acme/{name}")
        start = time.perf_counter()
        env: Any = envweave_gym.make(f"prime://acme/{name}")
        made = time.perf_counter() - start
        first, *later = [timed(env.reset) for _ in range(ROUNDS)]
        steps = []
        for _ in range(ROUNDS):
            env.reset(options={"index": 0})
            steps.append(timed(lambda: env.step("2")))
        env.close()
        hub_packages.remove(f"acme/{name}")
    typical, worst = statistics.median(later), max(later)
    print(
        f"| {generation} | {made:.1f} s | {first * 1000:.0f} ms | {typical * 1000:.0f} ms (at most {worst * 1000:.0f};"
        f" goal {SECOND_RESET_S * 1000:.0f}) | {statistics.median(steps) * 1000:.0f} ms |"
    )


def timed(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
