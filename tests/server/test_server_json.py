"""Episodes over the JSON API: what ``curl`` sends and gets."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import served_envs  # noqa: F401 - registers its IDs
from json_clients import JsonClient, sentence
from served_envs import Coin
from servers import until
from toy_games import LEAVE, Auction

import envweave_gym
from envweave_gym.core.faults import InvalidArgument
from envweave_gym.envs.games.code_review import AGENTS
from envweave_gym.wire.messages import Close, Create, Step, Stepped, encode, read_reply
from envweave_gym.wire.values import pack
from envweave_gym_server import offer_of_factory

COUNTER, WORLD = "envweave/Counter-v0", "envweave/LineWorld-v0"


@pytest.fixture(scope="module")
def client() -> JsonClient:
    return JsonClient("served/Awkward-v0", "served/Shapes-v0", "served/Nap-v0", *envweave_gym_ids())


def envweave_gym_ids() -> list[str]:
    return [
        env_id for env_id, card in envweave_gym.registry.catalog.cards().items() if card.is_self_contained
    ]


def test_an_episode_is_the_one_that_is_played_in_process(client: JsonClient):
    here = gym.make(COUNTER, target=9)
    session = client.open(COUNTER, kwargs={"target": 9})
    observation, info = here.reset(seed=3)
    began = client.post(f"{session}/reset", {"seed": 3})
    assert began["observation"] == {"count": int(observation["count"])}
    assert began["info"]["seq"] == info["seq"]
    for call in range(2, 5):
        stepped = client.post(f"{session}/step", {"action": {"delta": 1}})
        observation, reward, terminated, truncated, info = here.step({"delta": 1})
        assert stepped["call"] == call
        assert stepped["observation"] == {"count": int(observation["count"])}
        assert stepped["reward"] == reward
        assert (stepped["terminated"], stepped["truncated"]) == (terminated, truncated)
        kinds = [event["kind"] for event in stepped["info"]["stream"]["events"]]
        assert kinds == [str(event.kind) for event in info["stream"].events]


@pytest.mark.parametrize("env_id", [COUNTER, WORLD, "envweave/CodeFix-v0", "envweave/Echo-v0"])
def test_vectors_play_the_same_over_json(client: JsonClient, env_id: str):
    here = envweave_gym.make(env_id, num_envs=3, autoreset_mode="SameStep")
    session = client.open(env_id, num_envs=3, autoreset_mode="SameStep")
    here.action_space.seed(0)
    seen, _ = here.reset(seed=[1, 2, 3])
    assert client.post(f"{session}/reset", {"seed": [1, 2, 3]})["observation"] == as_json(seen)
    for _ in range(5):
        actions = here.action_space.sample()
        seen, rewards, terminated, truncated, infos = here.step(actions)
        stepped = client.post(f"{session}/step", {"action": as_json(actions)})
        assert stepped["observation"] == as_json(seen)
        assert stepped["reward"] == rewards.tolist()
        assert stepped["terminated"] == terminated.tolist()
        assert stepped["truncated"] == truncated.tolist()
        streams = [as_json(stream) for stream in envweave_gym.stream_of(infos)]
        assert [row["requests"] for row in stepped["info"]["stream"]] == [one["requests"] for one in streams]


# Views


def in_another_thread(call: Any, *arguments: Any, **options: Any) -> Any:
    """The result of a call, which is made in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call, *arguments, **options).result(60)


def test_a_view_is_that_of_one_call_although_a_step_comes_between(client: JsonClient, monkeypatch: Any):
    path = client.open(COUNTER)
    client.post(f"{path}/reset", {"seed": 1})
    session = client.state.sessions.get(path.rpartition("/")[2])
    wait, another = session._wait, client.app.test_client()

    def wait_until_another_has_stepped(left: Any) -> None:
        monkeypatch.setattr(session, "_wait", wait)
        in_another_thread(another.post, f"{path}/step", json={"action": {"delta": 1}})
        wait(left)

    before = client.get(path)
    monkeypatch.setattr(session, "_wait", wait_until_another_has_stepped)
    after = client.get(path)
    assert [(one["call"], one["state"]["count"]) for one in (before, after)] == [(1, 0), (2, 1)]
    assert after["requests"][0]["seq"] > before["requests"][0]["seq"]


def test_a_view_during_a_call_is_that_of_the_call_before(client: JsonClient, monkeypatch: Any):
    path = client.open(COUNTER, num_envs=2)
    client.post(f"{path}/reset", {"seed": 1})
    client.post(f"{path}/step", {"action": {"delta": [1, 2]}})
    session = client.state.sessions.get(path.rpartition("/")[2])
    commit, another, seen = session.core.commit, client.app.test_client(), list[Any]()

    def look_before_it_commits(*arguments: Any) -> None:
        seen.append(in_another_thread(another.get, path).json)
        commit(*arguments)

    before = client.get(path)
    monkeypatch.setattr(session.core, "commit", look_before_it_commits)
    client.post(f"{path}/reset", {"options": {"reset_mask": [True, False]}})
    client.post(f"{path}/step", {"action": {"delta": [1, 2]}})
    after = client.get(path)
    assert [one["call"] for one in seen] == [2, 3]
    assert seen[0]["requests"] == before["requests"]
    assert seen[1]["requests"] != after["requests"]
    assert seen[1]["requests"][1] == before["requests"][1]  # of the row that was not reset


def as_json(value: Any) -> Any:
    from envweave_gym_server.protocols.rest.json_values import plain

    return json.loads(json.dumps(plain(value)))


def test_rows_of_a_vector_are_reset_by_a_mask(client: JsonClient):
    session = client.open(WORLD, num_envs=2, autoreset_mode="Disabled", kwargs={"max_steps": 1})
    client.post(f"{session}/reset", {"seed": 0})
    client.post(f"{session}/step", {"action": [0, 0]})
    reported = client.post(f"{session}/reset", {"seed": 5, "options": {"reset_mask": [True, False]}})
    streams = reported["info"]["stream"]
    assert [event["kind"] for event in streams[0]["events"]] == ["episode_start"]
    assert client.get(session)["agents"] == [["agent"], []]
    refused = client.post(f"{session}/reset", {"options": {"reset_mask": [1, "x"]}}, 422)
    assert "reset_mask" in sentence(refused)


@pytest.mark.parametrize("env_id", ["CartPole-v1", WORLD])
def test_rows_that_were_not_reset_are_asked_what_they_were_before(env_id: str):
    client = JsonClient(env_id)
    session = client.open(env_id, num_envs=3)

    def reset(*mask: bool) -> Any:
        reported = client.post(f"{session}/reset", {"seed": 1, "options": {"reset_mask": mask}})
        return [stream and stream["requests"] for stream in reported["info"]["stream"]]

    def asked() -> Any:
        reported = client.get(session)
        assert reported["agents"] == [["agent"]] * 3
        return reported["requests"]

    client.post(f"{session}/reset", {"seed": 0})
    began = asked()
    first = reset(True, False, True)
    assert asked() == [first[0], began[1], first[2]] == began
    stepped = client.post(f"{session}/step", {"action": [1, 1, 1]})["info"]["stream"]
    stepped = [stream["requests"] for stream in stepped]
    assert asked() == stepped != began
    assert reset(False, True, False) == [None, began[1], None]
    assert asked() == [stepped[0], began[1], stepped[2]]
    reset(False, False, True)
    assert asked() == [stepped[0], began[1], began[2]]
    client.post(f"{session}/reset", {"seed": 0})
    assert asked() == began


def test_a_turn_based_game_asks_whose_turn_it_is(client: JsonClient):
    session = client.open("envweave/KuhnPoker-v0", api="aec")
    began = client.post(f"{session}/reset", {"seed": 1})
    assert began["selection"] == "player_0"
    assert began["agents"] == ["player_0", "player_1"]
    stepped = client.post(f"{session}/step", {"action": 0})
    assert stepped["selection"] == "player_1"
    assert client.get(session)["agents"] == ["player_1"]
    refused = client.post(f"{session}/step", {"action": "bet"}, 422)
    assert "is no integer" in sentence(refused)
    ended = client.post(f"{session}/step", {"action": 0})
    assert set(ended["terminated"].values()) == {True}
    assert sum(ended["reward"].values()) == 0


def test_a_repeated_call_of_a_game_is_known_although_it_is_anothers_turn(client: JsonClient):
    session = client.open("envweave/CodeReview-v0", api="aec", kwargs={"comments": "text"})
    client.post(f"{session}/reset", {"seed": 1, "call": 1})
    first = client.post(f"{session}/step", {"action": 0, "call": 2})
    assert first["selection"] == AGENTS[1]  # who answers in words
    assert client.post(f"{session}/step", {"action": 0, "call": 2}) == first
    assert client.get(session)["call"] == 2


@pytest.mark.usefixtures("registries")
def test_an_agent_that_is_out_acts_with_null():
    client = JsonClient(offer_of_factory(Auction, name="auction"))
    session = client.open("auction", api="aec")
    client.post(f"{session}/reset", {"seed": 1})
    client.post(f"{session}/step", {"action": 0})
    out = client.post(f"{session}/step", {"action": LEAVE})
    assert (out["selection"], out["terminated"]["bidder_0"]) == ("bidder_0", True)
    left = client.post(f"{session}/step", {"action": None})
    assert "bidder_0" not in left["agents"]


def test_agents_that_move_at_once_act_in_one_object(client: JsonClient):
    session = client.open("envweave/LineRace-v0")
    began = client.post(f"{session}/reset", {"seed": 1})
    assert began["agents"] == ["runner_0", "runner_1", "runner_2"]
    stepped = client.post(f"{session}/step", {"action": dict.fromkeys(began["agents"], 1)})
    assert stepped["observation"].keys() == stepped["info"].keys() == set(began["agents"])
    reported = sentence(client.post(f"{session}/step", {"action": {"runner_9": 1}}, 422))
    assert "there is no agent 'runner_9'" in reported
    assert "runner_0" in reported


def test_arrays_come_in_base64_where_that_is_asked_for(client: JsonClient):
    session = client.open("served/Shapes-v0")
    began = client.post(f"{session}/reset?arrays=base64", {"seed": 1})
    assert began["observation"]["image"]["dtype"] == "|u1"
    assert began["info"]["matrix"] == {
        "dtype": "<f8",
        "shape": [2, 2],
        "base64": "AAAAAAAA8D8AAAAAAAAAAAAAAAAAAAAAAAAAAAAA8D8=",
    }
    stepped = client.post(f"{session}/step?arrays=base64", {"action": began["observation"]})
    assert stepped["observation"] == began["observation"]
    listed = client.post(f"{session}/step", {"action": stepped["observation"]})
    assert listed["observation"]["image"] == [[int(x) for x in row] for row in listed["observation"]["image"]]
    assert "arrays='lines' is unknown" in sentence(client.post(f"{session}/reset?arrays=lines", {}, 422))


# Numbered calls


def test_a_numbered_call_is_done_once(client: JsonClient):
    session = client.open(COUNTER, kwargs={"target": 50})
    start = client.post(f"{session}/reset", {"seed": 1, "call": 1})["observation"]["count"]
    for _ in range(3):
        reported = client.post(f"{session}/step", {"action": {"delta": 1}, "call": 2})
        assert reported["observation"] == {"count": start + 1}
    assert client.get(session)["state"]["step_count"] == 1


@pytest.mark.parametrize(
    ("call", "says"), [(1, "next call is 3"), (2, "had that number"), (4, "next call is 3")]
)
def test_a_number_that_is_not_the_next_is_a_conflict(client: JsonClient, call: int, says: str):
    session = client.open(COUNTER)
    client.post(f"{session}/reset", {"seed": 1})
    client.post(f"{session}/step", {"action": {"delta": 1}})
    reported = client.post(f"{session}/step", {"action": {"delta": 2}, "call": call}, 409)
    assert reported["committed"] == 2
    assert says in sentence(reported)


def test_calls_without_numbers_are_all_done_however_many_come_at_once(client: JsonClient):
    session = client.open(COUNTER, kwargs={"target": 1000})
    start = client.post(f"{session}/reset", {"seed": 1})["observation"]["count"]
    with ThreadPoolExecutor(8) as pool:
        calls = pool.map(lambda _: client.post(f"{session}/step", {"action": {"delta": 1}}), range(40))
        assert sorted(reported["call"] for reported in calls) == list(range(2, 42))
    assert client.get(session)["state"]["count"] == start + 40


def test_creating_a_session_again_makes_nothing(client: JsonClient):
    body = {"id": COUNTER, "session": "mine", "kwargs": {"target": 9}}
    assert client.post("/v1/sessions", body, 201) == client.post("/v1/sessions", body, 201)
    client.post("/v1/sessions/mine/reset", {"seed": 1})
    other = client.post("/v1/sessions", {**body, "kwargs": {"target": 8}}, 409)
    assert "session mine" in sentence(other)
    assert client.ask("DELETE", "/v1/sessions/mine").status_code == 204


def test_an_episode_is_played_half_in_json_and_half_in_frames(client: JsonClient):
    session = client.open(COUNTER, kwargs={"target": 50})
    start = client.post(f"{session}/reset", {"seed": 1})["observation"]["count"]
    frame = encode(Step(2, pack({"delta": 3})))
    response = client.ask("POST", f"{session}/frames", frame, content_type="application/msgpack")
    reply = read_reply(response.data)
    assert isinstance(reply, Stepped)
    assert reply.observation == {"count": start + 3}
    reported = client.post(f"{session}/step", {"action": {"delta": 1}})
    assert (reported["call"], reported["observation"]["count"]) == (3, start + 4)
    client.ask("POST", f"{session}/frames", encode(Close(-2)), content_type="application/msgpack")
    client.get(session, 404)


# How it stands, and what becomes of faults


def test_a_session_says_how_it_stands(client: JsonClient):
    session = client.open(COUNTER)
    reported = client.get(session)
    assert (reported["call"], reported["busy"], reported["attached"], reported["agents"]) == (0, False, 0, [])
    assert reported["requests"] == [{"seq": -1, "kind": "reset", "agent": None, "turn": 0}]
    client.post(f"{session}/reset", {"seed": 1})
    reported = client.get(session)
    assert reported["agents"] == ["agent"]
    assert reported["state"]["episode"] == 0


def test_a_session_under_way_says_so_without_waiting(
    client: JsonClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WAKE", str(tmp_path / "wake"))
    session = client.open("served/Nap-v0")
    client.post(f"{session}/reset")
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(client.post, f"{session}/step", {"action": 60})
        until(lambda: client.get(session)["busy"])
        assert client.get(session)["state"] is None
        assert not step.done()
        (tmp_path / "wake").touch()
        assert step.result()["call"] == 2


@pytest.mark.parametrize("depth", [100, 800, 10_000])
@pytest.mark.usefixtures("registries")
def test_values_that_nest_too_deep_are_refused_cheaply(depth: int):
    client = JsonClient(Coin)
    session, deep = client.open("Coin"), "[" * depth + "]" * depth
    client.post(f"{session}/reset", {"seed": 1})
    for path, body in (
        ("/v1/sessions", f'{{"id": "Coin", "kwargs": {{"sides": {deep}}}}}'),
        (f"{session}/reset", f'{{"options": {{"x": {deep}}}}}'),
        (f"{session}/step", f'{{"action": {deep}}}'),
    ):
        response = client.ask("POST", path, body.encode())
        assert response.status_code in (400, 422), response.text
        assert sentence(response.json)
    assert client.get(session)["call"] == 1


def test_an_environment_that_raises_ends_its_episode_as_a_fault(client: JsonClient):
    session = client.open("served/Awkward-v0")
    client.post(f"{session}/reset")
    reported = client.post(f"{session}/step", {"action": 1})
    assert reported["truncated"]
    assert reported["info"]["fault"]["message"] == "RuntimeError: stepped badly"
    assert reported["reward"] == 0
    assert client.post(f"{session}/reset")["call"] == 3


def test_with_on_fault_raise_the_reply_is_the_fault(client: JsonClient):
    session = client.open("served/Awkward-v0", kwargs={"on_fault": "raise"})
    client.post(f"{session}/reset")
    reported = client.post(f"{session}/step", {"action": 1})
    assert reported == {
        "call": 2,
        "fault": {"kind": "crash", "message": "RuntimeError: stepped badly", "retryable": True},
    }
    assert client.get(session)["requests"][0]["kind"] == "reset"


def test_a_closed_session_is_gone(client: JsonClient):
    session = client.open(COUNTER)
    assert client.ask("DELETE", session).status_code == 204
    for method, path in (("DELETE", session), ("GET", session), ("POST", f"{session}/step")):
        response = client.ask(method, path, {"action": 1} if method == "POST" else None)
        assert response.status_code == 404
        assert "there is no session" in sentence(response.json)


# What there is to play


def test_the_environments_are_listed_without_those_that_only_point_elsewhere(client: JsonClient):
    listed = {one["id"]: one for one in client.get("/v1/envs")["environments"]}
    assert listed.keys() == {"served/Awkward-v0", "served/Shapes-v0", "served/Nap-v0", *envweave_gym_ids()}
    assert listed[COUNTER]["kwargs"] == ["target"]
    assert [one["id"] for one in JsonClient().get("/v1/envs")["environments"]] == envweave_gym_ids()


@pytest.mark.parametrize("env_id", envweave_gym_ids())
def test_a_description_tells_spaces_agents_and_arguments(client: JsonClient, env_id: str):
    reported = client.get(f"/v1/envs/{env_id}")
    assert reported["id"] == env_id
    assert set(client.get(f"/v1/envs/{env_id.replace('/', '%2F')}")) == set(reported)
    spaces = reported["agents"].values() if "agents" in reported else [reported]
    for one in spaces:
        assert {"type"} < one["observation_space"].keys()
        assert {"type"} < one["action_space"].keys()
    assert "render_mode" in reported["kwargs"]
    vector = client.get(f"/v1/envs/{env_id}?api=vector", 422 if "agents" in reported else 200)
    assert "agents" in reported or "num_envs" in vector["kwargs"]


@pytest.mark.parametrize("name", [".", ".."])
def test_a_directory_name_is_no_session_id(client: JsonClient, name: str):
    assert "session" in sentence(client.post("/v1/sessions", {"id": COUNTER, "session": name}, 422))
    create = Create(COUNTER)
    with pytest.raises(InvalidArgument, match="is no id of a session"):
        client.state.sessions.create(name, create, encode(create))
    assert client.post("/v1/sessions", {"id": COUNTER, "session": "..."}, 201)["session"] == "..."


def test_arguments_that_contradict_each_other_are_refused(client: JsonClient):
    body = {"id": WORLD, "num_envs": 2, "kwargs": {"num_envs": 3}}
    says = f"{WORLD}: num_envs=2 and kwargs with num_envs=3 contradict each other; give one of them"
    assert sentence(client.post("/v1/sessions", body, 422)) == says
    assert client.post("/v1/sessions", body | {"kwargs": {"num_envs": 2}}, 201)["api"] == "vector"
