"""Actions of every kind of space are taken in the form in which the server writes them."""

from __future__ import annotations

import json

import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, Sequence, Space, Tuple

from envweave_gym.core.faults import InvalidAction
from envweave_gym_server.protocols.rest.json_values import Arrays, plain, read_json

PAIR = {"kind": Discrete(3), "place": Box(0, 1, (2,))}
SPACES: list[Space] = [
    Graph(Box(0, 1, (2,)), Discrete(3)),
    Sequence(Dict(PAIR), stack=True),
    Sequence(Tuple(list(PAIR.values())), stack=True),
    Sequence(Dict(inner=Tuple([Discrete(2), Dict(PAIR)])), stack=True),
    Dict({1: Discrete(3), 2: Box(0, 1, (2,))}),  # pyright: ignore[reportArgumentType]
]


@pytest.mark.parametrize("arrays", ["lists", "base64"])
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_values_survive_a_round_trip(space: Space, arrays: Arrays):
    space.seed(0)
    for _ in range(30):
        written = json.loads(json.dumps(plain(space.sample(), arrays)))
        action = read_json("World", space, written)
        assert space.contains(action)
        assert json.loads(json.dumps(plain(action, arrays))) == written


def test_a_graph_without_edges_is_taken():
    action = read_json("World", SPACES[0], {"nodes": [[0, 1]], "edges": None, "edge_links": None})
    assert SPACES[0].contains(action)
    assert action.edges is None


@pytest.mark.parametrize("value", [[{"kind": 1, "place": [0, 0]}], {"kind": [1]}, {"kind": 1, "place": 2}])
def test_a_stacked_sequence_in_another_form_is_refused(value: object):
    with pytest.raises(InvalidAction, match=r"^World: action .* is not in "):
        read_json("World", SPACES[1], value)
