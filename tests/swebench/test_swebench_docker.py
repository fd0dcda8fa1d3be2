"""Patches tried in containers: what becomes of them, and that nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from engines import CutOff, client, ours
from servers import until
from swebench_rows import (
    INTERVALS,
    QUEUES,
    TEXT,
    TOY,
    at_import,
    edit,
    new_file,
    patch_of,
)
from toy_images import images

from envweave_gym.core.faults import FaultKind
from envweave_gym.data.swebench_lite import Instance
from envweave_gym.data.toy_files import FILES
from envweave_gym.data.toy_repo import diff_between
from envweave_gym.swebench.diffs import parse_diff
from envweave_gym.swebench.docker_evaluation import open_workspace
from envweave_gym.swebench.evaluation import Evaluation, Trial, evaluate
from envweave_gym.swebench.evaluation_scripts import apply_patch

__all__ = ["client", "images"]
MODE = "diff --git a/toolbox/text.py b/toolbox/text.py\nold mode 100644\nnew mode 100755\n"
WAITS = "import time\ntime.sleep(300)"
STUBBORN = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n    time.sleep(1)"
)
DAEMON = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.fork()\ntime.sleep(300)"


@pytest.fixture(scope="module", autouse=True)
def nothing_left(client: Any, images: None) -> Iterator[None]:
    yield
    assert ours(client) == []


def summary(found: Evaluation) -> tuple[bool, bool, float, float]:
    assert found.fault is None, found.fault
    return found.applied, found.resolved, found.f2p, found.p2p


def test_gold_patches_resolve_eight_at_once_and_leave_no_container(client: Any) -> None:
    jobs = [*TOY, *TOY[:2]]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda one: evaluate(one, one.patch, Trial(at_once=8)), jobs))
    assert [summary(one) for one in found] == [(True, True, 1.0, 1.0)] * 8
    assert {one.apply_cmd for one in found} == {"git apply --verbose"}
    assert all(one.tests_status["FAIL_TO_PASS"]["failure"] == [] for one in found)
    assert all(one.timings["tests"] > 0 for one in found)
    assert ours(client) == []


BECOMES = {
    "no end": (TEXT.patch.rstrip("\n"), (True, True, 1.0, 1.0)),
    "crlf": (TEXT.patch.replace("\n", "\r\n"), (True, True, 1.0, 1.0)),
    "shifted": (TEXT.patch.replace("@@ -1", "@@ -8"), (True, True, 1.0, 1.0)),
    "prose": (f"Sure, here it is:\n{TEXT.patch}\nThat should do.", (True, True, 1.0, 1.0)),
    "wrong": (edit("toolbox/text.py", "text[:length]", "text[: length - 2]"), (True, False, 0.0, 1.0)),
    "broken": (edit("toolbox/text.py", "def words", "def word("), (True, False, 0.0, 0.0)),
    "elsewhere": (edit("toolbox/money.py", "//", "%"), (True, False, 0.0, 1.0)),
    "mismatch": (TEXT.patch.replace("text[:length]", "nothing of the file"), (False, False, 0.0, 0.0)),
    "malformed": (TEXT.patch.replace("@@ -", "@@ x"), (False, False, 0.0, 0.0)),
    "mode": (MODE, (True, False, 0.0, 1.0)),
}


def test_the_evaluation_of_each_kind_of_patch() -> None:
    found = at_once([patch for patch, _ in BECOMES.values()])
    for (name, (_, expected)), one in zip(BECOMES.items(), found, strict=True):
        assert summary(one) == expected, name


def at_once(patches: list[str], **trial: Any) -> list[Evaluation]:
    """All tried together: most of it is waiting for the engine."""
    with ThreadPoolExecutor(len(patches)) as pool:
        return list(pool.map(lambda one: evaluate(TEXT, one, Trial(at_once=8, **trial)), patches))


HACKS = {
    "conftest": TEXT.patch + new_file("conftest.py", "def report(name, error):\n    return None\n"),
    "tests": edit("tests/test_text.py", "short", "long"),
    "added test": new_file("tests/test_ring_order.py", "def test_the_last_things_stay():\n    pass\n"),
    "runner": edit("tests/runtests.py", "return error", "return None"),
    "link": new_file("toolbox/words", "/etc/passwd", "120000"),
    "upwards": new_file("../tmp/x.py", "x = 1"),
    "git": new_file(".git/hooks/post-checkout", "#!/bin/sh", "100755"),
}


@pytest.mark.parametrize("hack", HACKS.values(), ids=HACKS)
def test_a_hack_is_refused_before_anything_is_started(hack: str, client: Any) -> None:
    found = evaluate(QUEUES if "ring" in hack else TEXT, hack)
    assert summary(found) == (False, False, 0.0, 0.0)
    assert len(found.violations) == 1
    assert found.timings["start"] == 0.0


def test_a_diff_that_patch_reads_in_another_way_than_we_is_refused_by_what_it_has_touched() -> None:
    fuzzy = edit("toolbox/money.py", "// people", "% people").replace(" def split", " def spilt")
    context = (
        "*** a/tests/test_text.py\n--- b/tests/test_text.py\n***************\n*** 1,2 ****\n"
        "! from toolbox.text import indented, shorten, words\n  \n--- 1,2 ----\n! shorten = len\n  \n"
    )
    assert fuzzy != edit("toolbox/money.py", "// people", "% people")
    found = evaluate(TEXT, fuzzy + context + TEXT.patch)
    assert summary(found) == (False, False, 0.0, 0.0)
    assert found.violations == ("it touches 'tests/test_text.py', which is of the tests",)


def test_a_part_for_patch_alone_is_refused_though_git_does_not_tell_of_its_file() -> None:
    fuzzy = edit("toolbox/money.py", "// people", "% people").replace(" def split", " def spilt")
    config = "Index: a/.git/config\n0a1\n> [core] attributesFile = /tmp/mine\n"
    found = evaluate(TEXT, fuzzy + config + TEXT.patch)
    assert not found.resolved
    assert found.violations == ("it has '0a1', a part that only the program patch reads",)


PRINTS = {
    "passed": "import os\nprint('PASSED tests/test_text.py::test_the_dots_count', flush=True)\nos._exit(1)",
    "exit code": "print('>>>>> Test Exit Code: 0', flush=True)",
    "marker": "import os\nprint('>>>>> End Test Output', flush=True)\nos._exit(0)",
    "nothing": "import os\nos._exit(0)",
    "weather": "print('Could not resolve host: example.org', flush=True)\nraise SystemExit",
}


def test_output_of_a_patch_resolves_nothing_and_is_no_fault() -> None:
    for name, one in zip(PRINTS, at_once([at_import(code) for code in PRINTS.values()]), strict=True):
        assert one.fault is None, name
        assert not one.resolved, name
        assert (one.applied, one.f2p) == (True, 0.0), name


def test_tests_that_do_not_end_are_dead_two_seconds_after_their_time(client: Any) -> None:
    patches = [at_import(code, fixed=True) for code in (WAITS, STUBBORN, DAEMON)]
    for found in at_once(patches, timeout=1):
        assert summary(found) == (True, False, 0.0, 0.0)
        assert found.timed_out
        assert found.problem == "the tests did not end within 1 s"
        assert found.timings["tests"] + found.timings["apply"] < 1 + 2
    assert ours(client) == []


def test_too_much_memory_or_output_resolves_nothing() -> None:
    hungry = evaluate(
        TEXT, at_import("x = bytearray(1 << 30)\nx[::4096] = b'x' * len(x[::4096])", fixed=True), SMALL
    )
    assert summary(hungry) == (True, False, 0.0, 0.0)
    loud = evaluate(TEXT, at_import("while True:\n    print('x' * 65536)", fixed=True), SMALL)
    assert summary(loud) == (True, False, 0.0, 0.0)
    assert loud.problem == "the tests did not end"


SMALL = Trial(options={"memory": "96m"}, timeout=60)


def test_there_is_no_network_and_no_way_to_the_engine() -> None:
    code = (
        "import os\nassert os.listdir('/sys/class/net') == ['lo']\n"
        "assert not os.path.exists('/var/run/docker.sock')"
    )
    assert evaluate(TEXT, at_import(code, fixed=True)).resolved


# Faults


def in_the_middle(client: Any, then: Any) -> Evaluation:
    """An evaluation to which something happens while its tests run."""
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(evaluate, TEXT, at_import(WAITS), Trial(timeout=120, at_once=8))
        until(
            lambda: any("runtests" in str(one.top()) for one in ours(client) if one.status == "running"), 20
        )
        then()
        return found.result(timeout=30)


def test_a_container_that_is_gone_in_the_middle_is_a_fault(client: Any) -> None:
    found = in_the_middle(client, lambda: [one.remove(force=True) for one in ours(client)])
    assert found.fault is not None
    assert (found.fault.kind, found.fault.retryable) == (FaultKind.LOST, True)
    assert (found.applied, found.resolved, found.f2p) == (False, False, 0.0)


def test_an_engine_that_is_gone_in_the_middle_is_a_fault_and_leaves_nothing(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = CutOff()
    monkeypatch.setenv("DOCKER_HOST", proxy.host)
    found = in_the_middle(client, proxy.cut)
    assert found.fault is not None
    assert found.fault.kind == FaultKind.LOST
    until(lambda: ours(client) == [], 5)


def test_a_missing_image_is_a_fault_that_says_what_to_do() -> None:
    missing = Instance(
        **{name: getattr(TEXT, name) for name in TEXT.__struct_fields__} | {"image": "no/such:1"}
    )
    found = evaluate(missing, TEXT.patch, Trial(options={"pull": False}))
    assert found.fault is not None
    assert found.fault.message == (
        "NotHere: the image no/such:1 is not on this machine, and pull=False; "
        "fetch it where there is a network: docker pull no/such:1"
    )
    assert not found.fault.retryable


def test_nothing_is_left_of_an_owner_that_is_killed(client: Any) -> None:
    program = (
        "import sys\nfrom envweave_gym.containers.ownership import OWNER, labels_of_owner\n"
        "from swebench_rows import TEXT, at_import\n"
        "from envweave_gym.swebench.evaluation import Trial, evaluate\n"
        "print(labels_of_owner()[OWNER], flush=True)\n"
        "evaluate(TEXT, at_import(sys.argv[1]), Trial(at_once=8))"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    command = [sys.executable, "-c", program, WAITS]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert owner.stdout is not None
    label = {"label": f"envweave.owner={owner.stdout.readline().strip()}"}
    try:
        until(lambda: client.containers.list(filters=label), 20)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait(10)
        owner.stdout.close()
    until(lambda: not client.containers.list(all=True, filters=label, ignore_removed=True), 5)


def test_a_workspace_that_is_not_closed_ends_with_its_connection(client: Any) -> None:
    workspace = open_workspace(INTERVALS)
    assert workspace.run("cat README.md; echo more >&2; exit 3", 10).code == 3
    assert len(ours(client)) == 1
    workspace.close()
    workspace.close()
    assert ours(client) == []


def test_a_file_that_differed_before_and_changes_again_counts_as_touched() -> None:
    readme = FILES["README.md"] + "more\n"
    untracked = ("new.py", "two words.py", "ignored.so")
    diff = TEXT.patch + diff_between("README.md", readme, readme.replace("more", "less"))
    workspace = open_workspace(TEXT)
    try:
        workspace.run(
            "echo more >> README.md; echo '*.so' > .git/info/exclude;"
            " rm toolbox/dates.py; ln -s toolbox link;"
            f'for name in {" ".join(map(repr, untracked))} stays.py; do echo old > "$name"; done',
            10,
        )
        applied = apply_patch(
            workspace, parse_diff(diff + "".join(patch_of(one, "old", "other") for one in untracked))
        )
        assert applied.command == "git apply --verbose", applied.log
        assert set(applied.touched) == {"toolbox/text.py", "README.md", *untracked}
    finally:
        workspace.close()


def test_earlier_changes_do_not_count_as_the_patch() -> None:
    workspace = open_workspace(TEXT)
    try:
        workspace.run("echo more >> README.md; touch new.py; chmod +x toolbox/money.py", 10)
        applied = apply_patch(workspace, parse_diff(TEXT.patch))
        assert (applied.command, applied.touched) == ("git apply --verbose", ("toolbox/text.py",))
    finally:
        workspace.close()
