"""Training passes: packed, cut and merged without changing the gradient."""

from __future__ import annotations

import random

import pytest
import torch
from random_models import VOCABULARY, random_adapter, reference_model, transformer_of
from torch import Tensor

from envweave_gym_server.tinker.models import prefix_packing, target_logprobs, training_pass
from envweave_gym_server.tinker.models.llama import Transformer
from envweave_gym_server.tinker.models.losses import LOSSES, Datum
from envweave_gym_server.tinker.models.training_pass import forward, forward_backward, pass_tokens


def rollouts(count: int = 8, seed: int = 0) -> list[Datum]:
    """Rows with shared prompts, some of them equal; zeros on the prompts."""
    chooser = random.Random(seed)
    prompts = [[9, 8, chooser.randrange(5), 7] for _ in range(3)]
    rows: list[Datum] = []
    for _ in range(count):
        prompt, answer = (
            chooser.choice(prompts),
            [chooser.randrange(3) for _ in range(chooser.randrange(1, 5))],
        )
        zeros = [0.0] * (len(prompt) - 1)
        inputs = {
            "target_tokens": torch.tensor([*prompt, *answer][1:]),
            "logprobs": torch.tensor([*zeros, *[-chooser.random() * 4 for _ in answer]]),
            "advantages": torch.tensor([*zeros, *[chooser.choice([-1.0, 1.0])] * len(answer)]),
        }
        rows.append(Datum([*prompt, *answer][:-1], inputs))
    return rows


def supervised(rows: list[Datum]) -> list[Datum]:
    return [
        Datum(
            row.tokens,
            {"target_tokens": row.inputs["target_tokens"], "weights": row.inputs["advantages"].abs()},
        )
        for row in rows
    ]


def gradient(transformer: Transformer, rows: list[Datum], loss: str = "importance_sampling") -> list[Tensor]:
    adapter = random_adapter(transformer)
    forward_backward(transformer, adapter, rows, loss, {})
    return [parameter.grad.clone() for parameter in adapter.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("loss", LOSSES)
def test_the_packed_gradient_is_the_sum_of_the_gradients_of_single_rows(transformer: Transformer, loss: str):
    rows = rollouts() if loss != "cross_entropy" else supervised(rollouts())
    together, alone = gradient(transformer, rows, loss), [gradient(transformer, [row], loss) for row in rows]
    for index, packed in enumerate(together):
        torch.testing.assert_close(packed, sum(single[index] for single in alone), rtol=1e-3, atol=1e-4)


def test_the_gradient_is_that_of_autograd_through_full_weights():
    """The change of a weight W by low-rank factors has the gradients that its product has in transformers."""
    model = reference_model()
    transformer = transformer_of(model)
    adapter = random_adapter(transformer)
    state = {name: value.requires_grad_() for name, value in adapter.state().items()}
    weights = dict(model.named_parameters())
    changed = {
        f"{name}.weight": weights.get(f"{name}.weight", weights["model.embed_tokens.weight"])
        + 8.0 * state[f"{name}.lora_B.weight"] @ state[f"{name}.lora_A.weight"]
        for name in {key.partition(".lora_")[0] for key in state}
    }
    rows, total = supervised(rollouts()), torch.zeros(())
    for row in rows:
        hidden = torch.func.functional_call(model.model, _inner(changed), (torch.tensor([row.tokens]),))
        logprobs = torch.log_softmax(hidden.last_hidden_state[0] @ changed["lm_head.weight"].T, -1)
        total -= (
            logprobs.gather(1, row.inputs["target_tokens"][:, None])[:, 0] * row.inputs["weights"]
        ).sum()
    total.backward()
    result = forward_backward(transformer, adapter, rows, "cross_entropy", {})
    assert result.metrics["loss:sum"] == pytest.approx(total.item(), rel=1e-4)
    expected = [value.grad for value in state.values() if value.grad is not None]
    assert sum(grad.square().sum().item() for grad in expected) > 1
    mine = dict(zip(state, _named_gradients(adapter), strict=True))
    for name, value in state.items():
        torch.testing.assert_close(mine[name], value.grad, rtol=1e-3, atol=1e-3)


def _inner(changed: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix("model."): value for name, value in changed.items() if name.startswith("model.")
    }


def _named_gradients(adapter: training_pass.LoraAdapter) -> list[Tensor]:
    for parameter in adapter.parameters():
        assert parameter.grad is not None
        with torch.no_grad():
            parameter.copy_(parameter.grad)
    return list(adapter.state().values())


def test_attention_in_blocks_does_not_change_the_gradient(
    transformer: Transformer, monkeypatch: pytest.MonkeyPatch
):
    rows = rollouts(30)
    whole = gradient(transformer, rows)
    monkeypatch.setattr(prefix_packing, "BLOCK_TOKENS", 8)
    for one, other in zip(whole, gradient(transformer, rows), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_equal_rows_count_as_often_as_they_are_given(transformer: Transformer):
    [row, *_] = rollouts()
    single, triple = gradient(transformer, [row]), gradient(transformer, [row] * 3)
    for one, three in zip(single, triple, strict=True):
        torch.testing.assert_close(three, 3 * one, rtol=1e-5, atol=1e-6)


def test_the_order_of_rows_changes_no_bit(transformer: Transformer):
    rows = rollouts(30)
    first = gradient(transformer, rows)
    for seed in range(3):
        shuffled = random.Random(seed).sample(rows, len(rows))
        assert all(map(torch.equal, first, gradient(transformer, shuffled)))


def test_a_long_batch_is_cut_without_changing_the_gradient(
    transformer: Transformer, monkeypatch: pytest.MonkeyPatch
):
    rows = rollouts(30)
    whole = gradient(transformer, rows)
    monkeypatch.setattr(training_pass, "_MAX_PASS_TOKENS", 12)
    sizes: list[int] = []
    passed = Transformer.forward

    def counted(
        self: Transformer, packed: training_pass.PackedTokens, *rest: object, **more: object
    ) -> Tensor:
        sizes.append(len(packed))
        return passed(self, packed, *rest, **more)  # pyright: ignore

    monkeypatch.setattr(Transformer, "forward", counted)
    for one, other in zip(whole, gradient(transformer, rows), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert len(sizes) > 2
    assert max(sizes) <= 12


def test_long_rows_are_computed_again_in_the_backward_pass(
    transformer: Transformer, monkeypatch: pytest.MonkeyPatch
):
    rows = supervised(rollouts(30))
    whole = gradient(transformer, rows, "cross_entropy")
    monkeypatch.setattr(training_pass, "_MAX_PASS_TOKENS", 2)
    monkeypatch.setattr(target_logprobs, "_CHUNK_POSITIONS", 2)
    for one, other in zip(whole, gradient(transformer, rows, "cross_entropy"), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_a_pass_is_bounded_by_the_memory_it_needs(transformer: Transformer, monkeypatch: pytest.MonkeyPatch):
    assert pass_tokens(transformer.config) == 1024
    monkeypatch.setattr(training_pass, "PASS_BYTES", 10**6)
    assert pass_tokens(transformer.config) == 10**6 // (4 * 3 * (12 * 32 + 5 * 48))


def test_logprobs_are_computed_where_the_loss_uses_them(transformer: Transformer):
    rows = rollouts()
    adapter = random_adapter(transformer)
    everywhere = forward(transformer, adapter, rows, "importance_sampling", {})
    needed = forward_backward(transformer, adapter, rows, "importance_sampling", {})
    assert everywhere.metrics == pytest.approx(needed.metrics, rel=1e-5)
    for row, full, part in zip(rows, everywhere.logprobs, needed.logprobs, strict=True):
        assert full.shape == row.inputs["target_tokens"].shape
        assert bool((full != 0).all())
        used = row.inputs["advantages"] != 0
        torch.testing.assert_close(part, full * used, rtol=1e-5, atol=1e-5)


def test_a_token_without_advantage_has_a_logprob_if_it_was_sampled(transformer: Transformer):
    inputs = {
        "target_tokens": torch.tensor([2, 3, 4]),
        "logprobs": torch.tensor([0, 0, -1.0]),
        "advantages": torch.zeros(3),
    }
    result = forward_backward(
        transformer, random_adapter(transformer), [Datum([1, 2, 3], inputs)], "importance_sampling", {}
    )
    assert (result.logprobs[0] != 0).tolist() == [False, False, True]
    assert result.metrics == {"loss:sum": 0.0, "tokens:sum": 1.0}


def test_several_targets_of_a_position_have_weights_of_their_own(transformer: Transformer):
    targets = torch.arange(VOCABULARY).repeat(2, 1)
    weights = torch.rand(targets.shape, generator=torch.Generator().manual_seed(0))
    datum = Datum([1, 2], {"target_tokens": targets, "weights": weights})
    result = forward_backward(transformer, random_adapter(transformer), [datum], "cross_entropy", {})
    [logprobs] = result.logprobs
    torch.testing.assert_close(logprobs.exp().sum(1), torch.ones(2), rtol=0, atol=1e-5)
    assert result.metrics["loss:sum"] == pytest.approx(-(logprobs * weights).sum().item(), rel=1e-5)


def test_a_batch_without_advantages_has_a_loss_of_zero_and_no_gradient(transformer: Transformer):
    inputs = {"target_tokens": torch.tensor([2]), "logprobs": torch.zeros(1), "advantages": torch.zeros(1)}
    adapter = random_adapter(transformer)
    result = forward_backward(transformer, adapter, [Datum([1], inputs)], "ppo", {})
    assert result.metrics["loss:sum"] == 0
    assert result.logprobs[0].tolist() == [0]
    assert all(parameter.grad is None for parameter in adapter.parameters())


def test_gradients_add_up_until_the_optimiser_takes_them(transformer: Transformer):
    rows = rollouts()
    adapter = random_adapter(transformer)
    for part in (rows[:4], rows[4:]):
        forward_backward(transformer, adapter, part, "importance_sampling", {})
    for parameter, whole in zip(adapter.parameters(), gradient(transformer, rows), strict=True):
        torch.testing.assert_close(parameter.grad, whole, rtol=1e-4, atol=1e-5)
