"""JSON schemas of spaces accept the JSON of every member, and refuse what is plainly none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from absent import needs_module
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Space,
    Text,
    Tuple,
)

from envweave_gym import Unicode
from envweave_gym.core.schema_of_space import schema_of_space
from envweave_gym.core.spaces import Chat, Json
from envweave_gym_server.protocols.rest.json_values import plain

CASES: list[tuple[Space[Any], Any]] = [
    (Discrete(3, start=-1), 2),
    (Box(-1, 1, (2, 3)), [[0.0, 0.0, 0.0]]),
    (Box(-np.inf, np.inf, ()), "x"),
    (Box(0, 255, (2, 2), np.uint8), [[0, 0], [0, 256]]),
    (Box(-(2**63), 2**63 - 1, (1,), np.int64), [2**63]),
    (Box(0, 1, (2,), np.bool_), [0, 1]),
    (MultiBinary(3), [0, 1]),
    (MultiBinary([2, 2]), [0, 1]),
    (MultiDiscrete([2, 5]), [4, 1]),
    (MultiDiscrete([[2, 5], [3, 3]]), [[0, 9], [0, 0]]),
    (Text(5, min_length=2, charset="ab"), "a"),
    (Unicode(5), 5),
    (Chat(), [{"role": "user"}]),
    (Dict({"a": Discrete(2), "b": Dict({"c": Unicode(None)})}), {"a": 1}),
    (Tuple([Discrete(2), Unicode(3)]), [1]),
    (OneOf([Discrete(2), Unicode(3)]), [1, 1]),
    (Sequence(Discrete(2)), [2]),
]


@pytest.mark.parametrize(("space", "wrong"), CASES, ids=lambda value: str(value)[:30])
def test_members_fit_and_others_do_not(space: Space[Any], wrong: Any) -> None:
    jsonschema = needs_module("jsonschema")
    schema = schema_of_space(space)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    space.seed(0)
    for _ in range(20):
        assert validator.is_valid(plain(space.sample()))
    assert not validator.is_valid(wrong)


@pytest.mark.parametrize("space", [Json(), Graph(Discrete(2), None), Sequence(Discrete(2), stack=True)])
def test_spaces_without_a_form_of_their_own_accept_everything(space: Space[Any]) -> None:
    assert schema_of_space(space) == {}
