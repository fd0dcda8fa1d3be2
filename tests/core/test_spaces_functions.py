"""Text, JSON and chat spaces under every function that Gymnasium dispatches on spaces."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple
from gymnasium.spaces.utils import flatdim, flatten, flatten_space, is_space_dtype_shape_equiv, unflatten
from gymnasium.vector.utils import (
    batch_differing_spaces,
    batch_space,
    concatenate,
    create_empty_array,
    iterate,
)
from gymnasium.wrappers.utils import create_zero_array
from text_envs import WORDS, same, text_space, values
from text_kinds import each_kind

from envweave_gym.core.spaces import Chat, Json, Unicode, placeholder


@functools.cache
def dispatchers() -> dict[str, Any]:
    """The singledispatch functions of Gymnasium that know ``Text``, by name."""
    found = {}
    for package in (gym.spaces, gym.vector, gym.vector.utils, gym.wrappers, gym.wrappers.vector, gym.utils):
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            if module.name.endswith(("torch", "jax", "jax_to_numpy", "array_conversion")):
                continue  # these dispatch on arrays, and need libraries of their own
            try:
                loaded = importlib.import_module(module.name)
            except gym.error.DependencyNotInstalled:
                continue
            for name, function in vars(loaded).items():
                if hasattr(function, "dispatch") and Text in getattr(function, "registry", {}):
                    found[name] = function
    return found


INHERITED = {"batch_space", "concatenate"}
"""What is the same for our spaces as for ``Text``: a tuple of texts."""

OURS = {
    "batch_differing_spaces",
    "create_empty_array",
    "create_shared_memory",
    "create_zero_array",
    "flatdim",
    "flatten",
    "flatten_space",
    "is_space_dtype_shape_equiv",
    "read_from_shared_memory",
    "unflatten",
    "write_to_shared_memory",
}


def test_every_function_that_dispatches_on_text_is_known() -> None:
    assert dispatchers().keys() - {"_flat_dtype"} == INHERITED | OURS


@pytest.mark.parametrize("space", [Unicode, Json, Chat])
def test_every_such_function_is_registered_by_exact_type(space: type[Unicode]) -> None:
    for name, function in dispatchers().items():
        if name not in INHERITED:
            assert space in function.registry, name
            assert function.registry[space] is not function.registry[Text], name


def test_a_foreign_subclass_is_registered_too() -> None:
    class Shouted(Unicode):
        pass

    assert all(
        Shouted in function.registry for name, function in dispatchers().items() if name not in INHERITED
    )
    assert batch_differing_spaces([Shouted(3), Shouted(4)]) == Tuple([Shouted(3), Shouted(4)])


@each_kind
def test_flatten_comes_back(kind: str) -> None:
    space = text_space(kind)
    box = flatten_space(space)
    assert isinstance(box, Box)
    assert space.is_np_flattenable
    for member in values(kind):
        flat = flatten(space, member)
        assert flat.shape == box.shape == (flatdim(space),)
        assert flat.dtype == box.dtype
        assert flat in box
        assert same(unflatten(space, flat), member)


def test_flattened_space_stays_flat_beside_wider_numbers() -> None:
    space = Tuple([Unicode(4), Box(-1, 1, (1,), np.float64)])
    member = ("𝄞中é\x00", np.array([0.25]))
    flat = flatten(space, member)
    assert flat.dtype == np.float64
    assert unflatten(space, flat)[0] == member[0]


@each_kind
def test_batch_concatenate_and_iterate(kind: str) -> None:
    space, members = text_space(kind), values(kind)
    batch = batch_space(space, len(members))
    stacked = concatenate(space, members, create_empty_array(space, len(members)))
    assert stacked in batch
    assert same(list(iterate(batch, stacked)), members)
    batch.seed(1)
    assert batch.sample() in batch


def test_batch_of_differing_bounds() -> None:
    spaces = [Dict({"a": Unicode(3 + i)}) for i in range(3)]
    batch = batch_differing_spaces(spaces)
    assert {"a": ("xxx", "xxxx", "xxxxx")} in batch
    assert {"a": ("xxxx", "", "")} not in batch
    batch.seed(0)
    assert batch.sample() in batch


@each_kind
@pytest.mark.parametrize("n", [1, 3])
def test_empty_arrays_and_zeros_are_members(kind: str, n: int) -> None:
    space = text_space(kind)
    assert create_empty_array(space, n) in batch_space(space, n)
    assert create_zero_array(space) in space
    assert placeholder(space) in space


def test_zeros_keep_the_min_length() -> None:
    space = Unicode(9, min_length=4)
    assert create_zero_array(space) in space
    assert create_empty_array(space, 2) in batch_space(space, 2)


def test_empty_conversations_are_not_shared() -> None:
    first, second = create_empty_array(Chat(), 2)
    first.append({"role": "user", "content": "only here"})
    assert second == []


def test_space_equivalence_asks_for_type_and_length() -> None:
    assert is_space_dtype_shape_equiv(Unicode(5), Unicode(5, min_length=2))
    assert not is_space_dtype_shape_equiv(Unicode(5), Unicode(6))
    assert not is_space_dtype_shape_equiv(Unicode(5), Text(5))
    assert not is_space_dtype_shape_equiv(Json(5), Unicode(5))
    assert is_space_dtype_shape_equiv(Tuple([Chat(5)]), Tuple([Chat(5)]))


def test_unbounded_spaces_flatten_to_themselves() -> None:
    space = Dict({"text": Unicode(None), "number": Discrete(3)})
    assert "x" * 100_000 in space["text"]
    assert not space.is_np_flattenable
    with pytest.raises(ValueError, match="has no bound"):
        flatdim(space["text"])
    flat = flatten(space, {"text": WORDS, "number": 1})
    assert flat in flatten_space(space)
    assert unflatten(space, flat) == {"text": WORDS, "number": 1}


class Foreign(gym.Space[Any]):
    """A space of another package, of which Gymnasium knows nothing."""


def test_a_placeholder_of_a_foreign_space_is_none() -> None:
    space = Dict({"page": Foreign(), "both": Tuple((Foreign(), Discrete(3)))})
    assert placeholder(space) == {"page": None, "both": (None, 0)}
