"""PickLetter and Addition: their prompts, which replies are right, what is held out."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

import envweave_gym
from envweave_gym import InvalidAction, InvalidArgument, messages_of, parse_action
from envweave_gym.envs.toy.addition import AdditionEnv, sums
from envweave_gym.envs.toy.pick_letter import PickLetterEnv

LETTER, ADDITION = "envweave/PickLetter-v0", "envweave/Addition-v0"
SUM = re.compile(r"Q: (\d+)\+(\d+)=\nA:(?: (\d+)\n)?")


def sums_in(prompt: str) -> list[tuple[int, int, str]]:
    """The sums of a prompt, with their results; the last one has none."""
    assert "".join(match[0] for match in SUM.finditer(prompt)) == prompt
    return [(int(a), int(b), result) for a, b, result in SUM.findall(prompt)]


@pytest.mark.parametrize("core", [PickLetterEnv, AdditionEnv])
def test_the_plain_classes_pass_gymnasiums_checker(core: Any) -> None:
    check_env(core(), skip_render_check=True)


@pytest.mark.parametrize("env_id", [LETTER, ADDITION])
def test_the_prompt_is_observation_message_and_picture(env_id: str) -> None:
    env = gym.make(env_id, render_mode="ansi")
    prompt, info = env.reset(seed=3)
    assert messages_of(info) == [{"role": "user", "content": prompt}]
    assert env.render() == prompt


# PickLetter


def test_every_letter_is_asked_for_and_only_it_is_paid() -> None:
    env = gym.make(LETTER)
    for index, letter in enumerate("ABCD"):
        for action in range(4):
            prompt, info = env.reset(options={"index": index})
            assert (prompt, info["index"]) == (f"pick {letter}", index)
            _, reward, terminated, truncated, info = env.step(action)
            assert (reward, terminated, truncated) == (float(action == index), True, False)
            assert info["correct"] == (action == index)


def test_letters_are_drawn_from_the_seed_each_as_often() -> None:
    env = gym.make(LETTER)
    drawn = [env.reset(seed=seed)[0] for seed in range(400)]
    assert drawn == [env.reset(seed=seed)[0] for seed in range(400)]
    assert all(70 <= times <= 130 for times in Counter(drawn).values())


@pytest.mark.parametrize(("reply", "action"), [("B", 1), (" b\n", 1), ("I pick C.", 2), ("Answer: D", 3)])
def test_a_reply_names_its_letter(reply: str, action: int) -> None:
    assert parse_action(gym.make(LETTER), reply) == action


@pytest.mark.parametrize("reply", ["", "E", "A or B", "pick"])
def test_a_reply_without_one_letter_is_no_action(reply: str) -> None:
    with pytest.raises(InvalidAction, match=LETTER):
        parse_action(gym.make(LETTER), reply)


# Addition


def test_solved_sums_are_right_and_do_not_give_the_result_away() -> None:
    env = gym.make(ADDITION)
    for seed in range(200):
        *solved, (a, b, nothing) = sums_in(env.reset(seed=seed)[0])
        assert [int(result) for _, _, result in solved] == [one + other for one, other, _ in solved]
        assert (len(solved), nothing) == (3, "")
        assert a + b not in [int(result) for _, _, result in solved]
        assert {*range(10, 50)} >= {a, b, *(number for one in solved for number in one[:2])}


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        ("{}", 1.0),
        (" {}\nQ: 1+1=", 1.0),
        ("{}.", 0.0),
        ("0{}", 0.0),
        ("it is {}", 0.0),
        ("\n{}", 0.0),
        ("", 0.0),
    ],
)
def test_the_first_line_of_a_reply_must_be_the_result_alone(reply: str, reward: float) -> None:
    env = gym.make(ADDITION)
    prompt, _ = env.reset(seed=5)
    a, b, _ = sums_in(prompt)[-1]
    _, paid, terminated, truncated, info = env.step(parse_action(env, reply.format(a + b)))
    assert (paid, terminated, truncated, info["correct"]) == (reward, True, False, reward == 1.0)


def test_test_sums_are_in_no_train_prompt_in_either_order() -> None:
    train, test = (envweave_gym.make(ADDITION, split=split) for split in ("train", "test"))
    held_out = {
        frozenset(sums_in(test.reset(options=options)[0])[-1][:2]) for options in envweave_gym.epoch(test)
    }
    shown = {
        frozenset(one[:2])
        for options in envweave_gym.epoch(train)
        for one in sums_in(train.reset(options=options)[0])
    }
    assert not held_out & shown
    assert len(held_out) + len(shown) == 40 * 41 // 2
    assert 0.15 < len(held_out) / len(shown) < 0.35


def test_the_smallest_ranges_have_sums_in_both_splits() -> None:
    assert all(sums(low, low + 9, split) for low in range(991) for split in ("train", "test"))


def test_shots_and_numbers_can_be_chosen() -> None:
    env = gym.make(ADDITION, shots=0, low=990, high=999)
    ((a, b, _),) = sums_in(env.reset(seed=1)[0])
    assert min(a, b) >= 990
    longest = gym.make(ADDITION, shots=64, low=900, high=999)
    prompt, _ = longest.reset(seed=1)
    assert len(sums_in(prompt)) == 65
    assert prompt in longest.observation_space


def test_all_prompts_can_have_the_same_solved_sums() -> None:
    env = gym.make(ADDITION, same_examples=True)
    prompts = [sums_in(env.reset(options={"index": index})[0]) for index in range(300)]
    examples, counted = Counter(tuple(prompt[:-1]) for prompt in prompts).most_common(1)[0]
    assert counted > 250
    for *solved, (a, b, _) in prompts:
        assert tuple(solved) == examples or str(a + b) in {result for *_, result in examples}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"split": "all"}, "split='all' is unknown; there are 'train' and 'test'"),
        ({"shots": -1}, "shots=-1 is no number of solved sums; give an int from 0 to 64"),
        ({"high": 1000}, "high=1000 is no largest number to add"),
        ({"same_examples": "yes"}, "same_examples='yes' is no bool; give True or False"),
        ({"low": 45}, "low=45 and high=49 leave too few sums; give high >= low [+] 9"),
    ],
)
def test_arguments_that_describe_no_sums_are_refused(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{ADDITION}: {problem}"):
        envweave_gym.make(ADDITION, **arguments)
