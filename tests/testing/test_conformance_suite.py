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


NOT_PLAYABLE = """
import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

class Old(CartPoleEnv):
    def reset(self, seed=None):
        return super().reset(seed=seed)

class Boom(CartPoleEnv):
    def reset(self, *, seed=None, options=None):
        raise ValueError("broken reset")

class Unmade(CartPoleEnv):
    def __init__(self):
        raise OSError("no display")

class Exits(CartPoleEnv):
    def step(self, action):
        raise SystemExit(3)

class ExitsLater(CartPoleEnv):
    def step(self, action):
        if self.steps_beyond_terminated is None and abs(self.state[0]) > 0.05:
            raise SystemExit(3)
        return super().step(action)

class Raises(CartPoleEnv):
    def step(self, action):
        if self.steps_beyond_terminated is None and abs(self.state[0]) > 0.05:
            raise ValueError(f"far out: {self.state[0]}")
        return super().step(action)

gym.register("theirs/Old-v0", entry_point="theirs:Old", max_episode_steps=50)
for kind in (Boom, Unmade, Exits, ExitsLater):
    gym.register(f"theirs/{kind.__name__}-v0", entry_point=kind, max_episode_steps=50)
gym.register("theirs/Raises-v0", entry_point="theirs:Raises", max_episode_steps=50)
"""

UNUSED = ("cacheprovider", "schemathesis", "hypothesispytest", "xdist", "xdist.looponfail")
"""Plug-ins that have no part in this, and take longer to import than ours."""


def pytest_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    without = [word for name in UNUSED for word in ("-p", f"no:{name}")]
    command = [sys.executable, "-P", "-m", "pytest", *without, *arguments]
    # with CI set pytest does not shorten its summary
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONHASHSEED", "CI")}
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
    parts = ["pytest_collectors", "runs", "subject", "traces", "gym_checks", "game_checks"]
    loaded = f"[p for p in {parts} if f'envweave_gym.testing.{{p}}' in sys.modules]"
    (tmp_path / "test_own.py").write_text(f"import sys\n\ndef test_own():\n    assert {loaded} == []\n")
    run = pytest_in(tmp_path, "-q")
    assert run.returncode == 0, run.stdout


def test_plug_in_tells_one_cause_once_and_in_few_lines(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(NOT_PLAYABLE)
    run = pytest_in(
        tmp_path, "-v", "--envweave-id=theirs:theirs/Old-v0", "--envweave-id=theirs:theirs/Raises-v0"
    )
    found = outcomes(run)
    failed = [name for name, outcome in found.items() if outcome == "FAILED"]
    assert failed[0] == "envweave::theirs:theirs/Old-v0::can_be_played", run.stdout
    assert len(failed) == 2, run.stdout
    assert len(found) == 1 + len(GYM_CHECKS)
    assert "reset(self, *, seed=None, options=None)" in run.stdout
    assert len(run.stdout.splitlines()) < 120, run.stdout


def test_an_exception_of_an_environment_fails_one_check_and_ends_no_others(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(NOT_PLAYABLE)
    names = [f"theirs:theirs/{kind}-v0" for kind in ("Unmade", "Exits", "Boom", "ExitsLater")]
    run = pytest_in(tmp_path, "-v", *(f"--envweave-id={name}" for name in names))
    found = outcomes(run)
    assert len(found) == 3 + len(GYM_CHECKS), run.stdout
    for name, key in zip(names, ("no display", "SystemExit: 3", "broken reset"), strict=False):
        assert found[f"envweave::{name}::can_be_played"] == "FAILED"
        assert any(name in line and key in line for line in run.stdout.splitlines())
    assert "FAILED" in [outcome for item, outcome in found.items() if "ExitsLater" in item]
    assert "options=None" not in "".join(
        line for line in run.stdout.splitlines() if "fails: ValueError" in line
    )
    assert "INTERNALERROR" not in run.stdout
    assert run.returncode == 1
