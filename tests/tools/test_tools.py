"""Functions as tools: what their callers are told, what they are given, and what they get back."""

from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
from collections import OrderedDict
from enum import IntEnum, StrEnum
from functools import partial
from typing import Any, Literal

import msgspec
import numpy as np
import pytest

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.tools import Parameter, Tool, ToolError, ToolRegistry


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


def search(query: str, *, kind: Literal["a", "b"], limit: int | None = None) -> list[dict]:
    return [{"query": query, "kind": kind, "limit": limit}]


@dataclasses.dataclass
class Point:
    x: float
    y: Any


ORIGIN = Point(1, 2)


class Line(msgspec.Struct):
    ends: tuple[Point, Point]


class Colour(StrEnum):
    RED = "red"


class Number(IntEnum):
    TWO = 2


def test_a_function_is_a_tool_with_its_signature():
    tool = Tool.of(add)
    assert (tool.name, tool.doc, tool.returns) == ("add", "Add two numbers.", "int")
    assert tool.parameters == (Parameter("a", "int"), Parameter("b", "int", False, 1))
    assert tool.call({"a": 2}) == 3


def test_required_parameters_come_first():
    tool = Tool.of(search)
    assert [each.name for each in tool.parameters] == ["query", "kind", "limit"]
    assert [each.type for each in tool.parameters] == ["str", "Literal['a', 'b']", "int | None"]
    assert tool.returns == "list[dict]"


def test_annotations_are_text_whichever_way_they_are_written():
    def typed(a, b: Any):
        pass

    typed.__annotations__ = {"a": Literal["x", 1], "b": list[int], "return": None}
    tool = Tool.of(typed)
    assert [each.type for each in tool.parameters] == ["Literal['x', 1]", "list[int]"]
    assert tool.returns == "None"


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda *words: None, r"the tool f has the parameter \*words, which is variadic positional"),
        (lambda **words: None, r"the tool f has the parameter \*\*words, which is variadic keyword"),
        (lambda a, /: None, "the tool f has the parameter a, which is positional-only"),
        (min, "the tool f does not tell its signature"),
        (3, "the tool f is 3, which cannot be called"),
    ],
)
def test_functions_that_cannot_be_called_by_name_are_refused(function: Any, sentence: str):
    with pytest.raises(InvalidArgument, match=sentence):
        ToolRegistry({"f": function})


def test_async_functions_are_refused():
    async def later() -> None:
        pass

    with pytest.raises(InvalidArgument, match="the tool later is async; give a plain function"):
        Tool.of(later)


def test_functions_without_a_name_are_refused():
    with pytest.raises(InvalidArgument, match="is no function with a name; give a def, or a mapping"):
        ToolRegistry([lambda: None])
    with pytest.raises(InvalidArgument, match="is no function with a name"):
        ToolRegistry([partial(add, 1)])
    assert ToolRegistry({"one_more": partial(add, 1)}).call("one_more", {"b": 5}) == 6


@pytest.mark.parametrize(
    ("given", "name"),
    [("get-sum", "get_sum"), ("print", "print_"), ("class", "class_"), ("2d", "_2d"), ("ü.x", "ü_x")],
)
def test_names_become_identifiers_that_hide_nothing(given: str, name: str):
    assert [tool.name for tool in ToolRegistry({given: add})] == [name]


def test_a_tool_has_an_identifier_for_a_name():
    with pytest.raises(InvalidArgument, match="a tool cannot be called 'get-sum'"):
        Tool("get-sum", "", (), call=lambda arguments: None)


def test_a_registry_takes_functions_tools_mappings_and_registries():
    registry = ToolRegistry([add, {"find": search}, Tool.of(add, name="plus"), ToolRegistry({"less": add})])
    assert [tool.name for tool in registry] == ["add", "find", "plus", "less"]
    assert (len(registry), "find" in registry, "lost" in registry) == (4, True, False)
    assert registry["plus"].call({"a": 1, "b": 1}) == 2
    registry.remove("plus")
    registry.add(add, name="plus")
    assert registry.call("plus", {"a": 1}) == 2
    assert len(ToolRegistry(add)) == len(ToolRegistry({"f": add})) == 1
    assert len(ToolRegistry()) == 0


def test_a_name_that_is_taken_is_refused_unless_a_server_tells_it_apart():
    registry = ToolRegistry([add])
    with pytest.raises(InvalidArgument, match="there is a tool 'add' already"):
        registry.add(add)
    registry.add(dataclasses.replace(Tool.of(add), origin="my-server"))
    assert [tool.name for tool in registry] == ["add", "my_server_add"]
    with pytest.raises(InvalidArgument, match="there is a tool 'my_server_add' already"):
        registry.add(dataclasses.replace(Tool.of(add), origin="my-server"))
    with pytest.raises(InvalidArgument, match=r"there is no tool 'ad' .did you mean 'add'"):
        registry.remove("ad")


def test_specs_are_json_that_functions_can_be_made_of():
    (spec,) = ToolRegistry([add]).specs()
    assert json.loads(json.dumps(spec)) == {
        "name": "add",
        "doc": "Add two numbers.",
        "parameters": [
            {"name": "a", "type": "int", "required": True, "default": None},
            {"name": "b", "type": "int", "required": False, "default": 1},
        ],
        "returns": "int",
    }


def test_a_default_that_is_no_json_is_shown_and_stays_what_it_is():
    def area(shape: Any = ORIGIN) -> Any:
        return shape

    registry = ToolRegistry([area])
    (parameter,) = registry.specs()[0]["parameters"]
    assert parameter["default"] == {"x": 1, "y": 2}
    assert isinstance(registry["area"].call({"shape": {"x": 1, "y": 2}}), Point)
    assert registry.call("area", {"shape": 5}) == 5


@pytest.mark.parametrize(
    ("value", "json_value"),
    [
        (None, None),
        (True, True),
        ("ü", "ü"),
        ("a\ud800b", "a?b"),
        (1.5, 1.5),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (10**20, 10**20),
        (10**5000, "an integer of 16610 bits"),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (np.array([1.0, np.nan]), [1.0, "nan"]),
        (np.array(2), 2),
        ((1, {"a": (2,)}), [1, {"a": [2]}]),
        (OrderedDict(a=1), {"a": 1}),
        ({1: "a", None: "b", (1, 2): "c"}, {"1": "a", "null": "b", "[1, 2]": "c"}),
        (Point(1.0, np.arange(2)), {"x": 1.0, "y": [0, 1]}),
        (Point(float("nan"), Colour.RED), {"x": "nan", "y": "red"}),
        (Line((Point(1, 2), Point(3, 4))), {"ends": [{"x": 1, "y": 2}, {"x": 3, "y": 4}]}),
        (Colour.RED, "red"),
        (Number.TWO, 2),
        (b"ab", "b'ab'"),
        (1 + 2j, "(1+2j)"),
        (range(3), "range(0, 3)"),
        (Point, repr(Point)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_results_are_json(value: Any, json_value: Any):
    found = ToolRegistry({"f": lambda: value}).call("f", {})
    assert found == json_value
    assert type(found) is type(json_value)
    json.dumps(found, allow_nan=False).encode()


def test_a_result_that_contains_itself_is_an_error():
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(ToolError, match="RecursionError"):
        ToolRegistry({"f": lambda: circle}).call("f", {})


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("ad", {}, "there is no tool 'ad' (did you mean 'add'?); there are add"),
        (3, {}, "there is no tool 3; there are add"),
        ("add", {}, "add() needs 'a'"),
        ("add", {"a": 1, "c": 2}, "add() takes no argument 'c'; it takes a, b"),
        ("add", {"a": 1, 3: 2}, "add() takes no argument 3; it takes a, b"),
        ("add", [1], "add() takes arguments by name, not [1]"),
        ("add", {"a": "x"}, 'TypeError: can only concatenate str (not "int") to str'),
    ],
)
def test_errors_have_one_line(name: Any, arguments: Any, sentence: str):
    with pytest.raises(ToolError) as caught:
        ToolRegistry([add]).call(name, arguments)
    assert str(caught.value) == sentence
    assert str(pickle.loads(pickle.dumps(caught.value))) == sentence


def failing(error: BaseException) -> ToolRegistry:
    def fail(path: str = "") -> None:
        raise error

    return ToolRegistry([fail])


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ValueError("one\n  two"), "ValueError: one two"),
        (KeyError(), "KeyError"),
        (SystemExit(3), "SystemExit: 3"),
        (
            FileNotFoundError(2, "No such file", "/home/me/keys/a.txt"),
            "FileNotFoundError: [Errno 2] No such file: 'a.txt'",
        ),
        (RuntimeError("see https://host/a/b and 1/2/3"), "RuntimeError: see https://host/a/b and 1/2/3"),
        (ToolError("said\nas it is"), "said\nas it is"),
    ],
)
def test_the_text_of_an_exception_has_neither_paths_nor_traceback(error: BaseException, sentence: str):
    with pytest.raises(ToolError) as caught:
        failing(error).call("fail", {})
    assert str(caught.value) == sentence


def test_a_path_among_the_arguments_is_shown_in_errors():
    error = FileNotFoundError(2, "No such file", "/tmp/work/a.txt")
    with pytest.raises(ToolError, match=r"'/tmp/work/a.txt'"):
        failing(error).call("fail", {"path": "/tmp/work/a.txt"})


def test_an_exception_whose_text_fails_is_shown_by_its_type():
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    with pytest.raises(ToolError, match=r"^Mute$"):
        failing(Mute()).call("fail", {})


def test_an_interrupt_passes():
    with pytest.raises(KeyboardInterrupt):
        failing(KeyboardInterrupt()).call("fail", {})


def test_importing_the_registry_loads_no_client():
    program = """
import sys, envweave_gym.core.spaces
before = set(sys.modules)
import envweave_gym.tools
print(*sorted({"requests", "subprocess", "select", "urllib3"} & (set(sys.modules) - before)))
print(*(name for name in sys.modules if name.startswith("envweave_gym.tools.mcp")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "\n\n"
