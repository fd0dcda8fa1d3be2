"""``envweave train``: which demos there are, and that their options are their own."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_program import run

import envweave_gym.examples
from envweave_gym.cli import main
from envweave_gym.cli.train import DEMOS

FORMER = {
    "train_lineworld_pg": "lineworld",
    "train_codefix_pg": "codefix",
    "train_gsm8k_tinker_rl": "gsm8k_tinker",
    "train_gsm8k_mcq_tinker_rl": "gsm8k_mcq_tinker",
    "train_swebench_lite_loc_mcq_tinker_rl": "swebench_loc_mcq_tinker",
    "train_swebench_lite_patch_tinker_rl": "swebench_patch_tinker",
}


def test_without_a_name_the_demos_are_listed() -> None:
    done = run("train")
    assert (done.returncode, done.stderr) == (0, "")
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names == ["NAME", *DEMOS]
    assert {"lineworld", "codefix", "kuhn", "tinker", "gsm8k", "gsm8k-mcq"} < {*DEMOS}


def test_a_demo_trains_with_its_own_options(tmp_path: Path) -> None:
    done = run("train", "lineworld", "--episodes", "30", "--num-envs=4", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "success on held-out seeds" in done.stdout
    rows = (tmp_path / "lineworld" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["episodes"] >= 30


@pytest.mark.parametrize("name", ["lineworld", *(demo.module for demo in DEMOS.values())])
def test_help_after_a_name_is_that_of_the_demo(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", name, "--help"]) == 0
    assert "--num-envs" in capsys.readouterr().out or name == "kuhn"


def test_wrong_options_of_a_demo_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "kuhn", "--updates", "-1"]) == 2
    assert "--updates -1 is out of range" in capsys.readouterr().err


def test_an_unknown_demo_is_one_line_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "gsm8k-mqc"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("envweave: there is no demo 'gsm8k-mqc' (did you mean 'gsm8k-mcq'")
    assert line.endswith(f"there are {', '.join(DEMOS)}")


def test_every_former_program_is_the_demo_of_now() -> None:
    found = {module.name for module in pkgutil.iter_modules(envweave_gym.examples.__path__)}
    assert found == {*FORMER}
    for former, module in FORMER.items():
        example = importlib.import_module(f"envweave_gym.examples.{former}")
        demo = importlib.import_module(f"envweave_gym.training.{module}")
        assert example.main is demo.main


def test_a_former_program_runs(tmp_path: Path) -> None:
    words = ["--num-envs", "4", "--episodes", "10", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "envweave_gym.examples.train_lineworld_pg", *words]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0
    assert (tmp_path / "lineworld" / "metrics.jsonl").exists()
