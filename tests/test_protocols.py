"""State and replies: found under any wrappers, and never anything but an action or a ``ValueError``."""

from __future__ import annotations

import json
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
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import AgentSelector, BaseParallelWrapper, BaseWrapper
from pettingzoo.utils.conversions import aec_to_parallel, parallel_to_aec, turn_based_aec_to_parallel
from text_envs import WORDS, RepeatEnv, same

from envweave_gym.faults import InvalidAction, InvalidArgument, shown
from envweave_gym.protocols import HasEpisodeState, ParsesActions, layers, parse_action, read_action, state_of
from envweave_gym.spaces import Chat, Json, Unicode
from envweave_gym.wrappers import AECStream, ParallelStream, RequestStream

steady = settings(deadline=None, derandomize=True)


class Steps(gym.Env[Any, Any]):
    """Observes nothing and takes actions of any space."""

    def __init__(self, action_space: Space[Any]) -> None:
        self.action_space, self.observation_space = action_space, Discrete(1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return 0, 0.0, False, False, {}

    def episode_state(self) -> dict[str, Any]:
        return {"own": "field"}


class Compass(Steps):
    """Reads replies itself."""

    words = ("north", "south")

    def __init__(self) -> None:
        super().__init__(Discrete(2))

    def parse_action(self, text: str, agent: str | None = None) -> int:
        return self.words.index(text)


class Duel(ParallelEnv[str, Any, Any]):
    """Two agents with action spaces of their own, both at once."""

    metadata = {"name": "duel", "is_parallelizable": True}
    render_mode = None
    possible_agents = ["number_0", "word_1"]

    def __init__(self) -> None:
        self.spaces: dict[str, Space[Any]] = {"number_0": Discrete(3), "word_1": Unicode(9)}

    def observation_space(self, agent: str) -> Space[Any]:
        return Discrete(1)

    def action_space(self, agent: str) -> Space[Any]:
        return self.spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents = list(self.possible_agents)
        return dict.fromkeys(self.agents, 0), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        agents = self.agents
        everyone = [dict.fromkeys(agents, nothing) for nothing in (0, 0.0, False, False)]
        return *everyone, {agent: {} for agent in agents}

    def episode_state(self) -> dict[str, Any]:
        return {"own": "field"}


class Turns(AECEnv[str, Any, Any]):
    """Two agents in turns, with a parser that wants to know whose reply it reads."""

    metadata = {"name": "turns", "is_parallelizable": True}
    render_mode = None
    possible_agents = ["a_0", "b_1"]

    def observation_space(self, agent: str) -> Space[Any]:
        return Discrete(1)

    def action_space(self, agent: str) -> Space[Any]:
        return Discrete(2)

    def parse_action(self, text: str, agent: str | None = None) -> int:
        return {"a_0": 0, "b_1": 1}[agent or ""] if text == "me" else int(text)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.agents = list(self.possible_agents)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.turn = AgentSelector(self.agents)
        self.agent_selection = self.turn.next()

    def observe(self, agent: str) -> int:
        return 0

    def step(self, action: Any) -> None:
        self.agent_selection = self.turn.next()


def wrapped(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    return gym.wrappers.RecordEpisodeStatistics(gym.wrappers.TimeLimit(gym.wrappers.OrderEnforcing(env), 9))


# Layers and state


def test_layers_go_down_to_the_unwrapped_environment_and_no_further() -> None:
    core = Steps(Discrete(2))
    core.env = "an attribute of its own"
    names = [type(layer).__name__ for layer in layers(wrapped(core))]
    assert names == ["RecordEpisodeStatistics", "TimeLimit", "OrderEnforcing", "Steps"]


def test_layers_go_through_the_conversions_of_pettingzoo() -> None:
    for env, core in (
        (parallel_to_aec(Duel()), Duel),
        (aec_to_parallel(BaseWrapper(Turns())), Turns),
        (turn_based_aec_to_parallel(Turns()), Turns),
        (BaseParallelWrapper(ParallelStream(Duel())), Duel),
    ):
        assert type(list(layers(env))[-1]) is core


def test_state_counts_episodes_and_steps_under_wrappers() -> None:
    env = wrapped(RequestStream(Steps(Discrete(2))))
    assert state_of(env) == {"episode": -1, "step_count": 0, "own": "field"}
    env.reset(seed=0)
    env.reset(seed=0)
    env.step(1)
    assert state_of(env) == {"episode": 1, "step_count": 1, "own": "field"}
    assert state_of(env.env.env) == state_of(env)


def test_state_of_games() -> None:
    parallel = BaseParallelWrapper(ParallelStream(Duel()))
    parallel.reset(seed=0)
    parallel.step({"number_0": 1, "word_1": "x"})
    assert state_of(parallel) == {"episode": 0, "step_count": 1, "own": "field"}
    turns = BaseWrapper(AECStream(Turns()))
    turns.reset(seed=0)
    turns.step(1)
    turns.step(0)
    assert state_of(turns) == {"episode": 0, "step_count": 2}


def test_state_of_what_counts_nothing_says_what_to_do() -> None:
    with pytest.raises(
        InvalidArgument, match=r"make it with envweave_gym.make, or wrap it in envweave_gym.RequestStr"
    ):
        state_of(wrapped(Steps(Discrete(2))))
    with pytest.raises(InvalidArgument, match=r"or wrap each of its environments in envweave_gym.RequestStr"):
        state_of(SyncVectorEnv([Compass]))


LINE = "envweave/LineWorld-v0"


@pytest.mark.parametrize("form", [None, "sync", "async"])
def test_state_of_a_vector_is_one_for_each_row(form: Any) -> None:
    envs = gym.wrappers.vector.RecordEpisodeStatistics(
        gym.make_vec(LINE, num_envs=2, vectorization_mode=form)
    )
    twin = gym.make(LINE)
    try:
        envs.reset(seed=3)
        twin.reset(seed=4)
        envs.step(np.array([0, 1]))
        twin.step(1)
        states = state_of(envs)
        assert isinstance(states, tuple)
        assert [(state["episode"], state["step_count"]) for state in states] == [(0, 1)] * 2
        assert states[1] == state_of(twin)
    finally:
        envs.close()


def test_an_asynchronous_vector_without_streams_survives_the_question() -> None:
    envs = AsyncVectorEnv([lambda: gym.make("CartPole-v1")])
    try:
        envs.reset(seed=0)
        with pytest.raises(InvalidArgument, match="wrap each of its environments"):
            state_of(envs)
        assert envs.step(np.array([0]))[1].tolist() == [1.0]
    finally:
        envs.close()


@pytest.mark.parametrize("form", [None, "sync"])
def test_every_vector_of_codefix_reads_operators(form: Any) -> None:
    envs = gym.make_vec("envweave/CodeFix-v0", num_envs=2, vectorization_mode=form)
    single = gym.make("envweave/CodeFix-v0")
    for reply in ("<=", " `//` ", "3"):
        assert parse_action(envs, reply) == parse_action(single, reply)
    with pytest.raises(InvalidAction, match="'left' names no operator"):
        parse_action(envs, "left")


def test_the_protocols_are_recognised() -> None:
    assert isinstance(Compass(), HasEpisodeState)
    assert isinstance(Compass(), ParsesActions)
    assert not isinstance(RepeatEnv(), HasEpisodeState)
    assert not isinstance(RepeatEnv(), ParsesActions)


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
    with pytest.raises(InvalidArgument, match="its only agent is 'agent'"):
        parse_action(env, "2", agent="player_0")


@pytest.mark.parametrize(
    "env",
    [Duel(), ParallelStream(Duel()), BaseParallelWrapper(Duel()), parallel_to_aec(Duel())],
    ids=lambda env: type(env).__name__,
)
def test_a_game_reads_the_reply_of_the_agent_it_is_told(env: Any) -> None:
    assert parse_action(env, "2", agent="number_0") == 2
    assert parse_action(env, "2", agent="word_1") == "2"
    with pytest.raises(InvalidArgument, match=r"needs agent=…; its agents are number_0, word_1"):
        parse_action(env, "2")
    with pytest.raises(InvalidArgument, match=r"has no agent 'nobody'; its agents are number_0, word_1"):
        parse_action(env, "2", agent="nobody")
    with pytest.raises(InvalidAction, match=r"'3' is not an action of Discrete\(3\)"):
        parse_action(env, "3", agent="number_0")


def test_the_own_parser_of_a_game_is_told_the_agent() -> None:
    for env in (Turns(), AECStream(Turns()), aec_to_parallel(Turns()), BaseWrapper(Turns())):
        assert [parse_action(env, "me", agent=agent) for agent in ("a_0", "b_1")] == [0, 1]
        with pytest.raises(InvalidArgument, match="needs agent=…"):
            parse_action(env, "me")


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
        with pytest.raises(InvalidAction, match=f"read out of text, not out of {type(reply).__name__}"):
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
