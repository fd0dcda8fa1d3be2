"""Checks that each wrong call of a vector raises an error with the ID, before any row has moved."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from gymnasium import Space
from gymnasium.spaces import Dict, Tuple
from gymnasium.vector import AutoresetMode

from envweave_gym.core.faults import EnvweaveError, InvalidAction, InvalidArgument, ResetNeeded
from envweave_gym.testing.misuse_checks import NOT_SEEDS, outside
from envweave_gym.testing.reproducibility_checks import expect_same
from envweave_gym.testing.subject import Subject, expected, refuse, translated
from envweave_gym.testing.traces import brief
from envweave_gym.testing.vector_checks import (
    LIMIT,
    ROWS,
    AnyVector,
    async_options,
    batched,
    opened,
    play_rows,
    script_of,
    usual_vector,
)

MOVES = LIMIT + 3
BEFORE_ANY_MOVES = "look at the arguments of the call before the first row is reset or stepped"


def check_vectors_refuse_misuse(subject: Subject) -> None:
    """Check that vectors refuse bad actions, bad seeds and early steps, and that all rows then go on as before.

    The vectors are those of ``make(num_envs=…)``: the default one, ``vectorization_mode="sync"`` and ``"async"``.
    """
    subject.needs_determinism()
    script = script_of(subject, ROWS, MOVES)
    for form, rows, build in _forms(subject):
        what = f"{subject.name}: {form}"
        refused = partial(_refused, subject, what)
        with warnings.catch_warnings(), translated(f"{what} fails", BEFORE_ANY_MOVES), opened(build) as env:
            warnings.simplefilter("ignore")  # Box warns of whatever it has to cast, and Python of fork
            with refused(ResetNeeded, "step() before reset()"):
                env.step(env.action_space.sample())
            play = partial(play_rows, env, script[:rows], AutoresetMode.NEXT_STEP)
            quiet, misused = play(), play(partial(_misuse, refused))
        for row, (one, other) in enumerate(zip(quiet, misused, strict=True)):
            after = f"{what}: after refused calls row {row} does not go on as it should"
            expect_same(one, other, after, BEFORE_ANY_MOVES)


def _forms(subject: Subject) -> Iterator[tuple[str, int, Callable[[], AnyVector]]]:
    """Yield, for each kind of vector, its name in failures, its number of rows, and the function that makes it."""
    build = partial(subject.make, max_steps=LIMIT)
    usual_vector(subject)
    yield "the vector form", ROWS, partial(build, num_envs=ROWS)
    in_turn = partial(build, num_envs=ROWS, vectorization_mode="sync")
    yield "the vector with vectorization_mode='sync'", ROWS, in_turn
    options = async_options(subject)
    if options:  # two rows are the fewest of which one could move before the other; each costs a process
        in_processes = partial(build, num_envs=2, vectorization_mode="async", vector_kwargs=options[0])
        yield "the vector with vectorization_mode='async'", 2, in_processes


def _misuse(refused: Callable[..., Any], env: AnyVector, actions: Sequence[Any]) -> None:
    """Call ``env.step`` with each kind of wrong batch and ``env.reset`` with each kind of wrong seed.

    ``refused`` is the context manager that fails if a call is accepted.
    """
    rows = len(actions)
    for wrong in _wrong_batches(env.single_action_space, actions):
        with refused(InvalidAction, f"step({brief(wrong)}) of {rows} rows"):
            env.step(wrong)
    too_few = [*range(rows - 1)]
    seeds: list[Any] = [*(one for one in NOT_SEEDS if not isinstance(one, list)), too_few, [*too_few, -1]]
    for seed in seeds:
        with refused(InvalidArgument, f"reset(seed={seed!r}) of {rows} rows"):
            env.reset(seed=seed)


@contextmanager
def _refused(subject: Subject, what: str, error: type[EnvweaveError], misuse: str) -> Generator[None]:
    __tracebackhide__ = True
    with expected(error, f"{what}: {misuse}", BEFORE_ANY_MOVES):
        try:
            yield
        except error as refusal:
            if subject.called not in str(refusal):
                advice = "begin errors with the ID, so that readers know which environment raised them"
                refuse(f"{what}: {misuse}: the error does not name {subject.called}: {refusal}", advice)
            raise


def _wrong_batches(space: Space[Any], actions: Sequence[Any]) -> Iterator[Any]:
    """Yield batches with too few actions, too many, an invalid one in the last row, and ``None``."""
    yield batched(space, actions[:-1])
    yield batched(space, [*actions, actions[-1]])
    yield from _spoiled(space, actions)
    yield None


def _spoiled(space: Space[Any], actions: Sequence[Any]) -> Iterator[Any]:
    """Yield batches of ``actions`` whose last one is invalid; in a ``Dict`` or ``Tuple``, its first part is."""
    match space:
        case Dict() if space.spaces:
            first = next(iter(space.spaces))
            for part in _spoiled(space[first], [action[first] for action in actions]):
                yield {**batched(space, actions), first: part}
        case Tuple() if space.spaces:
            for part in _spoiled(space[0], [action[0] for action in actions]):
                yield (part, *batched(space, actions)[1:])
        case _:
            for wrong in outside(space):
                yield (*actions[:-1], wrong)
