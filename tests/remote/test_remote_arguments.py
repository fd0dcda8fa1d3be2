"""Arguments arrive at a server as they were given, or are refused before anything is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_vectors import expect_equal
from remote_worlds import KEEPER, KEEPER_GAME, transport, url

import envweave_gym as ew

__all__ = ["transport", "url"]
GIVEN: dict[str, Any] = {
    "array": np.arange(6, dtype=np.int16).reshape(2, 3),
    "scalar": np.float32(0.5),
    "pair": (1, (2.5, "three")),
    "table": {1: "one", 2: ["two"], (3, 4): None},
    "data": b"\x00\xff",
    "large": 1 << 80,
    "text": "\ud800",
    "flag": True,
}


@pytest.mark.parametrize(
    ("name", "how"),
    [(KEEPER, {}), (KEEPER, {"num_envs": 2}), (KEEPER_GAME, {}), (KEEPER_GAME, {"api": "aec"})],
)
def test_values_arrive_unchanged(name: str, how: dict[str, Any], transport: str, url: str) -> None:
    env = ew.make(name, backend=url, **how, **GIVEN)
    env.reset(seed=1)
    state = ew.state_of(env)
    for row in state if isinstance(state, tuple) else (state,):
        expect_equal({key: row["given"][key] for key in GIVEN}, GIVEN)
    env.close()


@pytest.mark.parametrize("how", [{}, {"num_envs": 2}, {"api": "parallel"}])
@pytest.mark.parametrize("value", [Path("/tmp"), [object()], {"x": {1, 2}}, np.array([None]), print])
def test_arguments_that_cannot_be_sent_are_refused_by_make(how: dict[str, Any], value: Any, url: str) -> None:
    with pytest.raises(ew.InvalidArgument, match=r"tests/Keeper-v0: odd=.* cannot be sent to a server; give"):
        ew.make("tests/Keeper-v0" if "api" in how else KEEPER, backend=url, odd=value, **how)


@pytest.mark.parametrize(
    "value", [1 << 4096, -(1 << 4096), [{"a": 1 << 4096}]], ids=["large", "negative", "in"]
)
def test_an_integer_that_is_too_large_is_refused_with_the_size_that_travels(value: Any, url: str) -> None:
    with pytest.raises(
        ew.InvalidArgument, match=r"cannot be sent to a server; give .* of at most 4,096 bits"
    ):
        ew.make(KEEPER, backend=url, odd=value)


def test_the_knowledge_of_one_environment_is_its_own(url: str) -> None:
    one, other = (ew.make("envweave/LineWorld-v0", backend=url) for _ in range(2))
    rate = one.metadata["render_fps"]
    one.metadata["render_fps"] = rate + 1
    one.unwrapped.description["metadata"]["render_modes"] += ("mine",)
    assert other.metadata["render_fps"] == rate
    assert "mine" not in other.metadata["render_modes"]


def test_environments_with_other_arguments_are_other_ones(url: str) -> None:
    """Arrays that print the same, tuples and lists: each is asked about on its own."""
    kinds = [(1, 2), [1, 2], np.array([1, 2]), np.array([1, 2], np.int8), {1: 2}, {"1": 2}]
    for value in kinds:
        env = ew.make(KEEPER, backend=url, value=value)
        env.reset(seed=1)
        expect_equal(ew.state_of(env)["given"]["value"], value)
        env.close()
