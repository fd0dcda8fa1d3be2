import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas
import pytest

from envweave_gym.training import lineworld

MODULE = "envweave_gym.training.lineworld"


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", MODULE, "--out", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("seed", range(3))
def test_the_default_run_reaches_95_percent_on_held_out_seeds(tmp_path: Path, seed: int):
    result = lineworld.train(lineworld.Options(seed=seed, out=str(tmp_path)))
    assert result["success before training"] < 0.8
    assert result["success on held-out seeds"] >= 0.95


def test_the_command_prints_a_table_and_leaves_metrics_that_pandas_reads(tmp_path: Path):
    done = run(tmp_path, "--run", "mine", "--num-envs", "16", "--episodes", "400")
    assert done.returncode == 0, done.stderr
    assert "success on held-out seeds" in done.stdout
    assert "LineWorld: 100%" in done.stderr
    frame = pandas.read_json(tmp_path / "mine" / "metrics.jsonl", lines=True)
    assert frame["update"].tolist() == list(range(len(frame)))
    assert frame["episodes"].iloc[-1] >= 400
    assert (tmp_path / "mine" / "metrics.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_seed_trains_the_same_policy(tmp_path: Path):
    metrics = []
    for name in ("a", "b"):
        lineworld.train(lineworld.Options(seed=7, episodes=100, out=str(tmp_path), run=name))
        rows = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        metrics.append([{**json.loads(row), "seconds": 0} for row in rows])
    assert metrics[0] == metrics[1]


def interrupted(process: subprocess.Popen[str]) -> str:
    """Press Ctrl-C until it is heard (one that comes in a destructor is not), and give what was on stderr."""
    for _ in range(5):
        process.send_signal(signal.SIGINT)
        try:
            return process.communicate(timeout=30)[1]
        except subprocess.TimeoutExpired:
            continue
    process.kill()
    raise AssertionError("Ctrl-C was not heard")


@pytest.mark.usefixtures("uncounted")  # coverage writes its file at exit, and Ctrl-C may come just then
def test_ctrl_c_leaves_valid_metrics(tmp_path: Path):
    command = [sys.executable, "-m", MODULE, "--out", str(tmp_path), "--episodes", "100000000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ)
    assert process.stderr is not None
    while "%" not in process.stderr.read(10):
        assert process.poll() is None
    metrics = tmp_path / "lineworld" / "metrics.jsonl"
    while not metrics.exists() or metrics.stat().st_size == 0:
        assert process.poll() is None
    errors = interrupted(process)
    assert process.returncode == 130
    assert "stopped early" in errors
    assert "Traceback" not in errors
    updates = [json.loads(row)["update"] for row in metrics.read_text().splitlines()]
    assert updates == list(range(len(updates)))
    assert updates
    assert (tmp_path / "lineworld" / "metrics.png").exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--backend", "moon"], "backend='moon' is unknown"),
        (
            ["--docker-image", "x"],
            "--docker-image 'x' is for a --backend whose servers run in container images",
        ),
        (["--num-envs", "-3"], "--num-envs -3 is out of range; give an int > 0"),
        (["--horizon", "0"], "--horizon 0 is out of range; give an int > 0"),
        (["--seed", "-1"], "--seed -1 is out of range; give an int >= 0 and <= "),
        (["--slip", "nan"], "--slip nan is out of range; give a finite number >= 0 and <= 1"),
        (["--length", "1"], "length=1 is not a line"),
        (["--backend", "http://127.0.0.1:1"], "http://127.0.0.1:1 does not answer"),
        (["--episodes", "many"], "invalid int value: 'many'"),
    ],
)
def test_a_wrong_option_is_one_clear_line(tmp_path: Path, words: list[str], line: str):
    done = run(tmp_path, *words)
    assert done.returncode in (1, 2)
    assert line in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_help_lists_every_option_with_its_default():
    done = subprocess.run(
        [sys.executable, "-m", MODULE, "--help"], capture_output=True, text=True, timeout=60
    )
    shown = " ".join(done.stdout.split())
    for field in dataclasses.fields(lineworld.Options):
        assert f"--{field.name.replace('_', '-')}" in shown
        assert field.default == "" or f"(default: {field.default})" in shown
