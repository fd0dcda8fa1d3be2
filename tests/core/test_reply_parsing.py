"""Replies to environments and spaces: never anything but an action or a ``ValueError``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Space,
    Text,
    Tuple,
)
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.utils import BaseParallelWrapper, BaseWrapper
from pettingzoo.utils.conversions import aec_to_parallel, parallel_to_aec
from plain_envs import Compass, Duel, Steps, Turns, wrapped
from text_envs import WORDS, RepeatEnv, same

import envweave_gym as ew
from envweave_gym.core.faults import InvalidAction, InvalidArgument, shown
from envweave_gym.core.reply_parsing import parse_action, read_action
from envweave_gym.core.spaces import Chat, Json, Unicode
from envweave_gym.core.thinking import without_thinking
from envweave_gym.envs.games import kuhn_poker, line_race
from envweave_gym.wrappers import AECStream, ParallelStream

steady = settings(deadline=None, derandomize=True)


@pytest.mark.parametrize("form", [None, "sync"])
def test_every_vector_of_codefix_reads_operators(form: Any) -> None:
    envs = gym.make_vec("envweave/CodeFix-v0", num_envs=2, vectorization_mode=form)
    single = gym.make("envweave/CodeFix-v0")
    for reply in ("<=", " `//` ", "3"):
        assert parse_action(envs, reply) == parse_action(single, reply)
    with pytest.raises(InvalidAction, match="'left' names no operator"):
        parse_action(envs, "left")


# Replies to an environment


def test_replies_are_read_through_wrappers() -> None:
    assert parse_action(wrapped(Steps(Discrete(3))), " 2\n") == 2
    assert parse_action(wrapped(Steps(Unicode(9))), WORDS[:9]) == WORDS[:9]
    assert parse_action(wrapped(Steps(Dict({"delta": Discrete(21, start=-10)}))), '{"delta": -3}') == {
        "delta": -3
    }


def test_the_own_parser_of_an_environment_is_found_under_wrappers() -> None:
    for env in (
        Compass(),
        wrapped(Compass()),
        SyncVectorEnv([Compass]),
        gym.wrappers.vector.DictInfoToList(twins()),
    ):
        assert parse_action(env, "south") == 1
        with pytest.raises(ValueError, match="tuple"):
            parse_action(env, "1")


def twins() -> SyncVectorEnv:
    return SyncVectorEnv([Compass, Compass])


def test_a_parser_given_to_one_instance_counts_and_inherited_ones_too() -> None:
    env = Steps(Discrete(2))
    env.parse_action = lambda text, agent: len(text)
    assert parse_action(wrapped(env), "x") == 1

    class Reversed(Compass):
        words = ("south", "north")

    assert parse_action(Reversed(), "south") == 0


def test_a_wrapper_may_read_replies_for_what_it_wraps() -> None:
    class Polite(gym.ActionWrapper[Any, Any, Any]):
        def action(self, action: Any) -> Any:
            return action

        def parse_action(self, text: str, agent: str | None = None) -> Any:
            return self.env.unwrapped.parse_action(text.removesuffix(", please"))

    assert parse_action(gym.wrappers.TimeLimit(Polite(Compass()), 3), "south, please") == 1


def test_a_vector_reads_an_action_for_one_of_its_environments() -> None:
    envs = SyncVectorEnv([lambda: Steps(MultiDiscrete([3, 4]))] * 2)
    assert data_equivalence(parse_action(envs, "[2, 3]"), np.array([2, 3]))
    assert parse_action(gym.wrappers.vector.RecordEpisodeStatistics(SyncVectorEnv([RepeatEnv])), "hé") == "hé"


def test_the_only_agent_of_gymnasium_may_be_named() -> None:
    env = Steps(Discrete(3))
    assert parse_action(env, "2", agent="agent") == 2
    with pytest.raises(InvalidArgument, match=r"^Steps: 'player_0' is no agent; there are 'agent'$"):
        parse_action(env, "2", agent="player_0")


@pytest.mark.parametrize(
    "env",
    [Duel(), ParallelStream(Duel()), BaseParallelWrapper(Duel()), parallel_to_aec(Duel())],
    ids=lambda env: type(env).__name__,
)
def test_a_game_parses_the_reply_of_the_given_agent(env: Any) -> None:
    assert parse_action(env, "2", agent="number_0") == 2
    assert parse_action(env, "2", agent="word_1") == "2"
    with pytest.raises(
        InvalidArgument, match=r"^duel: parse_action needs agent=…; there are 'number_0', 'word_1'$"
    ):
        parse_action(env, "2")
    with pytest.raises(
        InvalidArgument, match=r"^duel: 'nobody' is no agent; there are 'number_0', 'word_1'$"
    ):
        parse_action(env, "2", agent="nobody")
    with pytest.raises(InvalidAction, match=r"^duel: '3' is not an action of Discrete\(3\)"):
        parse_action(env, "3", agent="number_0")


def test_the_parser_of_a_game_gets_the_agent() -> None:
    for env in (Turns(), AECStream(Turns()), aec_to_parallel(Turns()), BaseWrapper(Turns())):
        assert [parse_action(env, "me", agent=agent) for agent in ("a_0", "b_1")] == [0, 1]
        with pytest.raises(InvalidArgument, match="needs agent=…"):
            parse_action(env, "me")


# Thinking

PROGRAM = "text = '<think>'\nprint(text.split('</think>'))"


@pytest.mark.parametrize(
    ("reply", "rest"),
    [
        ("2", "2"),
        ("<think>0 or 1?</think>2", "2"),
        ("<think>\n0 or 1?\n\n</think>\n\n2\n", "2"),
        ("<THINK>0</Think> 2", "2"),
        ("<thinking>0</thinking>2", "2"),
        ("<think>0</think><think>1</think>2", "2"),
        ("<think></think>2", "2"),
        ("2 <think>or 1?</think>", "2"),
        ("2\n<think>or 1", "2"),
        ("0 or 1?</think>2", "2"),
        ("0 or 1?\n```\n1\n</think>\n2", "2"),
        ("0</think>1</think>2", "2"),
        ("<think>```python\n1\n```\nno</think>2", "2"),
        ("```hm``` <think>0</think>2", "```hm``` 2"),
        (PROGRAM, PROGRAM),
        ("print('<think>x</think>')", "print('<think>x</think>')"),
        (f"```python\n{PROGRAM}\n```", f"```python\n{PROGRAM}\n```"),
        (f"<think>hm</think>~~~\n{PROGRAM}\n~~~", f"~~~\n{PROGRAM}\n~~~"),
        ("I think 2", "I think 2"),
        ("a < think > b", "a < think > b"),
    ],
)
def test_thinking_is_dropped_before_a_reply_is_read(reply: str, rest: str) -> None:
    assert parse_action(Steps(Unicode(99)), reply) == rest
    if rest == "2":
        assert parse_action(Steps(Discrete(3)), reply) == 2
        assert parse_action(wrapped(Compass()), reply.replace("2", "south")) == 1


def test_a_reply_that_is_thinking_alone_is_refused_as_that() -> None:
    with pytest.raises(InvalidAction, match=r"^Steps: .*'<think>2'.* thinking"):
        parse_action(Steps(Discrete(3)), "<think>2")
    with pytest.raises(InvalidAction, match="only thinking"):
        parse_action(ew.make("envweave/Coding-v0"), "<think>```python\n1\n```")


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "```", "\n", " ", "x", "`", "'", "~~~"])).map("".join)
)
@settings(steady, max_examples=300)
def test_dropping_thinking_twice_changes_no_more(reply: str) -> None:
    once = without_thinking(reply)
    assert without_thinking(once) == once


# What errors call the environment

LINE, KUHN, RACE = "envweave/LineWorld-v0", "envweave/KuhnPoker-v0", "envweave/LineRace-v0"
NAMED: dict[str, tuple[str, Callable[[], Any]]] = {
    "by gymnasium": (LINE, lambda: gym.make(LINE)),
    "under wrappers": (LINE, lambda: gym.wrappers.TimeLimit(gym.make(LINE), 3)),
    "a native vector": (LINE, lambda: ew.make(LINE, num_envs=2)),
    "a vector of gymnasium": (LINE, lambda: gym.make_vec(LINE, num_envs=2, vectorization_mode="sync")),
    "a foreign ID": ("CartPole-v1", lambda: ew.make("CartPole-v1")),
    "a foreign vector": ("CartPole-v1", lambda: ew.make("CartPole-v1", num_envs=2)),
    "a local name": ("local://compass", lambda: ew.make("local://compass")),
    "a vector of a local name": ("local://compass", lambda: ew.make("local://compass", num_envs=2)),
    "a local game": ("local://duel", lambda: ew.make("local://duel", api="aec")),
    "turns": (KUHN, lambda: ew.make(KUHN, api="aec")),
    "turns in parallel": (KUHN, lambda: ew.make(KUHN, api="parallel")),
    "turns under wrappers": (KUHN, lambda: BaseWrapper(kuhn_poker.env())),
    "a race": (RACE, line_race.parallel_env),
    "no stream": ("Compass", Compass),
    "a vector without streams": ("SyncVectorEnv", twins),
    "a game without a stream": ("kuhn_poker_v0", kuhn_poker.raw_env),
}


@pytest.mark.parametrize("case", NAMED)
def test_errors_name_the_environment_once_and_show_no_object(case: str) -> None:
    ew.register("local://compass", factory=Compass)
    ew.register("local://duel", factory=Duel)
    name, make = NAMED[case]
    env = make()
    agents = getattr(env, "possible_agents", [None])
    with pytest.raises(InvalidAction, match=f"^{name}: ") as junk:
        parse_action(env, "junk", agents[0])
    with pytest.raises(InvalidArgument, match=f"^{name}: 'nobody' is no agent; there are ") as stranger:
        parse_action(env, "1", "nobody")
    for error in (junk, stranger):
        assert str(error.value).count(name) == 1
        assert " at 0x" not in str(error.value)


def test_junk_of_a_parser_that_raises_something_else_is_an_invalid_action() -> None:
    with pytest.raises(InvalidAction, match=r"^Compass: tuple.index\(x\): x not in tuple$") as caught:
        parse_action(Compass(), "up")
    assert type(caught.value.__cause__) is ValueError


# Replies to a space

NUMBERS = Box(-1, 1, (2,), np.float32)
TABLE = Box(0, 255, (2, 2), np.uint8)
NESTED = Dict({"move": Discrete(3, start=1), "pair": Tuple([Unicode(4), NUMBERS]), "data": Json(64)})


@pytest.mark.parametrize(
    ("space", "reply", "action"),
    [
        (Discrete(3), "2", 2),
        (Discrete(5, start=-2), " -2 ", -2),
        (Discrete(3), "+1", 1),
        (Unicode(20), WORDS, WORDS),
        (Unicode(9), "", ""),
        (Text(5, charset="abc"), "cab", "cab"),
        (Json(64), '{"a": [1, null, "☃"]}', {"a": [1, None, "☃"]}),
        (Chat(99), '[{"role": "user", "content": "hé"}]', [{"role": "user", "content": "hé"}]),
        (NUMBERS, "[0.5, -1]", np.array([0.5, -1], np.float32)),
        (Box(0, 9, (), np.int64), "7", np.array(7)),
        (Box(-np.inf, np.inf, (1,), np.float64), "[1e300]", np.array([1e300])),
        (TABLE, "[[0, 1], [254, 255.0]]", np.array([[0, 1], [254, 255]], np.uint8)),
        (MultiDiscrete([3, 4]), "[2, 3]", np.array([2, 3])),
        (MultiBinary(3), "[1, 0, 1]", np.array([1, 0, 1], np.int8)),
        (MultiBinary([1, 2]), "[[true, false]]", np.array([[1, 0]], np.int8)),
        (Sequence(Discrete(3)), "[0, 2, 2]", (0, 2, 2)),
        (Sequence(Discrete(3), stack=True), "[0, 2, 2]", np.array([0, 2, 2])),
        (OneOf([Discrete(3), Unicode(4)]), '[1, "two"]', (np.int64(1), "two")),
        (
            NESTED,
            '{"move": 3, "pair": ["hé", [0, 1]], "data": null, "thought": "why not"}',
            {"move": 3, "pair": ("hé", np.array([0, 1], np.float32)), "data": None},
        ),
    ],
    ids=str,
)
def test_a_reply_is_the_action_it_spells(space: Space[Any], reply: str, action: Any) -> None:
    found = read_action(space, reply)
    assert found in space
    assert data_equivalence(found, action)


@pytest.mark.parametrize(
    ("space", "reply"),
    [
        *[
            (Discrete(3), reply)
            for reply in ("3", "-1", "1.0", "one", "", "1 2", "1_0", "٣", "true", "9" * 30, "0x1")
        ],
        *[(Unicode(3), reply) for reply in ("long", "\ud800")],
        (Text(3, charset="abc"), "abd"),
        *[
            (Json(9), reply)
            for reply in ("NaN", "[Infinity]", "{", "", '"\\ud800"', '"too long"', "1e999", "[" * 9999)
        ],
        *[(Chat(99), reply) for reply in ("hello", "{}", '[{"role": "user"}]', '"hi"')],
        *[
            (NUMBERS, reply)
            for reply in ("[0.5]", "[[0.5, 1]]", '["0.5", 1]', "[0, 2]", "[0, NaN]", "[null, 1]")
        ],
        *[
            (NUMBERS, reply)
            for reply in ("0.5", "{}", "[[0], [1, 2]]", "[0, 1e999]", "x", "[" * 70 + "]" * 70)
        ],
        *[
            (TABLE, f"[[0, 1], [2, {last}]]")
            for last in ("256", "-1", "0.5", "3e2", str(2**64), "null", '"1"')
        ],
        *[
            (Box(-np.inf, np.inf, (1,), np.float64), f"[{number}]")
            for number in ("Infinity", "NaN", "-1e999")
        ],
        (TABLE, "[0, 1, 2, 3]"),
        (MultiDiscrete([3, 4]), "[2, 4]"),
        (MultiDiscrete([3, 4]), "[2]"),
        (MultiBinary(2), "[1, 2]"),
        (MultiBinary(2), "[1, 0.5]"),
        (Sequence(Discrete(3)), "[0, 3]"),
        (Sequence(Discrete(3)), "0"),
        (OneOf([Discrete(3), Unicode(4)]), "[2, 0]"),
        (OneOf([Discrete(3), Unicode(4)]), "[-1, 0]"),
        (OneOf([Discrete(3), Unicode(4)]), "[0]"),
        (Graph(NUMBERS, None), "{}"),
        *[(NESTED, reply) for reply in ("3", "[]", "{}", '{"move": 3, "pair": ["a", [0, 1]]}', "null")],
        (NESTED, '{"move": true, "pair": ["a", [0, 1]], "data": 1}'),
        (NESTED, '{"move": 1e0, "pair": ["a", [0, 1]], "data": 1}'),
        (NESTED, '{"move": 3, "pair": ["a"], "data": 1}'),
        (NESTED, '{"move": 3, "pair": ["a", [0, 1], 2], "data": 1}'),
        (NESTED, '{"move": 3, "pair": {"0": "a", "1": [0, 1]}, "data": 1}'),
    ],
    ids=str,
)
def test_junk_is_an_invalid_action_that_names_reply_and_space(space: Space[Any], reply: str) -> None:
    with pytest.raises(InvalidAction) as caught:
        read_action(space, reply)
    assert isinstance(caught.value, ValueError)
    assert shown(reply) in str(caught.value)
    assert str(space) in str(caught.value)


@pytest.mark.parametrize("reply", [None, 3, b"3", ["3"]])
def test_a_reply_is_text(reply: Any) -> None:
    for space in (Discrete(5), Unicode(5), Json(5)):
        with pytest.raises(InvalidAction, match=f"from text, not from {type(reply).__name__}"):
            read_action(space, reply)


SPACES = [
    Discrete(3),
    Unicode(8, min_length=1),
    Text(4),
    Json(64),
    Chat(64),
    NUMBERS,
    TABLE,
    Box(-np.inf, np.inf, (1,), np.int64),
    Box(-np.inf, np.inf, (), np.float64),
    MultiDiscrete([3, 4]),
    MultiBinary(3),
    Sequence(NUMBERS),
    Sequence(Discrete(2), stack=True),
    OneOf([Discrete(3), NUMBERS]),
    Graph(NUMBERS, Discrete(2)),
    NESTED,
    Tuple([NESTED, Dict({})]),
]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.integers(-3, 3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["move", "pair", "data", "role", "content"]), inner, max_size=4)
    ),
)


@given(st.text() | values.map(json.dumps) | st.integers().map(str))
@settings(steady, max_examples=200)
def test_any_reply_is_an_action_in_the_space_or_a_value_error(reply: str) -> None:
    for space in SPACES:
        try:
            action = read_action(space, reply)
        except ValueError:
            continue
        assert action in space


@given(st.integers(0, 10_000))
@settings(steady, max_examples=50)
def test_every_action_can_be_spelled(seed: int) -> None:
    spaces = [
        space for space in SPACES if not isinstance(space, Graph) and not getattr(space, "stack", False)
    ]
    for space in spaces:
        space.seed(seed)
        action = space.sample()
        plain = space if isinstance(space, Text) and not isinstance(space, Json) else None
        reply = action if plain is not None else json.dumps(action, default=lambda item: item.tolist())
        assert same(read_action(space, reply), action)


def test_json_in_a_fence_is_read_and_a_member_given_twice_is_refused() -> None:
    env = gym.make("envweave/Counter-v0")
    assert parse_action(env, '```json\n{"delta": 3}\n```') == {"delta": 3}
    with pytest.raises(ValueError, match="given twice"):
        parse_action(env, '{"delta": 1, "delta": 2}')
