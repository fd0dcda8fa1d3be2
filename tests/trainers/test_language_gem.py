"""GEM's environments with the API of Gymnasium: equal seeds, equal episodes, and nothing left behind."""

from __future__ import annotations

import logging
import random
import warnings
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", SyntaxWarning)
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed: run make trainers")
if pytest.importorskip("importlib.util").find_spec("gem") is None:
    pytest.skip("GEM is not installed: run make trainers", allow_module_level=True)

import gymnasium as gym

import envweave_gym as ew
from envweave_gym.core.faults import InvalidArgument, NotAvailable
from envweave_gym.testing import check_all

ID = "envweave/GEM-v0"
pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore::SyntaxWarning")]


def episode(env: Any, seed: int, replies: int = 4) -> list[Any]:
    text, _ = env.reset(seed=seed)
    seen: list[Any] = [text]
    for number in range(replies):
        text, reward, terminated, truncated, _ = env.step(rf"\boxed{{{number + 2}}}")
        seen += [text, reward, terminated]
        if terminated or truncated:
            break
    return seen


@pytest.mark.parametrize(
    ("gem_id", "options"),
    [
        ("game:GuessTheNumber-v0-random", None),
        ("game:Sudoku-v0-random", None),
        ("game:Mastermind-v0-random", None),
        ("rg:chain_sum", {"size": 4}),
    ],
)
def test_equal_seeds_give_equal_episodes_after_any_others(gem_id: str, options: dict[str, Any] | None):
    env = gym.make(ID, gem_id=gem_id, options=options)
    first = episode(env, 1)
    for seed in range(2, 12):
        episode(env, seed)
    random.seed(5)
    assert episode(env, 1) == first == episode(gym.make(ID, gem_id=gem_id, options=options), 1)
    assert any(episode(env, seed) != first for seed in range(2, 6))


def test_the_import_of_gem_leaves_the_root_logger_alone():
    before = list(logging.getLogger().handlers), logging.getLogger().level
    gym.make(ID).reset(seed=0)
    assert (list(logging.getLogger().handlers), logging.getLogger().level) == before


def test_messages_end_with_what_gem_asks_for_next():
    env = ew.make(ID)
    _, info = env.reset(seed=0)
    [asked] = ew.messages_of(info)
    assert asked["content"].endswith("Enter your next guess.")
    *_, info = env.step(r"\boxed{5}")
    assert len(ew.messages_of(info)) == 1


def test_close_ends_the_processes_and_comes_twice(monkeypatch: pytest.MonkeyPatch):
    env = gym.make(ID)
    core: Any = env.unwrapped
    ended: list[str] = []

    class Pool:
        def terminate(self) -> None:
            ended.append("terminate")

        def join(self) -> None:
            ended.append("join")

    core._env.mp_pool, core._env.close = Pool(), lambda: ended.append("close")
    env.close()
    assert ended == ["close", "terminate", "join"]
    env.close()
    env.reset(seed=1)


def test_an_environment_over_a_data_set_is_kept(monkeypatch: pytest.MonkeyPatch):
    env = gym.make(ID)
    core: Any = env.unwrapped
    core._env.dataset, kept = ["rows"], core._env
    env.reset(seed=1)
    assert core._env is kept


def test_what_needs_another_package_or_data_says_so():
    with pytest.raises(NotAvailable, match=r"math:GSM8K needs a package that is not installed.*datasets"):
        gym.make(ID, gem_id="math:GSM8K")


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"gem_id": "rg:chain_sun"}, "did you mean 'rg:chain_sum'"),
        ({"gem_id": 1}, "gem_id=1 is no name"),
        ({"options": 3}, "options=3"),
    ],
)
def test_a_wrong_argument_is_one_sentence(kwargs: dict[str, Any], words: str):
    with pytest.raises(InvalidArgument, match=words) as caught:
        gym.make(ID, **kwargs)
    assert "\n" not in str(caught.value)


def test_a_server_plays_the_same_episode():
    there = ew.make(ID, gem_id="game:Sudoku-v0-easy", backend="subprocess")
    try:
        assert episode(there, 3) == episode(ew.make(ID, gem_id="game:Sudoku-v0-easy"), 3)
    finally:
        there.close()


def test_the_example_of_the_docs_guesses_the_number(example: Any):
    assert example("gem_episode")["reward"] == 1.0


def test_the_conformance_kit_finds_nothing():
    assert check_all(ID)["same_seed_same_trace"] == "passed"
