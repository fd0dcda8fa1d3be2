"""Models in training by themselves: gradients and steps after failures and loads."""

from __future__ import annotations

from pathlib import Path

import pytest
import tinker
import torch
from tinker import types
from tinker_server import BASE, row

from envweave_gym_server.tinker.api_errors import BadInput
from envweave_gym_server.tinker.models import training_pass
from envweave_gym_server.tinker.models.base_model import BaseModel
from envweave_gym_server.tinker.models.llama import Transformer
from envweave_gym_server.tinker.models.losses import Datum
from envweave_gym_server.tinker.request_bodies import AdamParams, LoraConfig
from envweave_gym_server.tinker.training_models import TrainingModel

ADAM = AdamParams(learning_rate=0.1)


@pytest.fixture
def model(transformer: Transformer) -> TrainingModel:
    return TrainingModel("s:train:0", BaseModel("base", transformer, Path(), frozenset()), LoraConfig(4, 1))


def add_gradient(model: TrainingModel, *tokens: int) -> None:
    targets = torch.tensor(tokens[1:])
    datum = Datum(tokens[:-1], {"target_tokens": targets, "weights": torch.ones(len(targets))})
    model.forward_backward([datum], "cross_entropy", {})


def is_unchanged(model: TrainingModel, before: dict[str, torch.Tensor]) -> bool:
    return all(map(torch.equal, model.state(with_optimizer=False).values(), before.values()))


def test_loaded_weights_are_not_moved_by_earlier_gradients(model: TrainingModel):
    saved = model.state(with_optimizer=True)
    add_gradient(model, 1, 2, 3)
    model.load(saved, with_optimizer=True)
    assert model.optim_step(ADAM)["grad_norm"] == 0
    assert is_unchanged(model, saved)


def test_a_step_after_a_failed_pass_fails_and_the_next_one_does_not(
    model: TrainingModel, monkeypatch: pytest.MonkeyPatch
):
    before = model.state(with_optimizer=False)

    def fail(*_: object) -> None:
        raise MemoryError("no memory for the pass")

    add_gradient(model, 1, 2, 3)
    with monkeypatch.context() as patch:
        patch.setattr(training_pass, "forward_backward", fail)
        with pytest.raises(MemoryError):
            add_gradient(model, 3, 4, 5)
    add_gradient(model, 5, 6, 7)
    with pytest.raises(BadInput, match="no memory for the pass"):
        model.optim_step(ADAM)
    assert (model.steps, is_unchanged(model, before)) == (0, True)
    assert model.optim_step(ADAM)["grad_norm"] == 0
    add_gradient(model, 1, 2, 3)
    assert model.optim_step(ADAM)["grad_norm"] > 0


def test_a_step_that_was_sent_with_a_refused_pass_fails(client: tinker.ServiceClient):
    training = client.create_lora_training_client(BASE, rank=4, seed=1).result()
    adam = types.AdamParams(learning_rate=0.1)
    training.forward_backward([row([3, 4, 5])], "cross_entropy").result()
    step_before = training.optim_step(adam)
    refused = training.forward_backward([row([3, 4, 5_000])], "cross_entropy")
    after = training.forward_backward([row([3, 4, 5])], "cross_entropy")
    step = training.optim_step(adam)
    assert (step_before.result().metrics or {})["grad_norm"] > 0
    with pytest.raises(tinker.BadRequestError, match="5000"):
        refused.result()
    after.result()
    with pytest.raises(tinker.RequestFailedError, match=r"no step was made.*5000"):
        step.result()
    training.forward_backward([row([3, 4, 5])], "cross_entropy").result()
    assert (training.optim_step(adam).result().metrics or {})["grad_norm"] > 0


def test_a_step_that_makes_weights_infinite_fails(model: TrainingModel):
    add_gradient(model, 1, 2, 3)
    with pytest.raises(BadInput, match="weights are not finite"):
        model.optim_step(AdamParams(learning_rate=3e38))
