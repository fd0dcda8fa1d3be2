"""Questions with options: what a reply chose, and where the right one stands."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from envweave_gym.core.faults import InvalidAction
from envweave_gym.envs.tasks.option_letters import lettered, letters_of, read_letter, shuffled

CHOSEN = {
    "B": "B",
    "b": "B",
    " (c). ": "C",
    "**D**": "D",
    "A) x": "A",
    "B. django/db.py": "B",
    "It is B": "B",
    "The right one is C, django/x.py": "C",
    "A good choice is B": "B",
    "I'd go with D": "D",
    "the best option is A": "A",
    "Answer: B": "B",
    "answer=B": "B",
    "ANSWER: D": "D",
    "Answer:\nD": "D",
    "**Answer:** D": "D",
    "**Answer: (D)**": "D",
    "The answer: `B`": "B",
    "The answer is B.": "B",
    "answer is (b)": "B",
    "I would select B.": "B",
    "I choose option C": "C",
    "My choice: c": "C",
    "\\boxed{C}": "C",
    "$\\boxed{\\text{C}}$": "C",
    "<answer> d </answer>": "D",
    "I think of A, then of C.\nC is near.\n\nB": "B",
    "A is wrong, so answer: B": "B",
    "Answer: A. Wait, no. Answer: C": "C",
    "Answer: B because C is bad": "B",
}
IN_DOUBT = (
    *("", "E", "2", "72", "Bravo", "I choose a file", "Answer: a function", "C++", "Option B or C"),
    *("A or B", "Answer: A or B", "Answer: A, B", "The answer is not B", "It can't be B"),
)


@pytest.mark.parametrize(("reply", "letter"), CHOSEN.items())
def test_a_reply_chooses_the_letter_it_states(reply: str, letter: str) -> None:
    assert "ABCD"[read_letter(reply, 4)] == letter


@pytest.mark.parametrize("reply", IN_DOUBT)
def test_a_reply_in_doubt_is_refused_with_the_letters_there_are(reply: str) -> None:
    with pytest.raises(InvalidAction, match="answer with one of A, B, C or D"):
        read_letter(reply, 4)


def test_a_letter_beyond_the_options_is_none() -> None:
    assert read_letter("Answer: C", 3) == 2
    with pytest.raises(InvalidAction, match="A or B"):
        read_letter("Answer: C", 2)


def test_an_invalid_text_is_refused() -> None:
    with pytest.raises(InvalidAction, match="int"):
        read_letter(2, 4)  # pyright: ignore[reportArgumentType]


def test_the_right_option_stands_anywhere_as_often() -> None:
    places = Counter(shuffled("right", ["x", "y", "z"], key)[1] for key in range(4000))
    assert set(places) == {0, 1, 2, 3}
    assert all(900 < times < 1100 for times in places.values())


def test_the_order_of_wrong_options_varies_too() -> None:
    orders = Counter(
        tuple(option for option in shuffled("right", ["x", "y", "z"], key)[0] if option != "right")
        for key in range(600)
    )
    assert len(orders) == 6
    assert min(orders.values()) > 60


def test_placing_is_decided_by_the_key() -> None:
    assert shuffled("right", ["x", "y"], 7) == shuffled("right", ["x", "y"], 7)
    options, place = shuffled("right", ["x", "y"], 7)
    assert options[place] == "right"
    assert sorted(options) == ["right", "x", "y"]


def test_options_are_lines_with_letters() -> None:
    assert lettered(["one", "two"]) == "A. one\nB. two"
    assert letters_of(4) == "A, B, C or D"


@pytest.mark.parametrize("piece", ["\n", "\n*", "\n ", "`\n"])
def test_a_long_reply_is_read_in_time_that_grows_with_it(piece: str) -> None:
    def seconds(size: int) -> float:
        text = piece * (size // len(piece)) + "?"
        begun = time.process_time()
        with pytest.raises(InvalidAction):
            read_letter(text, 2)
        return time.process_time() - begun

    assert seconds(1 << 16) < 60 * max(seconds(1 << 12), 0.005)
