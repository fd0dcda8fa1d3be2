"""LoRA adapters: seeds, flags, states and snapshots."""

from __future__ import annotations

import pytest
import torch
from random_models import random_adapter, random_transformer

from envweave_gym_server.tinker.models.llama import Transformer
from envweave_gym_server.tinker.models.lora import LoraAdapter
from envweave_gym_server.tinker.models.prefix_packing import pack


def logits(transformer: Transformer, adapter: LoraAdapter) -> torch.Tensor:
    weights = adapter.snapshot().weights
    return transformer.logits(transformer.forward(pack([[1, 2, 3]]), weights), weights)


def test_a_new_adapter_changes_nothing(transformer: Transformer):
    plain = transformer.logits(transformer.forward(pack([[1, 2, 3]]), {}), {})
    assert torch.equal(logits(transformer, LoraAdapter(transformer.config, 4)), plain)
    assert not torch.allclose(logits(transformer, random_adapter(transformer)), plain)


def test_the_seed_determines_the_first_factors(transformer: Transformer):
    first, same, other = (LoraAdapter(transformer.config, 4, seed).state() for seed in (1, 1, 2))
    name = "model.layers.0.self_attn.q_proj.lora_A.weight"
    assert torch.equal(first[name], same[name])
    assert not torch.equal(first[name], other[name])
    assert first[name].var().item() == pytest.approx(1 / transformer.config.width, rel=0.3)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ({"train_mlp": False, "train_unembed": False}, {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ({"train_attn": False, "train_unembed": False}, {"gate_proj", "up_proj", "down_proj"}),
        ({"train_attn": False, "train_mlp": False}, {"lm_head"}),
    ],
)
def test_flags_select_the_layers(transformer: Transformer, flags: dict[str, bool], names: set[str]):
    state = LoraAdapter(transformer.config, 4, **flags).state()
    assert {name.split(".lora_")[0].split(".")[-1] for name in state} == names


def test_an_adapter_without_layers_or_rank_is_refused(transformer: Transformer):
    with pytest.raises(ValueError, match="one of train_attn, train_mlp and train_unembed"):
        LoraAdapter(transformer.config, 4, train_attn=False, train_mlp=False, train_unembed=False)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        LoraAdapter(transformer.config, 0)


def test_a_state_can_be_loaded_into_another_adapter(transformer: Transformer):
    trained, fresh = random_adapter(transformer, 3), LoraAdapter(transformer.config, 4)
    fresh.load(trained.state())
    assert torch.equal(logits(transformer, fresh), logits(transformer, trained))
    assert all(map(torch.equal, fresh.state().values(), trained.state().values()))


def test_the_shapes_of_a_state_are_those_of_peft(transformer: Transformer):
    shapes = {name: tuple(value.shape) for name, value in LoraAdapter(transformer.config, 4).state().items()}
    assert shapes["model.layers.2.self_attn.k_proj.lora_A.weight"] == (4, 32)
    assert shapes["model.layers.2.self_attn.k_proj.lora_B.weight"] == (32, 4)
    assert shapes["model.layers.0.mlp.down_proj.lora_A.weight"] == (4, 48)
    assert shapes["lm_head.lora_B.weight"] == (61, 4)
    assert len(shapes) == 2 * (3 * 7 + 1)


def test_a_state_of_another_shape_is_refused_and_changes_nothing(transformer: Transformer):
    adapter = LoraAdapter(transformer.config, 4)
    before = adapter.state()
    with pytest.raises(ValueError, match=r"\(8, 32\), not \(4, 32\)"):
        adapter.load(LoraAdapter(transformer.config, 8).state())
    with pytest.raises(ValueError, match="is in one of them only"):
        adapter.load(LoraAdapter(transformer.config, 4, train_mlp=False).state())
    assert all(map(torch.equal, before.values(), adapter.state().values()))


def test_a_snapshot_does_not_change_with_training(transformer: Transformer):
    adapter = random_adapter(transformer)
    snapshot = adapter.snapshot()
    before = [one.clone() for change in snapshot.weights.values() for one in change]
    adapter.load(random_adapter(random_transformer(), 5).state())
    after = [one for change in snapshot.weights.values() for one in change]
    assert all(map(torch.equal, before, after))
    assert snapshot.size == sum(one.nbytes for one in after)
    assert not any(change.second.requires_grad for change in snapshot.weights.values())
