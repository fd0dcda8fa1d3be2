import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

if os.environ.get("CI") != "true":
    pytest.importorskip("torch", reason="torch is not installed: pip install 'envweave-gym[train]'")
import torch

from envweave_gym.training import codefix


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("uncounted")
def test_the_default_settings_reach_95_percent_on_held_out_programs(tmp_path: Path):
    """The run ends soon after that is reached, at some 60,000 of 100,000 episodes; the default one reaches 0.98."""
    command = [sys.executable, "-m", "envweave_gym.training.codefix", "--target", "0.92"]
    command += ["--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stderr
    names = ("success on held-out programs", "success on those", "success before training")
    measured = {name: float(done.stdout.split(name)[1].split()[0]) for name in names}
    assert measured["success before training"] < 0.3
    assert measured["success on held-out programs"] >= 0.95
    assert measured["success on those"] >= 0.95
    assert (tmp_path / "codefix" / "metrics.png").exists()


def test_a_short_run_learns_writes_metrics_and_saves_weights_that_load(tmp_path: Path):
    options = codefix.Options(episodes=512, evaluation=200, width=16, threads=1, out=str(tmp_path))
    result = codefix.train(options)
    assert result["episodes"] == 512
    assert result["share of them never seen in training"] > 0.9
    rows = [json.loads(row) for row in (tmp_path / "codefix" / "metrics.jsonl").read_text().splitlines()]
    assert [row["episodes"] for row in rows] == [256, 512]
    env = codefix.make_env(options, 4)
    learner = codefix.Learner(env, options)
    learner.policy.load_state_dict(torch.load(tmp_path / "codefix" / "policy.pt"))
    observations, _ = env.reset(seed=3)
    assert set(learner.best(observations)) <= set(range(11))
    env.close()


def test_the_same_seed_trains_the_same_policy_and_leaves_the_global_generator_alone(tmp_path: Path):
    state = torch.random.get_rng_state()
    weights = []
    for run in ("a", "b"):
        options = codefix.Options(
            episodes=512, evaluation=50, width=16, threads=1, out=str(tmp_path), run=run
        )
        codefix.train(options)
        weights.append(torch.load(tmp_path / run / "policy.pt"))
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_width_the_heads_cannot_share_is_refused():
    with pytest.raises(ValueError, match="--width 10 is not shared evenly by 4 heads"):
        codefix.Options(width=10)


def test_without_torch_one_line_names_the_pip_command(tmp_path: Path):
    blocked = (
        "import sys; sys.modules['torch'] = None; from envweave_gym.training import codefix; codefix.main([])"
    )
    done = subprocess.run(
        [sys.executable, "-c", blocked], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    line = done.stderr.strip().splitlines()[-1]
    assert "pip install 'envweave-gym[train]'" in line
