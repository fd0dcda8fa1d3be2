"""What a vector must refuse, before any of its rows has moved, in a sentence that names the environment."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from gymnasium import Space
from gymnasium.spaces import Dict, Tuple
from gymnasium.vector import AutoresetMode

from envweave_gym.faults import EnvweaveError, InvalidAction, InvalidArgument, ResetNeeded
from envweave_gym.testing.misuse_checks import NOT_SEEDS, outside
from envweave_gym.testing.seed_checks import expect_same
from envweave_gym.testing.subject import Subject, expected, refuse, translated
from envweave_gym.testing.traces import brief
from envweave_gym.testing.vector_checks import (
    LIMIT,
    ROWS,
    AnyVector,
    async_options,
    batched,
    play_vector,
    script_of,
    usual_vector,
)

MOVES = LIMIT + 3
BEFORE_ANY_MOVES = "look at the arguments of the call before the first row is reset or stepped"


def check_vectors_refuse_misuse(subject: Subject) -> None:
    """Vectors refuse wrong actions, steps before the reset and bad seeds, and every row goes on as before.

    That is what ``make(num_envs=…)`` gives as it is, in turn, and in processes.
    """
    subject.needs_determinism()
    script = script_of(subject, ROWS, MOVES)
    for form, build in _forms(subject):
        what = f"{subject.name}: {form}"
        with warnings.catch_warnings(), translated(f"{what} fails", BEFORE_ANY_MOVES):
            warnings.simplefilter("ignore")  # Box warns of whatever it has to cast, and Python of fork
            quiet = play_vector(build, script, AutoresetMode.NEXT_STEP)
            misused = play_vector(build, script, AutoresetMode.NEXT_STEP, partial(_misuse, subject, what))
        for row, (one, other) in enumerate(zip(quiet, misused, strict=True)):
            after = f"{what}: after refused calls row {row} does not go on as it should"
            expect_same(one, other, after, BEFORE_ANY_MOVES)


def _forms(subject: Subject) -> Iterator[tuple[str, Callable[[], AnyVector]]]:
    yield "the vector form", partial(usual_vector(subject), max_steps=LIMIT)
    build = partial(subject.make, num_envs=ROWS, max_steps=LIMIT)
    yield "the vector with vectorization_mode='sync'", partial(build, vectorization_mode="sync")
    options = async_options(subject)
    if options:
        in_processes = partial(build, vectorization_mode="async", vector_kwargs=options[0])
        yield "the vector with vectorization_mode='async'", in_processes


def _misuse(subject: Subject, what: str, env: AnyVector, actions: Sequence[Any] | None) -> None:
    """Call it in every wrong way; there are no ``actions`` before the reset."""
    refused = partial(_refused, subject, what)
    if actions is None:
        with refused(ResetNeeded, "step() before reset()"):
            env.step(env.action_space.sample())
        return
    for wrong in _wrong_batches(env.single_action_space, actions):
        with refused(InvalidAction, f"step({brief(wrong)}) of {ROWS} rows"):
            env.step(wrong)
    seeds: list[Any] = [*NOT_SEEDS, [*range(ROWS - 1), -1]]
    for seed in seeds:
        with refused(InvalidArgument, f"reset(seed={seed!r}) of {ROWS} rows"):
            env.reset(seed=seed)


@contextmanager
def _refused(subject: Subject, what: str, error: type[EnvweaveError], misuse: str) -> Generator[None]:
    __tracebackhide__ = True
    with expected(error, f"{what}: {misuse}", BEFORE_ANY_MOVES):
        try:
            yield
        except error as refusal:
            if subject.called not in str(refusal):
                advice = "begin errors with the ID, so that it is known whose they are"
                refuse(f"{what}: {misuse}: the error does not name {subject.called}: {refusal}", advice)
            raise


def _wrong_batches(space: Space[Any], actions: Sequence[Any]) -> Iterator[Any]:
    """Too few actions, too many, good ones but for the last row's, and none at all."""
    yield batched(space, actions[:-1])
    yield batched(space, [*actions, actions[-1]])
    yield from _spoiled(space, actions)
    yield None


def _spoiled(space: Space[Any], actions: Sequence[Any]) -> Iterator[Any]:
    """The batch with what is no action in the last row; of several parts, in the first of them."""
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
