"""Reward transforms, which compute a reward from a program and the result of running it.

A reward function is any callable ``(action, observation, info) -> float``. Those defined here are
:class:`Transform`: they return a :class:`Score` of three parts instead of one number. Scores add up, so the
order and the nesting of a :class:`Composite` never matter:

- ``earned``: the reward for what the action achieved. The number that a plain function returns is all earned.
- ``style``: the reward for how the program is written; added in any case.
- ``penalty``: the reward for a violation. It caps ``earned``, and with it the total is never above zero, so
  no other reward can make up for a violation.

A reward is a finite number. A function that raises, or returns anything else, raises :class:`RewardFailed`. A
failure is never a reward of 0, on which a policy would be trained.

A transform reads the result of a program from ``info["result"]`` or else from the observation, whichever
first is a :class:`Result` or a mapping with one of its fields. An environment that runs code provides it:

- ``success``: whether the program ran without an error (true if it is missing);
- ``value``: the value of its last expression, as JSON or as the text of its ``repr``;
- ``stdout``: the text that it printed; its last line is the answer if the last expression has no value.

A subclass of :class:`Result` may define its answers otherwise: a given final answer is then the only one.

In ``info`` a :class:`Result` is the better choice: vector environments merge a dictionary field by field into
arrays of the type that came first, where 1.5 after 1 becomes 1 and ``None`` after 1 raises.

Programs are judged by their syntax tree and never run here. An action may be a bare program or a reply with
programs in Markdown fences: if the text itself is no Python, the code in the fences is judged.
:class:`CodeSafety` teaches a policy, it does not protect: a program can reach anything in more ways than a
list can name. Protection is the job of the sandbox that runs the program.
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
from envweave_gym.episode.trainable import trainable
from envweave_gym.rewards.answer_equality import equal
from envweave_gym.rewards.program_reading import VIOLATIONS, read_program

ObsType = TypeVar("ObsType")

RewardFunction = Callable[[str, Any, Mapping[str, Any]], float]
"""A function ``(action, observation, info) -> reward``."""


class RewardFailed(EnvweaveError):
    """Raised if a reward function raises or returns no finite number, so the step must not be trained on."""


class Score(msgspec.Struct, frozen=True):
    """The parts of a reward, all finite; ``a + b`` adds the parts, but takes the more severe penalty."""

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
        """The reward that the parts add up to."""
        if self.penalty is None:
            return float(self.earned + self.style)
        return min(0.0, float(min(self.penalty, self.earned) + self.style))

    def parts(self) -> dict[str, float]:
        """Return the parts by name, without ``penalty`` if there is none."""
        parts = {"earned": float(self.earned), "style": float(self.style)}
        return parts if self.penalty is None else {**parts, "penalty": float(self.penalty)}


class Transform(ABC):
    """A reward function whose reward has named parts; a subclass defines :meth:`score`."""

    @abstractmethod
    def score(self, action: str, observation: Any, info: Mapping[str, Any]) -> Score:
        """Return the parts of the reward for an action."""

    def __call__(self, action: str, observation: Any, info: Mapping[str, Any]) -> float:
        """Return the total of :meth:`score`."""
        return self.score(action, observation, info).total

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def score_of(function: RewardFunction, action: str, observation: Any, info: Mapping[str, Any]) -> Score:
    """Return the score of any reward function; raise :class:`RewardFailed`, which names it, if it fails."""
    is_transform = isinstance(function, Transform)
    try:
        returned: Any = (function.score if is_transform else function)(action, observation, info)
    except RewardFailed:
        raise  # its text names the member of a composite already
    except Exception as error:  # also one that the stream would take for a refusal
        raise RewardFailed(f"{_named(function)} raised {type(error).__name__}: {error}") from error
    if isinstance(returned, Score):
        return returned
    if _is_number(returned) and not is_transform:
        return Score(earned=float(returned))
    kind = "Score" if is_transform else "finite number"
    raise RewardFailed(f"{_named(function)} gave {shown(returned)}, which is no {kind}")


def _named(function: RewardFunction) -> str:
    return f"the reward function {getattr(function, '__name__', None) or shown(function)}"


def _is_number(value: Any) -> bool:
    """Return whether ``value`` is a finite number of any kind, of Python, of NumPy or of a framework."""
    if type(value) is float:
        return math.isfinite(value)
    if not isinstance(value, SupportsFloat) or isinstance(value, np.complexfloating):
        return False
    if getattr(value, "ndim", 0):  # an array of one number would pass isfinite()
        return False
    try:
        return math.isfinite(value)
    except (OverflowError, ValueError):  # an int beyond all floats, a signalling NaN
        return False


def require_function(value: Any) -> None:
    """Raise ``InvalidArgument`` for a value that is no reward function."""
    if not callable(value):
        raise InvalidArgument(
            f"a transform is a function (action, observation, info) -> reward, not {shown(value)}"
        )


class Composite(Transform):
    """The sum of several reward functions, in any order; a violation caps the rewards of all members."""

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
    """Return the result in ``info`` or the observation (see the module), or ``None`` if nothing was run."""
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
    """Transform that rewards the expected answer with 1.0, another one with 0.0 and a failed program with -0.5.

    Numbers, also those in lists and those given as text (``"42.0"``, ``"1/3"``, ``"np.float64(42.0)"``), may
    differ by ``tolerance``. NaN equals nothing, so it cannot be expected; ``True`` is no number. Everything
    else must be equal, as a value or as its text.
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
    """Transform that rewards a completed task with 1.0, a failed program with -0.5 and anything else with 0.0.

    A task is completed if ``completed(action, observation, info)`` returns true; without that function, by
    any program that runs.
    """

    completed: Callable[[str, Any, Mapping[str, Any]], bool] | None = None

    def __post_init__(self) -> None:
        if self.completed is not None and not callable(self.completed):
            raise InvalidArgument(
                "TaskCompletion: completed is a function (action, observation, info) -> bool, or None, "
                f"not {shown(self.completed)}"
            )

    def score(self, action: str, observation: Any, info: Mapping[str, Any]) -> Score:
        """Score a failed program, or else the result of ``completed``."""
        result = result_of(observation, info)
        if result is not None and not result.success:
            return Score(earned=-0.5)
        if self.completed is not None:
            return Score(earned=float(bool(self.completed(action, observation, info))))
        return Score(earned=float(result is not None))


@dataclass(frozen=True)
class CodeQuality(Transform):
    """Transform that rewards a program of at most 100 characters with 0.1, and text that is no Python with -0.2.

    Of a reply with Markdown fences only the code in the fences is measured, and all of it must be Python.
    """

    def score(self, action: str, observation: Any, info: Mapping[str, Any]) -> Score:
        """Score the length of the program, and whether it is Python."""
        program = read_program(action)
        brevity = 0.1 if len(program.code.strip()) <= 100 else 0.0
        return Score(style=brevity if program.is_python else brevity - 0.2)


@dataclass(frozen=True)
class CodeSafety(Transform):
    """Transform that penalises a program that uses files, processes, the network or the interpreter with -1.0.

    Violations are: a mention of one of ``UNSAFE_NAMES`` (so ``e = eval`` is one), an import of one of
    ``UNSAFE_MODULES``, an access to one of ``UNSAFE_ATTRIBUTES`` (also in the fields of a format string), and
    a ``getattr`` of a computed name. Starting a process is one through any module, and so is any function
    that runs a text, such as ``timeit.timeit``, even if it is given a function. ``allow`` lists names that a
    task needs: ``allow=("pathlib", "open", "timeit.timeit")``. In a reply the code in every Markdown fence is
    judged. A text that is no Python violates nothing, since it cannot run; a text that is too long is a
    violation.
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
        """Return the names of the program's violations, sorted, such as ``("eval", "os")``."""
        return tuple(sorted(read_program(code).unsafe.difference(self.allow)))

    def score(self, action: str, observation: Any, info: Mapping[str, Any]) -> Score:
        """Score a program with violations by a penalty of -1.0."""
        return Score(penalty=-1.0) if self.violations(action) else Score()


def math_transform(expected: Any, tolerance: float = 1e-6) -> Composite:
    """Return the transform for a problem with one answer, which rewards it and penalises violations."""
    return Composite(MathAnswer(expected, tolerance), CodeSafety(), CodeQuality())


def safe_transform() -> Composite:
    """Return the transform for tasks without one right answer: it rewards programs that run and are short.

    Violations are penalised.
    """
    return Composite(CodeSafety(), CodeQuality(), TaskCompletion())


class RewardTransform(gymnasium.Wrapper[ObsType, str, ObsType, str]):
    """Wrapper that replaces the reward of an environment with text actions by the total of ``transform``.

    The environment's own reward stays in ``info["env_reward"]``, where the transform may read it, and in the
    ``reward`` event of ``info["stream"]``; the parts of the score are in ``info["reward_parts"]``. A lost step and
    the reset row of an autoreset keep their reward: :func:`envweave_gym.trainable` is False for them, as the
    agent did not act. A violation found by an inner ``RewardTransform`` counts in an outer one too. If the
    transform raises or returns no finite number, ``step`` raises :class:`RewardFailed`: the environment has made the
    step, which has no reward. ``transform`` may be replaced at any time. It has no JSON form, so
    ``gymnasium.make(env.spec)`` refuses to make the wrapper anew.
    """

    def __init__(self, env: gymnasium.Env[ObsType, str], transform: RewardFunction) -> None:
        require_function(transform)
        super().__init__(env)
        self.transform = transform

    def step(self, action: str) -> tuple[ObsType, float, bool, bool, dict[str, Any]]:
        """Step the environment and replace its reward by that of the transform."""
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
    """Call the reward function for a finished step, and return its score.

    If ``info["reward_parts"]`` has a negative ``penalty``, an inner reward transform found a violation, such as
    forbidden code; that penalty is added to the score. The caller then writes the parts of the new score there.
    ``name`` is the name of the environment in errors.
    """
    try:
        return score_of(function, action, observation, info) + _inner_violation(info)
    except (RewardFailed, InvalidArgument) as error:  # both scores are right, and their sum is too large
        advice = "the step is done and has no reward; mend the function"
        raise RewardFailed(f"{name}: {error}; {advice}") from error.__cause__


def _inner_violation(info: Mapping[str, Any]) -> Score:
    parts = info.get("reward_parts")
    penalty: Any = parts.get("penalty") if isinstance(parts, Mapping) else None
    return Score(penalty=penalty) if _is_number(penalty) and penalty < 0 else Score()
