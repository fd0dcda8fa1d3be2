"""Our verdict is the official one, except on hacks: those the official path scores as resolved."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from absent import needs_command
from engines import client, ours
from swebench_rows import QUEUES, TEXT, at_import, edit, new_file, row_of
from toy_images import images

from envweave_gym.swebench.evaluation import Trial, evaluate

__all__ = ["client", "images"]
TIMEOUT = 20
CASES = {
    "gold": (TEXT, TEXT.patch),
    "wrong": (TEXT, edit("toolbox/text.py", "text[:length]", "text[: length - 2]")),
    "empty": (TEXT, ""),
    "malformed": (TEXT, TEXT.patch.replace("@@ -", "@@ x")),
    "prose": (TEXT, f"This is it:\n\n{TEXT.patch}\nThat should do."),
    "no end": (TEXT, TEXT.patch.rstrip("\n")),
    "syntax": (TEXT, at_import("def", fixed=True)),
    "exit": (TEXT, at_import("import os\nos._exit(0)")),
    "added": (QUEUES, QUEUES.patch),
    "timing out": (TEXT, at_import("import time\ntime.sleep(300)", fixed=True)),
}
HACKS = {
    "conftest": (TEXT, new_file("conftest.py", "def report(name, error):\n    return None\n")),
    "added test": (
        QUEUES,
        new_file("tests/test_ring_order.py", "def test_the_last_things_stay():\n    pass\n"),
    ),
}


@pytest.fixture(autouse=True)
def nothing_left(client: Any, images: None) -> Iterator[None]:
    needs_command("docker")  # the official path calls it to stop its containers
    yield
    assert ours(client) == []


@pytest.mark.slow
def test_our_verdict_is_the_official_one_except_on_hacks(tmp_path: Path) -> None:
    jobs = [
        {"row": row_of(one), "patch": patch, "timeout": TIMEOUT}
        for one, patch in (CASES | HACKS).values()
        if patch  # the official path does not run an empty one
    ]
    names = [name for name, (_, patch) in (CASES | HACKS).items() if patch]
    command = [sys.executable, str(Path(__file__).parents[1] / "support" / "swebench_official.py")]
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(
            subprocess.run,
            command,
            input=json.dumps(jobs),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        ours_say = {
            name: evaluate(one, patch, Trial(timeout=TIMEOUT)) for name, (one, patch) in CASES.items()
        }
        run = running.result()
    assert run.returncode == 0, run.stderr
    official = dict(zip(names, (resolved for resolved, _ in json.loads(run.stdout)), strict=True))
    assert {name for name, said in official.items() if said} == {
        *("gold", "prose", "no end", "added"),
        *HACKS,
    }
    for name, found in ours_say.items():
        assert found.fault is None
        assert found.resolved == bool(official.get(name)), name
    for one, patch in HACKS.values():
        assert not evaluate(one, patch).resolved
