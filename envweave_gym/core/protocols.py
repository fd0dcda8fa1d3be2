"""The small things an environment may offer beside Gymnasium's interface, and how to reach them.

None is required. An environment that has fields of its own to show defines ``episode_state``; one whose
actions a language model can phrase in its own way defines ``parse_action``. Both functions here find them
under any wrappers, on Gymnasium and PettingZoo alike.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Space,
    Text,
    Tuple,
)
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from envweave_gym.core.arrays import as_array
from envweave_gym.core.faults import InvalidAction, InvalidArgument, shown
from envweave_gym.core.spaces import Json
from envweave_gym.core.thinking import without_thinking

AGENT = "agent"
"""The name of the only agent of a Gymnasium environment."""


@runtime_checkable
class HasEpisodeState(Protocol):
    """An environment with fields of its own to show."""

    def episode_state(self) -> dict[str, Any]:
        """The fields, as JSON."""
        ...


@runtime_checkable
class ParsesActions(Protocol):
    """An environment that reads a model's reply itself; it raises ``ValueError`` on junk."""

    def parse_action(self, text: str, agent: str | None = None) -> Any:
        """The action that ``text`` means."""
        ...


def layers(env: Any) -> Iterator[Any]:
    """``env`` and everything it wraps, outermost first, down to the unwrapped environment."""
    while env is not None:
        yield env
        if env is getattr(env, "unwrapped", env):
            return
        inner = vars(env).get("env")
        env = inner if inner is not None else vars(env).get("aec_env")


def name_of(env: Any) -> str:
    """What errors call an environment: its ID, or else what its stream was told, or else its own name."""
    env_id = getattr(getattr(env, "spec", None), "id", None)
    if env_id is not None:
        return env_id
    for layer in layers(env):
        name = vars(layer).get("name")
        if isinstance(name, str):
            return name if "://" in name else name.rpartition(":")[2]  # of module:ID only the ID is its name
    core = env.unwrapped
    return type(core).__name__ if isinstance(core, gym.Env | VectorEnv) else str(core)


def no_agent(name: str, given: Any, known: Iterable[str]) -> str:
    """The sentence that refuses an agent who does not play."""
    return f"{name}: {shown(given)} is no agent; there are {', '.join(map(repr, known))}"


def check_agent(name: str, env: Any, agent: Any) -> None:
    """Refuse an agent who does not play; a game that makes its agents as it goes answers for itself."""
    known = getattr(env, "possible_agents", None)
    if known is not None and agent not in known:
        raise InvalidArgument(no_agent(name, agent, known))


def state_of(env: Any) -> Any:
    """The metadata of the running episode: ``episode``, ``step_count`` and the environment's own fields.

    It is a dictionary, and for a vector environment of any form a tuple of one for each row.
    """
    _require_env("state_of", env)
    for layer in layers(env):
        if hasattr(type(layer), "stream_state"):
            return layer.stream_state()
        if isinstance(layer, SyncVectorEnv | AsyncVectorEnv) and all(
            layer.call("has_wrapper_attr", "stream_state")
        ):
            return layer.call("stream_state")
    one = "each of its environments" if isinstance(env, VectorEnv) else "it"
    raise InvalidArgument(
        f"state_of({name_of(env)}): nothing there counts episodes; make it with envweave_gym.make, "
        f"or wrap {one} in envweave_gym.RequestStream"
    )


def _require_env(function: str, env: Any) -> None:
    if not hasattr(env, "unwrapped"):
        raise InvalidArgument(f"{function}({shown(env)}): that is no environment of Gymnasium or PettingZoo")


def own_state(core: Any) -> dict[str, Any]:
    """The fields an unwrapped environment shows of itself."""
    return core.episode_state() if isinstance(core, HasEpisodeState) else {}


def parse_action(env: Any, text: str, agent: str | None = None) -> Any:
    """Turn a model's reply into an action of ``env``; :class:`InvalidAction` says why it is none.

    Thinking (``<think>…</think>``, also unclosed, or all before a lone ``</think>``) is dropped first.
    An environment's own ``parse_action`` decides, which may read names (:func:`read_name`); otherwise the
    action space does (:func:`read_action`).
    ``agent`` says whose action it is in a PettingZoo environment. A vector environment reads an action of one
    of its environments, by that environment's own ``parse_action`` where it is in this process.
    """
    _require_env("parse_action", env)
    space, parse = _action_space(env, agent), _own_parser(env)
    reply = without_thinking(text) if isinstance(text, str) else text
    if text and not reply:
        refusal = f"the reply {shown(text)} is thinking and nothing else; answer after </think>"
        raise InvalidAction(f"{name_of(env)}: {refusal}")
    try:
        return read_action(space, reply) if parse is None else parse(reply, agent)
    except InvalidArgument:
        raise
    except ValueError as error:
        told, name = str(error).removeprefix(f"{name_of(env)}: "), name_of(env)
        raise InvalidAction(f"{name}: {told}") from error


def _action_space(env: Any, agent: str | None) -> Space[Any]:
    space: Any = env.single_action_space if isinstance(env, VectorEnv) else env.action_space
    if isinstance(space, Space):
        if agent not in (None, AGENT):
            raise InvalidArgument(no_agent(name_of(env), agent, [AGENT]))
        return space
    agents: list[str] = getattr(env, "possible_agents", None) or getattr(env, "agents", [])
    if agent is None:
        there_are = ", ".join(map(repr, agents))
        raise InvalidArgument(f"{name_of(env)}: parse_action needs agent=…; there are {there_are}")
    if agent not in agents:
        raise InvalidArgument(no_agent(name_of(env), agent, agents))
    return space(agent)


def _own_parser(env: Any) -> Callable[[str, str | None], Any] | None:
    for layer in layers(env):
        if isinstance(layer, ParsesActions):
            return layer.parse_action
        if isinstance(layer, SyncVectorEnv):
            return _own_parser(layer.envs[0])
    return None


_INTEGER = re.compile(r"\s*([+-]?[0-9]{1,20})\s*")
_FENCED = re.compile(r"\s*```\w*\n(.*?)\n?```\s*", re.DOTALL)
_MISFITS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)


def read_action(space: Space[Any], text: str) -> Any:
    """The member of ``space`` that ``text`` spells, or :class:`InvalidAction`.

    A text space takes the text as it is, ``Discrete`` an integer, everything else JSON: arrays and tuples as
    lists, ``Dict`` as an object. Members the ``Dict`` does not have are left out: a model may think there.
    """
    require_text(text)
    try:
        action = _spelled(space, text)
        fits = space.contains(action)
    except _MISFITS as error:
        raise InvalidAction(f"{shown(text)} is not an action of {space}: {error}") from None
    if not fits:
        raise InvalidAction(f"{shown(text)} is not in {space}")
    return action


def require_text(text: Any) -> None:
    """Refuse a reply that is no text."""
    if not isinstance(text, str):
        raise InvalidAction(f"an action is read out of text, not out of {type(text).__name__}")


def _spelled(space: Space[Any], text: str) -> Any:
    if isinstance(space, Text) and not isinstance(space, Json):
        return text
    if isinstance(space, Discrete):
        match = _INTEGER.fullmatch(text)
        return _shaped(space, int(match[1]) if match else text)
    fenced = _FENCED.fullmatch(text)
    value = json.loads(
        fenced[1] if fenced else text,
        parse_float=_finite,
        parse_constant=_finite,
        object_pairs_hook=_unambiguous,
    )
    return _shaped(space, value)


def _unambiguous(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        raise ValueError("a member is given twice")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number of JSON")
    return number


def _shaped(space: Space[Any], value: Any) -> Any:
    """The JSON ``value`` in the form that ``space`` wants; whether it is a member is asked afterwards."""
    match space:
        case Discrete():
            return _integer(space, value)
        case Box() | MultiDiscrete() | MultiBinary():
            return as_array(space, value)
        case Dict():
            return {key: _shaped(inner, _member(value, key)) for key, inner in space.spaces.items()}
        case Tuple():
            return tuple(
                _shaped(inner, item) for inner, item in zip(space.spaces, _items(value), strict=True)
            )
        case Sequence(stack=False):
            return tuple(_shaped(space.feature_space, item) for item in _items(value))
        case OneOf():
            chosen, item = _items(value)
            return np.int64(chosen), _shaped(space.spaces[chosen], item)
        case _:
            return value


def _integer(space: Discrete, value: Any) -> int:
    if type(value) is not int or not space.start <= value < space.start + space.n:
        raise ValueError(f"it wants an integer from {space.start} to {space.start + space.n - 1}")
    return value


def _member(value: Any, key: Any) -> Any:
    if not isinstance(value, dict) or key not in value:
        raise ValueError(f"it wants an object with a member {key!r}")
    return value[key]


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("it wants a list")
    return value


# Names, as a model says them

_SENTENCE_END = re.compile(r"[.!]+(?=\s|$)|\n|\bbecause\b")
_STOPS, _MARKS = ".,;:!", "`'\"*_()[]"
_STRAIGHT_QUOTES = str.maketrans("\u2018\u2019\u201c\u201d", "''\"\"")
# fmt: off
_INTRODUCTIONS = frozenset({
    "a", "action", "am", "an", "answer", "at", "be", "choice", "choose", "correct", "decide", "decision",
    "final", "fix", "function", "go", "going", "hence", "here", "i", "i'd", "i'll", "i'm", "in", "instead",
    "is", "it", "it's", "just", "let", "let's", "like", "line", "marked", "me", "move", "moving", "must",
    "my", "now", "ok", "okay", "operator", "option", "pick", "play", "please", "position", "program", "put",
    "right", "run", "select", "should", "so", "spot", "step", "sure", "take", "that", "the", "then", "there",
    "therefore", "this", "thus", "to", "use", "using", "walk", "want", "we", "will", "with", "would", "yes",
})
# fmt: on
"""Words that may stand around a name and say nothing else."""


def read_name(text: str, names: Mapping[str, int], kind: str = "action") -> int:
    """The action that a reply names: alone, or in a sentence that only introduces it (``"I choose <=."``).

    ``names`` are words in small letters. Case does not count, nor quotes, brackets, Markdown and full stops
    around a word. Further sentences may explain, as long as they name no other action. Whatever leaves a
    doubt raises :class:`InvalidAction`, as "anything but left" and "left or right" do.
    """
    require_text(text)
    plain = text.casefold().translate(_STRAIGHT_QUOTES)
    sentences = [
        [_bare_word(word, names) for word in sentence.split()] for sentence in _SENTENCE_END.split(plain)
    ]
    named = {names[word] for sentence in sentences for word in sentence if word in names}
    if len(named) == 1 and any(_only_names(sentence, names) for sentence in sentences):
        return named.pop()
    words = " ".join(name for name in names if not name.isdecimal())
    raise InvalidAction(
        f"{shown(text)} names no {kind}, or more than one; answer with one of {words}, or with its index"
    )


def _bare_word(word: str, names: Mapping[str, int]) -> str:
    """``word`` without what stands around it: ``**left**`` is left; what is a name itself stays."""
    while word and word not in names:
        if word[-1] in _STOPS:
            word = word[:-1]
        elif word[0] in _MARKS or word[-1] in _MARKS:
            word = word[word[0] in _MARKS : len(word) - (word[-1] in _MARKS)]
        else:
            break
    return word


def _only_names(sentence: list[str], names: Mapping[str, int]) -> bool:
    """Whether a sentence names something and says nothing else."""
    return any(word in names for word in sentence) and all(
        word in names or word in _INTRODUCTIONS for word in sentence if word
    )
