import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import envweave_gym
from envweave_gym.envs.games.kuhn_rules import INFORMATION_SETS, nash_conv
from envweave_gym.training import kuhn


def trained(folder: Path) -> dict[str, float]:
    """What the default run comes to."""
    program = (
        "import json, sys; from envweave_gym.training import kuhn\n"
        "print(json.dumps(kuhn.train(kuhn.Options(out=sys.argv[1]))))"
    )
    command = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.usefixtures("uncounted")
def test_self_play_ends_near_the_equilibrium_and_the_saved_policy_is_the_one_reported(tmp_path: Path):
    result = trained(tmp_path)
    saved = json.loads((tmp_path / "kuhn" / "policy.json").read_text())
    assert set(saved) == set(INFORMATION_SETS)
    assert nash_conv(saved) / 2 == pytest.approx(result["NashConv/2"], abs=1e-12)
    assert result["NashConv/2"] < 0.03
    assert result["value for player_0"] == pytest.approx(-1 / 18, abs=0.03)
    rows = [json.loads(row) for row in (tmp_path / "kuhn" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["nash_conv_half"] == pytest.approx(result["NashConv/2"])
    assert rows[0]["nash_conv_half"] > 0.3


def test_a_hand_is_recorded_as_it_was_played():
    env = envweave_gym.make("envweave/KuhnPoker-v0", api="aec")
    env.reset(seed=5)
    rng = np.random.default_rng(0)
    for _ in range(50):
        decisions = kuhn.play_hand(env, np.full(len(INFORMATION_SETS), 0.5), rng)
        names = [INFORMATION_SETS[known] for known, _, _ in decisions]
        moves = "".join("pb"[action] for _, action, _ in decisions)
        assert [name[1:] for name in names] == [moves[:i] for i in range(len(moves))]
        assert decisions[0][2] == -decisions[1][2] != 0


def test_the_command_takes_options_and_refuses_a_backend_that_is_not_there(tmp_path: Path):
    command = [sys.executable, "-m", "envweave_gym.training.kuhn", "--out", str(tmp_path)]
    done = subprocess.run(
        [*command, "--updates", "3", "--hands", "20"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "NashConv/2" in done.stdout
    refused = subprocess.run([*command, "--backend", "moon"], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert "backend='moon' is unknown" in refused.stderr.splitlines()[-1]
