"""SWE-bench Lite with patches: what one evaluation costs, beside the official ``run_instance``.

All contestants try the gold patch of a toy instance. Targets: at most a second in a container, and at most a
quarter of the time of the official way.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.rounds import interleave, show
from envweave_gym.containers.engine import engine
from envweave_gym.data.toy_repo import toy_instances
from envweave_gym.swebench.evaluation import PHASES, Trial, evaluate
from envweave_gym.swebench.toy_image import build_toy_images

ROUNDS, EACH = 5, 5
MOST, MOST_OF_OFFICIAL = 1.0, 0.25
TOY = toy_instances("test")[0]


def ours(backend: str) -> float:
    """Seconds an evaluation, of several in turn."""
    begun = time.perf_counter()
    for _ in range(EACH):
        assert evaluate(TOY, TOY.patch, Trial(backend)).resolved
    return (time.perf_counter() - begun) / EACH


def eight_at_once() -> float:
    """Seconds for eight evaluations in containers."""
    begun = time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: evaluate(TOY, TOY.patch, Trial(at_once=8)), range(8)))
    assert all(one.resolved for one in found)
    return time.perf_counter() - begun


def official(client: Any) -> float:
    """Seconds of ``run_instance``, which keeps its logs below the current folder."""
    from swebench.harness.run_evaluation import run_instance
    from swebench.harness.utils import make_test_spec

    row = {name: getattr(TOY, name) for name in TOY.__struct_fields__}
    row |= {"FAIL_TO_PASS": list(TOY.fail_to_pass), "PASS_TO_PASS": list(TOY.pass_to_pass)}
    prediction = {"instance_id": TOY.instance_id, "model_name_or_path": "gold", "model_patch": TOY.patch}
    spec = make_test_spec(row)
    begun = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        found = run_instance(spec, prediction, client, uuid.uuid4().hex, 60)
    assert found is not None
    assert found[1][TOY.instance_id]["resolved"]
    return time.perf_counter() - begun


def main() -> None:
    client = engine()
    build_toy_images(client)
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            official(client)  # imports it
            seconds = interleave(
                {
                    "ours, docker": lambda: ours("docker"),
                    "ours, local": lambda: ours("local"),
                    "ours, docker, eight at once": eight_at_once,
                    "official run_instance": lambda: official(client),
                },
                ROUNDS,
            )
        finally:
            os.chdir(here)
    whole = seconds["official run_instance"]
    rows = [
        {"evaluation": name, "seconds": value, "of the official": value / whole}
        for name, value in seconds.items()
    ]
    show("SWE-bench patches: seconds", rows)
    phases = evaluate(TOY, TOY.patch).timings
    show("SWE-bench phases: seconds", [{"phase": name, "seconds": phases[name]} for name in PHASES])
    print(f"targets: at most {MOST} s in a container, at most {MOST_OF_OFFICIAL} of the official time")


if __name__ == "__main__":
    main()
