"""AgileRL's own trainer for OpenEnv, `train_llm_rollout`, plays IDs of a server of ours by GRPO."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "agilerl.llm_envs.openenv", reason="AgileRL for OpenEnv is not installed: run make trainers"
)

pytest.importorskip("agilerl.training.llm")  # which ignores the warnings of its import, as the tests do

import torch
from agilerl.algorithms import GRPO
from agilerl.llm_envs import RolloutHarness
from agilerl.llm_envs.openenv import RemoteEnvClient
from agilerl.training.llm import train_llm_rollout
from peft import LoraConfig
from servers import RunningServer, running_server, until
from tool_models import small_tokenizer
from transformers import GPT2Config, GPT2LMHeadModel

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("default"),  # those of other libraries are not ours to mend
]
ECHO, PICK, ADDITION = (f"envweave/{name}-v0" for name in ("Echo", "PickLetter", "Addition"))
CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(ECHO, PICK, ADDITION, protocol="openenv", default=ECHO, token=None) as running:
        yield running


def model_of(tokenizer: Any) -> GPT2LMHeadModel:
    """A tiny model of a kind for which AgileRL has no kernels of Triton, which need a GPU."""
    torch.manual_seed(0)
    sizes = {"n_positions": 512, "n_embd": 32, "n_layer": 1, "n_head": 2}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes, **ids))


def test_its_client_plays_replies_of_a_model(server: RunningServer) -> None:
    client = RemoteEnvClient(f"{server.url}/openenv/{PICK}", timeout_s=60.0)
    seen, _ = client.reset(seed=3, row_index=1)
    assert seen["prompt"] == "pick B"
    assert (client.tools, client.takes_tool_calls, client.dataset_size) == ([], False, 4)
    _, reward, terminated, truncated, info = client.step("I choose B.")
    assert (reward, terminated, truncated, info.get("correct")) == (1.0, True, False, True)
    with client.eval_mode(), pytest.raises(RuntimeError, match="evaluation"):
        client.reset()  # there is no held-out split, and nothing is said to be one
    client.close()
    until(lambda: server.gauge("envweave_sessions") == 0)


def test_grpo_trains_on_an_environment_of_ours(server: RunningServer, tmp_path: Path) -> None:
    tokenizer = small_tokenizer(["Q: 1 + 2\nA: 3\n"], CHAT)
    agent = GRPO(
        pad_token_id=0,
        pad_token=tokenizer.pad_token,
        actor_network=model_of(tokenizer),
        batch_size=2,
        group_size=2,
        micro_batch_size_per_gpu=1,
        lr=1e-3,
        max_output_tokens=8,
        max_model_len=256,
        lora_config=LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True),
        device="cpu",
        use_liger_loss=False,
        gradient_checkpointing=False,
    )

    def harness() -> RolloutHarness:
        url = f"{server.url}/openenv/{ADDITION}"
        return RolloutHarness(url, tokenizer, max_turns=1, timeout_s=60.0, max_model_len=256)

    train_llm_rollout([agent], 1, harness, max_steps=8, verbose=False, evaluation_interval=10**6)
    until(lambda: server.gauge("envweave_sessions") == 0)
    lines = server.ask("GET", "/metrics").text.splitlines()
    steps = next(line for line in lines if line.startswith('envweave_calls_total{kind="step",status="done"}'))
    assert float(steps.split()[-1]) >= 8
