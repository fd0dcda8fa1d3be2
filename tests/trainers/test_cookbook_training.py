"""tinker-cookbook's own trainer makes two steps on our IDs, with the tiny model of our Tinker server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tinker_cookbook", reason="tinker-cookbook is not installed: run make trainers")

from tinker_cookbook.rl.train import AsyncConfig, Config, main

from envweave_gym.integrations.tinker_cookbook import EnvDatasetBuilder, use_tokenizer
from envweave_gym.training.tinker.local_server import LocalServer
from envweave_gym_server.tinker.models.tiny_model import TINY_NAME, tiny_model_folder

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("default"),  # those of other libraries are not ours to mend
]
NAMES = {"MODEL": TINY_NAME, "RENDERER": "qwen3_instruct"}
SIZES: dict[str, Any] = {
    "learning_rate": 1e-4,
    "lora_rank": 4,
    "max_tokens": 8,
    "rollout_error_tolerance": True,
}


@pytest.fixture(autouse=True, scope="module")
def server() -> Iterator[None]:
    """A server whose address and key are in the environment."""
    use_tokenizer(TINY_NAME, tiny_model_folder())
    with LocalServer("--tiny", "--threads", "1") as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKER_BASE_URL", running.base_url)
        patch.setenv("TINKER_API_KEY", running.api_key)
        patch.setenv("TINKER_TELEMETRY", "0")
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


def metrics_of(folder: Path) -> dict[str, list[float]]:
    """The values of each metric, step by step."""
    found: dict[str, list[float]] = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        for name, value in json.loads(line).items():
            found.setdefault(name, []).append(value)
    return found


def test_two_steps_of_the_example(
    example: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    example("cookbook", **NAMES)
    metrics = metrics_of(tmp_path / "runs" / "letters")
    assert metrics["env/all/total_episodes"] == [16, 16]
    assert all(0 <= reward <= 1 for reward in metrics["env/all/reward/total"])
    assert metrics["env/all/invalid_reply"][0] < 1  # the tiny model knows the letters
    assert max(metrics["optim/kl_sample_train_v2"]) < 1e-3
    assert len(metrics["test/env/all/reward/total"]) >= 1


def test_two_asynchronous_steps_with_the_default_loss(tmp_path: Path) -> None:
    tasks = EnvDatasetBuilder(
        env_id="envweave/PickLetter-v0",
        model_name=TINY_NAME,
        renderer_name=NAMES["RENDERER"],
        batches=2,
        groups_per_batch=4,
        group_size=4,
        test_groups=0,
    )
    pace = AsyncConfig(max_steps_off_policy=1, groups_per_batch=4)
    assert pace.loss_fn == "stable_reinforce"
    trained(tasks, tmp_path, async_config=pace)
    assert metrics_of(tmp_path)["env/all/total_episodes"] == [16, 16]


def test_two_steps_of_a_game(example: Callable[..., Any], tmp_path: Path) -> None:
    trained(example("cookbook_game", **NAMES)["games"], tmp_path)
    metrics = metrics_of(tmp_path)
    for step in range(2):
        assert metrics["env/player_0/total_episodes"][step] == 8
        assert -2 <= metrics["env/player_0/reward/total"][step] <= 2
    assert max(metrics["optim/kl_sample_train_v2"]) < 1e-3


def trained(tasks: Any, folder: Path, **options: Any) -> None:
    """Run the trainer for as many batches as ``tasks`` has."""
    names = {"model_name": TINY_NAME, "renderer_name": NAMES["RENDERER"], "recipe_name": "test"}
    asyncio.run(main(Config(dataset_builder=tasks, log_path=str(folder), **names, **SIZES, **options)))
