"""``pytest --envweave-id``: the conformance kit as a plug-in, in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from envweave_gym.testing import GAME_CHECKS, GYM_CHECKS

OWN_TEST = "def test_own():\n    assert True\n"
MODULE = """
import multiprocessing
import random
import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

class Dicey(CartPoleEnv):
    def step(self, action):
        random.random()
        return super().step(action)

IN_A_FRESH_PROCESS = multiprocessing.parent_process() is not None

class Placed(CartPoleEnv):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + IN_A_FRESH_PROCESS, *rest

ORDER = [int(number) for number in {str(number) for number in range(100)}]

class Shuffled(CartPoleEnv):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + ORDER[0] + ORDER[1] / 100, *rest

gym.register("theirs/Dicey-v0", entry_point="theirs:Dicey", max_episode_steps=50)
gym.register("theirs/Placed-v0", entry_point="theirs:Placed", max_episode_steps=50)
gym.register("theirs/Shuffled-v0", entry_point="theirs:Shuffled", max_episode_steps=50)
"""


UNUSED = ("cacheprovider", "schemathesis", "hypothesispytest", "xdist", "xdist.looponfail")
"""Plug-ins that have no part in this, and take longer to import than ours."""


def pytest_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    without = [word for name in UNUSED for word in ("-p", f"no:{name}")]
    command = [sys.executable, "-P", "-m", "pytest", *without, *arguments]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False
    )


def outcomes(run: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Outcome by name of every line that ``-v`` prints for an item."""
    items = [line.split() for line in run.stdout.splitlines() if "::" in line and line.endswith("%]")]
    return {words[0]: words[1] for words in items}


def test_plug_in_runs_the_kit_alone_on_any_id(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(OWN_TEST)
    (tmp_path / "theirs.py").write_text(MODULE)
    ids = ["envweave/LineWorld-v0", "CartPole-v1", "theirs:theirs/Dicey-v0", "envweave/KuhnPoker-v0"]
    run = pytest_in(tmp_path, "-v", *(f"--envweave-id={env_id}" for env_id in ids))
    found = outcomes(run)
    assert len(found) == 3 * len(GYM_CHECKS) + len(GAME_CHECKS), run.stdout
    failed = [name for name, outcome in found.items() if outcome == "FAILED"]
    assert failed == ["envweave::theirs:theirs/Dicey-v0::global_rngs_untouched"], run.stdout
    assert found["envweave::CartPole-v1::stream_is_well_formed"] == "PASSED"
    assert found["envweave::envweave/KuhnPoker-v0::game_stream_is_well_formed"] == "PASSED"
    assert "theirs:theirs/Dicey-v0 (gym): step() draws from or seeds the global generator" in run.stdout
    assert run.returncode == 1


def test_plug_in_runs_paths_that_are_given_as_well(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(OWN_TEST)
    only = "test_own or pickling"
    run = pytest_in(tmp_path, "-v", "-k", only, "--envweave-id=envweave/Echo-v0", "test_own.py")
    assert outcomes(run) == {
        "test_own.py::test_own": "PASSED",
        "envweave::envweave/Echo-v0::pickling_continues_the_episode": "PASSED",
    }
    assert run.returncode == 0, run.stdout


def test_plug_in_tries_fresh_processes_when_there_is_time(tmp_path: Path) -> None:
    """What differs there alone: the process itself, and the order of sets of texts."""
    (tmp_path / "theirs.py").write_text(MODULE)
    ids = ["theirs:theirs/Placed-v0", "theirs:theirs/Shuffled-v0"]
    names = [f"envweave::{env_id}::async_equals_single" for env_id in ids]
    arguments = ["-v", *(f"--envweave-id={env_id}" for env_id in ids)]
    usual = outcomes(pytest_in(tmp_path, *arguments))
    assert len(usual) == 2 * len(GYM_CHECKS)
    assert "FAILED" not in usual.values()
    run = pytest_in(tmp_path, *arguments, "-k", "async", "--envweave-slow")
    assert outcomes(run) == dict.fromkeys(names, "FAILED")
    for env_id in ids:
        assert f"{env_id}: row 0 of AsyncVectorEnv (spawn) is not as" in run.stdout


def test_plug_in_says_in_one_line_that_there_is_no_such_id(tmp_path: Path) -> None:
    run = pytest_in(tmp_path, "--envweave-id=envweave/Ecko-v0")
    lines = [line for line in run.stdout.splitlines() if "is called 'envweave/Ecko-v0'" in line]
    assert len(lines) == 1, run.stdout
    assert "envweave/Echo-v0" in lines[0]
    assert "Traceback" not in run.stdout
    assert run.returncode not in (0, 1)


def test_plug_in_loads_nothing_of_the_kit_unless_asked(tmp_path: Path) -> None:
    parts = ["suite", "runs", "subject", "traces", "gym_checks", "game_checks"]
    loaded = f"[p for p in {parts} if f'envweave_gym.testing.{{p}}' in sys.modules]"
    (tmp_path / "test_own.py").write_text(f"import sys\n\ndef test_own():\n    assert {loaded} == []\n")
    run = pytest_in(tmp_path, "-q")
    assert run.returncode == 0, run.stdout
