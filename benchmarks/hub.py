"""Times installed hub environments: start, first and second reset, a step; and the model port with a thin client.

The packages are those of the tests, installed from a stand-in of the hub with the real library from the package index.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import envweave_gym
from envweave_gym.hubs.prime import hub_packages
from envweave_gym.programs.model_port import Call, ModelPort
from envweave_gym.programs.reply import Reply

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

ROUNDS, CALLS = 20, 5000
SECOND_RESET_S = 0.2
"""Goal for every reset after the first."""


def main() -> None:
    port()
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


def port() -> None:
    """Calls a second of one caller over one connection, whose calls are answered in another thread."""

    def answer(call: Call) -> None:
        call.answer(Reply("ok"))

    opened = ModelPort(answer)
    body = json.dumps({"model": "agent", "messages": [{"role": "user", "content": "hi"}]})
    head = {"Authorization": f"Bearer {opened.token}"}
    connection = http.client.HTTPConnection("127.0.0.1", opened.number)
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", body, head)
        connection.getresponse().read()
        times.append(time.perf_counter() - start)
    connection.close()
    opened.close()
    assert threading.active_count() == 1
    print(
        f"model port: {CALLS / sum(times):.0f} calls/s, median {statistics.median(times) * 1e6:.0f} us (http.client)"
    )


if __name__ == "__main__":
    main()
