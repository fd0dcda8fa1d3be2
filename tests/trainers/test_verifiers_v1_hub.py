"""The stand-in of the hub under the real command ``prime``, and exported packages under the real ``vf-eval``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hub_evaluations import KEY, answering
from prime_hub import PrimeHub, serving

from envweave_gym.cli import main
from envweave_gym.hubs.prime import prime_api

if find_spec("verifiers") is None:
    pytest.skip("verifiers is not installed: run make trainers", allow_module_level=True)
pytestmark = pytest.mark.trainers

BIN = Path(sys.executable).parent
INSIDE = Path(prime_api.__file__).parent / "inside"


def command(name: str, *words: str, home: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if key in ("LANG", "TMPDIR", "PYTHONPATH")}
    paths = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(home)}
    return subprocess.run(
        [BIN / name, *words],
        cwd=home,
        env={**inherited, **paths, **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_command_prime_takes_the_stand_in_for_the_hub(tmp_path: Path):
    target = tmp_path / "target"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(target)], check=True, timeout=60)
    with serving(PrimeHub()) as hub:
        hub.publish("acme", "tiny-env", "0.1.0", "X = 1")
        hub.publish("acme", "tiny-env", "0.2.0", "X = 2")
        hub.publish("acme", "hidden", "0.1.0", "", private=True)
        given = {
            "PRIME_API_BASE_URL": hub.url,
            "VIRTUAL_ENV": str(target),
            "PRIME_DISABLE_VERSION_CHECK": "1",
        }

        def prime(*words: str) -> subprocess.CompletedProcess[str]:
            return command("prime", "env", *words, home=tmp_path, **given)

        listed = json.loads(prime("list", "--output", "json").stdout)
        assert [row["environment"] for row in listed["environments"]] == ["acme/tiny-env"]
        assert "The environment tiny-env" in prime("info", "acme/tiny-env").stdout
        assert "0.1.0" in prime("version", "list", "acme/tiny-env").stdout
        done = prime("install", "acme/tiny-env@0.1.0")
        assert "Successfully installed" in done.stdout, done.stdout + done.stderr
        assert prime("info", "acme/hidden").returncode != 0
    shown = subprocess.run(
        [target / "bin" / "python", "-c", "import tiny_env; print(tiny_env.X)"],
        capture_output=True,
        text=True,
    )
    assert shown.stdout == "1\n", shown.stderr


def evaluated(
    name: str, folder: Path, policy: Any, monkeypatch: pytest.MonkeyPatch, *words: str
) -> list[Any]:
    """The episodes that ``vf-eval`` writes, with the package and the harness of this project on the path."""
    with answering(policy, monkeypatch) as port:
        done = command(
            "vf-eval",
            *(name, "--model", "m", "--client.base-url", port.url(), "--client.api-key-var", KEY),
            *(
                "--output-dir",
                "out",
                "--run.name",
                "t",
                "--run.dir",
                "run",
                "--clean",
                "--no-rich",
                "--no-push",
            ),
            *words,
            home=folder,
            PYTHONPATH=f"{os.environ.get('PYTHONPATH', '')}:{folder / name.replace('-', '_')}:{INSIDE}",
            **{KEY: port.token},
        )
    files = list((folder / "out").rglob("traces.jsonl"))
    assert files, done.stdout[-3000:] + done.stderr[-3000:]
    return [json.loads(line) for line in files[0].read_text().splitlines()]


def test_an_exported_environment_runs_in_vf_eval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    words = ["--name", "letters", "--out", str(tmp_path / "letters")]
    assert main(["export", "verifiers", "envweave/PickLetter-v0", *words]) == 0
    options = ("--env.taskset.num-tasks", "3", "--env.agent.harness.id", "envweave_harness")

    def pick(model: str, messages: list[dict[str, Any]]) -> str:
        return messages[-1]["content"].strip().split()[-1].strip("`'\".")

    episodes = evaluated("letters", tmp_path, pick, monkeypatch, *options)
    assert len(episodes) == 3
    for episode in episodes:
        assert episode["errors"] == []
        assert [trace["rewards"]["episode_return"]["score"] for trace in episode["traces"]] == [1.0]


def test_an_exported_game_gives_each_role_its_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    words = ["--name", "kuhn", "--out", str(tmp_path / "kuhn")]
    assert main(["export", "verifiers", "envweave/KuhnPoker-v0", *words]) == 0
    roles = [f"player_{n}" for n in range(2)]
    options = [word for role in roles for word in (f"--env.{role}.harness.id", "envweave_harness")]
    episodes = evaluated(
        "kuhn", tmp_path, lambda model, messages: "bet", monkeypatch, "--env.taskset.num-tasks", "2", *options
    )
    for episode in episodes:
        scores = [trace["rewards"]["episode_return"]["score"] for trace in episode["traces"]]
        assert sorted(scores) == [-2.0, 2.0]


def test_an_episode_that_is_lost_is_an_error_and_never_a_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lossy.py").write_text(LOSSY)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["--name", "losing", "--out", str(tmp_path / "losing")]
    assert main(["export", "verifiers", "lossy:lossy/Text-v0", *words]) == 0
    monkeypatch.setenv("PYTHONPATH", f"{os.environ.get('PYTHONPATH', '')}:{tmp_path}")
    options = ("--env.taskset.num-tasks", "1", "--env.agent.harness.id", "envweave_harness")
    (episode,) = evaluated("losing", tmp_path, lambda model, messages: "hi", monkeypatch, *options)
    assert episode["ok"] is False
    assert "the disk is gone" in json.dumps(episode["errors"])


LOSSY = """
import gymnasium as gym
from envweave_gym import Unicode

class Lossy(gym.Env):
    observation_space = action_space = Unicode(100)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "say something", {}

    def step(self, action):
        raise OSError("the disk is gone")

gym.register("lossy/Text-v0", Lossy)
"""
