"""Hub packages of the library's second generation: the rewards here are those of the library's own evaluation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hub_evaluations import played
from hub_v1 import CHAT, LOCAL, Make, evaluated, packages

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.hubs.prime.hub_session import Unplayable

if find_spec("verifiers") is None:
    pytest.skip("verifiers is not installed: run make trainers", allow_module_level=True)
pytestmark = pytest.mark.trainers

CALL = {"tool_calls": [{"name": "calculator_add", "arguments": {"a": 3, "b": 3}}]}


def right(model: str, messages: list[dict[str, Any]]) -> Any:
    return "6"


def better_later(model: str, messages: list[dict[str, Any]]) -> Any:
    return "5" if messages[-1]["content"].startswith("What") else "6"


def by_tool(model: str, messages: list[dict[str, Any]]) -> Any:
    return CALL if messages[-1]["role"] == "user" else messages[-1]["content"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("v1")


@pytest.fixture(scope="module")
def make(folder: Path) -> Iterator[Make]:
    with packages(folder) as one:
        yield one


@pytest.mark.parametrize(
    ("args", "policy"),
    [
        ({}, right),
        ({"mode": "talk"}, better_later),
        ({"taskset": {"tools": True}}, by_tool),
    ],
    ids=["single-turn", "multi-turn", "tool"],
)
def test_rewards_and_metrics_are_those_of_the_librarys_evaluation(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch, args: dict[str, Any], policy: Any
):
    env = make(**args)
    roles = {"agent": CHAT, "rival": LOCAL}
    (trace,) = evaluated("sums", {**args, **roles}, policy, 2, folder, monkeypatch).traces
    ours, info = played(env, policy, 2)
    assert ours == trace.reward == 2.0
    assert info["metrics"] == {"right": 2.0, **trace.metrics}
    assert info["stop"] == trace.stop_condition
    start = time.perf_counter()
    _, info = env.reset(seed=1)
    assert time.perf_counter() - start < 2.0  # 0.2 s on a quiet machine
    assert info["replaced"]["agent"] == {"runtime": "prime", "harness": "bash"}


def test_a_role_that_plays_several_times_is_refused(make: Make):
    env = make(mode="twice", taskset={"endless": True})
    env.reset(seed=0, options={"index": 0})
    env.step("2")
    with pytest.raises(Unplayable, match="plays 2 times"):
        env.step("2")


def test_harnesses_that_run_the_models_code_are_refused(make: Make):
    with pytest.raises(InvalidArgument, match="runs code that the model writes"):
        make("shell")


def test_an_endless_task_set_has_a_bound(make: Make):
    env = make(mode="twice", taskset={"endless": True})
    assert env.episode_state()["tasks"] == 10_000
    chat, _ = env.reset(seed=0, options={"index": 40})
    assert chat[-1]["content"] == "What is 41 + 41?"
