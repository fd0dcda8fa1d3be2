"""Text, JSON and chat spaces: whatever Hypothesis thinks of comes back."""

from __future__ import annotations

import json
from typing import Any

from gymnasium.spaces.utils import flatten, unflatten
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory
from hypothesis import given, settings
from hypothesis import strategies as st
from text_envs import LEAVES, LENGTH, text_space

from envweave_gym.core.spaces import Chat, Json, Unicode

steady = settings(deadline=None, derandomize=True)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=LENGTH)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
jsons = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4)
)
messages = st.fixed_dictionaries({"role": texts, "content": texts}, optional={"more": jsons})
chats = st.lists(messages, max_size=4)


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
