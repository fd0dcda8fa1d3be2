"""The backends ``local`` and ``docker`` give the same result for each patch."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines import client
from swebench_rows import NUMBERS, QUEUES, TEXT, at_import, edit, new_file
from toy_images import images

from envweave_gym.data.swebench_lite import Instance
from envweave_gym.swebench.evaluation import Trial, baseline, evaluate
from envweave_gym.swebench.grading import END, EXIT_CODE

__all__ = ["client", "images"]
STUBBORN = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n    time.sleep(1)"
)
FORGED = (
    f"import os\nfor name in {[*TEXT.fail_to_pass, *TEXT.pass_to_pass]}:\n    print('PASSED', name)\n"
    f"print('{END}\\n{EXIT_CODE}: 0', flush=True)\nos.kill(os.getppid(), 9)\nos._exit(0)"
)
PRINTED = FORGED.partition("os.kill")[0]
CASES: dict[str, tuple[Instance, str]] = {
    "gold": (TEXT, TEXT.patch),
    "gold of another": (NUMBERS, NUMBERS.patch),
    "gold that adds tests": (QUEUES, QUEUES.patch),
    "gold of the wrong one": (TEXT, NUMBERS.patch),
    "crlf": (TEXT, TEXT.patch.replace("\n", "\r\n")),
    "prose": (TEXT, f"Sure, here it is:\n{TEXT.patch}\nThat should do."),
    "wrong": (TEXT, edit("toolbox/text.py", "text[:length]", "text[: length - 2]")),
    "broken": (TEXT, edit("toolbox/text.py", "def words", "def word(")),
    "empty": (TEXT, ""),
    "mismatch": (TEXT, TEXT.patch.replace("text[:length]", "nothing of the file")),
    "malformed": (TEXT, TEXT.patch.replace("@@ -", "@@ x")),
    "conftest": (TEXT, TEXT.patch + new_file("conftest.py", "def report(name, error):\n    return None\n")),
    "passed lines": (
        TEXT,
        at_import("print('PASSED tests/test_text.py::test_the_dots_count')\nraise SystemExit"),
    ),
    "forged end": (TEXT, at_import(FORGED)),
    "forged end, all killed": (TEXT, at_import(f"{PRINTED}os.kill(-1, 9)")),
    "forged end, too much output": (TEXT, at_import(f"{PRINTED}while True:\n    print('x' * 65536)")),
    "all killed": (TEXT, at_import("import os\nos.kill(-1, 9)")),
    "leaves at once": (TEXT, at_import("import os\nos._exit(0)")),
    "does not end": (TEXT, at_import(STUBBORN, fixed=True)),
}
RIGHT = ("gold", "gold of another", "gold that adds tests", "crlf", "prose")


@pytest.fixture(scope="module")
def local() -> Iterator[dict[str, Any]]:
    folder = tempfile.mkdtemp(prefix="swebench-tests-")
    Path(folder).chmod(0o755)
    yield {"cache": folder}
    shutil.rmtree(folder)


def said(found: Any) -> dict[str, Any]:
    """All that is to be the same, wherever a patch is tried."""
    assert found.fault is None, found.fault
    names = (
        "applied",
        "apply_cmd",
        "resolved",
        "f2p",
        "p2p",
        "tests_status",
        "problem",
        "violations",
        "timed_out",
    )
    return {name: getattr(found, name) for name in names}


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("case", CASES)
def test_both_give_the_same_result_for_a_patch(case: str, local: dict[str, Any]) -> None:
    instance, patch = CASES[case]
    there = evaluate(instance, patch, Trial(timeout=3))
    here = evaluate(instance, patch, Trial(backend="local", timeout=3, options=local))
    assert said(here) == said(there)
    assert here.resolved == (case in RIGHT)


@pytest.mark.usefixtures("images")
def test_both_give_the_same_result_without_a_patch(local: dict[str, Any]) -> None:
    there, here = (
        baseline(TEXT, Trial(backend=one, options=more)) for one, more in (("docker", {}), ("local", local))
    )
    assert said(here) == said(there)
