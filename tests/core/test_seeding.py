"""Seeds of episodes and draws by hashing: the same in every form, on every machine."""

from __future__ import annotations

import copy
import pickle
import random

import numpy as np
import pytest
from gymnasium.utils.seeding import np_random

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.core.seeding import (
    GOLDEN,
    SEED_BITS,
    HashedRandomness,
    SeedRows,
    Seeds,
    chance,
    draw_seed,
    fresh_seed,
    mix,
    mix_many,
)

KEYS = np.array([0, 1, 2**31 - 1, 2**63, 2**64 - 1], np.uint64)


def test_the_hash_is_splitmix64() -> None:
    # The first outputs of the reference implementation for seed 1234567.
    reference = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [mix(1234567, step) for step in range(4)] == reference


def test_arrays_hash_as_ints_do() -> None:
    for step in (0, 1, 41, 2**40):
        expected = [mix(key, step) for key in KEYS.tolist()]
        assert mix_many(KEYS, step).tolist() == expected


def test_a_state_advanced_by_golden_hashes_as_the_next_step() -> None:
    assert mix_many(KEYS + GOLDEN).tolist() == mix_many(KEYS, 1).tolist()


def test_hashing_leaves_its_keys_alone() -> None:
    keys = KEYS.copy()
    mix_many(keys)
    mix_many(keys, 3)
    assert keys.tolist() == KEYS.tolist()


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.999])
def test_chance_is_a_fraction_of_all_hashes(probability: float) -> None:
    hashes = mix_many(np.arange(200_000, dtype=np.uint64))
    assert np.mean(hashes < np.uint64(chance(probability))) == pytest.approx(probability, abs=0.004)


def test_drawn_seeds_fit_a_c_int_and_do_not_repeat() -> None:
    drawn = [draw_seed(base, count) for base in range(100) for count in range(1, 101)]
    assert min(drawn) >= 0
    assert max(drawn) < 2**SEED_BITS
    assert len(set(drawn)) > len(drawn) - 5
    assert np.mean(drawn) == pytest.approx(2 ** (SEED_BITS - 1), rel=0.02)


def test_seeds_given_and_drawn() -> None:
    seeds = Seeds("x")
    assert [seeds.next(seed) for seed in (5, None, None, 5, None)] == [
        5,
        draw_seed(5, 1),
        draw_seed(5, 2),
        5,
        draw_seed(5, 1),
    ]


def test_a_refused_seed_is_not_the_last_given() -> None:
    seeds = Seeds("x")
    seeds.next(5)
    with pytest.raises(
        InvalidArgument, match=r"^x: reset\(seed=-1\) is not a seed; give None or an int from 0"
    ):
        seeds.next(-1)
    assert seeds.next(None) == draw_seed(5, 1)


def test_rows_draw_as_single_environments_do() -> None:
    rows, singles = SeedRows(4), [Seeds("x") for _ in range(4)]
    everyone = np.arange(4)
    given = [7, 2**64 - 1, 0, 7]
    script: list[tuple[list[int], list[int | None] | None]] = [
        ([0, 1, 2, 3], list(given)),
        ([0, 1, 2, 3], None),
        ([1, 3], None),
        ([0, 1], [None, 9, 9, 9]),
        ([0, 1, 2, 3], None),
    ]
    for chosen, seeds in script:
        drawn = rows.next(everyone[chosen], seeds)
        expected = [singles[row].next(None if seeds is None else seeds[row]) for row in chosen]
        assert drawn.tolist() == expected


def test_fresh_seeds_differ_and_touch_no_global_generator() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist()  # pyright: ignore
    assert fresh_seed() != fresh_seed()
    assert SeedRows(3).next(np.arange(3)).tolist() != SeedRows(3).next(np.arange(3)).tolist()
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # pyright: ignore


class Hashed(HashedRandomness[int, int]):
    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[int, dict[str, int]]:  # pyright: ignore
        return 0, {"key": self.episode_key(seed)}


def test_the_generator_is_the_one_gymnasium_would_have_made() -> None:
    env = Hashed()
    assert env.reset(seed=11)[1] == {"key": 11}
    assert env.np_random_seed == 11
    assert env.np_random.integers(1 << 60) == np_random(11)[0].integers(1 << 60)


def test_unseeded_episodes_have_keys_of_their_own_after_a_seed() -> None:
    first, second = Hashed(), Hashed()
    keys = [env.reset(seed=seed)[1]["key"] for env in (first, second) for seed in (3, None, None)]
    assert keys[:3] == keys[3:]
    assert len(set(keys)) == 3
    assert Hashed().reset()[1] != Hashed().reset()[1]


def test_a_copy_of_hashed_randomness_goes_on() -> None:
    env = Hashed()
    env.reset(seed=3)
    env.np_random.random()
    for again in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert again.np_random.random() == copy.deepcopy(env).np_random.random()
