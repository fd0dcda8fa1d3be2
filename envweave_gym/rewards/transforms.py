"""Reward transforms: what an action that is a program, and the result of running it, are worth.

A reward function is any callable ``(action, observation, info) -> float``. Those defined here are
:class:`Transform`: they give a :class:`Score` of three parts instead of one number. Scores add up, so the
order and the nesting of a :class:`Composite` never matter:

- ``earned``: for what the action achieved. What a plain function returns counts as earned.
- ``style``: for how it is written; added whatever was achieved.
- ``penalty``: a violation. No more than the penalty is then earned, and the total is never above zero, so
  nothing that comes later can pay for it.

A reward is a finite number. Where a function raises, or says anything else, there is none: that is
:class:`RewardFailed`, never a 0 to train on.

A transform learns what a program did from ``info["result"]`` or else from the observation, whichever first is
a :class:`Result` or a mapping with one of its fields. An environment that runs code provides it:

- ``success``: whether it ran without an error (true where it is missing);
- ``value``: the value of its last expression, as JSON or as the text of its ``repr``;
- ``stdout``: what it printed; its last line is the answer of a program whose last expression has no value.

A :class:`Result` may have other answers, as a program that has given its final answer has that one alone.

In ``info`` a :class:`Result` is the better choice: vector environments merge a dictionary field by field into
arrays of the type that came first, where 1.5 after 1 becomes 1 and ``None`` after 1 raises.

Programs are judged by their syntax tree and never run here. An action may be a bare program or a reply with
programs in Markdown fences: where the text itself is no Python, the code in the fences is what is judged.
:class:`CodeSafety` teaches, it does not protect: Python has more ways out than a list can name. What keeps a
program in is the sandbox that runs it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, SupportsFloat, TypeVar

import gymnasium
import msgspec
import numpy as np

from envweave_gym.core.faults import EnvweaveError, InvalidAction, InvalidArgument, nearest, shown
from envweave_gym.core.program_result import Result
from envweave_gym.core.protocols import name_of
from envweave_gym.episode.stream import trainable
from envweave_gym.rewards.answer_equality import equal
from envweave_gym.rewards.program_source import VIOLATIONS, read_program

ObsType = TypeVar("ObsType")

RewardFunction = Callable[[str, Any, Mapping[str, Any]], float]
"""``(action, observation, info) -> reward``."""


class RewardFailed(EnvweaveError):
    """A reward function raised, or gave no finite number: there is no reward, and nothing to train on."""


class Score(msgspec.Struct, frozen=True):
    """The parts of a reward, finite numbers; ``a + b`` joins two, keeping the more severe penalty."""

    earned: float = 0.0
    style: float = 0.0
    penalty: float | None = None

    def __post_init__(self) -> None:
        for part in ("earned", "style"):
            if not _is_number(value := getattr(self, part)):
                raise InvalidArgument(f"Score: {part} is a finite number, not {shown(value)}")
        if self.penalty is not None and not (_is_number(self.penalty) and self.penalty < 0):
            raise InvalidArgument(
                f"Score: penalty is a number below zero, or None for no violation, not {shown(self.penalty)}"
            )
        if not math.isfinite(self.total):
            raise InvalidArgument(f"Score: its parts add up to {self.total}, beyond all numbers")

    def __add__(self, other: Score) -> Score:
        penalties = [score.penalty for score in (self, other) if score.penalty is not None]
        return Score(self.earned + other.earned, self.style + other.style, min(penalties, default=None))

    @property
    def total(self) -> float:
        """The reward."""
        if self.penalty is None:
            return float(self.earned + self.style)
        return min(0.0, float(min(self.penalty, self.earned) + self.style))

    def parts(self) -> dict[str, float]:
        """The parts by name, without ``penalty`` where there is none."""
        parts = {"earned": float(self.earned), "style": float(self.style)}
        return parts if self.penalty is None else {**parts, "penalty": float(self.penalty)}


class Transform(ABC):
    """A reward function that says how its reward comes about: a subclass writes :meth:`score`."""

    @abstractmethod
    def score(self, action: str, observation: Any, info: Mapping[str, Any]) -> Score:
        """What the action is worth, in parts."""

    def __call__(self, action: str, observation: Any, info: Mapping[str, Any]) -> float:
        """The total of :meth:`score`."""
        return self.score(action, observation, info).total

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def score_of(function: RewardFunction, action: str, observation: Any, info: Mapping[str, Any]) -> Score:
    """What any reward function says, in parts; :class:`RewardFailed` names the one that has none to say."""
    is_transform = isinstance(function, Transform)
    try:
        said: Any = (function.score if is_transform else function)(action, observation, info)
    except RewardFailed:
        raise  # it names the member of a composite
    except Exception as error:  # a function may raise anything, also what the stream takes for a refusal
        raise RewardFailed(f"{_named(function)} raised {type(error).__name__}: {error}") from error
    if isinstance(said, Score):
        return said
    if _is_number(said) and not is_transform:
        return Score(earned=float(said))
    kind = "Score" if is_transform else "finite number"
    raise RewardFailed(f"{_named(function)} gave {shown(said)}, which is no {kind}")


def _named(function: RewardFunction) -> str:
    return f"the reward function {getattr(function, '__name__', None) or shown(function)}"


def _is_number(value: Any) -> bool:
    """Whether ``value`` is a finite number of any kind, of Python, of NumPy or of a framework."""
    if type(value) is float:
        return math.isfinite(value)
    if not isinstance(value, SupportsFloat) or isinstance(value, np.complexfloating):
        return False
    if getattr(value, "ndim", 0):
        return False
    try:
        return math.isfinite(value)
    except (OverflowError, ValueError):  # an int beyond all floats, a signalling NaN
        return False


def require_function(value: Any) -> None:
    """Refuse what is no reward function."""
    if not callable(value):
        raise InvalidArgument(
            f"a transform is a function (action, observation, info) -> reward, not {shown(value)}"
        )


class Composite(Transform):
    """The sum of several reward functions, in any order; a violation caps what all of them earn."""

    def __init__(self, *members: RewardFunction) -> None:
        for member in members:
            require_function(member)
        self.members = members

    def score(self, action: str, observation: Any, info: Mapping[str, Any]) -> Score:
        """Add up the scores of the members."""
        return sum((score_of(member, action, observation, info) for member in self.members), Score())

    def __repr__(self) -> str:
        return f"Composite({', '.join(map(repr, self.members))})"


def result_of(observation: Any, info: Mapping[str, Any]) -> Result | None:
    """The result an environment reports, by the contract at the top; ``None`` where nothing was run."""
    for source in (info.get("result"), observation):
        if isinstance(source, Result):
            return source
        if isinstance(source, Mapping) and any(name in source for name in Result.__struct_fields__):
            stdout = source.get("stdout")
            printed = stdout if isinstance(stdout, str) else ""
            return Result(_truth(source.get("success", True)), source.get("value"), printed)
    return None


def _truth(value: Any) -> bool:
    return value.strip().lower() in ("true", "1") if isinstance(value, str) else bool(np.all(value))


@dataclass(frozen=True)
class MathAnswer(Transform):
    """1.0 for the expected answer, 0.0 for another one, -0.5 for a program that failed.

    Numbers, also those in lists and those that came as text (``"42.0"``, ``"1/3"``, ``"np.float64(42.0)"``),
    may differ by ``tolerance``; NaN is never right, so none can be expected, and ``True`` is no number.
    Everything else must be equal, as a value or as its text.
    """

    expected: Any
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        tolerance = self.tolerance
        if isinstance(tolerance, bool) or not isinstance(tolerance, Real) or not 0 <= tolerance < math.inf:
            raise InvalidArgument(
                f"MathAnswer: tolerance is a finite number of at least zero, not {shown(tolerance)}"
            )
        if not equal(self.expected, self.expected, tolerance):
            raise InvalidArgument(
                f"MathAnswer: expected={shown(self.expected)} equals nothing, not even itself, "
                "so no answer could be right; give one that can be found"
            )

    def score(self, action: str, observation: Any, info: Mapping[str, Any]) -> Score:
        """Compare the answer in the result with the expected one."""
        result = result_of(observation, info)
        if result is None:
            return Score()
        if not result.success:
            return Score(earned=-0.5)
        right = any(equal(answer, self.expected, self.tolerance) for answer in result.answers())
        return Score(earned=float(right))


@dataclass(frozen=True)
class TaskCompletion(Transform):
    """1.0 for a completed task, -0.5 for a program that failed, 0.0 otherwise.

    A task is completed when ``completed(action, observation, info)`` says so; without it, by any program that
    runs.
    """

    completed: Callable[[str, Any, Mapping[str, Any]], bool] | None = None

    def __post_init__(self) -> None:
        if self.completed is not None and not callable(self.completed):
            raise InvalidArgument(
                "TaskCompletion: completed is a function (action, observation, info) -> bool, or None, "
                f"not {shown(self.completed)}"
            )

    def score(self, action: str, observation: Any, info: Mapping[str, Any]) -> Score:
        """Ask the result, then ``completed``."""
        result = result_of(observation, info)
        if result is not None and not result.success:
            return Score(earned=-0.5)
        if self.completed is not None:
            return Score(earned=float(bool(self.completed(action, observation, info))))
        return Score(earned=float(result is not None))


@dataclass(frozen=True)
class CodeQuality(Transform):
    """0.1 for a program of at most 100 characters, -0.2 for one that is no Python.

    Of a reply with Markdown fences only the code in them is measured, and all of it should be Python.
    """

    def score(self, action: str, observation: Any, info: Mapping[str, Any]) -> Score:
        """Measure the program and parse it."""
        program = read_program(action)
        brevity = 0.1 if len(program.code.strip()) <= 100 else 0.0
        return Score(style=brevity if program.is_python else brevity - 0.2)


@dataclass(frozen=True)
class CodeSafety(Transform):
    """-1.0 for a program that reaches for files, processes, the network or the interpreter, 0.0 otherwise.

    To mention one of ``UNSAFE_NAMES`` is enough, so ``e = eval`` is no way round; so is importing one of
    ``UNSAFE_MODULES``, reading one of ``UNSAFE_ATTRIBUTES``, also in a field of a text to be formatted, or
    asking ``getattr`` for a computed name. Starting a process counts whichever module does it, and so does
    what runs a text (``timeit.timeit``), even where it is given a function. What a task needs is let through
    by its name: ``allow=("pathlib", "open", "timeit.timeit")``. In a reply the code in any Markdown fence can
    violate. A text that is no Python violates nothing, since it cannot run; one that is too long to read is
    not vouched for.
    """

    allow: Collection[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.allow, str) or not isinstance(self.allow, Collection):
            raise InvalidArgument(
                f"CodeSafety: allow takes the names of violations, not {shown(self.allow)}; "
                "give a tuple as ('pathlib', 'open')"
            )
        for name in self.allow:
            if not isinstance(name, str) or name not in VIOLATIONS:
                hint = nearest(str(name), VIOLATIONS)
                raise InvalidArgument(f"CodeSafety: {shown(name)} is no violation to be allowed{hint}")

    def violations(self, code: str) -> tuple[str, ...]:
        """What the program reaches for and should not, sorted: ``("eval", "os")``."""
        return tuple(sorted(read_program(code).unsafe.difference(self.allow)))

    def score(self, action: str, observation: Any, info: Mapping[str, Any]) -> Score:
        """Look for violations."""
        return Score(penalty=-1.0) if self.violations(action) else Score()


def math_transform(expected: Any, tolerance: float = 1e-6) -> Composite:
    """For a problem with one answer: found, in few words, without reaching for the machine."""
    return Composite(MathAnswer(expected, tolerance), CodeSafety(), CodeQuality())


def safe_transform() -> Composite:
    """For a task that is done when the program runs: in few words, without reaching for the machine."""
    return Composite(CodeSafety(), CodeQuality(), TaskCompletion())


class RewardTransform(gymnasium.Wrapper[ObsType, str, ObsType, str]):
    """Replaces the reward of an environment whose actions are text by what ``transform`` says.

    The environment's own reward stays in ``info["env_reward"]``, where the transform may read it, and in
    the ``reward`` event of the stream; the parts of the score are in ``info["reward_parts"]``. A lost
    step and the reset row of an autoreset, for which :func:`envweave_gym.trainable` is False, are no deed
    of the agent and keep the reward they have. A violation found by an inner ``RewardTransform`` counts
    in an outer one too. A transform that raises or gives no finite number raises :class:`RewardFailed`:
    the step is done then, and has no reward. ``transform`` may be replaced at any time; it is no JSON, so
    ``gymnasium.make(env.spec)`` refuses to make the wrapper anew.
    """

    def __init__(self, env: gymnasium.Env[ObsType, str], transform: RewardFunction) -> None:
        require_function(transform)
        super().__init__(env)
        self.transform = transform

    def step(self, action: str) -> tuple[ObsType, float, bool, bool, dict[str, Any]]:
        """Step the environment and judge the action by what came of it."""
        if not isinstance(action, str):
            name = name_of(self.env)
            raise InvalidAction(f"{name}: a reward transform judges text, not {shown(action)}; send a str")
        observation, reward, terminated, truncated, info = self.env.step(action)
        if not trainable(info):
            return observation, float(reward), terminated, truncated, info
        info = {**info, "env_reward": float(reward)}
        score = self._judge(action, observation, info)
        info["reward_parts"] = score.parts()
        return observation, score.total, terminated, truncated, info

    def _judge(self, action: str, observation: ObsType, info: dict[str, Any]) -> Score:
        return judged(name_of(self.env), self.transform, action, observation, info)


def judged(
    name: str, function: RewardFunction, action: str, observation: Any, info: Mapping[str, Any]
) -> Score:
    """What a step is worth that is done, with the violations found before; ``name`` is the environment's."""
    try:
        return score_of(function, action, observation, info) + _inner_violation(info)
    except (RewardFailed, InvalidArgument) as error:  # both scores are right, and their sum is too large
        advice = "the step is done and has no reward; mend the function"
        raise RewardFailed(f"{name}: {error}; {advice}") from error.__cause__


def _inner_violation(info: Mapping[str, Any]) -> Score:
    parts = info.get("reward_parts")
    penalty: Any = parts.get("penalty") if isinstance(parts, Mapping) else None
    return Score(penalty=penalty) if _is_number(penalty) and penalty < 0 else Score()
