"""Checks of reproducibility: the seed and the actions alone decide an episode, also in a copy.

They apply to Gymnasium and to PettingZoo environments.
"""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from envweave_gym.testing.subject import (
    ConformanceError,
    Form,
    NotApplicable,
    Subject,
    TracesDiffer,
    refuse,
    translated,
)
from envweave_gym.testing.traces import (
    Player,
    Trace,
    first_difference,
    first_episode,
    global_rngs,
    moved_global_rngs,
    plain,
)

SEED, MOVES = 7, 24
MANY_SEEDS = range(20)

USE_NP_RANDOM = "draw from self.np_random alone, which super().reset(seed=seed) seeds"


def expect_same(one: Trace, other: Trace, what: str, advice: str) -> None:
    """Fail with the sentence ``what``, the first difference and ``advice`` if the two traces differ."""
    __tracebackhide__ = True
    difference = first_difference(one, other)
    if difference is not None:
        raise TracesDiffer(f"{what}: {difference}; {advice}")


def check_same_seed_same_trace(subject: Subject) -> None:
    """Check that one seed with the same actions gives the same observations, rewards, ends and infos.

    Three replays are compared: on another instance, on the same instance, and with a third instance stepped in
    between.
    """
    subject.needs_determinism()
    for form in subject.forms():
        with form.open() as first, form.open() as second, form.open() as third:
            # Seed 0 has a comparison of its own: code such as "if seed:" treats it as no seed.
            what = f"{form.label}: two instances differ on seed 0"
            expect_same(first.play(0, MOVES), second.play(0, MOVES), what, f"0 is a seed; {USE_NP_RANDOM}")
            trace = first.play(SEED, MOVES)
            advice = USE_NP_RANDOM + "; keep clocks, ids and counters of the process out of infos"
            what = f"{form.label}: two instances differ on one seed"
            expect_same(trace, second.play(SEED, MOVES), what, advice)
            what = f"{form.label}: the same seed played again differs"
            expect_same(trace, first.play(SEED, MOVES), what, advice)

            def disturb(_: Player, neighbour: Player = third) -> None:
                neighbour.play(SEED + 1, 1)

            beside = second.play(SEED, MOVES, before_each=disturb)
            advice = "keep state on the instance, not on the class or the module"
            expect_same(trace, beside, f"{form.label}: another instance played beside it changes it", advice)


def check_different_seeds_differ(subject: Subject) -> None:
    """Check that of 20 seeds at least one gives another episode under the same actions.

    An environment without randomness must declare ``metadata["ignores_seed"] = True``, and then its episodes must
    be equal. Environments without a card may omit the declaration if none of their generators is used, or if the
    seeds reach them and nothing follows from what they draw.
    """
    subject.needs_determinism()
    for form in subject.forms():
        with form.open() as player:
            ignores_seed = _ignores_seed(player)
            varied = _vary(plain(player.play(seed, MOVES)) for seed in MANY_SEEDS)
            what = f"{form.label}: {len(MANY_SEEDS)} seeds under the same actions"
            if not varied and not ignores_seed:
                if not subject.is_launched and not _draws(player):
                    raise NotApplicable(f"{what} play the same episode, and it draws no random numbers")
                if not subject.is_launched and _seeds_reach_generators(player):
                    why = "nothing follows from its random numbers, although the seeds reach their generator"
                    raise NotApplicable(f"{what} play the same episode: {why}")
                advice = 'let reset(seed=…) reach the randomness, or declare metadata["ignores_seed"] = True'
                refuse(f"{what} play the same episode", advice)
            if varied and ignores_seed:
                refuse(f"{what} differ", 'take metadata["ignores_seed"] out')


def check_unseeded_resets(subject: Subject) -> None:
    """Check that episodes without a seed are determined by the last seed given, and are not all the same."""
    subject.needs_determinism()
    for form in subject.forms():
        with form.open() as first, form.open() as second:
            for player in (first, second):
                player.play(SEED, 3)
            mine, yours = ([player.reset(), *player.go_on(MOVES)] for player in (first, second))
            what = f"{form.label}: reset() without a seed after reset(seed={SEED}) is not reproducible"
            expect_same(mine, yours, what, USE_NP_RANDOM + "; do not draw a fresh seed from the system")
            if _ignores_seed(first):  # check_different_seeds_differ tests that declaration
                continue
            by_seed = (plain(first.play(seed, MOVES)) for seed in MANY_SEEDS)
            if _vary(by_seed) and not _vary(_episode_anew(first) for _ in MANY_SEEDS):
                what = f"{form.label}: {len(MANY_SEEDS)} resets without a seed play the same episode"
                refuse(what, "do not seed again when reset() is called without a seed")


def _episode_anew(player: Player) -> Trace:
    """Return the trace of an episode without a seed, with the same actions in every call."""
    player.rewind()
    return plain([player.reset(), *player.go_on(MOVES)])


def _ignores_seed(player: Player) -> bool:
    return bool((getattr(player.env, "metadata", None) or {}).get("ignores_seed", False))


def _draws(player: Player) -> bool:
    """Return whether ``reset`` or the steps draw from a random generator that is an attribute of the environment."""
    player.reset(SEED)
    held: dict[str, Any] = vars(player.env.unwrapped)
    before = _generator_states(player)
    if any(state != _unused(held[name]) for name, state in before.items()):
        return True
    for _ in range(MOVES):
        if not player.over:  # a second reset might seed the generators again
            player.move()
    return any(_state_of(held.get(name)) != state for name, state in before.items())


def _seeds_reach_generators(player: Player) -> bool:
    """Return whether two seeds give different states to the random generators that are attributes."""
    states: list[dict[str, str]] = []
    for seed in (SEED, SEED + 1):
        player.reset(seed)
        states.append(_generator_states(player))
    return states[0] != states[1]


def _generator_states(player: Player) -> dict[str, str]:
    held: dict[str, Any] = vars(player.env.unwrapped)
    return {name: state for name, one in held.items() if (state := _state_of(one)) is not None}


def _state_of(generator: Any) -> str | None:
    """Return the state of a random generator as text, or ``None`` if the value is not a generator."""
    match generator:
        case np.random.Generator():
            return str(generator.bit_generator.state)
        case np.random.RandomState():
            return str(generator.get_state())
        case random.Random():
            return str(generator.getstate())
        case _:
            return None


def _unused(generator: Any) -> str | None:
    """Return the state of the generator just after seeding, or its present state if that cannot be known."""
    if not isinstance(generator, np.random.Generator):
        return _state_of(generator)
    bits: Any = generator.bit_generator
    return str(type(bits)(bits.seed_seq).state)


def _vary(traces: Iterator[Trace]) -> bool:
    """Return whether any trace differs from the first; traces after a difference are not played."""
    first = next(traces)
    return any(first_difference(first, trace) for trace in traces)


def check_global_rngs_untouched(subject: Subject) -> None:
    """Check that the constructor, ``reset``, ``step`` and ``close`` do not use the global random generators."""
    if subject.in_suite:
        raise NotApplicable(f"{subject.name} runs in its suite's process, whose generators are not these")
    for form in subject.forms():
        with moved_global_rngs():
            before = global_rngs()
            with form.open() as player:
                _expect_untouched(before, form, "making it")
                player.reset(SEED)
                _expect_untouched(before, form, "reset()")
                player.go_on(MOVES)
                _expect_untouched(before, form, "step()")
            _expect_untouched(before, form, "close()")


def _expect_untouched(before: dict[str, bytes], form: Form, call: str) -> None:
    __tracebackhide__ = True
    after = global_rngs()
    moved = [name for name, state in before.items() if after[name] != state]
    if moved:
        what = f"{form.label}: {call} draws from or seeds the global generator of {' and '.join(moved)}"
        refuse(what, USE_NP_RANDOM)


def check_pickling_continues_the_episode(subject: Subject) -> None:
    """Check that a copy by pickle, made in mid-episode, continues like the original."""
    _check_copies(subject, "pickling", lambda player: pickle.loads(pickle.dumps(player)))


def check_deepcopy_continues_the_episode(subject: Subject) -> None:
    """Check that a deep copy, made in mid-episode, continues like the original."""
    _check_copies(subject, "copy.deepcopy", copy.deepcopy)


def _check_copies(subject: Subject, way: str, duplicate: Callable[[Player], Player]) -> None:
    subject.needs_determinism()
    if subject.remote:
        raise NotApplicable(f"{subject.name} runs elsewhere: a copy of it is its address, not its episode")
    try:
        _expect_equal_copies(subject, way, duplicate)
    except ConformanceError as error:
        if subject.is_third_party:
            why = "advisory, as neither Gymnasium nor PettingZoo asks for it"
            raise NotApplicable(f"{why}: {error}") from error
        raise


def _expect_equal_copies(subject: Subject, way: str, duplicate: Callable[[Player], Player]) -> None:
    for form in subject.forms():
        with form.open() as player:
            whole = player.play(SEED, MOVES)
            middle = _middle_of_episode(whole)
            player.play(SEED, middle)
            what = f"{form.label}: {way} fails in mid-episode"
            with translated(what, "keep the state in plain attributes"):
                twin = duplicate(player)
            try:
                advice = "copy the whole state (EzPickle starts anew; keep no state outside the instance)"
                with translated(f"{form.label}: after {way} in mid-episode the copy cannot play on", advice):
                    rest = twin.go_on(MOVES - middle)
                what = f"{form.label}: after {way} in mid-episode the copy plays on differently"
                expect_same(whole[middle + 1 :], rest, what, advice)
                # Only now the original: state that the copy shares with it has been changed by now.
                what = f"{form.label}: playing a copy made by {way} disturbs the original"
                expect_same(whole[middle + 1 :], player.go_on(MOVES - middle), what, "share no mutable state")
            finally:
                twin.env.close()


def _middle_of_episode(trace: Trace) -> int:
    """Return the number of moves from the start of a trace to the middle of its first episode."""
    return (len(first_episode(trace)) - 1) // 2
