"""Token rows as datums of the SDK: shifted targets, advantages on sampled tokens alone, centred groups."""

import numpy as np
import pytest
from absent import needs_module

from envweave_gym.training.tinker.datums import (
    TokenRow,
    TrainingRow,
    centred,
    in_parts,
    mean_reply_logprob,
    with_entropy_bonus,
)
from envweave_gym.training.tinker.learner import Step
from envweave_gym.training.tinker.tinker_options import TinkerOptions
from envweave_gym.training.tinker.update_metrics import step_metrics


def two_turns() -> TokenRow:
    row = TokenRow()
    row.add_prompt([1, 2, 3])
    row.add_reply([4, 5], [-0.5, -1.5])
    row.add_prompt([6])
    row.add_reply([7], [-2.0])
    return row


def test_two_turns_are_one_datum_with_advantages_on_sampled_tokens_alone():
    needs_module("tinker", "tinker")
    datum = TrainingRow(two_turns(), (0.5, -1.0)).datum()
    assert datum.model_input.to_ints() == [1, 2, 3, 4, 5, 6]
    inputs = {name: value.to_numpy().tolist() for name, value in datum.loss_fn_inputs.items()}
    assert inputs == {
        "target_tokens": [2, 3, 4, 5, 6, 7],
        "logprobs": [0.0, 0.0, -0.5, -1.5, 0.0, -2.0],
        "advantages": [0.0, 0.0, 0.5, 0.5, 0.0, -1.0],
    }
    assert datum.loss_fn_inputs["target_tokens"].dtype == "int64"
    assert datum.loss_fn_inputs["advantages"].dtype == "float32"


def test_the_mask_marks_the_targets_that_were_sampled():
    assert TrainingRow(two_turns(), (0.0, 0.0)).mask().tolist() == [False, False, True, True, False, True]


def test_the_tokens_after_the_last_reply_are_cut_off():
    row = two_turns()
    row.add_prompt([8, 9])
    assert row.until_last_reply() == two_turns()
    assert row.sampled == 3


@pytest.mark.parametrize("rewards", [[], [0.1] * 7, [1 / 3 + 1e-17] * 3])
def test_equal_rewards_have_advantages_of_exactly_zero(rewards: list[float]):
    assert centred(rewards) == [0.0] * len(rewards)


def test_advantages_are_the_rewards_less_their_mean():
    assert centred([1.0, 0.0, 0.0, 1.0]) == [0.5, -0.5, -0.5, 0.5]
    assert np.isclose(sum(centred([0.3, 0.9, 0.2])), 0)


def test_the_entropy_bonus_favours_replies_that_are_less_probable_than_the_mean():
    row = two_turns()
    assert mean_reply_logprob([row]) == -2.0
    likely, unlikely = TokenRow(), TokenRow()
    likely.add_reply([1], [-0.1])
    unlikely.add_reply([2], [-3.1])
    mean = mean_reply_logprob([likely, unlikely])
    assert with_entropy_bonus(likely, 1.0, 0.5, mean).advantages == pytest.approx([1.0 - 0.75])
    assert with_entropy_bonus(unlikely, 1.0, 0.5, mean).advantages == pytest.approx([1.0 + 0.75])
    assert with_entropy_bonus(unlikely, 1.0, 0.0, mean).advantages == (1.0,)


def test_steps_of_an_update_train_whole_groups():
    rows = [TrainingRow(two_turns(), (float(member),) * 2, group) for group in (0, 2, 3) for member in (0, 1)]
    assert [[row.group for row in part] for part in in_parts(rows, 2)] == [[0, 0, 3, 3], [2, 2]]
    assert [len(part) for part in in_parts(rows, 5)] == [2, 2, 2]
    assert in_parts([], 2) == []


def test_the_kl_is_that_of_first_steps_alone_however_many_steps_there_are():
    row = TrainingRow(two_turns(), (1.0, 1.0))
    near, far = np.array([0, 0, -0.5, -1.5, 0, -2.0]), np.array([0, 0, -9.5, -9.5, 0, -9.0])
    steps = [Step([row], [near]), Step([row], [far], is_first=False)]
    assert step_metrics(steps, TinkerOptions())["kl"] == 0
    assert step_metrics(steps, TinkerOptions(substeps=3))["kl"] == 0
