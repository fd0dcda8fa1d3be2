"""Text, JSON and chat spaces: everything Gymnasium does with a space, with texts that are not ASCII."""

from __future__ import annotations

import copy
import functools
import importlib
import json
import pickle
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
    create_shared_memory,
    iterate,
    read_from_shared_memory,
    write_to_shared_memory,
)
from gymnasium.wrappers.utils import create_zero_array
from hypothesis import given, settings
from hypothesis import strategies as st
from text_envs import CHATS, JSONS, KINDS, LEAVES, LENGTH, TEXTS, WORDS, same, text_space, values

from envweave_gym.spaces import Chat, Json, Unicode, placeholder

steady = settings(deadline=None, derandomize=True)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=LENGTH)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
jsons = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4)
)
messages = st.fixed_dictionaries({"role": texts, "content": texts}, optional={"more": jsons})
chats = st.lists(messages, max_size=4)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=LEAVES)
def leaf(request: pytest.FixtureRequest) -> str:
    return request.param


# Members


@pytest.mark.parametrize("text", [*TEXTS, "\n", "\x00", "\U0010ffff"])
def test_unicode_contains_any_text_up_to_its_length(text: str) -> None:
    assert text in Unicode(LENGTH)


@pytest.mark.parametrize(
    "stranger", ["x" * 65, "\ud800", "a\udfffb", b"bytes", None, 1, ["a"], np.array("a")]
)
def test_unicode_refuses_long_texts_lone_surrogates_and_other_types(stranger: Any) -> None:
    assert stranger not in Unicode(LENGTH)


def test_unicode_refuses_what_is_shorter_than_its_min_length() -> None:
    space = Unicode(5, min_length=2)
    assert [text in space for text in ("", "a", "ab", "abcde", "abcdef")] == [False, False, True, True, False]


def nested_list(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth - 1):
        inner = [inner]
    return inner


def endless() -> list[Any]:
    itself: list[Any] = []
    itself.append(itself)
    return itself


@pytest.mark.parametrize(
    "stranger",
    [
        float("nan"),
        float("inf"),
        {"deep": [-float("inf")]},
        (),
        [(1, 2)],
        {1: "a"},
        {None: 1},
        {("a",): 1},
        {1, 2},
        b"bytes",
        np.array([1]),
        np.int64(1),
        "\ud800",
        {"\udfff": 1},
        10**5000,
        nested_list(101),
        nested_list(5000),
        endless(),
        object(),
        "x" * 255,
    ],
    ids=lambda stranger: type(stranger).__name__,
)
def test_json_refuses_what_is_no_json(stranger: Any) -> None:
    assert stranger not in Json(256)


@pytest.mark.parametrize("member", [*JSONS, 10**300, nested_list(100), "x" * 254, {"a": 1}, 0.1, -0.0, False])
def test_json_contains_json(member: Any) -> None:
    assert member in Json(1000)


@pytest.mark.parametrize(
    "stranger",
    [
        None,
        {},
        "text",
        ({"role": "user", "content": "a tuple"},),
        [{"role": "user"}],
        [{"content": "x"}],
        [{"role": "user", "content": None}],
        [{"role": 1, "content": "x"}],
        [{"role": "user", "content": "\ud800"}],
        [{"role": "user", "content": "x", "score": float("nan")}],
        ["user: hello"],
        [{"role": "user", "content": "x" * 256}],
    ],
)
def test_chat_refuses_what_is_no_conversation(stranger: Any) -> None:
    assert stranger not in Chat(256)


@pytest.mark.parametrize("conversation", CHATS)
def test_chat_contains_conversations(conversation: list[Any]) -> None:
    assert conversation in Chat(256)


@pytest.mark.parametrize(("space", "smallest"), [(Json, 4), (Chat, 2)])
def test_a_space_too_small_for_any_value_cannot_be_built(space: type[Json], smallest: int) -> None:
    assert create_zero_array(space(smallest)) in space(smallest)
    with pytest.raises(ValueError, match=f"max_length of at least {smallest}"):
        space(smallest - 1)


# What every space can do


def test_samples_are_members_and_follow_the_seed(kind: str) -> None:
    one, other, different = text_space(kind), text_space(kind), text_space(kind)
    one.seed(7), other.seed(7), different.seed(8)
    drawn = [one.sample() for _ in range(50)]
    assert all(sample in one for sample in drawn)
    assert same(drawn, [other.sample() for _ in range(50)])
    assert not same(drawn, [different.sample() for _ in range(50)])


def test_the_tightest_bounds_still_have_samples() -> None:
    for space in (Unicode(0), Unicode(3, min_length=3), Json(4), Chat(2)):
        space.seed(0)
        assert all(space.sample() in space for _ in range(50)), space


def test_unicode_samples_by_mask_and_probability_as_text_does() -> None:
    space = Unicode(9, seed=0)
    only_first = np.zeros(len(space.character_list), np.int8)
    only_first[0] = 1
    assert space.sample(mask=(4, only_first)) == space.character_list[0] * 4
    assert space.sample(probability=(2, only_first.astype(np.float64))) == space.character_list[0] * 2
    with pytest.raises(ValueError, match="takes no mask"):
        Json().sample(mask=(4, only_first))


def test_equality_looks_at_type_and_bounds() -> None:
    assert Unicode(5) == Unicode(5)
    assert Unicode(5) != Unicode(6)
    assert Unicode(5) != Unicode(5, min_length=1)
    assert Json(5) != Unicode(5)
    assert Chat(5) != Json(5)
    assert Unicode(5) != Text(5)
    assert Unicode(None) == Unicode(None)


@pytest.mark.parametrize(
    "space", [Unicode(5), Unicode(5, min_length=2), Unicode(None), Json(9), Json(None), Chat(9)]
)
def test_repr_builds_the_space_again(space: Unicode) -> None:
    assert eval(repr(space)) == space
    assert len(repr(space)) < 40


def test_copies_are_equal_and_draw_the_same(kind: str) -> None:
    space = text_space(kind)
    space.seed(3)
    space.sample()
    for twin in (pickle.loads(pickle.dumps(space)), copy.deepcopy(space)):
        assert twin == space
        assert same(twin.sample(), copy.deepcopy(space).sample())


def test_a_pickled_space_is_small(leaf: str) -> None:
    assert len(pickle.dumps(text_space(leaf))) < 5000


def test_jsonable_form_comes_back(kind: str) -> None:
    space = text_space(kind)
    wire = json.dumps(space.to_jsonable(values(kind)))
    back = space.from_jsonable(json.loads(wire))
    assert all(sample in space for sample in back)
    assert same(list(back), values(kind))


def test_isinstance_text_holds_for_those_who_ask() -> None:
    assert all(isinstance(text_space(leaf), Text) for leaf in LEAVES)


# Every function Gymnasium dispatches on spaces


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


def test_a_subclass_of_somebody_else_is_registered_too() -> None:
    class Shouted(Unicode):
        pass

    assert all(
        Shouted in function.registry for name, function in dispatchers().items() if name not in INHERITED
    )
    assert batch_differing_spaces([Shouted(3), Shouted(4)]) == Tuple([Shouted(3), Shouted(4)])


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


# Codecs, with whatever Hypothesis thinks of


def through_everything(space: Unicode, member: Any) -> None:
    assert member in space
    assert space.decode(space.encode(member)) == member
    assert unflatten(space, flatten(space, member)) == member
    memory = create_shared_memory(space, n=2)
    write_to_shared_memory(space, 1, member, memory)
    assert read_from_shared_memory(space, memory, n=2)[1] == member


@given(texts)
@steady
def test_any_text_comes_back(text: str) -> None:
    through_everything(Unicode(LENGTH), text)


@given(jsons)
@steady
def test_any_json_comes_back_with_its_types(member: Any) -> None:
    space = Json(100_000)
    through_everything(space, member)
    assert repr(space.decode(space.encode(member))) == repr(in_order(member))


def in_order(member: Any) -> Any:
    """The member with its keys in canonical order."""
    if isinstance(member, dict):
        return {key: in_order(member[key]) for key in sorted(member)}
    return [in_order(item) for item in member] if isinstance(member, list) else member


@given(chats)
@steady
def test_any_conversation_comes_back(conversation: list[Any]) -> None:
    through_everything(Chat(100_000), conversation)


@given(jsons, jsons)
@steady
def test_equal_json_has_one_text(one: Any, other: Any) -> None:
    space = Json(100_000)
    assert space.encode(one) == space.encode(json.loads(json.dumps(one)))
    if space.encode(one) == space.encode(other):
        assert one == other


@given(
    st.text(max_size=9)
    | st.binary(max_size=9)
    | st.lists(st.complex_numbers())
    | st.dictionaries(st.floats(), scalars)
)
@steady
def test_membership_never_raises(stranger: Any) -> None:
    assert all((stranger in text_space(leaf)) in (True, False) for leaf in LEAVES)
