"""Replies that name an action: read where they leave no doubt, else a ``ValueError``."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pettingzoo
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envweave_gym
from envweave_gym.core.faults import InvalidAction
from envweave_gym.core.reply_parsing import parse_action, read_name
from envweave_gym.envs.codefix.generator import OPERATORS

CODEFIX, LINE = "envweave/CodeFix-v0", "envweave/LineWorld-v0"
KUHN, REVIEW, RACE = "envweave/KuhnPoker-v0", "envweave/CodeReview-v0", "envweave/LineRace-v0"
BOTH = {"left": 0, "right": 1, "0": 0, "1": 1}


@pytest.mark.parametrize(
    "reply",
    [
        "<=",
        " `<=`\n",
        "**<=**",
        "**`<=`**.",
        "“<=”",
        "(<=)",
        "```\n<=\n```",
        "The answer is `<=`",
        "The answer is `<=`.",
        "**The answer is <=**",
        "Answer: <=",
        "I choose <=.",
        "I'd choose <=!",
        "I\u2019d use <= instead.",
        "<= is the correct operator.",
        "6",
        "The answer is 6.",
        "The count must not exceed k. So the operator should be `<=`.",
        "Use `<=` there.",
        "Put `<=` in the marked line.",
        "<think>`<` or `>`?</think>\n`<=`",
        "The operator is <= because the docstring says 'at most'.",
        "A short proof follows:\nno more than k\n\nAnswer: **<=**",
    ],
)
def test_an_operator_is_read_in_whatever_way_it_is_said(reply: str) -> None:
    assert OPERATORS[parse_action(gym.make(CODEFIX), reply)] == "<="


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(
    "reply", ["{}", "`{}`", "*{}*", "**{}**", "**`{}`**", "'{}'.", "It is {}.", "Use {}!"]
)
def test_every_operator_survives_markdown(operator: str, reply: str) -> None:
    assert OPERATORS[parse_action(gym.make(CODEFIX), reply.format(operator))] == operator


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "\n",
        ".",
        "**",
        "=<",
        "=",
        "11",
        "²",
        "hm",
        "The answer is",
        "+ -",
        "< or <=",
        "Not < but <=.",
        "`-` is wrong. The answer is `+`.",
        "It is not <=.",
        "<= is wrong",
        "Anything but <=",
        "<=?",
        "Is it <=?",
        "Hmm - not sure",
        "I am 100 % sure",
        "return a <= b",
        "```python\ndef f(a, b):\n    return a <= b\n```",
        "6 (<)",
    ],
)
def test_junk_and_doubt_about_an_operator_are_refused(reply: str) -> None:
    with pytest.raises(
        InvalidAction, match=r"names no operator, or more than one; answer with one of \+ - "
    ) as caught:
        parse_action(gym.make(CODEFIX), reply)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("left", 0),
        ("Right", 1),
        ("LEFT!", 0),
        ("**right**", 1),
        ("I go left.", 0),
        ("Let's move to the right.", 1),
        ("I take action 1 (right).", 1),
        ("The wall is near. I go right because the goal is there.", 1),
        (" 1 ", 1),
        ("`0`", 0),
    ],
)
def test_replies_to_lineworld_name_a_direction(reply: str, action: int) -> None:
    race = pettingzoo.make("parallel", RACE)
    for env, agent in (
        (gym.make(LINE), None),
        (gym.make_vec(LINE, num_envs=2), None),
        (gym.make_vec(LINE, num_envs=2, vectorization_mode="sync"), None),
        (race, "runner_1"),
        (pettingzoo.make("aec", RACE), "runner_2"),
    ):
        assert parse_action(env, reply, agent) == action


@pytest.mark.parametrize(
    "reply",
    [
        "up",
        "2",
        "-1",
        "left or right",
        "There are two cells left",
        "That's not right",
        "left, I mean right",
        "0 (right)",
    ],
)
def test_a_walker_is_not_sent_anywhere_in_doubt(reply: str) -> None:
    with pytest.raises(
        InvalidAction, match="names no action, or more than one; answer with one of left right, or"
    ):
        parse_action(gym.make(LINE), reply)


def moves(*replies: str, before: tuple[int, ...] = ()) -> list[Any]:
    """What Kuhn poker makes of these replies after some moves; ``None`` where it refuses."""
    game = pettingzoo.make("aec", KUHN)
    game.reset(seed=0)
    for action in before:
        game.step(action)
    read: list[Any] = []
    for reply in replies:
        try:
            read.append(parse_action(game, reply, game.agent_selection))
        except InvalidAction:
            read.append(None)
    return read


def test_a_poker_player_says_its_move() -> None:
    assert moves("bet", "I bet.", "Check", "I'll pass.", "**bet**", "1", "I bet 1.") == [1, 1, 0, 0, 1, 1, 1]
    assert moves("call", "I fold.", "pass", "I bet.", "I call the bet.", "0", before=(1,)) == [
        1,
        0,
        0,
        1,
        1,
        0,
    ]
    assert moves("I call!", "fold", before=(0, 1)) == [1, 0]


def test_a_move_that_is_not_open_now_is_refused() -> None:
    assert moves("call", "fold", "raise", "bet or check", "I would not bet", "2", "") == [None] * 7
    assert moves("check", "raise", "call or fold", before=(1,)) == [None] * 3


def test_author_and_reviewer_say_what_they_want() -> None:
    game = envweave_gym.make(REVIEW)
    assert parse_action(game, "The fix is **<=**.", "author_0") == OPERATORS.index("<=")
    assert [parse_action(game, reply, "reviewer_0") for reply in ("I accept.", "Looks good to me!", "0")] == [
        0
    ] * 3
    for reply in ("Use <= instead.", "7", "`<=`"):
        assert parse_action(game, reply, "reviewer_0") == 1 + OPERATORS.index("<=")
    for reply in ("I do not accept.", "accept, or use <=", "12", "I accept <="):
        with pytest.raises(InvalidAction, match="names no verdict, or more than one"):
            parse_action(game, reply, "reviewer_0")


@pytest.mark.parametrize("reply", [None, 3, b"left", ["left"]])
def test_a_name_is_read_out_of_text(reply: Any) -> None:
    with pytest.raises(InvalidAction, match=f"from text, not from {type(reply).__name__}"):
        parse_action(gym.make(LINE), reply)


WORDS = [
    "left",
    "right",
    "not",
    "I",
    "go",
    "**",
    "`",
    "'",
    ".",
    "\n",
    " ",
    ",",
    "?",
    "0",
    "1",
    "-",
    "because",
    "\u2019",
]


@given(st.text(max_size=40) | st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join))
@settings(deadline=None, derandomize=True, max_examples=300)
def test_any_text_is_an_action_or_a_value_error(text: str) -> None:
    try:
        action = read_name(text, BOTH)
    except ValueError:
        return
    assert action in (0, 1)
    assert any(name in text.casefold() for name, meant in BOTH.items() if meant == action)
