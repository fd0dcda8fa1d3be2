"""The toy repository: rows in the official schema, and a commit that git agrees with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from absent import needs_command

from envweave_gym.data.swebench_lite import Instance
from envweave_gym.data.toy_files import FILES
from envweave_gym.data.toy_repo import COMMIT_ENVIRONMENT, MESSAGE, base_commit, toy_instances

INSTANCES = [*toy_instances("test"), *toy_instances("dev")]


def git(folder: Path, *arguments: str, given: str = "") -> str:
    # a repository around the folder, or somebody's settings, change nothing
    alone = {"HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    run = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        input=given,
        env={"PATH": os.environ["PATH"], **alone, **COMMIT_ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return run.stdout.strip()


def outcomes(folder: Path, files: Sequence[str]) -> dict[str, str]:
    """How each test went."""
    command = [sys.executable, "-B", "tests/runtests.py", "-rA", *files]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    lines = [line.split() for line in run.stdout.splitlines()]
    found = {words[1]: words[0] for words in lines if words and words[0] in ("PASSED", "FAILED", "ERROR")}
    assert run.returncode == (0 if set(found.values()) == {"PASSED"} else 1)
    return found


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    needs_command("git")
    folder = tmp_path / "testbed"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", MESSAGE)
    return folder


def test_git_computes_the_commit_that_the_rows_name(checkout: Path) -> None:
    assert git(checkout, "rev-parse", "HEAD") == base_commit()


def test_its_own_tests_pass(checkout: Path) -> None:
    found = outcomes(checkout, [])
    assert set(found.values()) == {"PASSED"}
    assert {name for one in INSTANCES for name in one.pass_to_pass} <= set(found)


@pytest.mark.parametrize("instance", INSTANCES, ids=[one.instance_id for one in INSTANCES])
def test_the_gold_patch_makes_the_failing_tests_pass_and_keeps_the_others(
    instance: Instance, checkout: Path
) -> None:
    assert len(instance.gold_files) == 1
    assert not instance.gold_files[0].startswith("tests/")
    git(checkout, "apply", "-", given=instance.test_patch)
    before = outcomes(checkout, instance.test_files)
    git(checkout, "apply", "-", given=instance.patch)
    after = outcomes(checkout, instance.test_files)
    assert {name for name, how in before.items() if how == "FAILED"} == set(instance.fail_to_pass)
    assert {name for name, how in before.items() if how == "PASSED"} == set(instance.pass_to_pass)
    assert set(after.values()) == {"PASSED"}
    assert set(after) == set(before)


def test_rows_are_in_the_official_schema() -> None:
    one = INSTANCES[0]
    assert one.image == "swebench/sweb.eval.x86_64.toy_1776_toolbox-1:latest"
    assert one.eval_script.index("git apply -v") < one.eval_script.index(">>>>> Start Test Output")
    assert [len(toy_instances(split)) for split in ("test", "dev")] == [6, 2]
    assert len({row.instance_id for row in INSTANCES}) == 8


def test_one_test_patch_adds_a_file_as_some_of_the_real_ones_do() -> None:
    added = [one for one in INSTANCES if "new file mode" in one.test_patch]
    assert [one.test_files for one in added] == [("tests/test_ring_order.py",)]
