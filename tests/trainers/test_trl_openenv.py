"""TRL's example of OpenEnv's echo environment, on a server of ours: GRPO calls its tool through OpenEnv's client.

The class ``MyEchoEnv`` is that of TRL's examples/scripts/openenv/echo_env_factory.py, with another URL and with the
``reset`` that TRL 1.16 calls, which gets the row. The script's model needs a GPU, and its package echo_env is not on
PyPI: a tiny model and the client of ``openenv_typed`` stand in for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is not installed: run make trainers")
pytest.importorskip("openenv", reason="OpenEnv is not installed: run make trainers")

from datasets import Dataset
from openenv_typed import EchoAction, EchoEnv
from servers import RunningServer, running_server
from tool_models import save_letter_caller
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_instruct_2507_chat_template

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("default"),  # those of other libraries are not ours to mend
]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("envweave/Echo-v0", protocol="openenv", token=None) as running:
        yield running


class MyEchoEnv:
    url = ""

    def __init__(self) -> None:
        self.env = EchoEnv(base_url=self.url).sync()

    def reset(self, **_: Any) -> None:
        self._reward = None

    def step(self, message: str) -> str:
        """
        Echo the message back from the environment.

        Args:
            message: The message to echo

        Returns:
            The echoed message.
        """
        observation = self.env.step(EchoAction(message=message))
        self._reward = observation.observation.reward
        return observation.observation.echoed_message

    def get_reward(self) -> float:
        """
        Get the reward from the last step.

        Returns:
            The reward value.
        """
        return self._reward


def call_of_step(letter: str) -> str:
    return f'<tool_call>\n{{"name": "step", "arguments": {{"message": "{letter}"}}}}\n</tool_call>'


def reward_func(completions: Any, environments: Any, **_: Any) -> list[float | None]:
    return [environment.get_reward() for environment in environments]


def test_grpo_trains_by_the_tool_of_the_example(server: RunningServer, tmp_path: Path) -> None:
    MyEchoEnv.url = server.url
    tool = MyEchoEnv()
    save_letter_caller(tmp_path / "model", qwen3_instruct_2507_chat_template, [tool.step], "", call_of_step)
    tool.env.close()
    dataset = Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": f"pick {one}"}] for one in "ABCD" * 4]}
    )
    sizes = {"per_device_train_batch_size": 8, "num_generations": 4, "max_steps": 2}
    limits = {"max_completion_length": 96, "max_tool_calling_iterations": 1}
    quiet = {"report_to": [], "logging_steps": 1, "save_strategy": "no", "use_cpu": True, "bf16": False}
    options = GRPOConfig(output_dir=str(tmp_path), learning_rate=1e-4, seed=0, **sizes, **limits, **quiet)
    trainer = GRPOTrainer(
        model=str(tmp_path / "model"),
        train_dataset=dataset,
        reward_funcs=reward_func,
        args=options,
        environment_factory=MyEchoEnv,
    )
    trainer.train()
    logs = [row for row in trainer.state.log_history if "reward" in row]
    assert len(logs) == 2
    assert logs[0]["tools/call_frequency"] > 0.5
    # a letter is a tenth of a point; TRL adds what get_reward() says
    assert logs[0]["rewards/reward_func/mean"] == pytest.approx(0.1)
    assert 'kind="step",status="done"' in server.ask("GET", "/metrics").text
