"""Text, JSON and chat spaces: their members, and what every space can do."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Text
from gymnasium.wrappers.utils import create_zero_array
from text_envs import CHATS, JSONS, LEAVES, LENGTH, TEXTS, same, text_space, values
from text_kinds import each_kind, each_leaf

from envweave_gym.core.spaces import Chat, Json, Unicode

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


@each_kind
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


@each_kind
def test_copies_are_equal_and_draw_the_same(kind: str) -> None:
    space = text_space(kind)
    space.seed(3)
    space.sample()
    for twin in (pickle.loads(pickle.dumps(space)), copy.deepcopy(space)):
        assert twin == space
        assert same(twin.sample(), copy.deepcopy(space).sample())


@each_leaf
def test_copies_share_the_alphabet(leaf: str) -> None:
    space = text_space(leaf)  # Gymnasium copies it once a row of a vector
    twins = [copy.deepcopy(space) for _ in range(3)]
    assert len({id(vars(twin)["_char_list"]) for twin in (space, *twins)}) == 1
    assert len({id(twin.np_random) for twin in (space, *twins)}) == 4


@each_leaf
def test_a_pickled_space_is_small(leaf: str) -> None:
    assert len(pickle.dumps(text_space(leaf))) < 5000


@each_kind
def test_jsonable_form_comes_back(kind: str) -> None:
    space = text_space(kind)
    wire = json.dumps(space.to_jsonable(values(kind)))
    back = space.from_jsonable(json.loads(wire))
    assert all(sample in space for sample in back)
    assert same(list(back), values(kind))


def test_unicode_is_an_instance_of_text() -> None:
    assert all(isinstance(text_space(leaf), Text) for leaf in LEAVES)
