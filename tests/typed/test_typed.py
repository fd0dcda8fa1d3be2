"""Typed models as spaces: an object becomes a member and comes back as it was."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import dataclass
from enum import Flag
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Tuple
from gymnasium.utils.env_checker import data_equivalence
from hypothesis import given, settings
from hypothesis import strategies as st
from typed_envs import (
    Call,
    Everything,
    Guess,
    Point,
    Say,
    Tool,
    Tree,
)

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.core.spaces import Json, Unicode
from envweave_gym.typed import JsonOf, from_model, space_of, to_model

steady = settings(deadline=None, derandomize=True)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
number = st.integers(-(2**63), 2**63 - 1)
real = st.floats(allow_nan=False, allow_infinity=False)
jsons = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | real | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
)
points = st.builds(Point, real, real, st.booleans())
trees = st.recursive(
    st.builds(Tree, number), lambda inner: st.builds(Tree, number, st.lists(inner, max_size=3)), max_leaves=6
)
anything = st.builds(
    Everything,
    text=text,
    short=st.text("ab☃", min_size=1, max_size=8),
    flag=st.booleans(),
    number=number,
    percent=st.integers(0, 100),
    positive=st.integers(1, 2**63 - 1),
    real=real,
    share=st.floats(0, 1, exclude_min=True),
    word=st.sampled_from(["left", 2, None]),
    tool=st.sampled_from(Tool),
    maybe_tool=st.none() | st.sampled_from(Tool),
    point=points,
    pair=st.tuples(number, text),
    anything=jsons,
    names=st.lists(text, max_size=3),
    two=st.lists(number, min_size=1, max_size=2),
    table=st.dictionaries(text, jsons, max_size=3),
    scores=st.dictionaries(text, real, max_size=3),
    maybe_text=st.none() | text,
    either=number | text,
    act=st.builds(Call, text, st.dictionaries(text, jsons, max_size=2)) | st.builds(Say, text),
    points=st.lists(points, max_size=2),
    history=st.lists(st.integers(0, 100), max_size=3).map(tuple),
    tree=trees,
    maybe_tree=st.none() | trees,
    move=st.integers(2, 6),
    gain=st.floats(-1, 1),
    grid=st.lists(st.integers(0, 255), min_size=6, max_size=6).map(
        lambda cells: np.array(cells, np.uint8).reshape(2, 3)
    ),
    cell=st.tuples(st.integers(0, 2), st.integers(0, 3)),
)


def fields(obj: Any) -> dict[str, Any]:
    return {field.name: getattr(obj, field.name) for field in dataclasses.fields(obj)}


def same(one: Any, other: Any) -> bool:
    """Equal values of equal types, arrays included."""
    if dataclasses.is_dataclass(one) and any(isinstance(v, np.ndarray) for v in fields(one).values()):
        return type(one) is type(other) and same(fields(one), fields(other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray):
        return data_equivalence(one, other)
    return type(one) is type(other) and one == other


# Models


@given(anything)
@settings(steady, max_examples=60)
def test_an_object_comes_back_from_its_member_as_it_was(obj: Everything) -> None:
    space = space_of(Everything)
    member = from_model(obj)
    assert member in space
    assert same(to_model(Everything, member), obj)


@pytest.mark.parametrize("seed", range(30))
def test_every_sample_makes_an_object_that_gives_it_back(seed: int) -> None:
    space = space_of(Everything)
    space.seed(seed)
    member = space.sample()
    assert member in space
    obj = to_model(Everything, member)
    again = from_model(obj)
    assert again in space
    assert same(to_model(Everything, again), obj)


def test_the_space_of_each_type() -> None:
    space = space_of(Everything)
    assert {
        name: space[name] for name in ("text", "flag", "percent", "word", "tool", "maybe_tool", "move")
    } == {
        "text": Unicode(4096),
        "flag": Discrete(2),
        "percent": Discrete(101),
        "word": Discrete(3),
        "tool": Discrete(2),
        "maybe_tool": Discrete(3),
        "move": Discrete(5, start=2),
    }
    assert space["short"] == Unicode(8, min_length=1)
    assert space["number"] == Box(-np.inf, np.inf, (1,), np.int64)
    assert space["positive"] == Box(1, np.inf, (1,), np.int64)
    assert space["share"] == Box(5e-324, 1, (1,), np.float64)
    assert space["point"] == space_of(Point)
    assert space["pair"] == Tuple([space["number"], Unicode(4096)])
    assert space["names"] == JsonOf(list[str])
    assert space["anything"] == JsonOf(Any)
    assert space["grid"] == Box(0, 255, (2, 3), np.uint8)
    assert "derived" not in space.keys()  # noqa: SIM118


def test_objects_are_made_of_plain_python() -> None:
    space = space_of(Everything)
    space.seed(0)
    obj = to_model(Everything, space.sample())
    assert type(obj.number) is type(obj.percent) is type(obj.move) is type(obj.pair[0]) is int
    assert type(obj.real) is type(obj.gain) is type(obj.point.x) is float
    assert type(obj.flag) is bool
    assert type(obj.tool) is Tool
    assert type(obj.point) is Point
    assert type(obj.cell) is tuple
    assert {type(cell) for cell in obj.cell} == {int}
    assert type(obj.tree) is Tree


def test_choices_are_numbered_as_declared() -> None:
    @dataclass
    class Choices:
        word: Literal["left", 2, None]
        flag: bool
        tool: Annotated[Tool, Discrete(2, start=5)]

    assert from_model(Choices("left", False, Tool.READ)) == {"word": 0, "flag": 0, "tool": 5}
    assert from_model(Choices(None, True, Tool.WRITE)) == {"word": 2, "flag": 1, "tool": 6}
    assert from_model(Choices(2, np.bool_(True), Tool.WRITE))["flag"] == 1
    assert to_model(Choices, {"word": 1, "flag": 1, "tool": 5}) == Choices(2, True, Tool.READ)


def test_each_space_is_a_new_one() -> None:
    one, other = space_of(Everything), space_of(Everything)
    assert one == other
    one.seed(1)
    assert one["text"] is not other["text"]
    assert other["text"]._np_random is None


def test_spaces_pickle_with_the_types_they_name() -> None:
    space = space_of(Everything)
    space.seed(5)
    for twin in (pickle.loads(pickle.dumps(space)), copy.deepcopy(space)):
        assert twin == space
        assert same(to_model(Everything, twin.sample()), to_model(Everything, copy.deepcopy(space).sample()))


def test_defaults_of_the_model_survive() -> None:
    @dataclass
    class Sparse:
        a: Annotated[int, msgspec.Meta(ge=0, le=3)] = 2
        b: Annotated[list[int], JsonOf(list[int], 64)] = dataclasses.field(default_factory=list)

    assert from_model(Sparse()) == {"a": 2, "b": []}


@pytest.mark.parametrize(
    ("hint", "complaint"),
    [
        (complex, "complex has no space of its own; allowed are str, bool"),
        (np.ndarray, "ndarray has no space of its own; allowed are .*Annotated"),
        (Flag, "Flag has no space"),
        (bytes, "bytes has no space"),
        (set[int], r"set\[int\] has no space"),
        (list[np.ndarray], "ndarray has no space"),
        (list[complex] | None, "complex has no space"),
        (dict[int, str], r"dict\[int, str\] is no JSON, where keys are text"),
        (list[Annotated[int, Discrete(3)]], "int is a part of JSON here and has no space; use msgspec.Meta"),
        (Annotated[int, Box(0, 1, (1,), np.float32)], "Expected `int`, got `float`"),
        (Annotated[int, Box(0, 9, (2,), np.int64)], "can only convert an array of size 1"),
        (Annotated[Tool, Discrete(3)], r"Discrete\(3\) does not have one number for each of"),
        (Annotated[str, Discrete(3)], "Expected `str`, got `int`"),
        (
            Annotated[np.ndarray, Unicode(3)],
            r"Unicode\(3\) cannot hold a ndarray; annotate Any",
        ),
        (Annotated[int, msgspec.Meta(multiple_of=2)], r"no space expresses msgspec.Meta\(multiple_of=…\)"),
        (Annotated[int, msgspec.Meta(ge=3, le=2)], "low"),
        (list[Tool], "Enums must contain either all str or all int values"),
        (Point | Tree, "more than one dict-like type"),
    ],
    ids=str,
)
def test_a_field_without_a_space_is_named(hint: Any, complaint: str) -> None:
    model = dataclasses.make_dataclass("Odd", [("fine", int), ("odd", hint)])
    with pytest.raises(InvalidArgument, match=f"Odd.odd: .*{complaint}"):
        space_of(model)


def test_an_invalid_model_is_refused() -> None:
    for stranger in (int, dict, Point(0, 0), "Point", None):
        with pytest.raises(InvalidArgument, match=r"is not a model; give a dataclass or a msgspec.Struct"):
            space_of(stranger)
    with pytest.raises(InvalidArgument, match="dict is not a model"):
        from_model({"x": 1})


def test_types_that_cannot_be_found_are_named() -> None:
    class Hidden:
        pass

    @dataclass
    class Lost:
        inner: Hidden

    with pytest.raises(InvalidArgument, match="Lost: name 'Hidden' is not defined"):
        space_of(Lost)


@pytest.mark.parametrize(
    ("obj", "complaint"),
    [
        (Point("1", 2.0), r"Point.x: '1' is not in Box"),
        (Point(float("nan"), 0.0), r"Point.x: nan is not in Box"),
        (Point(None, 0.0), r"Point.x: None is not in Box"),
        (Point(0.0, 0.0, "yes"), r"Point.visible: 'yes' is not in Discrete\(2\)"),
        (Guess(101), r"Guess.number: 101 is not in Discrete\(101\)"),
        (Guess(1.5), r"Guess.number: 1.5 is not in Discrete"),
        (Guess(1, "x" * 17), r"Guess.note: 'x+' is not in Unicode\(16\)"),
        (Guess(1, "\ud800"), r"Guess.note: .* is not in Unicode\(16\)"),
        (Tree(2**63), r"Tree.value: 9223372036854775808 is not in Box"),
        (Tree(1.5), r"Tree.value: 1.5 is not in Box.*does not fit int64"),
        (Tree(1, [object()]), r"Tree.children: .* cannot be written as JSON"),
        (Tree(1, [Tree("x")]), r"Tree.children: .* is not in JsonOf"),
    ],
)
def test_an_object_that_lies_about_its_types_is_refused_by_field(obj: Any, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        from_model(obj)


def test_a_value_outside_the_space_makes_no_object() -> None:
    for stranger in (None, {}, {"number": 5}, {"number": 101, "note": ""}, [1, ""]):
        with pytest.raises(InvalidArgument, match="is not in Dict"):
            to_model(Guess, stranger)


def test_a_model_may_check_what_a_space_cannot_say() -> None:
    @dataclass
    class Even:
        number: Annotated[int, msgspec.Meta(ge=0, le=9)]

        def __post_init__(self) -> None:
            if self.number % 2:
                raise ValueError("number must be even")

    assert to_model(Even, {"number": 4}) == Even(4)
    with pytest.raises(InvalidArgument, match="number must be even"):
        to_model(Even, {"number": 5})


def test_arrays_inside_of_json_are_written_as_lists() -> None:
    @dataclass
    class Report:
        data: dict

    assert from_model(Report({"mean": np.float32(0.5), "rows": np.arange(3), "pair": (1, 2)})) == {
        "data": {"mean": 0.5, "rows": [0, 1, 2], "pair": [1, 2]}
    }


# JsonOf


@pytest.mark.parametrize(
    ("hint", "members", "strangers"),
    [
        (list[int], [[], [1, 2]], [None, [1.5], ["1"], {}, (1,), [True]]),
        (str | None, [None, "☃"], [1, [], "\ud800"]),
        (dict[str, float], [{}, {"a": 1.5}], [None, {"a": "b"}, {1: 2.0}, {"a": float("nan")}]),
        (Point, [{"x": 1.0, "y": 2.0}], [{}, None, {"x": "1", "y": 2}]),
        (Annotated[list[int], msgspec.Meta(max_length=1)], [[], [1]], [[1, 2]]),
        (Any, [None, 1, {"a": []}], [(), float("inf")]),
    ],
    ids=str,
)
def test_json_of_holds_what_the_type_can_be_read_from(
    hint: Any, members: list[Any], strangers: list[Any]
) -> None:
    space = JsonOf(hint, seed=0)
    assert all(member in space for member in members)
    assert not any(stranger in space for stranger in strangers)
    assert all(space.sample() in space for _ in range(30))
    assert space.decode("") in space
    assert space == JsonOf(hint)
    assert space != JsonOf(bool | list[bool])
    assert space != Json()


def test_json_of_draws_different_values() -> None:
    space = JsonOf(list[Tree], seed=0)
    drawn = [space.sample() for _ in range(30)]
    assert len({tree["value"] for sample in drawn for tree in sample}) > 5


@dataclass
class Branch:
    one: Branch | None
    two: Branch | None
    three: Branch | None


def test_a_type_that_contains_itself_is_drawn_in_the_end() -> None:
    space = JsonOf(Branch | None, seed=0)
    assert space.decode("") is None
    assert all(space.sample() in space for _ in range(200))


def test_a_model_that_refuses_a_draw_leaves_the_smallest_value() -> None:
    @dataclass
    class Never:
        number: int

        def __post_init__(self) -> None:
            raise ValueError("never")

    assert JsonOf(list[Never], seed=3).sample() == []


@dataclasses.dataclass
class Endless:
    next: Endless


@dataclasses.dataclass
class Chain:
    next: Endless | None


def test_a_model_that_always_holds_another_of_its_kind_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^Endless: a model that always holds another of its kind"):
        space_of(Endless)
    assert space_of(Chain).spaces.keys() == {"next"}
