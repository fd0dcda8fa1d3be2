"""Environments with random generators of their own do not disturb the process, nor each other, nor wait for ever."""

from __future__ import annotations

import copy
import os
import random
import threading
from typing import Any

import numpy as np
import pytest

from envweave_gym.envs.language.own_generators import OwnGenerators


def draws(generators: OwnGenerators) -> tuple[float, float]:
    with generators.in_place():
        return random.random(), float(np.random.random())


def states() -> tuple[Any, bytes]:
    return random.getstate(), np.random.get_state()[1].tobytes()


def test_the_process_keeps_its_own_numbers_also_after_an_error():
    before = states()
    generators = OwnGenerators("one")
    generators.seed(2**64 - 1)
    draws(generators)
    with pytest.raises(KeyError), generators.in_place():
        raise KeyError
    assert states() == before


def test_equal_seeds_give_equal_numbers_which_go_on_where_they_were():
    one, two = OwnGenerators("one"), OwnGenerators("two")
    one.seed(5)
    two.seed(5)
    first, random_between = draws(one), random.random()
    assert draws(two) == first
    assert draws(one) == draws(two) != first
    other = copy.deepcopy(one)
    assert draws(other) == draws(one)
    assert random_between != random.random()


def test_one_within_another_gives_the_outer_one_its_states_back():
    outer, inner, alone = (OwnGenerators(name) for name in ("outer", "inner", "alone"))
    with outer.in_place():
        first = random.random()
        draws(inner)
        second = random.random()
    with alone.in_place():
        assert (first, second) == (random.random(), random.random())


def test_the_wait_for_another_environment_has_a_deadline():
    inside, release = threading.Event(), threading.Event()

    def hold() -> None:
        with OwnGenerators("holder").in_place():
            inside.set()
            release.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert inside.wait(60)
    waiter = OwnGenerators("waiter", 0.01)
    with pytest.raises(TimeoutError, match="waiter: another environment has used"), waiter.in_place():
        pass
    if (child := os.fork()) == 0:  # a forked process has a lock of its own
        draws(OwnGenerators("child", 0.01))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    release.set()
    holder.join(60)
    draws(OwnGenerators("next"))
