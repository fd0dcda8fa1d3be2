"""TRL's GRPOTrainer plays our IDs by tool calls, with one seed a group, and leaves lost episodes out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is not installed: run make trainers")

import gymnasium as gym
from tool_models import save_letter_caller
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_instruct_2507_chat_template

import envweave_gym
from envweave_gym.integrations.trl import INSTRUCTION, environment_factory, seed_dataset

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("default"),  # those of other libraries are not ours to mend
]
ID = "envweave/PickLetter-v0"


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny model that calls the tool with some letter."""
    folder = tmp_path_factory.mktemp("model")
    act = environment_factory(ID)().act
    save_letter_caller(folder, qwen3_instruct_2507_chat_template, [act], INSTRUCTION)
    return str(folder)


def trained(model: str, factory: Callable[[], Any], folder: Path, steps: int) -> Any:
    """A trainer after some steps of 8 completions, 4 of each seed."""
    sizes = {"per_device_train_batch_size": 8, "num_generations": 4, "max_steps": steps}
    limits = {"max_completion_length": 96, "max_tool_calling_iterations": 1}
    quiet = {"report_to": [], "logging_steps": 1, "save_strategy": "no", "use_cpu": True, "bf16": False}
    options = GRPOConfig(output_dir=str(folder), learning_rate=1e-4, seed=0, **sizes, **limits, **quiet)
    trainer = GRPOTrainer(
        model=model, train_dataset=seed_dataset(16), environment_factory=factory, args=options
    )
    trainer.train()
    return trainer


def test_two_steps_of_grpo_with_one_seed_a_group(model: str, tmp_path: Path) -> None:
    resets, rewards = list[int](), list[Any]()
    factory = environment_factory(ID)

    def recording() -> Any:
        environment = factory()
        reset, get_reward = environment.reset, environment.get_reward
        environment.reset = lambda **row: (resets.append(row["seed"]), reset(**row))[1]
        environment.get_reward = lambda: (rewards.append(get_reward()), rewards[-1])[1]
        return environment

    trainer = trained(model, recording, tmp_path, 2)
    logs = [row for row in trainer.state.log_history if "reward" in row]
    assert len(logs) == 2
    assert all("rewards/PickLetterv0/mean" in row for row in logs)
    assert logs[0]["tools/call_frequency"] > 0.5
    assert len(resets) == len(rewards) == 16
    groups = [resets[first : first + 4] for first in range(0, 16, 4)]
    assert all(len(set(group)) == 1 for group in groups)
    assert set(rewards) == {0.0, 1.0}
    assert sum(rewards[:8]) / 8 == pytest.approx(logs[0]["reward"])


def test_the_example_trains_on_a_machine_without_a_gpu(
    model: str, example: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = example("trl", MODEL=model)["trainer"]
    assert trainer.state.global_step == 2


class Flaky(gym.Env[Any, Any]):
    """Every second episode breaks when it is played, all others earn 1."""

    observation_space, action_space = envweave_gym.Unicode(32), envweave_gym.Unicode(32)
    episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        Flaky.episodes += 1
        self.breaks = Flaky.episodes % 2 == 0
        return "pick B", {}

    def step(self, action: str) -> Any:
        if self.breaks:
            raise RuntimeError("the simulator fell over")
        return "done", 1.0, True, False, {}


def test_lost_episodes_are_not_scored(model: str, tmp_path: Path) -> None:
    envweave_gym.register("local://flaky-tool", factory=Flaky)
    factory = environment_factory("local://flaky-tool", no_action_reward=1.0)
    trainer = trained(model, factory, tmp_path, 1)
    [row] = [row for row in trainer.state.log_history if "reward" in row]
    assert row["reward"] == 1.0  # with lost episodes as 0 it would be 0.5
    assert math.isfinite(row["loss"])


def test_coming_from_an_environment_factory_of_trl(example: Callable[..., dict[str, Any]]) -> None:
    before, after = (example(form)["arguments"] for form in ("trl_before", "trl_after"))
    own, ours = before["environment_factory"](), after["environment_factory"]()
    assert own.act(own.reset().removeprefix("pick ")) == "right"
    assert before["reward_funcs"]([own]) == [1.0]
    row = after["train_dataset"][3]
    [letter] = re.findall(r"pick ([A-D])", ours.reset(**row))
    ours.act(letter)
    assert ours.get_reward() == 1.0
