"""GSM8K with options: which wrong ones there are, that only solving finds the right one, and what it pays."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import gymnasium as gym
import pytest
from gsm8k_rows import SYNTHETIC, all_real_rows

import envweave_gym
from envweave_gym.data.gsm8k import Problem
from envweave_gym.envs.gsm8k.number_answers import numbers_in, read_number
from envweave_gym.envs.gsm8k.number_distractors import options_of
from envweave_gym.episode.message import messages_of
from envweave_gym.episode.stream import EventKind, stream_of

ID = "envweave/GSM8KMCQ-v0"


def made(**kwargs: Any) -> gym.Env[Any, Any]:
    return gym.make(ID, **{"dataset": "synthetic", **kwargs})


def value(option: str) -> Fraction:
    number = read_number(option)
    assert number is not None
    return number


# The options


def expect_four_numbers_alike(rows: list[Problem]) -> None:
    for row in rows:
        right, wrong = options_of(row)
        values = [value(option) for option in (right, *wrong)]
        assert value(right) == value(row.final)
        assert len(wrong) == 3
        assert len(set(values)) == 4
        for option, number in zip(wrong, values[1:], strict=True):
            assert option.partition(".")[2].isdecimal() == right.partition(".")[2].isdecimal()
            assert len(option.partition(".")[2]) == len(right.partition(".")[2])
            assert ("," in option) == ("," in right and abs(number) >= 1000)
            assert values[0] < 0 or number >= 0


def test_options_are_four_numbers_written_alike() -> None:
    expect_four_numbers_alike(SYNTHETIC)


def test_options_of_real_problems_are_four_numbers_written_alike() -> None:
    expect_four_numbers_alike(all_real_rows())


@pytest.mark.parametrize(
    ("solution", "slips"),
    [
        ("<<48/2=24>>24\n<<48+24=72>>72\n#### 72", {24, 1152, 2, 96, 48, 144, 720, 36}),
        ("<<5*3=15>>15\n<<100-15-20=65>>65\n#### 65", {15, 80, 85, 50, 130, 650, 64}),
        ("<<30/60=0.5>>0.5\n<<0.5*50=25>>25\n#### 25", {50, 250, 26, 24, 23, 22}),
        ("<<13-28=-15>>-15\n<<-15+8=-7>>-7\n#### -7", {-15, 23, -120, -22, 8, -14, -70, -6, -5, -8}),
    ],
)
def test_wrong_options_are_what_slips_lead_to(solution: str, slips: set[int]) -> None:
    found: set[Fraction] = set()
    for wording in range(60):
        found.update(
            value(option) for option in options_of(Problem(f"How many {'?' * wording}", solution))[1]
        )
    assert found <= slips
    assert len(found) >= 6


@pytest.mark.parametrize(
    ("final", "alike"),
    [
        ("0", str.isdigit),
        ("1", str.isdigit),
        ("2", str.isdigit),
        ("10,000", lambda option: "," in option or int(option) < 1000),
        ("-3", lambda option: option.lstrip("-").isdigit()),
        ("4.50", lambda option: len(option.partition(".")[2]) == 2),
        ("3/4", lambda option: option.endswith("/4")),
        ("1 1/2", lambda option: option.endswith("/2")),
        ("$5", str.isdigit),
        ("1e3", str.isdigit),
    ],
)
def test_options_have_the_form_of_the_result_whatever_the_solution_says(
    final: str, alike: Callable[[str], bool]
) -> None:
    for wording in range(30):
        right, wrong = options_of(Problem(f"How many? {'?' * wording}", f"#### {final}"))
        assert value(right) == value(final)
        assert all(map(alike, (right, *wrong)))
        assert len({value(option) for option in (right, *wrong)}) == 4


def test_options_are_a_function_of_the_problem_and_their_order_of_the_seed() -> None:
    env = made()
    seen = set()
    for seed in range(40):
        shown, info = env.reset(seed=seed, options={"index": 5})
        assert info["index"] == 5
        lines = [line for line in shown.splitlines() if line[1:3] == ". "]
        seen.add(tuple(line[3:] for line in lines))
    assert len(seen) > 15
    assert len({frozenset(options) for options in seen}) == 1
    right, wrong = options_of(SYNTHETIC[5])
    assert frozenset((right, *wrong)) in {frozenset(options) for options in seen}


def positions(env: gym.Env[Any, Any], indexes: range) -> Counter[int]:
    core: Any = env.unwrapped
    found: Counter[int] = Counter()
    for index in indexes:
        env.reset(seed=index, options={"index": index})
        found[core.question.right] += 1
    return found


def chi_square(found: Counter[int]) -> float:
    expected = found.total() / 4
    return sum((found[place] - expected) ** 2 / expected for place in range(4))


def test_the_right_option_stands_anywhere_as_often() -> None:
    assert chi_square(positions(made(), range(4096))) < 11.3  # one in a hundred is larger by chance


def test_the_right_option_of_real_problems_stands_anywhere_as_often() -> None:
    all_real_rows()
    found = Counter[int]()
    for split, size in (("train", 7473), ("test", 1319)):
        found += positions(gym.make(ID, split=split), range(size))
    assert found.total() == 8792
    assert chi_square(found) < 11.3


# Solvers that solve nothing: what each likes in an option, given all of them and the numbers of the question


Numbers = list[int | float]


def plain(number: Fraction) -> int | float:
    """A number that is quick to reckon with."""
    return int(number) if number.denominator == 1 else float(number)


def _nearest_asked(option: float, asked: Numbers) -> float:
    return min((abs(option - one) / (abs(one) + 1) for one in asked), default=0.0)


def _zeros(option: float) -> int:
    return len(str(option)) - len(str(option).rstrip("0"))


SOLVERS: dict[str, Callable[[Numbers, int, Numbers], float]] = {
    "size": lambda options, i, asked: options[i],
    "second": lambda options, i, asked: sorted(options).index(options[i]) == 1,
    "third": lambda options, i, asked: sorted(options).index(options[i]) == 2,
    "near the median": lambda options, i, asked: -abs(options[i] - statistics.median(options)),
    "near the mean": lambda options, i, asked: -abs(options[i] - sum(options) / 4),
    "near another": lambda options, i, asked: (
        -min(float(abs(options[i] - one)) for j, one in enumerate(options) if j != i)
    ),
    "asked": lambda options, i, asked: options[i] in asked,
    "near what is asked": lambda options, i, asked: -_nearest_asked(options[i], asked),
    "a step from others": lambda options, i, asked: sum(abs(options[i] - one) in asked for one in options),
    "round": lambda options, i, asked: _zeros(options[i]),
    "long": lambda options, i, asked: len(str(options[i])),
    "even": lambda options, i, asked: options[i] % 2 == 0,
}


def accuracies(rows: list[Problem]) -> dict[str, float]:
    """How often each solver and its inverse find the right option, sharing what they cannot decide."""
    found: Counter[str] = Counter()
    for row in rows:
        right, wrong = options_of(row)
        options = [plain(value(option)) for option in (right, *wrong)]
        asked = [plain(number) for number in numbers_in(row.question)]
        for name, likes in SOLVERS.items():
            scores = [likes(options, i, asked) for i in range(4)]
            for which, best in ((name, max(scores)), (f"not {name}", min(scores))):
                found[which] += (scores[0] == best) / scores.count(best)
    return {name: hits / len(rows) for name, hits in found.items()}


def test_trivial_solvers_find_little_among_generated_problems() -> None:
    assert {name: found for name, found in accuracies(SYNTHETIC[::4]).items() if found > 0.36} == {}


def test_trivial_solvers_find_little_among_real_problems() -> None:
    found = accuracies(all_real_rows())
    assert {name: share for name, share in found.items() if share > 0.36} == {}
    for rank in ("size", "not size", "second", "third"):
        assert 0.23 < found[rank] < 0.27


# An episode


def place_of(env: gym.Env[Any, Any]) -> int:
    core: Any = env.unwrapped
    return core.question.right


def test_the_prompt_is_the_observation_and_travels_as_a_message() -> None:
    text, info = made().reset(seed=1)
    chat, _ = made(observation="chat").reset(seed=1)
    assert chat == messages_of(info) == [{"role": "user", "content": text}]
    assert text.startswith(SYNTHETIC[info["index"]].question + "\n\nA. ")
    assert text.endswith("\n\nAnswer with one letter: A, B, C or D.")


@pytest.mark.parametrize(("reward", "pay"), [("dense", (1.0, 0.1, 0.0)), ("sparse", (1.0, 0.0, 0.0))])
def test_right_wrong_and_malformed_are_paid_as_the_documents_say(
    reward: str, pay: tuple[float, float, float]
) -> None:
    env = made(action="text", reward=reward)
    for seed in range(8):
        env.reset(seed=seed)
        place = place_of(env)
        letters = "ABCD"[place], "ABCD"[place - 1]
        replies = (f"The answer is {letters[0]}.", f"{letters[1]})", "A or B", "72", "")
        for reply, earned in zip(replies, (*pay, pay[2], pay[2]), strict=True):
            _, info = env.reset(seed=seed)
            _, got, terminated, truncated, info = env.step(reply)
            assert (got, terminated, truncated) == (earned, True, False)
            assert info["correct"] == (reply == replies[0])
            assert (info["chosen"] >= 0) == (reply in replies[:2])
            (reported,) = stream_of(info).of_kind(EventKind.METRICS)
            assert reported.data == {"correct": int(info["correct"]), "formatted": int(info["chosen"] >= 0)}


def test_an_index_chooses_an_option_and_a_reply_is_read_as_one() -> None:
    env = made()
    for action in range(4):
        env.reset(seed=2)
        assert envweave_gym.parse_action(env, f"The answer is {'ABCD'[action]}.") == action
        assert env.step(action)[1] == (1.0 if action == place_of(env) else 0.1)
    env.reset(seed=2)
    with pytest.raises(envweave_gym.InvalidAction, match="A, B, C or D"):
        envweave_gym.parse_action(env, "72")
    with pytest.raises(envweave_gym.InvalidAction, match=ID):
        env.step(4)


def test_the_right_option_is_hidden_before_the_step() -> None:
    env = made(render_mode="ansi")
    shown, info = env.reset(seed=3)
    assert set(info) == {"index", "split", "stream", "seq"}
    assert env.render() == shown
    assert set(envweave_gym.state_of(env)) == {"episode", "step_count", "tasks", "index", "split", "dataset"}


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"action": "letter"}, "there are 'index' and 'text'"),
        ({"reward": "shaped"}, "there are 'dense' and 'sparse'"),
        ({"observation": "tokens"}, "there are 'text' and 'chat'"),
        ({"split": "dev"}, "gsm8k has 'train', 'test'"),
        ({"options": 5}, "takes no argument 'options'"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(kwargs: dict[str, Any], said: str) -> None:
    with pytest.raises(envweave_gym.InvalidArgument, match=said):
        made(**kwargs)


def test_a_result_that_is_no_number_is_an_error_when_it_is_read(tmp_path: Any) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "Who?", "answer": "#### Natalia"}\n')
    env = made(dataset=str(path))
    with pytest.raises(
        envweave_gym.InvalidArgument, match="problem 0: the result 'Natalia' is no number; give"
    ):
        env.reset(seed=0)
