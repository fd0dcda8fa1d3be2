"""What environments return besides numbers and texts arrives as it is, or is refused, and never as a repr."""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
from typing import Any, NamedTuple

import numpy as np
import pytest
import rare_values
from rare_values import RARE, Asarray, Lent, Strict

import envweave_gym as ew
from envweave_gym.core.array_conversion import foreign_array
from envweave_gym.wire.values import NotEncodable, dumps, loads, pack_exactly
from envweave_gym.wrappers import NumericInfo
from envweave_gym_server.protocols.rest.json_values import plain

ID = "rare_values:rare/Values-v0"


@dataclasses.dataclass
class Broken(Exception):
    code: int


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


@pytest.fixture(params=["inproc", "subprocess"])
def env(request: pytest.FixtureRequest) -> Any:
    env = ew.make(ID, backend=request.param)
    yield env
    env.close()


@pytest.mark.parametrize("name", RARE)
def test_rare_values_arrive_as_what_they_are(name: str):
    assert same(loads(dumps({"a": [RARE[name]]})), {"a": [RARE[name]]})


def test_infos_keep_their_types_on_every_backend(env: Any):
    checked = Strict.checked
    for info in (env.reset(seed=1)[1], env.step(0)[4]):
        assert same(info["rare"], RARE)
        assert all(same(info["rare"][key], value) for key, value in RARE.items())
    assert Strict.checked == checked


def test_infos_of_vectors_keep_their_types():
    for backend in ("inproc", "subprocess"):
        env = ew.make(ID, num_envs=2, backend=backend)
        infos = env.reset(seed=1)[1]
        assert same(infos["rare"]["set"][1], RARE["set"])
        assert same(infos["rare"]["enum"][0], RARE["enum"])
        env.close()


def test_arrays_of_other_libraries_arrive_as_numpys():
    env = ew.make(ID, backend="subprocess")
    seen, info = env.reset(seed=1)
    np.testing.assert_array_equal(seen, np.array([1, 2], np.float32), strict=True)
    np.testing.assert_array_equal(info["array"], np.array([[1], [2]], np.float32), strict=True)
    assert info["odd"] == ["<class 'object'>", {3}]  # a type has no form; what stands beside it is kept
    seen, reward, terminated, truncated, info = env.step(2)
    np.testing.assert_array_equal(seen, np.array([3, 2], np.float32), strict=True)
    assert (reward, bool(terminated), truncated) == (0.5, True, False)
    assert same(info["array"], np.float32(4))
    env.close()


def test_an_observation_without_a_form_is_an_error_and_no_repr():
    env = ew.make(ID, backend="subprocess", without_form="reset")
    with pytest.raises(ew.NotAvailable, match=r"rare/Values-v0: .*observation.* type object "):
        env.reset(seed=1)
    env.close()
    env = ew.make(ID, backend="subprocess", without_form="step")
    env.reset(seed=1)
    *_, truncated, info = env.step(1)
    assert truncated
    assert "the observation" in info["fault"].message
    env.close()


def test_values_without_a_form_are_refused_where_they_must_be_exact():
    for value in (object(), [object], {"a": (len,)}, np.array([object()]), np.zeros(1, "V8")):
        with pytest.raises(NotEncodable):
            pack_exactly(value)
    assert loads(dumps({"a": np.zeros(1, "V2"), "b": 2})).keys() == {"a", "b"}


def test_masked_arrays_do_not_lose_their_mask():
    masked: Any = np.ma.array([1, 2, 3], mask=[False, True, False])
    for value in (masked, {"a": [masked]}, np.ma.masked):
        with pytest.raises(NotEncodable, match="mask"):
            pack_exactly(value)
    assert loads(dumps({"info": masked})) == {"info": [1, None, 3]}
    unmasked: Any = np.ma.array([1, 2])
    np.testing.assert_array_equal(loads(dumps(unmasked)), np.array([1, 2]), strict=True)


def test_arrays_that_cannot_be_read_here_are_none():
    class OnGpu:
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            raise TypeError("copy it to the host first")

    assert foreign_array(OnGpu()) is None
    assert foreign_array(np.float32) is None
    assert foreign_array([1, 2]) is None
    np.testing.assert_array_equal(foreign_array(Lent(3)), np.float32(3))


def test_numeric_infos_have_them_on_every_backend(env: Any):
    env = NumericInfo(env)
    info = env.reset(seed=1)[1]
    np.testing.assert_array_equal(info["array"], np.array([[1], [2]], np.float32), strict=True)
    assert info.keys() == {"array", "seq", "trainable"}
    assert same(env.step(0)[4]["array"], np.float32(4))


# Classes that are not there


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module of the server's that this process has loaded until it forgets it."""
    module = types.ModuleType("elsewhere")
    monkeypatch.setitem(sys.modules, "elsewhere", module)
    kinds: dict[str, Any] = {
        "Point": NamedTuple("Point", [("x", Any), ("y", Any)]),
        "Side": enum.Enum("Side", {"LEFT": "l"}),
        "Card": dataclasses.make_dataclass("Card", ["suit", "rank"]),
    }
    for name, kind in kinds.items():
        kind.__module__, kind.__qualname__ = "elsewhere", name
        setattr(module, name, kind)
    return module


def test_records_arrive_in_plain_form_where_their_class_is_not_loaded(elsewhere: Any):
    frame = dumps([elsewhere.Point(1, {2}), elsewhere.Side.LEFT, elsewhere.Card("spades", 3)])
    assert loads(frame) == [elsewhere.Point(1, {2}), elsewhere.Side.LEFT, elsewhere.Card("spades", 3)]
    del sys.modules["elsewhere"]
    arrived = loads(frame)
    assert arrived == [(1, {2}), "l", {"suit": "spades", "rank": 3}]
    assert type(arrived[0]) is tuple


def test_members_and_keys_whose_plain_form_cannot_be_hashed_arrive_in_lists_and_as_texts(elsewhere: Any):
    elsewhere.Key = dataclasses.make_dataclass(
        "Key", ["n"], frozen=True, namespace={"__module__": "elsewhere"}
    )
    frame = dumps([{elsewhere.Key(1)}, {elsewhere.Key(2): "two", "b": 3}])
    assert loads(frame) == [{elsewhere.Key(1)}, {elsewhere.Key(2): "two", "b": 3}]
    del sys.modules["elsewhere"]
    assert loads(frame) == [[{"n": 1}], {"{'n': 2}": "two", "b": 3}]


def test_a_dataclass_that_extends_an_exception_arrives_as_a_dict():
    assert loads(dumps({"why": Broken(3), "b": 2})) == {"why": {"code": 3}, "b": 2}


def test_records_of_another_version_arrive_in_plain_form(elsewhere: Any):
    frame = dumps([elsewhere.Point(1, 2), elsewhere.Card("spades", 3)])
    elsewhere.Point = NamedTuple("Point", [("x", Any)])
    elsewhere.Card = dataclasses.make_dataclass("Card", ["suit"])
    assert loads(frame) == [(1, 2), {"suit": "spades", "rank": 3}]


def test_a_class_with_a_finaliser_is_not_rebuilt(elsewhere: Any):
    ended: list[str] = []
    ends = {"__module__": "elsewhere", "__del__": lambda self: ended.append(self.suit)}
    elsewhere.Card = dataclasses.make_dataclass("Card", ["suit"], namespace=ends)
    card = elsewhere.Card("hearts")
    frame = dumps(card).replace(b"hearts", b"spades")
    assert loads(frame) == {"suit": "spades"}
    del card
    assert ended == ["hearts"]


def test_names_from_a_peer_run_no_code(elsewhere: Any, monkeypatch: pytest.MonkeyPatch):
    frame = dumps([elsewhere.Card("spades", 3)])
    asked: list[str] = []
    lazy = types.ModuleType("elsewhere")
    lazy.__getattr__ = asked.append  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "elsewhere", lazy)
    assert loads(frame) == [{"suit": "spades", "rank": 3}]
    monkeypatch.setattr(elsewhere.Card, "__init__", lambda *_: asked.append("init"))
    monkeypatch.setitem(sys.modules, "elsewhere", elsewhere)
    assert type(loads(frame)[0]) is elsewhere.Card
    monkeypatch.delitem(sys.modules, "elsewhere")
    assert loads(frame) == [{"suit": "spades", "rank": 3}]
    assert "elsewhere" not in sys.modules
    assert not asked


def test_rare_values_as_json():
    arrived = plain({name: RARE[name] for name in ("frozen", "moment", "enum", "named", "dataclass")})
    assert arrived == {
        "frozen": [1.5],
        "moment": "2026-11-19T12:30:00.000005+02:00",
        "enum": [0, 0, 255],
        "named": [1, [[2], None]],
        "dataclass": {"suit": [255, 0, 0], "tags": ["a"]},
    }


def test_sets_as_json_have_one_order():
    assert plain({"b", "a", "d", "c"}) == ["a", "b", "c", "d"]
    assert plain(frozenset({(2, "x"), (1, "y")})) == [[1, "y"], [2, "x"]]


def test_scalars_of_other_libraries_are_scalars():
    assert same(loads(dumps(Asarray(0.25))), np.float32(0.25))
    assert rare_values.Colour(loads(dumps(RARE["enum"])).value) is RARE["enum"]
