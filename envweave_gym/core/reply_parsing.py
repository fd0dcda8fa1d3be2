"""Parses a language model's reply into an action: by the environment's own rules, or by the action space."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from gymnasium.spaces import Discrete, Space, Text
from gymnasium.vector import SyncVectorEnv, VectorEnv

from envweave_gym.core.faults import InvalidAction, InvalidArgument, shown
from envweave_gym.core.json_members import JsonReader
from envweave_gym.core.protocols import AGENT, ParsesActions, layers, name_of, no_agent, require_env
from envweave_gym.core.spaces import Json
from envweave_gym.core.thinking import without_thinking


def parse_action(env: Any, text: str, agent: str | None = None) -> Any:
    """Parse a model's reply into an action of ``env``; raise :class:`InvalidAction` if that fails.

    Reasoning (``<think>…</think>``, also unclosed, or all before a lone ``</think>``) is removed first. The
    environment's own ``parse_action`` reads the rest; without one :func:`read_action` reads it by the action
    space. ``agent`` is the agent of a PettingZoo environment. For a vector environment the result is the
    action of one row.
    """
    require_env("parse_action", env)
    space, parse = _action_space(env, agent), _own_parser(env)
    reply = without_thinking(text) if isinstance(text, str) else text
    if text and not reply:
        refusal = f"the reply {shown(text)} is only thinking; answer after </think>"
        raise InvalidAction(f"{name_of(env)}: {refusal}")
    try:
        return read_action(space, reply) if parse is None else parse(reply, agent)
    except InvalidArgument:
        raise
    except ValueError as error:
        name = name_of(env)
        raise InvalidAction(f"{name}: {str(error).removeprefix(f'{name}: ')}") from error


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


_INTEGER = re.compile(r"\s*([+-]?[0-9]{1,20})\s*")  # bounded, as int() takes long for many digits
_FENCED = re.compile(r"\s*```\w*\n(.*?)\n?```\s*", re.DOTALL)
_reader = JsonReader()
# Exceptions of the conversions below for a text that does not fit the space.
_MISFITS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)


def read_action(space: Space[Any], text: str) -> Any:
    """Parse ``text`` into a member of ``space``; raise :class:`InvalidAction` if that is impossible.

    A text space takes the text itself, ``Discrete`` an integer, all others JSON: arrays and tuples as lists,
    ``Dict`` as an object. Unknown members of the object are ignored: a model may put its reasoning there.
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
    """Raise ``InvalidAction`` for a reply that is not a string."""
    if not isinstance(text, str):
        raise InvalidAction(f"an action is parsed from text, not from {type(text).__name__}")


def _spelled(space: Space[Any], text: str) -> Any:
    if isinstance(space, Text) and not isinstance(space, Json):
        return text
    if isinstance(space, Discrete):
        match = _INTEGER.fullmatch(text)
        return _reader.read(space, int(match[1]) if match else text)
    fenced = _FENCED.fullmatch(text)
    value = json.loads(
        fenced[1] if fenced else text,
        parse_float=_finite,
        parse_constant=_finite,
        object_pairs_hook=_unambiguous,  # json.loads would take the last of two members
    )
    return _reader.read(space, value)


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


# Actions named in a sentence

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
"""Words that may surround a name without changing its meaning."""


def read_name(text: str, names: Mapping[str, int], kind: str = "action") -> int:
    """Return the action that a reply names, in one word or in a phrase such as ``"I choose <=."``.

    ``names`` maps lower-case words to actions. Case is ignored, and so are quotes, brackets, Markdown and
    full stops around a word. Other sentences may explain if they name no other action. Ambiguous replies,
    such as "anything but left" or "left or right", raise :class:`InvalidAction`.
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
    """Strip punctuation around ``word`` (``**left**`` becomes ``left``) until the rest is a name."""
    while word and word not in names:
        if word[-1] in _STOPS:
            word = word[:-1]
        elif word[0] in _MARKS or word[-1] in _MARKS:
            word = word[word[0] in _MARKS : len(word) - (word[-1] in _MARKS)]
        else:
            break
    return word


def _only_names(sentence: list[str], names: Mapping[str, int]) -> bool:
    """Return whether a sentence has a name and otherwise only words of ``_INTRODUCTIONS``."""
    return any(word in names for word in sentence) and all(
        word in names or word in _INTRODUCTIONS for word in sentence if word
    )
