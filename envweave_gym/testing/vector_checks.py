"""Checks that vectors and ``autoreset=True`` give the same as single environments with the same seeds."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Dict, Text, Tuple
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, create_shared_memory, iterate

from envweave_gym.core.spaces import Unicode
from envweave_gym.episode.stream import Stream, stream_of
from envweave_gym.testing.reproducibility_checks import SEED, expect_same
from envweave_gym.testing.subject import NotApplicable, Subject, translated
from envweave_gym.testing.traces import Moment, Sampler, Trace

ADVICE = "leave resetting to envweave_gym.wrappers.Autoreset"
SAME_DRAWS = "draw the same from one seed, and reset at the same steps"
NO_TEXT = "Gymnasium's Text comes back as '000…' from shared memory: make that space an envweave_gym.Unicode"
BESIDE = "let several instances of the environment exist in one process"

ROWS, MOVES, LIMIT = 3, 30, 7
"""Number of rows, of moves, and of steps in an episode: every row gets several episode boundaries."""

AnyVector = VectorEnv[Any, Any, Any]
_Forms = Mapping[str, Callable[[], AnyVector]]
"""Functions that make the vectors under test, by the name that failures give them."""
Script = Sequence[Sequence[Any]]
"""The actions of an episode, row by row: ``script[row][move]``."""
Disturb = Callable[[AnyVector, Sequence[Any]], None]
"""Function that is called before every step, with the vector and the actions of that step."""


def check_vector_equals_single(subject: Subject) -> None:
    """Check that every row of a vector plays like a single environment, in all three autoreset modes.

    Observations, rewards, ends and streams are compared, for the vector of ``make(num_envs=…)`` and for
    ``SyncVectorEnv``.
    """
    subject.needs_determinism()
    usual = usual_vector(subject)
    one = partial(subject.make, max_steps=LIMIT)
    for mode in AutoresetMode:
        forms: _Forms = {
            f"the vector form ({mode.value})": partial(usual, autoreset_mode=mode.value, max_steps=LIMIT),
            f"SyncVectorEnv ({mode.value})": partial(SyncVectorEnv, [one] * ROWS, autoreset_mode=mode),
        }
        _expect_rows(subject, forms, mode, LIMIT, MOVES)
    # Once more as users make it: the default autoreset mode, and no step limit but the environment's own.
    _expect_rows(subject, {"the vector form as it is": usual}, AutoresetMode.NEXT_STEP, None, 110)


def usual_vector(subject: Subject) -> Callable[..., AnyVector]:
    """Return the function that makes the environment's vector form; fail if it cannot be made."""
    build = partial(subject.make, num_envs=ROWS)
    with translated(f"{subject.name}: make(num_envs={ROWS}) fails", BESIDE):
        build().close()
    return build


def check_async_equals_single(subject: Subject) -> None:
    """Check that the rows of ``AsyncVectorEnv`` play like single environments, under every start method."""
    subject.needs_determinism()
    sets = async_options(subject)
    if not sets:
        raise NotApplicable("none of the given start methods can be used here")
    one = partial(subject.make, max_steps=LIMIT)
    for options in sets:
        advice = NO_TEXT if options["shared_memory"] and _has_text(_seen(subject)) else SAME_DRAWS
        build = partial(AsyncVectorEnv, [one] * 2, **options)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*use of fork.*", DeprecationWarning)
            forms: _Forms = {f"AsyncVectorEnv ({options['context']})": build}
            _expect_rows(subject, forms, AutoresetMode.NEXT_STEP, LIMIT, 12, rows=2, advice=advice)


def async_options(subject: Subject) -> list[dict[str, Any]]:
    """Return arguments of ``AsyncVectorEnv`` for each start method of the subject that works on this machine."""
    methods = [one for one in subject.start_methods if one in multiprocessing.get_all_start_methods()]
    if subject.name.startswith(
        "local://"
    ):  # such a name is known only in this process and those forked from it
        methods = [one for one in methods if one == "fork"]
    shared = _can_share(_seen(subject))
    return [{"context": method, "shared_memory": shared} for method in methods]


def _seen(subject: Subject) -> Space[Any]:
    with subject.stack().open() as player:
        return player.env.observation_space


def check_autoreset_equals_single(subject: Subject) -> None:
    """Check ``make(autoreset=True)``: the step after an episode's end resets, with reward 0, as the stream reports."""
    subject.needs_determinism()
    script = script_of(subject, 1)
    expected = _single(subject, script[0], SEED, AutoresetMode.NEXT_STEP, LIMIT)
    with translated(f"{subject.name}: make(autoreset=True) fails", ADVICE):
        env = subject.make(max_steps=LIMIT, autoreset=True)
        try:
            as_row = _AsRow(env.observation_space)
            found = [_opening(as_row, *env.reset(seed=SEED))]
            found += [_moment(as_row, action, *env.step(action)) for action in script[0]]
        finally:
            env.close()
    what = f"{subject.name}: with autoreset=True it differs from resets made by hand"
    expect_same(expected, found, what, ADVICE)


def _can_share(space: Space[Any]) -> bool:
    """Return whether shared memory can hold the observations, which needs a fixed size."""
    try:
        create_shared_memory(space, n=1)
    except (TypeError, CustomSpaceError):
        return False
    return True


def _has_text(space: Space[Any]) -> bool:
    """Return whether the space is or contains Gymnasium's own ``Text``."""
    parts = space.values() if isinstance(space, Dict) else space if isinstance(space, Tuple) else ()
    return any(map(_has_text, parts)) or (isinstance(space, Text) and not isinstance(space, Unicode))


def script_of(subject: Subject, rows: int, moves: int = MOVES) -> list[list[Any]]:
    """Return sampled actions as a script: ``script[row][move]`` is the action of a row in its step ``move``.

    ``moves`` is the number of steps.
    """
    with subject.stack().open() as player:
        space = player.env.action_space
        sampler = Sampler()
        return [[sampler.sample(space, f"row {row}") for _ in range(moves)] for row in range(rows)]


def _expect_rows(
    subject: Subject,
    forms: _Forms,
    mode: AutoresetMode,
    limit: int | None,
    moves: int,
    rows: int = ROWS,
    advice: str = SAME_DRAWS,
) -> None:
    __tracebackhide__ = True
    script = script_of(subject, rows, moves)
    expected: list[Trace] = []
    for form, build in forms.items():
        with translated(f"{subject.name}: {form} fails", BESIDE):
            found = play_vector(build, script, mode)
        for row, actions in enumerate(script):
            if row == len(expected):
                expected.append(_single(subject, actions, SEED + row, mode, limit))
            what = f"row {row} of {form} is not as the single environment with seed {SEED + row}"
            expect_same(expected[row], found[row], f"{subject.name}: {what}", advice)


def _single(
    subject: Subject, actions: Sequence[Any], seed: int, mode: AutoresetMode, limit: int | None
) -> Trace:
    """Return the trace of a single environment that plays ``actions``, reset by hand where ``mode`` resets.

    ``limit`` is the step limit of its episodes.
    """
    env = subject.make(**({} if limit is None else {"max_steps": limit}))
    try:
        as_row = _AsRow(env.observation_space)
        trace = [_opening(as_row, *env.reset(seed=seed))]
        over = False
        for action in actions:
            if over and mode is AutoresetMode.NEXT_STEP:
                trace.append(_opening(as_row, *env.reset())._replace(acted=action))
                over = False
                continue
            observation, reward, terminated, truncated, info = env.step(action)
            over = bool(terminated or truncated)
            final = None
            if over and mode is AutoresetMode.SAME_STEP:
                final, ended = as_row(observation), stream_of(info)
                observation, info = env.reset()
                joined = Stream(stream_of(info).requests, ended.events + stream_of(info).events)
                info = {**info, "stream": joined}
            trace.append(_moment(as_row, action, observation, reward, terminated, truncated, info, final))
            if over and mode is AutoresetMode.DISABLED:
                trace.append(_opening(as_row, *env.reset()))
        return trace
    finally:
        env.close()


def _opening(as_row: _AsRow, observation: Any, info: Mapping[str, Any]) -> Moment:
    return _moment(as_row, None, observation, 0.0, False, False, info)


def _moment(
    as_row: _AsRow,
    action: Any,
    observation: Any,
    reward: Any,
    terminated: Any,
    truncated: Any,
    info: Mapping[str, Any],
    final: Any = None,
) -> Moment:
    found = {"stream": stream_of(info), "seq": info.get("seq"), "final_obs": final}
    return Moment(action, as_row(observation), float(reward), bool(terminated), bool(truncated), found)


class _AsRow:
    """Callable that converts an observation to the form that it has as a row of a batch, with NumPy's scalar types."""

    def __init__(self, space: Space[Any]) -> None:
        self._space, self._one_row = space, batch_space(space, 1)

    def __call__(self, observation: Any) -> Any:
        batch = concatenate(self._space, [observation], create_empty_array(self._space, 1))
        return next(iter(iterate(self._one_row, batch)))


def play_vector(build: Callable[[], AnyVector], script: Script, mode: AutoresetMode) -> list[Trace]:
    """Make a vector with ``build``, play ``script[row][move]``, close the vector, and return the trace of every row."""
    with opened(build) as env:
        return play_rows(env, script, mode)


@contextmanager
def opened(build: Callable[[], AnyVector]) -> Generator[AnyVector]:
    """Make a vector, yield it, and close it on exit."""
    env = build()
    finished = False
    try:
        yield env
        finished = True
    finally:
        if isinstance(env, AsyncVectorEnv):
            env.close(terminate=not finished)  # after a worker's error a plain close() may wait for ever
        else:
            env.close()


def play_rows(
    env: AnyVector, script: Script, mode: AutoresetMode, before_each: Disturb | None = None
) -> list[Trace]:
    """Reset the vector, play ``script[row][move]``, and return the trace (the results in order) of every row.

    ``before_each`` is called before every step, with the vector and the actions of the step.
    """
    rows = range(len(script))
    traces: list[Trace] = [[] for _ in rows]
    _read_openings(env, traces, env.reset(seed=SEED), rows)
    for actions in zip(*script, strict=True):
        if before_each is not None:
            before_each(env, actions)
        results = env.step(batched(env.single_action_space, actions))
        _read_step(env, traces, actions, results)
        over = np.logical_or(results[2], results[3])
        if mode is AutoresetMode.DISABLED and over.any():
            again = env.reset(options={"reset_mask": over})
            _read_openings(env, traces, again, np.flatnonzero(over).tolist())
    return traces


def batched(space: Space[Any], actions: Sequence[Any]) -> Any:
    """Return single actions of ``space`` as one batch."""
    return concatenate(space, actions, create_empty_array(space, len(actions)))


def _read_openings(
    env: AnyVector, traces: list[Trace], opened: tuple[Any, dict[str, Any]], rows: Sequence[int]
) -> None:
    observations, infos = list(iterate(env.observation_space, opened[0])), opened[1]
    streams = stream_of(infos)
    for row in rows:
        found = {"stream": streams[row], "seq": int(infos["seq"][row]), "final_obs": None}
        traces[row].append(Moment(None, observations[row], 0.0, False, False, found))


def _read_step(env: AnyVector, traces: list[Trace], actions: Sequence[Any], results: tuple[Any, ...]) -> None:
    observations, rewards, terminated, truncated, infos = results
    seen, streams = list(iterate(env.observation_space, observations)), stream_of(infos)
    finals = infos.get("final_obs", [None] * len(actions))
    for row, action in enumerate(actions):
        final = finals[row]
        if final is not None:
            final = _AsRow(env.single_observation_space)(final)
        found = {"stream": streams[row], "seq": int(infos["seq"][row]), "final_obs": final}
        ends = bool(terminated[row]), bool(truncated[row])
        traces[row].append(Moment(action, seen[row], float(rewards[row]), *ends, found))
