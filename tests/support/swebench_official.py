"""A program: what the official ``run_instance`` says of patches.

It reads JSON from stdin, a list of rows and patches with a timeout, runs four at once, and writes a list
of whether each was resolved, null where there is no report.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from typing import Any

from swebench.harness.run_evaluation import run_instance
from swebench.harness.utils import make_test_spec

import docker


def verdict(job: dict[str, Any]) -> tuple[bool | None, float]:
    row = job["row"]
    prediction = {
        "instance_id": row["instance_id"],
        "model_name_or_path": "model",
        "model_patch": job["patch"],
    }
    begun = time.perf_counter()
    found = run_instance(make_test_spec(row), prediction, docker.from_env(), uuid.uuid4().hex, job["timeout"])
    seconds = time.perf_counter() - begun
    return (None if found is None else found[1][row["instance_id"]]["resolved"]), seconds


def main() -> None:
    jobs = json.load(sys.stdin)
    with redirect_stdout(sys.stderr), ThreadPoolExecutor(4) as pool:
        verdicts = list(pool.map(verdict, jobs))
    json.dump(verdicts, sys.stdout)


if __name__ == "__main__":
    main()
