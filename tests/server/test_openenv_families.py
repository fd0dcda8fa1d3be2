"""What OpenEnv's messages hold for each family of IDs: prompts, metadata, options, and worker processes."""

from __future__ import annotations

from typing import Any

import pytest
from json_clients import JsonClient
from openenv_socket import openenv_socket
from servers import running_server

from envweave_gym.episode.message import message
from envweave_gym.episode.stream import Event, EventKind, Stream
from envweave_gym_server.protocols.prompts import prompt_in

PICK, REPL = "envweave/PickLetter-v0", "envweave/REPL-v0"


@pytest.fixture(scope="module")
def client() -> JsonClient:
    return JsonClient(PICK, REPL, protocols=("openenv",), default=PICK)


def test_a_task_is_chosen_as_agilerls_trainer_does(client: JsonClient) -> None:
    began = client.post("/reset?session_id=s", {"row_index": 2, "evaluation": False})
    assert began["observation"]["prompt"] == "pick C"
    assert began["metadata"]["index"] == 2
    state = client.get("/state?session_id=s")
    assert (state["dataset_size"], state["tools"]) == (4, [])
    client.post("/reset?session_id=s", {"evaluation": True}, 422)
    stepped = client.post("/step?session_id=s", {"action": {"message": "<think>B?</think> It is C."}})
    assert (stepped["reward"], stepped["done"], stepped["metadata"]["terminated"]) == (1.0, True, True)
    client.state.sessions.close("openenv.s")


def test_a_reply_without_an_action_has_no_effect(client: JsonClient) -> None:
    client.post("/reset?session_id=s", {"seed": 1})
    for wrong in ({"message": "no idea"}, {"message": 5}, {"message": "B", "action": 1}, {}, {"letter": "B"}):
        client.post("/step?session_id=s", {"action": wrong}, 422)
    assert client.get("/state?session_id=s")["step_count"] == 0
    client.state.sessions.close("openenv.s")


def test_a_prompt_is_what_others_than_the_model_say() -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {}}]
    events = (
        Event(0, EventKind.EPISODE_START),
        message("system", "be brief"),
        message("assistant", "I said"),
        message("user", parts),
        message("tool", "42", tool_call_id="1"),
    )
    assert prompt_in(Stream((), events)) == "be brief\n\nlook\n\n42"
    assert prompt_in(Stream((), events[:1])) is None
    assert prompt_in(None) is None


def test_secrets_of_the_repl_are_in_no_event(client: JsonClient) -> None:
    at = f"/openenv/{REPL}"
    client.post(f"{at}/reset?session_id=s", {"context": "abc", "hf_token": "hf_secret"})
    events = client.ask("GET", "/v1/sessions/openenv.s/events?follow=false").text
    assert "abc" in events
    assert "hf_secret" not in events
    client.state.sessions.close("openenv.s")


def test_sessions_may_have_processes_of_their_own() -> None:
    with (
        running_server(PICK, protocol="openenv", isolation="process") as server,
        openenv_socket(server) as env,
    ):
        letter: Any = env.reset(seed=3)["observation"]["prompt"].removeprefix("pick ")
        assert env.step(message=f"I pick {letter}.")["reward"] == 1.0
        assert env.state()["step_count"] == 1
