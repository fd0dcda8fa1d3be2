"""MCP: runners make, reset, step and close environments; agents act and observe with tokens of their own."""

from __future__ import annotations

import threading
from typing import Any

import openenv_envs  # noqa: F401 - registers its ID
import pytest
import served_envs  # noqa: F401 - registers its IDs
from json_clients import JsonClient

COUNTER, POKER, TOKEN = "envweave/Counter-v0", "envweave/KuhnPoker-v0", "a-token-of-tests"
STATELESS = "2026-07-28"


class Mcp:
    """A client of one URL, in the older era or, with ``stateless``, in the newer."""

    def __init__(
        self, app: JsonClient, path: str = "/mcp", token: str = TOKEN, *, stateless: bool = False
    ) -> None:
        self._app, self._path, self._token, self._stateless = app, path, token, stateless

    def send(self, method: str, params: dict[str, Any] | None = None, **headers: str) -> Any:
        """The response to a request."""
        params = dict(params or {})
        sent = {"Authorization": f"Bearer {self._token}", "Host": "localhost"}
        if self._stateless:
            params["_meta"] = {"io.modelcontextprotocol/protocolVersion": STATELESS}
            sent |= {"MCP-Protocol-Version": STATELESS, "Mcp-Method": method}
            sent |= {"Mcp-Name": params["name"]} if "name" in params else {}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return self._app.ask("POST", self._path, message, headers={**sent, **headers})

    def ask(self, method: str, **params: Any) -> Any:
        """The result of a request."""
        response = self.send(method, params)
        assert response.status_code == 200, response.text
        assert response.json["id"] == 1
        return response.json["result"]

    def call(self, name: str, **arguments: Any) -> Any:
        """The value of a tool."""
        result = self.ask("tools/call", name=name, arguments=arguments)
        assert not result["isError"], result
        return result["structuredContent"]

    def refused(self, name: str, **arguments: Any) -> str:
        """The sentence of a tool's error."""
        result = self.ask("tools/call", name=name, arguments=arguments)
        assert result["isError"], result
        return result["content"][0]["text"]

    def tools(self) -> dict[str, Any]:
        return {tool["name"]: tool for tool in self.ask("tools/list")["tools"]}


@pytest.fixture(scope="module")
def app() -> JsonClient:
    ids = (
        COUNTER,
        POKER,
        "envweave/LineRace-v0",
        "envweave/Echo-v0",
        "served/Awkward-v0",
        "faulty/Judged-v0",
    )
    return JsonClient(*ids, protocols=("mcp",), token=TOKEN)


@pytest.fixture(params=[False, True], ids=["handshake", "stateless"])
def runner(app: JsonClient, request: pytest.FixtureRequest) -> Mcp:
    return Mcp(app, stateless=request.param)


def agents_of(app: JsonClient, made: Any) -> dict[str, Mcp]:
    path = f"/mcp/{made['session']}"
    assert all(one["url"] == f"http://localhost{path}" for one in made["agents"].values())
    return {name: Mcp(app, path, one["token"]) for name, one in made["agents"].items()}


def test_an_episode_of_a_runner_and_its_agent(app: JsonClient, runner: Mcp) -> None:
    assert list(runner.tools()) == ["make", "reset", "step", "close"]
    made = runner.call("make", id=COUNTER, kwargs={"target": 5})
    agent = agents_of(app, made)["agent"]
    assert agent.call("observe") == {
        "turn": 0,
        "agent": "agent",
        "observation": None,
        "must_act": False,
        "done": False,
    }
    runner.call("reset", session=made["session"], seed=1)
    tools = agent.tools()
    assert list(tools) == ["act", "observe"]
    assert tools["act"]["inputSchema"]["properties"].keys() == {"delta", "turn"}
    seen = agent.call("observe")
    assert (seen["observation"], seen["must_act"]) == ({"count": 0}, True)
    after = agent.call("act", delta=3, turn=seen["turn"])
    assert (after["observation"], after["done"]) == ({"count": 3}, False)
    assert runner.call("step", session=made["session"], action={"delta": 2})["terminated"] is True
    assert agent.call("observe")["reward"] == 1.0
    assert "reset" in agent.refused("act", delta=1)
    runner.call("close", session=made["session"])
    assert "has ended" in agent.refused("act", delta=1)
    assert list(agent.tools()) == ["act", "observe"]


def test_an_action_upon_an_older_observation_is_refused(app: JsonClient, runner: Mcp) -> None:
    made = runner.call("make", id=COUNTER)
    agent = agents_of(app, made)["agent"]
    runner.call("reset", session=made["session"])
    seen = agent.call("observe")
    runner.call("reset", session=made["session"])  # the runner has given up on the agent
    assert "is over" in agent.refused("act", delta=1, turn=seen["turn"])
    assert agent.call("observe")["observation"] == {"count": 0}
    assert agent.call("act", delta=1)["observation"] == {"count": 1}  # without a turn it is this one's
    runner.call("close", session=made["session"])


def test_agents_of_a_game_act_in_turn_and_see_their_own(app: JsonClient, runner: Mcp) -> None:
    made = runner.call("make", id=POKER)
    agents = agents_of(app, made)
    runner.call("reset", session=made["session"], seed=3)
    first, second = agents["player_0"], agents["player_1"]
    assert "another agent's turn" in second.refused("act", action=1)
    seen = [agent.call("observe") for agent in (first, second)]
    assert [one["must_act"] for one in seen] == [True, False]
    assert seen[0]["observation"] != seen[1]["observation"]  # each sees its own card
    waiting = threading.Thread(target=lambda: seen.append(second.call("observe", wait=30)))
    waiting.start()
    first.call("act", action=1)
    waiting.join()
    assert seen[2]["must_act"] is True
    ended = second.call("act", action=1, turn=seen[2]["turn"])
    assert ended["done"] is True
    assert [agent.call("observe")["reward"] for agent in (first, second)] in ([2.0, -2.0], [-2.0, 2.0])
    runner.call("reset", session=made["session"], seed=4)
    assert "reward" not in first.call("observe")
    runner.call("close", session=made["session"])


def test_a_game_that_the_runner_ends_is_over_for_its_agents(app: JsonClient, runner: Mcp) -> None:
    made = runner.call("make", id=POKER)
    agents = agents_of(app, made).values()
    runner.call("reset", session=made["session"], seed=3)
    runner.call("step", session=made["session"], action=1)
    ended = runner.call("step", session=made["session"], action=1)
    assert (ended["agents"], ended["selection"]) == ([], None)
    assert ended["terminated"] == {"player_0": True, "player_1": True}
    seen = [agent.call("observe") for agent in agents]
    assert [(one["done"], one["must_act"]) for one in seen] == [(True, False)] * 2
    assert [one["reward"] for one in seen] == list(ended["reward"].values()) == [-2.0, 2.0]
    assert ended["info"].keys() == ended["earned"].keys() == {"player_0", "player_1"}
    runner.call("close", session=made["session"])


def test_an_agent_is_done_before_it_leaves_its_game(app: JsonClient, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = "envweave_gym_server.protocols.mcp.runner_tools.step_dead_agents"
    monkeypatch.setattr(tools, lambda *_: None)  # as a client of another protocol may leave it
    runner = Mcp(app)
    made = runner.call("make", id=POKER)
    runner.call("reset", session=made["session"], seed=3)
    for _ in range(2):
        runner.call("step", session=made["session"], action=1)
    for agent in agents_of(app, made).values():
        seen = agent.call("observe")
        assert (seen["done"], seen["must_act"]) == (True, False)
        assert agent.refused("act", action=1)
    runner.call("close", session=made["session"])


def test_agents_that_may_not_see_their_rewards(app: JsonClient, runner: Mcp) -> None:
    made = runner.call("make", id=COUNTER, rewards=False)
    runner.call("reset", session=made["session"])
    assert "reward" not in agents_of(app, made)["agent"].call("act", delta=1)
    runner.call("close", session=made["session"])


# Tokens


def test_a_token_is_one_agents_in_one_session(app: JsonClient, runner: Mcp) -> None:
    one, other = runner.call("make", id=POKER), runner.call("make", id=POKER)
    token = one["agents"]["player_0"]["token"]
    assert Mcp(app, f"/mcp/{other['session']}", token).send("ping").status_code == 401
    assert Mcp(app, "/mcp", token).send("ping").status_code == 401
    assert Mcp(app, f"/mcp/{one['session']}", token[:-1] + "x").send("ping").status_code == 401
    assert app.ask("GET", "/v1/envs", headers={"Authorization": f"Bearer {token}"}).status_code == 401
    assert app.ask("POST", f"/mcp/{one['session']}", {}).status_code == 401
    for made in (one, other):
        runner.call("close", session=made["session"])


def test_a_token_works_in_no_later_session_with_the_same_id(app: JsonClient, monkeypatch: Any) -> None:
    runner = Mcp(app)
    made = runner.call("make", id=COUNTER)
    agent = agents_of(app, made)["agent"]
    runner.call("close", session=made["session"])
    create = {"id": COUNTER, "session": made["session"]}
    app.post("/v1/sessions", create, 201, headers={"Authorization": f"Bearer {TOKEN}"})
    assert "has ended" in agent.refused("act", delta=1)
    app.state.sessions.close(made["session"])
    again = "envweave_gym_server.protocols.mcp.runner_tools.uuid.uuid4"
    monkeypatch.setattr(again, lambda: type("Same", (), {"hex": made["session"]}))
    assert runner.call("make", id=COUNTER)["session"] == made["session"]
    runner.call("reset", session=made["session"])
    assert "has ended" in agent.refused("act", delta=1)
    assert "has ended" in agent.refused("observe")
    runner.call("close", session=made["session"])


def test_an_operator_plays_a_single_agent_with_its_own_token(app: JsonClient) -> None:
    runner = Mcp(app)
    made = runner.call("make", id=COUNTER)
    runner.call("reset", session=made["session"])
    assert Mcp(app, f"/mcp/{made['session']}").call("act", delta=2)["observation"] == {"count": 2}
    game = runner.call("make", id=POKER)
    assert "token" in Mcp(app, f"/mcp/{game['session']}").refused("act", action=0)
    for one in (made, game):
        runner.call("close", session=one["session"])


# Wrong calls


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("make", {"id": "envweave/Contour-v0"}, "did you mean"),
        ("make", {}, "no ID was given"),
        ("make", {"id": COUNTER, "kwargs": {"path": "/etc"}}, "path"),
        ("make", {"id": COUNTER, "kwargs": 5}, "kwargs"),
        ("make", {"id": COUNTER, "x": 5}, "'x'"),
        ("reset", {"session": "nope"}, "no session"),
        ("reset", {}, "session"),
        ("step", {"session": "nope", "action": 1}, "no session"),
        ("close", {"session": 5}, "no text"),
    ],
)
def test_a_wrong_call_of_a_runner_is_a_tools_error(
    runner: Mcp, app: JsonClient, name: str, arguments: dict[str, Any], words: str
) -> None:
    before = len(app.state.sessions)
    assert words in runner.refused(name, **arguments)
    assert len(app.state.sessions) == before


def test_a_wrong_action_changes_nothing(app: JsonClient, runner: Mcp) -> None:
    made = runner.call("make", id=COUNTER)
    agent = agents_of(app, made)["agent"]
    runner.call("reset", session=made["session"])
    for arguments in ({"delta": 99}, {"delta": "x"}, {}, {"delta": 1, "turn": "x"}, {"other": 1}):
        assert agent.refused("act", **arguments)
    for arguments in ({"wait": -1}, {"wait": 1e9}, {"wait": "x"}, {"for": 1}):
        assert "wait" in agent.refused("observe", **arguments)
    assert agent.call("observe")["observation"] == {"count": 0}
    runner.call("close", session=made["session"])


def test_a_lost_episode_is_reported_and_has_no_reward(app: JsonClient, runner: Mcp) -> None:
    for env_id, action, words in (
        ("served/Awkward-v0", 1, "badly"),
        ("faulty/Judged-v0", 0, "judge is away"),
    ):
        made = runner.call("make", id=env_id)
        agent = agents_of(app, made)["agent"]
        runner.call("reset", session=made["session"])
        assert words in agent.refused("act", action=action)
        seen = agent.call("observe")
        assert (seen["done"], seen["must_act"], "reward" in seen) == (True, False, False)
        assert agent.refused("act", action=action)
        runner.call("close", session=made["session"])


def test_a_session_of_another_client_is_not_a_runners(app: JsonClient, runner: Mcp) -> None:
    path = app.open_as(TOKEN, COUNTER)
    assert "not created by make" in runner.refused("close", session=path.rpartition("/")[2])
    app.state.sessions.close(path.rpartition("/")[2])


def test_an_environment_that_cannot_be_made_leaves_no_session(
    app: JsonClient, runner: Mcp, monkeypatch: Any
) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("no description")

    monkeypatch.setattr("envweave_gym_server.protocols.mcp.runner_tools.description_of", fails)
    response = runner.send("tools/call", {"name": "make", "arguments": {"id": COUNTER}})
    assert response.json["error"]["code"] == -32603
    assert "no description" not in response.text  # a bug of the server, which its log has
    assert len(app.state.sessions) == 0
