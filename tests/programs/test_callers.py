"""Who calls: traffic in the form that real programs have sent, sorted into agents."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import pytest

from envweave_gym.episode.message import Message
from envweave_gym.programs.callers import Callers, by_model, by_prefix, find_caller
from envweave_gym.programs.model_request import ModelRequest


def request(
    *texts: str, model: str = "m", system: str = "", tools: str = "", prefix: str = "", **headers: str
) -> ModelRequest:
    """A request whose messages alternate between user and assistant, with headers that have underscores."""
    roles = itertools.cycle(("user", "assistant"))
    messages = [Message("system", system)] if system else []
    messages += [Message(role, text) for role, text in zip(roles, texts, strict=False)]
    offered = [{"type": "function", "function": {"name": name}} for name in tools.split()]
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    digest = hashlib.sha256(repr((messages, model, tools)).encode()).hexdigest()
    return ModelRequest(
        "chat_completions", model, tuple(messages), offered, {}, prefix=prefix, headers=named, digest=digest
    )


def played(callers: Callers, *rounds: list[ModelRequest]) -> list[list[int]]:
    """The indices of the callers of each round of simultaneous requests, in the order of the requests."""
    found = []
    for requests in rounds:
        assigned = callers.assign(requests)
        found.append([next(one.index for one, its in assigned if its is given) for given in requests])
        for one, _ in assigned:
            callers.answered(one)
    return found


def test_a_conversation_that_goes_on_is_one_caller():
    assert played(
        Callers(), [request("a")], [request("a", "b", "c")], [request("a", "b", "c", "d", "e")]
    ) == [
        [0],
        [0],
        [0],
    ]


def test_subagents_with_tools_of_their_own_are_told_apart():
    main, inner = {"system": "main", "tools": "shell"}, {"system": "sub", "tools": "complete_task"}
    rounds = [
        [request("task", **main)],
        [request("part", **inner)],
        [request("part", "x", "y", **inner)],
        [request("task", "called", "result", **main)],
    ]
    assert played(Callers(), *rounds) == [[0], [1], [1], [0]]


def test_roles_of_one_connection_have_their_system_prompts():
    """Agents of crewai, and of autogen, whose histories are rewritten."""
    rounds = [
        [request("do it", system="researcher")],
        [request("write", system="writer")],
        [request("now this", system="researcher")],
    ]
    assert played(Callers(), *rounds) == [[0], [1], [0]]
    assert played(Callers(by_system=False), *rounds) == [[0], [1], [2]]


def test_simultaneous_equal_requests_are_callers_of_their_own():
    children = [request("sub", system="child") for _ in range(3)]
    assert sorted(played(Callers(), children, children)[1]) == [0, 1, 2]


def test_headers_name_agents_and_their_parents():
    parent = {"thread_id": "p"}
    child = {"thread_id": "c", "x_codex_parent_thread_id": "p", "x_openai_subagent": "collab_spawn"}
    callers = Callers()
    rounds = [
        [request("task", **parent)],
        [request("part", **child), request("task", "b", "c", **parent)],
        [request("compacted", **parent)],
        [request("rewritten", **child)],
    ]
    assert played(callers, *rounds) == [[0], [1, 0], [0], [1]]
    assert [one.parent for one in callers.known] == [None, 0]


def test_a_call_beside_an_open_one_of_its_session_is_another_caller():
    """A title, which is asked for at the same time as the first reply."""
    both = [
        request("task", tools="shell", x_session_id="s"),
        request("title of: task", x_session_id="s"),
    ]
    callers = Callers()
    first, second = played(callers, both)[0]
    assert first != second
    assert played(callers, [request("task", "b", "c", tools="shell", x_session_id="s")]) == [[first]]


def test_models_and_prefixes_separate_callers():
    rounds = [[request("a"), request("a", model="n"), request("a", prefix="left")]] * 2
    first, second = played(Callers(), *rounds)
    assert sorted(first) == [0, 1, 2]
    assert first == second


@pytest.mark.parametrize("name_of", [by_model, by_prefix])
def test_a_users_function_is_above_all(name_of: Any):
    callers = Callers(name_of)
    rounds = [
        [request("a", model="x", prefix="x", thread_id="1")],
        [request("b", model="y", prefix="y", thread_id="1")],
        [request("c", model="x", prefix="x")],
    ]
    assert played(callers, *rounds) == [[0], [1], [0]]
    assert [one.name for one in callers.known] == ["x", "y"]


def test_the_longest_conversation_wins():
    callers = Callers()
    played(callers, [request("a"), request("a", "b", "c")])
    long = next(one for one in callers.known if len(one.last.messages) == 3)
    found = find_caller(request("a", "b", "c", "d", "e"), callers.known)
    assert found == long


def test_the_order_of_arrival_changes_nothing():
    rounds = [
        [request("task", system=one) for one in "abc"],
        [request("task", "x", "y", system=one) for one in "abc"],
    ]
    results = set()
    for order in itertools.permutations(range(3)):
        callers, seen = Callers(), list[tuple[int, str]]()
        for requests in rounds:
            assigned = callers.assign([requests[i] for i in order])
            seen += [(one.index, its.digest) for one, its in assigned]
            for one, _ in assigned:
                callers.answered(one)
        results.add(tuple(seen))
    assert len(results) == 1
    assert [index for index, _ in next(iter(results))] == [0, 1, 2, 0, 1, 2]
