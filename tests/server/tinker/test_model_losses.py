"""Loss functions against their formulae, and the datums that they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from envweave_gym_server.tinker.models.llama import Transformer
from envweave_gym_server.tinker.models.losses import LOSSES, Datum, LossTerms, check_datums, loss_value

NEW = [-0.5, -1.0, -2.0, -0.1, -3.0, -0.2]
OLD = [-0.7, -0.5, -2.0, -0.9, -1.0, -0.3]
ADVANTAGES = [1.0, 1.0, 1.0, -2.0, -2.0, -2.0]
ROWS = [0, 0, 0, 1, 1, 1]


def terms(**options: Any) -> LossTerms:
    inputs = {"logprobs": torch.tensor(OLD), "advantages": torch.tensor(ADVANTAGES)}
    inputs["weights"] = torch.tensor([0.5, 1.0, 2.0, 1.0, 1.0, 1.0])
    inputs |= {name: value for name, value in options.items() if isinstance(value, Tensor)}
    config = {name: value for name, value in options.items() if not isinstance(value, Tensor)}
    return LossTerms(torch.tensor(NEW, requires_grad=True), inputs, torch.tensor(ROWS), config)


def clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def by_token(gain: Callable[[float, float, float], float]) -> float:
    return -sum(
        gain(new, math.exp(new - old), advantage)
        for new, old, advantage in zip(NEW, OLD, ADVANTAGES, strict=True)
    )


def gspo(low: float, high: float) -> float:
    total = 0.0
    for row in (0, 3):
        distances = [new - old for new, old in zip(NEW[row : row + 3], OLD[row : row + 3], strict=True)]
        ratio = math.exp(sum(distances) / 3)
        total -= sum(min(ratio * a, clip(ratio, low, high) * a) for a in ADVANTAGES[row : row + 3])
    return total


@pytest.mark.parametrize(
    ("loss", "options", "expected"),
    [
        ("cross_entropy", {}, 0.25 + 1 + 4 + 0.1 + 3 + 0.2),
        ("importance_sampling", {}, by_token(lambda _, r, a: r * a)),
        ("ppo", {}, by_token(lambda _, r, a: min(r * a, clip(r, 0.8, 1.2) * a))),
        (
            "ppo",
            {"clip_low_threshold": 0.5, "clip_high_threshold": 3.0},
            by_token(lambda _, r, a: min(r * a, clip(r, 0.5, 3.0) * a)),
        ),
        ("cispo", {}, by_token(lambda new, r, a: clip(r, 0.8, 1.2) * a * new)),
        ("stable_reinforce", {}, by_token(lambda new, r, a: min(r, 2.0) * a * new)),
        ("dro", {"beta": 0.3}, by_token(lambda new, r, a: new * a - 0.15 * math.log(r) ** 2)),
        ("gspo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}, gspo(0.9, 1.1)),
        ("gspo", {}, gspo(1 - 3e-4, 1 + 4e-4)),
    ],
)
def test_a_loss_is_the_sum_of_its_formula_over_tokens(loss: str, options: dict[str, float], expected: float):
    value = loss_value(loss, terms(**options))
    assert value.total.item() == pytest.approx(expected, rel=1e-5)
    value.total.backward()


def test_the_gradient_of_importance_sampling_is_that_of_the_weighted_log_likelihood():
    given = terms()
    loss_value("importance_sampling", given).total.backward()
    expected = [-math.exp(new - old) * a for new, old, a in zip(NEW, OLD, ADVANTAGES, strict=True)]
    assert given.logprobs.grad is not None
    assert given.logprobs.grad.tolist() == pytest.approx(expected, rel=1e-5)


def test_cispo_has_a_gradient_where_the_ratio_is_clipped_and_ppo_has_none():
    clipped_gains = [1, 4]  # ratio 0.6 and advantage 1 is kept by ppo; 0.14 and advantage -2 is clipped
    for loss, expected in {"ppo": [True, False], "cispo": [True, True]}.items():
        given = terms()
        loss_value(loss, given).total.backward()
        assert given.logprobs.grad is not None
        assert [given.logprobs.grad[index].item() != 0 for index in clipped_gains] == expected


def test_thresholds_may_be_given_for_each_token():
    wide = {"clip_low_threshold": torch.zeros(6), "clip_high_threshold": torch.full((6,), 9.0)}
    total = loss_value("ppo", terms(**wide)).total.item()
    assert total == pytest.approx(loss_value("importance_sampling", terms()).total.item(), rel=1e-6)
    assert loss_value("ppo", terms(**wide)).clipped == 0
    assert loss_value("ppo", terms()).clipped == 4


def test_the_ratio_of_gspo_is_over_its_mask():
    mask = torch.tensor([1.0, 0, 0, 1.0, 1.0, 0])
    value = loss_value("gspo", terms(sequence_ratio_mask=mask, clip_low_threshold=0, clip_high_threshold=9))
    ratios = [math.exp(0.2), math.exp((0.8 - 2.0) / 2)]
    assert value.total.item() == pytest.approx(-3 * ratios[0] + 6 * ratios[1], rel=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_are_finite_for_probabilities_far_apart(loss: str):
    inputs = {
        "logprobs": torch.tensor([-200.0, 0.0]),
        "advantages": torch.tensor([1.0, 0.0]),
        "weights": torch.ones(2),
    }
    new = torch.tensor([-1e-3, -300.0], requires_grad=True)
    loss_value(loss, LossTerms(new, inputs, torch.tensor([0, 1]), {})).total.backward()
    assert new.grad is not None
    assert bool(new.grad.isfinite().all())


def row(**changes: Tensor) -> Datum:
    inputs = {
        "target_tokens": torch.tensor([2, 3, 4]),
        "logprobs": torch.zeros(3),
        "advantages": torch.ones(3),
    }
    return Datum([1, 2, 3], {**inputs, **changes})


@pytest.mark.parametrize(
    ("datum", "loss", "config", "words"),
    [
        (row(), "hinge", {}, "'hinge' is not supported here; there are cross_entropy"),
        (row(), "ppo", {"clip": 1.0}, "no option 'clip'; its options: clip_low_threshold"),
        (row(), "ppo", {"clip_low_threshold": "x"}, "must be a finite number"),
        (row(), "cross_entropy", {}, "'logprobs', which the loss does not use"),
        (Datum([1], {"target_tokens": torch.tensor([1])}), "ppo", {}, "datum 0 has no 'logprobs'"),
        (row(advantages=torch.ones(2)), "ppo", {}, "advantages of datum 0 has 2 entries, but the row has 3"),
        (row(target_tokens=torch.tensor([1, 2, 61])), "ppo", {}, "token 61"),
        (row(target_tokens=torch.ones(3, 0).long()), "ppo", {}, "0 targets a token; give 1 to 61"),
        (row(target_tokens=torch.ones(3, 62).long()), "ppo", {}, "62 targets a token"),
        (row(target_tokens=torch.tensor([1.0, 2, 3])), "ppo", {}, "must be integers"),
        (row(advantages=torch.tensor([1.0, math.nan, 1])), "ppo", {}, "advantages of datum 0 .* not finite"),
        (row(logprobs=torch.ones(3, 2)), "ppo", {}, "shape"),
        (Datum([99], row().inputs), "ppo", {}, "token 99"),
        (Datum([], row().inputs), "ppo", {}, "0 tokens"),
    ],
)
def test_a_wrong_datum_is_refused_in_one_sentence(
    transformer: Transformer, datum: Datum, loss: str, config: dict[str, Any], words: str
):
    with pytest.raises(ValueError, match=words):
        check_datums(transformer.config, [datum], loss, config)


def test_datums_of_one_call_have_the_same_inputs(transformer: Transformer):
    with pytest.raises(ValueError, match="datum 1 has other inputs"):
        check_datums(transformer.config, [row(), row(clip_low_threshold=torch.ones(3))], "ppo", {})
    with pytest.raises(ValueError, match="no datums"):
        check_datums(transformer.config, [], "ppo", {})
