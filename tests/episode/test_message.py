"""Messages of a chat: the event that carries one, and the dicts that an API takes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from envweave_gym import (
    Event,
    EventKind,
    InvalidArgument,
    Message,
    Stream,
    message,
    messages_of,
    metrics,
    reveal,
)
from envweave_gym.episode.stream import UNNUMBERED

CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
PARTS = [
    {"type": "text", "text": "What is this?"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBOR"}},
]


def info_of(*events: Event) -> dict[str, Any]:
    return {"stream": Stream((), events)}


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"role": "system", "content": "Be brief."}, id="text"),
        pytest.param({"role": "user", "content": ""}, id="empty text"),
        pytest.param({"role": "user", "content": PARTS}, id="parts"),
        pytest.param({"role": "user", "content": "hi", "name": "ann"}, id="a name"),
        pytest.param({"role": "assistant", "tool_calls": [CALL]}, id="tool calls alone"),
        pytest.param({"role": "assistant", "content": "Let me add.", "tool_calls": [CALL, CALL]}, id="both"),
        pytest.param({"role": "tool", "content": "3", "tool_call_id": "call_1"}, id="an answer"),
    ],
)
def test_an_api_gets_exactly_the_fields_that_are_set(given: dict[str, Any]) -> None:
    assert messages_of(info_of(message(**given))) == [given]
    assert json.loads(json.dumps(messages_of(info_of(message(**given))))) == [given]


def test_opaque_tokens_and_the_mark_of_a_new_history_travel_beside_the_message() -> None:
    extras = {"replace": True, "token_ids": [1, 2], "logprobs": [-0.5, -1.0]}
    event = message("assistant", "3", **extras)
    assert event.data == {"role": "assistant", "content": "3", **extras}
    assert messages_of(info_of(message("user", "old"), event)) == [{"role": "assistant", "content": "3"}]


def test_arrays_of_tokens_become_lists() -> None:
    event = message("assistant", "3", token_ids=np.array([5, 6]), logprobs=np.array([-0.5, -1.0]))
    assert (event.data["token_ids"], event.data["logprobs"]) == ([5, 6], [-0.5, -1.0])


def test_a_message_is_for_those_it_names() -> None:
    assert message("user", "x", agent="a", to=("a",)) == Event(
        UNNUMBERED, EventKind.MESSAGE, "a", ("a",), {"role": "user", "content": "x"}
    )
    assert type(message("user", np.str_("x")).data["content"]) is str


def test_a_message_without_anything_to_say_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="neither content nor tool_calls"):
        message("assistant")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        pytest.param({"role": 3, "content": "x"}, "a role is a text", id="a role that is no text"),
        pytest.param({"role": "user", "content": 3}, "neither a text nor a list of parts", id="a number"),
        pytest.param({"role": "user", "content": b"x"}, "neither a text nor a list of parts", id="bytes"),
        pytest.param({"role": "user", "content": ["x"]}, "neither a text nor a list of parts", id="texts"),
        pytest.param({"role": "user", "content": {"text": "x"}}, "list of parts", id="a part without a list"),
        pytest.param({"role": "assistant", "tool_calls": "add"}, "no list of dicts", id="calls as a text"),
        pytest.param({"role": "user", "content": "x", "to": "ann"}, "tuple of agents", id="an agent alone"),
    ],
)
def test_what_no_api_takes_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        message(**given)


def test_a_secret_is_for_agents_by_their_whole_names() -> None:
    with pytest.raises(InvalidArgument, match="tuple of agents"):
        reveal("player_10", card="K")  # pyright: ignore[reportArgumentType]
    event = reveal(["player_10"], card="K")  # pyright: ignore[reportArgumentType]
    assert [event.visible_to(agent) for agent in ("player_10", "player_1")] == [True, False]


def test_only_messages_begin_a_new_history() -> None:
    info = info_of(message("user", "old"), metrics(replace=1), reveal((), replace=True))
    assert messages_of(info) == [{"role": "user", "content": "old"}]


def test_an_agent_that_infos_do_not_have_is_refused_with_those_they_have() -> None:
    infos = {"ann": info_of(message("user", "x")), "bob": info_of()}
    assert messages_of(infos, "ann") == [{"role": "user", "content": "x"}]
    with pytest.raises(InvalidArgument, match="'cid' is no agent of these infos; there are 'ann', 'bob'"):
        messages_of(infos, "cid")
    with pytest.raises(InvalidArgument, match="leave agent out"):
        messages_of(infos["ann"], "ann")


def test_the_typed_message_says_the_same() -> None:
    event = message("assistant", tool_calls=[CALL])
    assert Message.of(event) == Message("assistant", tool_calls=[CALL])
    with pytest.raises(AttributeError):
        Message.of(event).role = "user"  # pyright: ignore[reportAttributeAccessIssue]


def test_changes_by_a_reader_do_not_change_the_stream() -> None:
    info = info_of(message("user", PARTS), message("assistant", tool_calls=[CALL]))
    for one in messages_of(info):
        for parts in (one.get("content"), one.get("tool_calls")):
            if parts:
                parts[0]["type"] = "changed"
    assert messages_of(info)[0]["content"] == PARTS
    assert messages_of(info)[1]["tool_calls"] == [CALL]


def test_tool_calls_come_back_from_the_wire() -> None:
    stream = info_of(message("assistant", tool_calls=[CALL]))["stream"]
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(stream), type=Stream)
    assert messages_of({"stream": again}) == [{"role": "assistant", "tool_calls": [CALL]}]
