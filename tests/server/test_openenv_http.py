"""OpenEnv's HTTP routes: at the root and by ID, with and without a session, and their descriptions."""

from __future__ import annotations

import threading
from typing import Any

import openenv_envs  # noqa: F401 - registers its ID
import pytest
import served_envs  # noqa: F401 - registers its IDs
from absent import needs_module
from json_clients import JsonClient, sentence

from envweave_gym.core.faults import InvalidArgument, UnknownEnvironment
from envweave_gym_server.program import program
from envweave_gym_server.protocols.openenv import played_session
from envweave_gym_server.sessions.session import stays

ECHO, COUNTER, NAP = "envweave/Echo-v0", "envweave/Counter-v0", "served/Nap-v0"
IDS = (
    *(
        ECHO,
        COUNTER,
        "envweave/Coding-v0",
        "envweave/REPL-v0",
        "envweave/LineWorld-v0",
        "envweave/CodeFix-v0",
    ),
    *("envweave/PickLetter-v0", "envweave/LineRace-v0", "envweave/KuhnPoker-v0", "envweave/GSM8K-v0"),
)
OPEN: dict[str, Any] = {"protocols": ("openenv",)}


@pytest.fixture(scope="module")
def client() -> JsonClient:
    return JsonClient(*IDS, NAP, "served/Awkward-v0", "faulty/Judged-v0", default=ECHO, **OPEN)


# Without a session


def test_a_call_without_a_session_has_an_environment_of_its_own(client: JsonClient) -> None:
    began = client.post("/reset", {"seed": 1, "episode_id": "e"})
    assert began["observation"]["echoed_message"] == "Echo environment ready!"
    stepped = client.post("/step", {"action": {"message": "four"}, "timeout_s": 30.0})
    assert (stepped["observation"]["message_length"], stepped["reward"]) == (4, pytest.approx(0.4))
    assert client.get("/state") == {"episode_id": None, "step_count": 0}
    assert len(client.state.sessions) == 0


# With one


def test_a_session_is_an_episode_over_http(client: JsonClient) -> None:
    at, session = f"/openenv/{COUNTER}", "?session_id=mine"
    client.post(f"{at}/reset{session}", {"episode_id": "e"})
    for count in (3, 6):
        stepped = client.post(f"{at}/step{session}", {"action": {"action": {"delta": 3}}})
        assert stepped["observation"]["observation"] == {"count": count}
    state = client.get(f"{at}/state{session}")
    assert (state["episode_id"], state["step_count"]) == ("e", 2)
    assert client.post(f"{at}/reset{session}")["observation"]["observation"] == {"count": 0}
    assert len(client.state.sessions) == 1
    closed = client.post(f"{at}/mcp", rpc("openenv/session/close", session_id="mine"))
    assert closed["result"] == {"session_id": "mine", "closed": True}
    client.post(f"{at}/step{session}", {"action": {"action": {"delta": 3}}}, 404)


def test_a_session_belongs_to_its_id_and_to_openenv(client: JsonClient) -> None:
    client.post("/reset?session_id=echo", {})
    action = {"action": {"action": {"delta": 3}}}
    client.post(f"/openenv/{COUNTER}/step?session_id=echo", action, 404)
    client.post("/v1/sessions", {"id": COUNTER, "session": "native"}, 201)
    client.post(f"/openenv/{COUNTER}/step?session_id=native", action, 404)
    for session in ("openenv.echo", "native"):
        client.state.sessions.close(session)


def test_the_first_step_of_a_session_begins_its_episode_and_no_later_one(client: JsonClient) -> None:
    at = f"/openenv/{COUNTER}"
    session = client.post(f"{at}/mcp", rpc("openenv/session/create"))["result"]["session_id"]
    step = {"action": {"action": {"delta": 5}}}
    assert client.post(f"{at}/step?session_id={session}", step)["observation"]["observation"] == {"count": 5}
    while not client.post(f"{at}/step?session_id={session}", step)["done"]:
        pass
    assert "reset" in sentence(client.post(f"{at}/step?session_id={session}", step, 409))
    client.post(f"{at}/mcp", rpc("openenv/session/close", session_id=session))


def test_a_request_id_is_that_of_one_step(client: JsonClient) -> None:
    client.post("/reset?session_id=once", {})
    step = {"action": {"message": "abc"}, "request_id": "r1"}
    first = client.post("/step?session_id=once", step)
    assert client.post("/step?session_id=once", step) == first
    assert client.get("/state?session_id=once")["step_count"] == 1
    refused = client.post("/step?session_id=once", {"action": {"message": "d"}, "request_id": "r1"}, 422)
    assert "request_id" in sentence(refused)
    client.post("/step?session_id=once", {"action": {"message": "d"}, "request_id": "r2"})
    assert client.get("/state?session_id=once")["step_count"] == 2
    client.state.sessions.close("openenv.once")


def test_a_request_id_is_forgotten_by_a_reset(client: JsonClient) -> None:
    at, step = f"/openenv/{COUNTER}", {"action": {"action": {"delta": 3}}, "request_id": "1"}
    for _ in range(2):
        client.post(f"{at}/reset?session_id=again", {})
        client.post(f"{at}/step?session_id=again", {"action": {"action": {"delta": 1}}})
        assert client.post(f"{at}/step?session_id=again", step)["observation"]["observation"] == {"count": 4}
        assert client.get(f"{at}/state?session_id=again")["step_count"] == 2
    client.state.sessions.close("openenv.again")


def test_a_request_id_may_be_that_of_a_tools_call(client: JsonClient) -> None:
    client.post("/reset?session_id=tools", {})
    call = {"type": "call_tool", "tool_name": "echo_message", "arguments": {"message": "abc"}}
    step = {"action": call, "request_id": "1"}
    called = client.post("/step?session_id=tools", step)
    assert called["observation"]["result"]["data"] == "abc"
    assert client.post("/step?session_id=tools", step) == called
    assert client.get("/state?session_id=tools")["step_count"] == 1
    listed = client.post("/step?session_id=tools", {"action": {"type": "list_tools"}, "request_id": "2"})
    assert len(listed["observation"]["tools"]) == 2
    client.state.sessions.close("openenv.tools")


def test_two_first_resets_at_once_open_one_session(
    client: JsonClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, describe = threading.Barrier(2), played_session.description_of

    def described(session: Any, left: Any) -> Any:
        both.wait(30)
        return describe(session, left)

    def open_it() -> None:
        opened.append(played_session.open_played(client.state, ECHO, "both", stays))

    opened: list[Any] = []
    monkeypatch.setattr(played_session, "description_of", described)
    threads = [threading.Thread(target=open_it) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened[0] is opened[1] is played_session.find_played(client.state, ECHO, "both")
    client.state.sessions.close("openenv.both")


def test_a_reset_that_fails_closes_no_session_of_another(
    client: JsonClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe, others = played_session.description_of, list[Any]()

    def fails(*_: Any) -> Any:
        raise RuntimeError("no description")

    def fails_meanwhile(session: Any, left: Any) -> Any:
        monkeypatch.setattr(played_session, "description_of", fails)
        with pytest.raises(RuntimeError):
            played_session.open_played(client.state, ECHO, "mine", stays)
        return describe(session, left)

    monkeypatch.setattr(played_session, "description_of", fails_meanwhile)
    others.append(played_session.open_played(client.state, ECHO, "mine", stays))
    assert others == [played_session.find_played(client.state, ECHO, "mine")]
    client.state.sessions.close("openenv.mine")
    with pytest.raises(RuntimeError):
        played_session.open_played(client.state, ECHO, "new", stays)
    assert len(client.state.sessions) == 0


def test_two_first_calls_of_a_tool_reset_once(client: JsonClient) -> None:
    session = client.post("/mcp", rpc("openenv/session/create"))["result"]["session_id"]
    call = rpc("tools/call", session_id=session, name="echo_message", arguments={"message": "x"})
    threads = [threading.Thread(target=client.post, args=("/mcp", call)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.state.sessions.get(f"openenv.{session}").core.committed == 5  # one reset and four steps
    client.post("/mcp", rpc("openenv/session/close", session_id=session))


def test_a_step_that_takes_too_long_ends_its_session(
    client: JsonClient, monkeypatch: Any, tmp_path: Any
) -> None:
    wake = tmp_path / "wake"
    monkeypatch.setenv("WAKE", str(wake))
    at = f"/openenv/{NAP}"
    client.post(f"{at}/reset?session_id=long", {})
    refused = client.post(f"{at}/step?session_id=long", {"action": {"action": 60.0}, "timeout_s": 0.05}, 504)
    assert "more than 0.05 s" in sentence(refused)
    client.get(f"{at}/state?session_id=long", 404)
    wake.touch()


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "JSON"),
        ([1], 422, "object"),
        ({"seed": -1}, 422, "seed"),
        ({"seed": "1"}, 422, "seed"),
        ({"level": 1}, 422, "level"),
    ],
)
def test_a_wrong_reset_is_refused(client: JsonClient, body: Any, status: int, words: str) -> None:
    assert words in sentence(client.post("/reset", body, status))
    assert len(client.state.sessions) == 0


@pytest.mark.parametrize(
    "body",
    [{}, {"action": 5}, {"action": {"message": 5}}, {"action": {}, "timeout_s": 0}, {"action": {}, "x": 1}],
)
def test_a_wrong_step_is_refused(client: JsonClient, body: Any) -> None:
    assert sentence(client.post("/step", body, 422))


def test_a_lost_episode_is_an_error(client: JsonClient) -> None:
    crashed = client.post("/openenv/served/Awkward-v0/step", {"action": {"action": 1}}, 500)
    assert "stepped badly" in sentence(crashed)
    judged = client.post("/openenv/faulty/Judged-v0/step", {"action": {"action": 0}}, 500)
    assert "the judge is away" in sentence(judged)
    assert client.post("/openenv/faulty/Judged-v0/step", {"action": {"action": 1}})["reward"] == 1.0


def test_a_failed_call_of_a_tool_says_why(client: JsonClient, caplog: pytest.LogCaptureFixture) -> None:
    def failed(env_id: str, session: dict[str, str], **arguments: Any) -> tuple[int, str, str]:
        call = rpc("tools/call", name="act", arguments=arguments, **session)
        error = client.post(f"/openenv/{env_id}/mcp", call)["error"]
        return error["code"], error["data"]["code"], error["message"]

    client.post(f"/openenv/{COUNTER}/reset?session_id=over", {})
    while not client.post(f"/openenv/{COUNTER}/step?session_id=over", {"action": {"action": {"delta": 10}}})[
        "done"
    ]:
        pass
    code, kind, words = failed(COUNTER, {"session_id": "over"}, action={"delta": 10})
    assert (code, kind, "reset" in words) == (-32000, "EXECUTION_ERROR", True)
    client.state.sessions.close("openenv.over")
    code, kind, words = failed("served/Awkward-v0", {}, action=1)
    assert (code, kind, "stepped badly" in words) == (-32000, "EXECUTION_ERROR", True)
    code, kind, words = failed("faulty/Judged-v0", {}, action=0)
    assert (code, kind, "the judge is away" in words) == (-32000, "EXECUTION_ERROR", True)
    code, kind, words = failed(COUNTER, {}, action={"delta": "x"})
    assert (code, kind, "delta" in words) == (-32602, "VALIDATION_ERROR", True)
    assert "request failed" not in caplog.text


# Descriptions


@pytest.mark.parametrize("env_id", IDS)
def test_schemas_describe_what_is_sent(client: JsonClient, env_id: str) -> None:
    jsonschema = needs_module("jsonschema")
    at = f"/openenv/{env_id}"
    schemas = client.get(f"{at}/schema")
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    if env_id == "envweave/GSM8K-v0":
        return  # it needs a data set
    began = client.post(f"{at}/reset?session_id=s", {"seed": 1})
    action = ACTIONS.get(env_id) or {"action": dict.fromkeys(began["observation"]["agents"], 0)}
    jsonschema.validate(action, schemas["action"])
    stepped = client.post(f"{at}/step?session_id=s", {"action": action})
    for result in (began, stepped):
        jsonschema.validate(result["observation"], schemas["observation"])
    jsonschema.validate(client.get(f"{at}/state?session_id=s"), schemas["state"])
    client.state.sessions.close("openenv.s")


ACTIONS: dict[str, Any] = {
    ECHO: {"message": "x"},
    COUNTER: {"action": {"delta": 1}},
    "envweave/Coding-v0": {"code": "1/0"},
    "envweave/REPL-v0": {"code": "x = 1", "is_final": False, "final_answer": None},
    "envweave/LineWorld-v0": {"action": 1, "metadata": {}},
    "envweave/CodeFix-v0": {"action": 1},
    "envweave/PickLetter-v0": {"message": "B"},
}


def test_validation_of_openenv_finds_what_it_looks_for(client: JsonClient) -> None:
    for at in ("", f"/openenv/{COUNTER}"):
        document = client.get(f"{at}/openapi.json")
        assert isinstance(document["info"]["version"], str)
        assert {"/reset", "/step", "/state"} <= document["paths"].keys()
        assert client.get(f"{at}/health") == {"status": "healthy"}
        assert {"name", "description"} <= client.get(f"{at}/metadata").keys()
        assert client.post(f"{at}/mcp", {})["jsonrpc"] == "2.0"


def test_operations_have_different_names(client: JsonClient) -> None:
    document = client.get("/openapi.json")
    names = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    assert len(names) == len(set(names))


def test_the_root_serves_the_only_id_or_the_default() -> None:
    only = JsonClient(COUNTER, **OPEN)
    assert only.get("/metadata")["name"] == COUNTER
    several = JsonClient(ECHO, COUNTER, **OPEN)
    assert "/openenv/" in sentence(several.get("/metadata", 404))
    assert (
        several.post("/mcp", rpc("tools/list"))["error"]["code"] == -32603
    )  # with status 200, as all of its replies
    assert several.get(f"/openenv/{COUNTER}/metadata")["name"] == COUNTER
    with pytest.raises(UnknownEnvironment, match="envweave/CodeFix-v0"):
        JsonClient(COUNTER, default="envweave/CodeFix-v0", **OPEN)
    with pytest.raises(InvalidArgument, match="'openenv' and 'mcp'"):
        JsonClient(COUNTER, protocols=("opnenv",))


def test_nothing_is_served_unless_it_is_opened() -> None:
    closed = JsonClient(ECHO)
    for method, path in (
        ("POST", "/reset"),
        ("GET", "/schema"),
        ("POST", "/mcp"),
        ("GET", f"/openenv/{ECHO}/health"),
    ):
        assert closed.ask(method, path, {} if method == "POST" else None).status_code == 404


# The REPL's secrets and options


def test_a_token_that_is_no_text_is_refused_before_anything_is_done(client: JsonClient) -> None:
    at = "/openenv/envweave/REPL-v0"
    client.post(f"{at}/reset?session_id=repl", {"context": "abc", "task_prompt": "count"})
    client.post(f"{at}/step?session_id=repl", {"action": {"code": "x = 1"}})
    assert "hf_token" in sentence(client.post(f"{at}/reset?session_id=repl", {"hf_token": 5}, 422))
    state = client.get(f"{at}/state?session_id=repl")
    assert (state["step_count"], state["context"], state["task_prompt"]) == (1, "abc", "count")
    client.post(f"{at}/reset?session_id=repl", {"hf_token": "hf_secret"})
    final = client.post(f"{at}/step?session_id=repl", {"action": {"is_final": True, "final_answer": "4'2"}})
    assert (final["done"], final["metadata"]["final_answer"]) == (True, "4'2")
    client.state.sessions.close("openenv.repl")


def rpc(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def test_options_of_an_image_stand_before_those_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr(program, "run_server", lambda *ids, **options: served.append((ids, options)))
    monkeypatch.setenv("ENVWEAVE_SERVE", f"--protocol=openenv --allow-host=localhost --default={ECHO}")
    program.main(["--port", "0", "--protocol", "mcp", ECHO, COUNTER])
    [(ids, options)] = served
    assert ids == (ECHO, COUNTER)
    assert (options["protocol"], options["allow_host"]) == (["openenv", "mcp"], ["localhost"])
    assert (options["default"], options["port"]) == (ECHO, 0)


def test_a_default_without_the_protocol_that_has_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "run_server", lambda *_, **__: None)
    for words in ([], ["--protocol", "mcp"]):
        with pytest.raises(InvalidArgument, match=f"--default {ECHO} .* add --protocol openenv"):
            program.main(["--default", ECHO, ECHO, *words])
