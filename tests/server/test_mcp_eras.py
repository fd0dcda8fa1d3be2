"""Both eras of MCP over HTTP: handshake and statelessness, headers, errors, notifications; and OpenEnv beside it."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from json_clients import JsonClient

from envweave_gym_server.protocols.mcp import agent_tools, runner_tools

COUNTER, ECHO, STATELESS = "envweave/Counter-v0", "envweave/Echo-v0", "2026-07-28"
META = "io.modelcontextprotocol/protocolVersion"


@pytest.fixture(scope="module")
def app() -> JsonClient:
    return JsonClient(COUNTER, protocols=("mcp",))


def post(app: JsonClient, body: Any, **headers: str) -> Any:
    return app.ask("POST", "/mcp", body, headers=headers)


def request(method: str, params: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": "a", "method": method, **({} if params is None else {"params": params})}


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_a_handshake_agrees_on_the_clients_version(app: JsonClient, version: str) -> None:
    result = post(app, request("initialize", {"protocolVersion": version, "capabilities": {}})).json["result"]
    assert result["protocolVersion"] == version
    assert "tools" in result["capabilities"]
    assert result["serverInfo"]["name"] == "envweave-gym"


def test_a_handshake_with_an_unknown_version_offers_the_newest(app: JsonClient) -> None:
    result = post(app, request("initialize", {"protocolVersion": "2031-01-01"})).json["result"]
    assert result["protocolVersion"] == "2025-11-25"


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 5, "result": {}},
        {"jsonrpc": "2.0", "id": 5, "error": {"code": 1, "message": "x"}},
        [{"jsonrpc": "2.0", "method": "notifications/initialized"}],
    ],
)
def test_notifications_and_responses_get_no_reply(app: JsonClient, message: Any) -> None:
    response = post(app, message)
    assert (response.status_code, response.data) == (202, b"")


def test_a_batch_gets_a_list(app: JsonClient) -> None:
    replies = post(
        app, [request("ping"), request("nope"), {"jsonrpc": "2.0", "method": "notifications/x"}]
    ).json
    assert [sorted(reply) for reply in replies] == [["id", "jsonrpc", "result"], ["error", "id", "jsonrpc"]]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_there_is_no_stream_and_no_session_to_end(app: JsonClient, method: str) -> None:
    response = app.ask(method, "/mcp")
    assert (response.status_code, "POST" in response.headers["Allow"]) == (405, True)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        ({}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": 5}, -32600),
        ({"jsonrpc": "2.0", "id": [1], "method": "ping"}, -32600),
        ({"jsonrpc": "1.0", "id": 1, "method": "ping"}, -32600),
        (5, -32600),
        ([], -32600),
        ([5], -32600),
        (request("nope"), -32601),
        (request("tools/call", [1]), -32602),
        (request("tools/call", {"name": "nope"}), -32602),
        (request("tools/call", {"name": "make", "arguments": 5}), -32602),
    ],
)
def test_malformed_requests(app: JsonClient, body: Any, code: int) -> None:
    response = post(app, body)
    reply = response.json[0] if body == [5] else response.json  # only a batch with messages gets a list
    assert (reply["error"]["code"], reply["jsonrpc"]) == (code, "2.0")
    assert response.status_code == (400 if body in (b"{", []) else 200)


@pytest.mark.parametrize("version", ["2031-01-01", "", "2026-07-28"])
@pytest.mark.parametrize(
    "message",
    [
        request("tools/list"),
        [request("ping")],
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 5, "result": {}},
    ],
)
def test_a_version_that_is_not_served_is_refused(app: JsonClient, version: str, message: Any) -> None:
    response = post(app, message, **{"MCP-Protocol-Version": version})
    assert (response.status_code, response.json["error"]["code"]) == (400, -32600)
    assert "2025-11-25" in response.json["error"]["message"]
    known = {"MCP-Protocol-Version": "2025-06-18"}
    assert post(app, message, **known).status_code in (200, 202)


def test_a_handshake_agrees_on_a_version_whatever_its_header_says(app: JsonClient) -> None:
    header = {"MCP-Protocol-Version": "2031-01-01"}
    result = post(app, request("initialize", {"protocolVersion": "2031-01-01"}), **header).json["result"]
    assert result["protocolVersion"] == "2025-11-25"


@pytest.mark.parametrize("path", ["/mcp", "/mcp/no-session"])
def test_tools_that_cannot_be_built_are_one_error_of_each_request(
    app: JsonClient, path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: Any) -> Any:
        raise RuntimeError("a bug of the schema")

    for kind in (runner_tools.RunnerTools, agent_tools.AgentTools):
        monkeypatch.setattr(kind, "toolset", fails)
    for method in ("initialize", "tools/list", "tools/call"):
        response = app.ask("POST", path, request(method))
        assert (response.status_code, response.json["id"]) == (200, "a")
        assert response.json["error"]["code"] == -32603
        assert "a bug of the schema" not in response.text  # its log has it
    assert "request failed" in caplog.text
    replies = app.ask("POST", path, [request("ping"), request("tools/list")]).json
    assert ["error" in reply for reply in replies] == [False, True]
    meta = {"_meta": {META: STATELESS}}
    headers = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": "server/discover"}
    response = app.ask("POST", path, request("server/discover", meta), headers=headers)
    assert (response.status_code, response.json["error"]["code"]) == (200, -32603)


# Version 2026-07-28


def stateless(app: JsonClient, method: str, params: Any = None, **changed: Any) -> Any:
    sent = {**(params or {}), "_meta": {META: STATELESS}}
    headers = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": method}
    headers |= {"Mcp-Name": sent["name"]} if "name" in sent else {}
    return post(app, request(method, sent), **{**headers, **changed})


def test_each_request_stands_alone(app: JsonClient) -> None:
    found = stateless(app, "server/discover").json["result"]
    assert found["supportedVersions"] == [STATELESS]
    assert found["resultType"] == "complete"
    listed = stateless(app, "tools/list").json["result"]
    assert {"tools", "ttlMs", "cacheScope", "resultType", "_meta"} == listed.keys()
    name = f"=?base64?{base64.b64encode(b'make').decode()}?="
    called = stateless(app, "tools/call", {"name": "make", "arguments": {}}, **{"Mcp-Name": name})
    made = called.json["result"]["structuredContent"]
    stateless(app, "tools/call", {"name": "close", "arguments": {"session": made["session"]}})
    assert len(app.state.sessions) == 0


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Mcp-Method": "tools/call"}, -32020),
        ({"MCP-Protocol-Version": "2025-11-25"}, -32020),
        ({"Mcp-Method": "=?base64?%%%?="}, -32020),
    ],
)
def test_headers_repeat_the_request(app: JsonClient, headers: dict[str, str], code: int) -> None:
    response = stateless(app, "tools/list", **headers)
    assert (response.status_code, response.json["error"]["code"]) == (400, code)


def test_an_unknown_version_and_an_unknown_method(app: JsonClient) -> None:
    params = {"_meta": {META: "2031-01-01"}}
    headers = {"MCP-Protocol-Version": "2031-01-01", "Mcp-Method": "tools/list"}
    response = post(app, request("tools/list", params), **headers)
    assert (response.status_code, response.json["error"]["code"]) == (400, -32022)
    assert response.json["error"]["data"] == {"supported": [STATELESS], "requested": "2031-01-01"}
    unknown = stateless(app, "ping")
    assert (unknown.status_code, unknown.json["error"]["code"]) == (404, -32601)


# Beside OpenEnv


def test_both_protocols_share_the_path() -> None:
    both = JsonClient(ECHO, protocols=("openenv", "mcp"))
    assert post(both, request("initialize", {})).json["result"]["serverInfo"]
    assert post(both, {}).json["error"]["code"] == -32600  # with status 200, as OpenEnv's validation wants
    assert post(both, {"jsonrpc": "2.0", "id": 5, "result": {}}).status_code == 202
    session = post(both, request("openenv/session/create")).json["result"]["session_id"]
    listed = post(both, request("tools/list", {"session_id": session})).json["result"]["tools"]
    assert [tool["name"] for tool in listed] == ["echo_message", "echo_with_length"]
    assert post(both, request("tools/list")).json["result"]["tools"][0]["name"] == "make"
    post(both, request("openenv/session/close", {"session_id": session}))
    assert len(both.state.sessions) == 0


def test_the_password_of_the_url_is_good_where_both_protocols_are() -> None:
    both = JsonClient(ECHO, protocols=("openenv", "mcp"), token="a-token-of-tests")
    right, wrong = (base64.b64encode(f"any:{one}".encode()).decode() for one in ("a-token-of-tests", "x"))
    create = request("openenv/session/create")
    session = post(both, create, Authorization=f"Basic {right}").json["result"]["session_id"]
    both.state.sessions.close(f"openenv.{session}")
    assert post(both, request("ping"), Authorization="Bearer a-token-of-tests").status_code == 200
    for sent in ({}, {"Authorization": f"Basic {wrong}"}, {"Authorization": "Bearer x"}):
        assert post(both, create, **sent).status_code == 401
    alone = JsonClient(ECHO, protocols=("mcp",), token="a-token-of-tests")
    assert post(alone, request("ping"), Authorization=f"Basic {right}").status_code == 401


def test_mcp_alone_does_not_import_openenv() -> None:
    import subprocess
    import sys

    program = (
        "import sys; from envweave_gym_server import create_app; create_app(protocols=('mcp',));"
        "print(json.dumps([name for name in sys.modules if 'openenv' in name]))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", f"import json; {program}"], capture_output=True, check=True, text=True
    )
    assert json.loads(shown.stdout) == []
