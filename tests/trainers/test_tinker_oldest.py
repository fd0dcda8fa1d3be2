"""The oldest SDK that the Tinker server takes: every call of it works, and so does our own training.

The server runs in the environment of tinker-cookbook's tests, as it needs a newer SDK than this.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("tinker", reason="the Tinker SDK is not installed: run make trainers")

import tinker

from envweave_gym.training.tinker import TinkerOptions, train

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-trainers" / "cookbook" / "bin" / "python"
OLD = importlib.metadata.version("tinker") in ("0.25.0", "0.31.0")
pytestmark = [
    pytest.mark.trainers,
    pytest.mark.skipif(not OLD, reason="the installed SDK is no old one: run make trainers"),
    pytest.mark.skipif(not PYTHON.exists(), reason="the server needs a newer SDK: run make trainers"),
    pytest.mark.filterwarnings("default"),  # those of other libraries are not ours to mend
]


class Server(NamedTuple):
    """A running server."""

    url: str
    key: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    key = "tml-tests"
    command = [
        PYTHON,
        "-m",
        "envweave_gym_server.tinker",
        "--tiny",
        "--threads",
        "1",
        "--port",
        "0",
        "--key",
        key,
    ]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    folder = tmp_path_factory.mktemp("checkpoints")
    process = subprocess.Popen(
        [*command, "--checkpoints", folder], env=environ, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        address = re.search(r"http://\S+", first)
        assert address, first
        yield Server(address[0], key)
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def service(server: Server, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    return tinker.ServiceClient(base_url=server.url, api_key=server.key)


def datum(prompt: list[int], reply: list[int], **inputs: list[float]) -> Any:
    """A datum that continues the prompt with the reply; ``inputs`` are numbers of the reply's tokens."""
    row, before = prompt + reply, [0.0] * (len(prompt) - 1)
    own = {name: before + list(numbers) for name, numbers in inputs.items()}
    return tinker.types.Datum(
        model_input=tinker.types.ModelInput.from_ints(row[:-1]),
        loss_fn_inputs={"target_tokens": row[1:], **own},
    )


def test_every_call_of_a_loop_works(service: Any) -> None:
    types = tinker.types
    [model] = service.get_server_capabilities().supported_models
    training = service.create_lora_training_client(base_model=model.model_name, rank=4, seed=1)
    prompt = training.get_tokenizer().encode("pick A")
    ids, once = types.ModelInput.from_ints(prompt), types.SamplingParams(max_tokens=4, seed=3)
    sampler = training.save_weights_and_get_sampling_client()
    first, second = sampler.sample(ids, num_samples=2, sampling_params=once).result().sequences
    assert len(first.tokens) == len(first.logprobs) <= 4
    logprobs = sampler.compute_logprobs(ids).result()
    assert logprobs[0] is None
    assert len(logprobs) == len(prompt)

    ones = [1.0] * len(first.tokens)
    rows = [datum(prompt, first.tokens, logprobs=first.logprobs, advantages=ones)]
    for loss in ("importance_sampling", "ppo", "cispo"):
        out = training.forward_backward(rows, loss).result()
        again = out.loss_fn_outputs[0]["logprobs"].tolist()[-len(ones) :]
        assert again == pytest.approx(first.logprobs, abs=1e-3)
    likely = [datum(prompt, second.tokens, weights=[1.0] * len(second.tokens))]
    before = training.forward(likely, "cross_entropy").result().metrics["loss:sum"]
    training.forward_backward_custom(likely, lambda _, found: (-found[0].sum(), {"rows": 1.0})).result()
    training.forward_backward(likely, "cross_entropy").result()
    training.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    assert training.forward(likely, "cross_entropy").result().metrics["loss:sum"] < before

    state = training.save_state("state").result().path
    again = service.create_training_client_from_state_with_optimizer(state)
    greedy = types.SamplingParams(max_tokens=4, temperature=0.0)
    weights = [client.save_weights_for_sampler("last").result().path for client in (training, again)]
    samplers = [service.create_sampling_client(model_path=path) for path in weights]
    samples = [one.sample(ids, num_samples=1, sampling_params=greedy).result() for one in samplers]
    assert samples[0].sequences[0].tokens == samples[1].sequences[0].tokens


def test_a_wrong_request_is_refused_by_the_error_of_the_sdk(service: Any) -> None:
    with pytest.raises(tinker.BadRequestError, match="no such model"):
        service.create_lora_training_client(base_model="no such model")


def test_our_own_training_runs(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", server.key)
    sizes: dict[str, int] = {"group": 4, "groups": 4, "episodes": 32, "max_tokens": 4, "eval_episodes": 4}
    options = TinkerOptions(base_url=server.url, out=str(tmp_path), num_envs=4, rank=4, save_every=1, **sizes)
    result = train("envweave/PickLetter-v0", options)
    assert result["updates"] == 2
    assert result["faults"] == 0
