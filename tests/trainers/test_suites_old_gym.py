"""Environments of the oldest Gymnasium and gym, through ``backend="venv"``, against plain loops in their own Python."""

from __future__ import annotations

import json
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("vermin", reason="vermin is not installed: run make trainers")

import numpy as np

import envweave_gym as ew
from envweave_gym.core.faults import InvalidAction, InvalidArgument

pytestmark = pytest.mark.trainers

STEPS = 210
"""More than the 200 after which MountainCar-v0 is truncated."""

OWN = """
import json, sys, zlib
env_id, mode, seeds, steps = json.loads(sys.argv[1])
try: import gymnasium as gym
except ImportError: import gym
new = gym.__version__ >= "0.26" or gym.__name__ == "gymnasium"
env = gym.make(env_id, **({"render_mode": mode, "disable_env_checker": True} if new else {}))

def plain(value):
    if getattr(value, "ndim", 0) > 1: return [list(value.shape), zlib.crc32(value.tobytes())]
    return value.tolist() if hasattr(value, "tolist") else value

episodes = []
for seed in seeds:
    if new:
        seen = env.reset(seed=seed)[0]
    else:
        env.seed(seed)
        seen = env.reset()
    episode = [plain(seen)]
    for step in range(steps):
        result = env.step(step * 5 // 3 % env.action_space.n)
        if new:
            seen, reward, terminated, truncated, info = result
        else:
            seen, reward, done, info = result
            truncated = info.get("TimeLimit.truncated", False)
            terminated = done and not truncated
        episode.append([plain(seen), float(reward), bool(terminated), bool(truncated)])
        if terminated or truncated: break
    picture = None if mode is None else env.render() if new else env.render(mode=mode)
    episodes.append([episode, plain(picture)])
print(gym.__version__ + " " + json.dumps(episodes))
"""


class Suite(NamedTuple):
    """Packages, the version that they install, and the interpreter."""

    version: str
    requirements: list[str]
    python: str | None = None


SUITES = [
    Suite("0.28.1", ["gymnasium==0.28.1", "numpy<2", "pygame"]),
    Suite("0.26.2", ["gym==0.26.2", "numpy<2", "pygame"]),
    Suite("0.21.0", ["gym==0.21.0", "numpy<1.24"]),  # which draws pictures with OpenGL on a display
]
PLAYED = [("CartPole-v1", "rgb_array"), ("MountainCar-v0", None), ("FrozenLake-v1", "ansi")]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("suites")


@pytest.fixture(autouse=True)
def _cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVWEAVE_SUITES", str(cache))


@pytest.fixture(params=SUITES, ids=lambda suite: suite.version)
def suite(request: pytest.FixtureRequest) -> Suite:
    return request.param


def made(suite: Suite, env_id: str, **arguments: Any) -> Any:
    return ew.make(
        env_id,
        backend="venv",
        requirements=suite.requirements,
        python=suite.python,
        install=True,
        **arguments,
    )


def own(env: Any, suite: Suite, env_id: str, mode: str | None, seeds: list[int]) -> list[Any]:
    """Return the episodes that a plain loop plays in the suite's own Python."""
    python = env.unwrapped.session.launch.folder / "bin" / "python"
    what = json.dumps([env_id, mode, seeds, STEPS])
    done = subprocess.run(
        [python, "-I", "-W", "ignore", "-c", OWN, what], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    version, _, episodes = done.stdout.splitlines()[-1].partition(" ")
    assert version == suite.version
    return json.loads(episodes)


def plain(value: Any) -> Any:
    """Return a value as JSON has it; a picture as its shape and a checksum."""
    if getattr(value, "ndim", 0) > 1:
        return [list(value.shape), zlib.crc32(value.tobytes())]
    return value.tolist() if hasattr(value, "tolist") else value


def episode_of(env: Any, seed: int) -> list[Any]:
    episode = [plain(env.reset(seed=seed)[0])]
    for step in range(STEPS):
        seen, reward, terminated, truncated, info = env.step(step * 5 // 3 % int(env.action_space.n))
        assert "fault" not in info
        episode.append([plain(seen), reward, terminated, truncated])
        if terminated or truncated:
            break
    return episode


@pytest.mark.parametrize(("env_id", "mode"), PLAYED)
def test_episodes_are_those_of_the_package(suite: Suite, env_id: str, mode: str | None) -> None:
    mode = None if suite.version == "0.21.0" and mode == "rgb_array" else mode
    env = made(suite, env_id, render_mode=mode)
    seeds = [3, 4, 3]
    played = []
    for seed in seeds:
        episode = episode_of(env, seed)
        played.append([episode, plain(env.render()) if mode else None])
    expected = own(env, suite, env_id, mode, seeds)
    assert played[0] == played[2]
    assert [episode for episode, _ in played] == [episode for episode, _ in expected]
    if mode:
        assert [picture for _, picture in played] == [picture for _, picture in expected]
        assert played[0][1]
    if env_id == "MountainCar-v0":
        assert played[0][0][-1][2:] == [False, True]
        assert len(played[0][0]) == 201
    else:
        assert played[0][0] != played[1][0]
        assert played[0][0][-1][2:] == [True, False]
    env.close()


def interpreter(version: str) -> str:
    """Return the path of an interpreter of this machine; skip the test if there is none."""
    named = shutil.which(f"python{version}")
    kept = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    for path in [*kept, *([named] if named else [])]:
        if (
            subprocess.run([path, "-I", "-c", "import ctypes"], capture_output=True, timeout=60).returncode
            == 0
        ):
            return str(path)
    pytest.skip(f"there is no Python {version} on this machine")


@pytest.mark.parametrize(("version", "suite"), [*zip(("3.8", "3.9", "3.10"), SUITES, strict=True)])
def test_older_pythons_play_the_same(version: str, suite: Suite) -> None:
    suite = suite._replace(python=interpreter(version))
    env = made(suite, "CartPole-v1")
    folder = env.unwrapped.session.launch.folder
    assert (folder / "lib" / f"python{version}").is_dir()
    assert [[episode_of(env, 3), None]] == own(env, suite, "CartPole-v1", None, [3])
    env.close()


def test_rows_of_a_vector_are_single_environments(suite: Suite) -> None:
    single = made(suite, "CartPole-v1")
    vector = made(suite, "CartPole-v1", num_envs=3, processes=2)
    assert vector.single_observation_space == single.observation_space
    seen, _ = vector.reset(seed=[5, 6, 7])
    rows = [seen]
    rows += [vector.step(np.array([0, 1, step % 2]))[0] for step in range(6)]
    for row, seed in enumerate((5, 6, 7)):
        alone = [single.reset(seed=seed)[0]]
        alone += [single.step([0, 1, step % 2][row])[0] for step in range(6)]
        assert np.array_equal(np.array(alone), np.array(rows)[:, row])
    vector.close()
    single.close()


def test_limits_and_refusals_are_as_everywhere(suite: Suite) -> None:
    env = made(suite, "MountainCar-v0", max_steps=5)
    env.reset(seed=0)
    ends = [env.step(1)[2:4] for _ in range(5)]
    assert ends == [*[(False, False)] * 4, (False, True)]
    env.reset()
    with pytest.raises(InvalidAction):
        env.step(3)
    with pytest.raises(InvalidArgument, match=r"MountainCar-v0: .*no_such"):
        made(suite, "MountainCar-v0", no_such=1)
    env.close()
