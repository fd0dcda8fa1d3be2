"""CodeFix: choose the operator that fixes a program, as a single environment and as an equal native vector.

The single environment executes every fixed program; the vector looks the results up in a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envweave_gym.core.faults import shown
from envweave_gym.core.reply_parsing import read_name
from envweave_gym.core.seeding import HashedRandomness, mix_many
from envweave_gym.core.spaces import Unicode
from envweave_gym.envs.codefix.generator import (
    MEANINGS,
    OPERATORS,
    TEMPLATES,
    Draw,
    Meaning,
    Program,
    generate,
    passing,
    wrong_operators,
)
from envweave_gym.episode.emitter import Emitter
from envweave_gym.episode.message import message
from envweave_gym.episode.stream import Event
from envweave_gym.vector.native import NativeVectorEnv, NoNativeForm

Observation = Literal["tokens", "text", "both"]
Tokens = NDArray[np.int64]

QUESTION = (
    "One operator of this Python function is wrong; the comment on its line names it. Which operator must "
    "stand there so that the function does what its name and docstring say? "
    f"Answer with one of: {' '.join(OPERATORS)}"
)
MAX_SOURCE = 512
"""Limit of a program's source in characters."""


def question(source: str) -> str:
    """Return the question for a language model about a program."""
    return f"{QUESTION}\n\n```python\n{source}```"


def read_operator(text: str) -> int:
    """Return the index of the operator that ``text`` names, by itself or by its index."""
    return read_name(text, _NAMED, "operator")


_NAMED = {name: index for index, operator in enumerate(OPERATORS) for name in (operator, str(index))}


# Tokens are words, numbers and operators; punctuation is left out, as it carries no information here.

WIDTHS = (6, 20, 16)
"""Limits of the number of tokens of the signature, the docstring and the body."""
_TOKEN = re.compile(r"\{\w+\}|[A-Za-z]+|\d+|//|[<>=!]=|[-+*%<>=]")
_SLOTS = ("{x}", "{y}", "{items}", "{others}", "{k}", "{op}")


def _patterns(meaning: Meaning) -> tuple[list[str], list[str], list[str]]:
    """Return all signatures, docstrings and bodies of a template with one operator; names and constants are slots."""
    template = TEMPLATES[meaning.template]
    signatures = [f"def {name}({template.arguments})" for name in meaning.function_names]
    return signatures, list(meaning.docstrings), [template.marked_body()]


def _words() -> Iterator[str]:
    for meaning in MEANINGS:
        yield from chain(*_patterns(meaning), *(names.values() for names in meaning.names))
        yield from map(str, meaning.constants)


VOCABULARY = (
    "<padding>",
    "<unknown>",
    *OPERATORS,
    *sorted({word for text in _words() for word in _TOKEN.findall(text)} - {*_SLOTS, *OPERATORS}),
)
"""The word of every token ID, in order."""
_PADDING, _UNKNOWN = 0, 1
_IDS = {word: index for index, word in enumerate(VOCABULARY)}
# Slots have IDs beyond the vocabulary, which _filled replaces.
_PATTERN_IDS = {**_IDS, **{slot: len(VOCABULARY) + index for index, slot in enumerate(_SLOTS)}}


def tokenize(source: str) -> Tokens:
    """Return the token IDs of a program: of its signature, docstring and body, each padded to a fixed width."""
    parts = [*source.split("\n", 2), "", ""]
    return np.concatenate([_encode(part, width, _IDS) for part, width in zip(parts, WIDTHS, strict=False)])


def _encode(text: str, width: int, ids: dict[str, int]) -> Tokens:
    found = [ids.get(word, _UNKNOWN) for word in _TOKEN.findall(text)[:width]]
    return np.array(found + [_PADDING] * (width - len(found)), np.int64)


def token_space() -> Box:
    """Return the space of the results of :func:`tokenize`."""
    return Box(0, len(VOCABULARY) - 1, (sum(WIDTHS),), np.int64)


class CodeFixEnv(Emitter, HashedRandomness[Any, np.int64 | int]):
    """Environment that shows a small function with one wrong operator; the action chooses the right operator.

    The fixed program is executed on its tests: the reward is 1.0 if all pass, else 0.0, and the episode is
    over. The seed determines the program. Its name and docstring describe its purpose; its tests are not
    shown.

    ``observation`` is ``"tokens"`` (IDs into :data:`VOCABULARY`), ``"text"`` (the source) or ``"both"``. In
    all cases a chat message in ``info["stream"]`` has the source and a question.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1, "reset_options": (), "action_names": OPERATORS}

    def __init__(self, observation: Observation = "tokens", render_mode: str | None = None) -> None:
        self.observation_space = _observation_space(observation)
        self.action_space = Discrete(len(OPERATORS))
        self.observation, self.render_mode = observation, render_mode
        self._program = generate(0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Show the program of the seed, and emit the question about it."""
        self._program = generate(self.episode_key(seed))
        self.emit(message("user", question(self._program.source())))
        return self._observation(), {}

    def step(self, action: np.int64 | int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Replace the wrong operator by the chosen one, and run the tests; the episode is over."""
        passed = self._program.passes(OPERATORS[int(action)])
        return self._observation(), float(passed), True, False, {}

    def _observation(self) -> Any:
        source = self._program.source()
        if self.observation == "text":
            return source
        tokens = tokenize(source)
        return tokens if self.observation == "tokens" else {"tokens": tokens, "source": source}

    def parse_action(self, text: str, agent: str | None = None) -> int:
        """Return the action that a reply names, by operator or by index: ``<=``, ``6``, ``I choose <=.``"""
        return read_operator(text)

    def render(self) -> Any:
        """Return the source with the wrong operator."""
        return self._program.source() if self.render_mode == "ansi" else None

    def episode_state(self) -> dict[str, Any]:
        """Return the name of the template that the program was generated from, and the number of its tests."""
        return _state(self._program)


def _state(program: Program) -> dict[str, Any]:
    return {"template": program.template, "tests": len(program.cases())}


def _observation_space(observation: Any) -> Space[Any]:
    if observation == "tokens":
        return token_space()
    if observation == "text":
        return Unicode(MAX_SOURCE)
    if observation == "both":
        return Dict({"tokens": token_space(), "source": Unicode(MAX_SOURCE)})
    raise ValueError(f"observation={shown(observation)} is unknown; there are 'tokens', 'text' and 'both'")


class _Choices:
    """Variants in groups, such as the possible names of a function; a hash picks one variant of a group."""

    def __init__(self, groups: Sequence[Sequence[Any]]) -> None:
        counts = np.array([len(group) for group in groups])
        self.rows = np.array(list(chain.from_iterable(groups)))
        # The groups are stored one after the other: a group begins where the ones before it end.
        self._counts, self._first = counts.astype(np.uint64), counts.cumsum() - counts

    def numbers(self, groups: NDArray[np.int64], hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the index of the variant that is picked for each pair of a group number and a hash."""
        return self._first[groups] + (hashes % self._counts[groups]).astype(np.int64)

    def pick(self, groups: NDArray[np.int64], hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the variant that is picked for each pair of a group number and a hash."""
        return self.rows[self.numbers(groups, hashes)]


class _Tables:
    """Lookup tables for :class:`CodeFixVectorEnv`: all choices of :func:`generate`, and the rewards of actions."""

    def __init__(self) -> None:
        keys = [(m.template, m.operator, constant) for m in MEANINGS for constant in m.constants]
        patterns = [_patterns(meaning) for meaning in MEANINGS]
        signatures, docstrings, bodies = (
            [[_encode(text, width, _PATTERN_IDS) for text in texts] for texts in column]
            for column, width in zip(zip(*patterns, strict=True), WIDTHS, strict=True)
        )
        self.signatures, self.docstrings = _Choices(signatures), _Choices(docstrings)
        self.bodies = np.concatenate(bodies)
        self.names = _Choices([_name_ids(meaning) for meaning in MEANINGS])
        self.constants = _Choices([[_IDS[str(k)] for k in meaning.constants] for meaning in MEANINGS])
        self.broken = _Choices([[_IDS[operator] for operator in wrong_operators(*key)] for key in keys])
        self.rewards = np.array([passing(*key) for key in keys], np.float64)

    def draw(self, seeds: NDArray[np.uint64]) -> tuple[NDArray[np.int64], Tokens]:
        """Draw a program for each seed; return its row index in ``rewards``, and its tokens."""
        keys = mix_many(seeds)
        meanings = (mix_many(keys, Draw.MEANING) % np.uint64(len(MEANINGS))).astype(np.int64)
        variants = self.constants.numbers(meanings, mix_many(keys, Draw.CONSTANT))
        slots = (
            self.names.pick(meanings, mix_many(keys, Draw.NAMES)),
            self.constants.rows[variants],
            self.broken.pick(variants, mix_many(keys, Draw.BROKEN)),
        )
        patterns = (
            self.signatures.pick(meanings, mix_many(keys, Draw.FUNCTION_NAME)),
            self.docstrings.pick(meanings, mix_many(keys, Draw.DOCSTRING)),
            self.bodies[meanings],
        )
        return variants, _filled(np.concatenate(patterns, axis=1), np.column_stack(slots))


def _filled(patterns: Tokens, slots: Tokens) -> Tokens:
    """Replace the slots in each row of ``patterns``, token IDs beyond the vocabulary, by the tokens in ``slots``."""
    size = len(VOCABULARY)
    # One look-up fills all rows: the slots of all rows follow the vocabulary, each row at its own offset.
    values = np.concatenate([np.arange(size), slots.ravel()])
    offsets = (np.arange(len(slots)) * slots.shape[1])[:, None]
    return values[patterns + (patterns >= size) * offsets]


def _name_ids(meaning: Meaning) -> list[list[int]]:
    slots = [slot.strip("{}") for slot in _SLOTS[:4]]
    return [[_IDS.get(names.get(slot, ""), _PADDING) for slot in slots] for names in meaning.names]


@cache
def _tables() -> _Tables:
    return _Tables()


class CodeFixVectorEnv(NativeVectorEnv):
    """Vector environment of CodeFix in NumPy; each row equals a :class:`CodeFixEnv` with the same seed.

    The result of a program does not depend on its names and wording. So each template with each operator and
    constant is executed once, when the first vector is made, and a step looks its results up.
    """

    metadata: dict[str, Any] = {"render_modes": [], "reset_options": ()}

    def __init__(
        self,
        num_envs: int = 1,
        observation: Observation = "tokens",
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_steps: int | None = None,
    ) -> None:
        _observation_space(observation)
        # registry/entry_points.py catches this and makes single environments instead.
        if observation != "tokens":
            raise NoNativeForm(
                f"observation={shown(observation)} has no native vector form; "
                "use observation='tokens', or make_vec(…, vectorization_mode='sync')"
            )
        super().__init__(
            token_space(),
            Discrete(len(OPERATORS)),
            num_envs=num_envs,
            autoreset_mode=autoreset_mode,
            max_steps=max_steps,
        )
        self._tables = _tables()
        self._variants = np.zeros(num_envs, np.int64)
        self._shown = np.zeros((num_envs, sum(WIDTHS)), np.int64)

    def begin(self, rows: NDArray[np.intp], seeds: NDArray[np.uint64], options: dict[str, Any]) -> None:
        """Draw a program for each of ``rows`` from its seed, as the first observation."""
        self._variants[rows], self._shown[rows] = self._tables.draw(seeds)

    def advance(self, actions: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return 1.0 for each row whose operator passes the tests, else 0.0; every episode is over."""
        return self._tables.rewards[self._variants, actions], np.ones(self.num_envs, np.bool_)

    def observe(self) -> Tokens:
        """Return the tokens of the programs."""
        return self._shown.copy()

    opening_events = 1  # how many events opening() returns

    def opening(self, seed: int) -> tuple[Event, ...]:
        """Return the event with the question about the program of ``seed``."""
        return (message("user", question(generate(seed).source())),)

    def parse_action(self, text: str, agent: str | None = None) -> int:
        """Return the action of one row that a reply names, as in :class:`CodeFixEnv`."""
        return read_operator(text)

    def row_state(self, row: int) -> dict[str, Any]:
        """Return the state of one row, with the keys of ``CodeFixEnv.episode_state``."""
        return _state(generate(int(self._record.seeds[row])))
