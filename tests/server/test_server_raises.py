"""What an environment raises that no ``except Exception`` catches is its own session's fault alone."""

from __future__ import annotations

import pytest
from broken_envs import PaysNaN
from json_clients import JsonClient, sentence
from served_envs import Raising
from servers import TOKEN, running_server
from toy_games import Auction

import envweave_gym
from envweave_gym.wire.messages import Answer, Ask, Refused, encode, read_reply
from envweave_gym_server import offer_of_factory

KINDS = ("KeyboardInterrupt", "GeneratorExit", "CancelledError", "Panic")
FAULT = {"kind": "crash", "message": "KeyboardInterrupt: badly", "retryable": True}
NAME = "served/Raising-v0"
MEND = "no trainer learns from it, so mend the environment"


@pytest.fixture(scope="module")
def client() -> JsonClient:
    return JsonClient(offer_of_factory(Raising, name="Raising", kwargs=("what", "where")))


@pytest.mark.parametrize("what", KINDS)
def test_a_step_that_raises_is_the_fault_of_its_episode(client: JsonClient, what: str):
    session = client.open("Raising", kwargs={"what": what})
    client.post(f"{session}/reset", {"seed": 0})
    client.post(f"{session}/step", {"action": 0})
    lost = client.post(f"{session}/step", {"action": 1})
    assert (lost["observation"], lost["reward"], lost["terminated"], lost["truncated"]) == (
        1,
        0.0,
        False,
        True,
    )
    assert lost["info"]["fault"] == FAULT | {"message": f"{what}: badly"}
    assert [one["kind"] for one in lost["info"]["stream"]["events"]] == ["act", "fault", "episode_end"]
    assert "call reset()" in sentence(client.post(f"{session}/step", {"action": 0}, 409))
    assert client.post(f"{session}/reset")["call"] == 4
    assert client.post(f"{session}/step", {"action": 0})["truncated"] is False


def test_a_reward_of_nan_is_the_fault_of_its_episode():
    nan = JsonClient(offer_of_factory(PaysNaN, name="PaysNaN"))
    fault = FAULT | {"message": "ValueError: local://PaysNaN: the reward nan is no finite number; " + MEND}
    session = nan.open("PaysNaN")
    nan.post(f"{session}/reset", {"seed": 0})
    steps = [nan.post(f"{session}/step", {"action": 0}) for _ in range(3)]
    assert [(one["truncated"], one["info"].get("fault")) for one in steps] == [(False, None)] * 2 + [
        (True, fault)
    ]
    assert steps[2]["reward"] == 0.0
    session = nan.open("PaysNaN", kwargs={"on_fault": "raise"})
    nan.post(f"{session}/reset", {"seed": 0})
    steps = [nan.post(f"{session}/step", {"action": 0}) for _ in range(3)]
    assert steps[2] == {"call": 4, "fault": fault}


def test_a_step_that_raises_is_in_the_stream_with_on_fault_raise_and_in_vectors(client: JsonClient):
    session = client.open("Raising", kwargs={"on_fault": "raise"})
    client.post(f"{session}/reset")
    assert client.post(f"{session}/step", {"action": 1}) == {"call": 2, "fault": FAULT}
    session = client.open("Raising", num_envs=2)
    client.post(f"{session}/reset")
    assert client.post(f"{session}/step", {"action": [0, 1]}) == {"call": 2, "fault": FAULT}
    assert client.post(f"{session}/reset")["observation"] == [0, 0]


def test_a_reset_that_raises_is_done_and_the_next_one_starts_afresh(client: JsonClient):
    session = client.open("Raising", kwargs={"where": "reset"})
    assert client.post(f"{session}/reset", {"options": {"raise": True}}) == {"call": 1, "fault": FAULT}
    assert client.post(f"{session}/reset")["observation"] == 0


def test_a_question_that_raises_is_refused_and_its_episode_goes_on(client: JsonClient):
    path = client.open("Raising", kwargs={"where": "render", "render_mode": "ansi"})
    client.post(f"{path}/reset")
    session = client.state.sessions.get(path.rpartition("/")[2])
    for question, reported in (("render", Refused(-2, "NotAvailable", "render: KeyboardInterrupt: badly")),):
        assert read_reply(session.call(Ask(-2, question), encode(Ask(-2, question)))) == reported
    assert isinstance(read_reply(session.peek(Ask(-2, "state"), b"")[0]), Answer)
    assert client.post(f"{path}/step", {"action": 0})["call"] == 2


@pytest.mark.parametrize("where", ["made", "described"])
def test_an_environment_whose_repr_raises_is_one_sentence(where: str):
    client = JsonClient(offer_of_factory(lambda: Raising(where=where), name="Raises"))
    reported = client.get("/v1/envs/Raises", 422)
    assert sentence(reported) == f"Raises cannot be {where}: KeyboardInterrupt: badly"
    if where == "made":
        assert sentence(client.post("/v1/sessions", {"id": "Raises"}, 422)) == sentence(reported)
    assert len(client.state.sessions) == 0


def test_an_environment_that_raises_when_it_is_closed_is_closed(
    client: JsonClient, caplog: pytest.LogCaptureFixture
):
    session = client.open("Raising", kwargs={"where": "close"})
    assert client.ask("DELETE", session).status_code == 204
    client.get(session, 404)
    assert "environment did not close" in caplog.text


def test_an_exception_of_a_game_is_in_its_stream(monkeypatch: pytest.MonkeyPatch):
    client = JsonClient(offer_of_factory(Auction, name="Auction"))
    session = client.open("Auction")
    monkeypatch.setattr(Auction, "reset", _interrupted)
    assert client.post(f"{session}/reset") == {"call": 1, "fault": FAULT}
    monkeypatch.undo()
    assert client.post(f"{session}/reset")["call"] == 2


def _interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt("badly")


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_the_server_and_its_other_sessions_go_on(isolation: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAISING_TOKEN", TOKEN)
    with running_server("served_envs:Raising", "envweave/Counter-v0", isolation=isolation) as server:
        other = "/v1/sessions/" + server.post("/v1/sessions", {"id": "envweave/Counter-v0"})["session"]
        server.post(f"{other}/reset")
        env = envweave_gym.make(f"{server.url}#Raising", token="env:RAISING_TOKEN")
        for _ in range(2):
            env.reset(seed=0)
            _, reward, _, truncated, info = env.step(1)
            assert (reward, truncated) == (0.0, True)
            assert (info["fault"].kind, info["fault"].message) == ("crash", "KeyboardInterrupt: badly")
        env.close()
        assert server.post(f"{other}/step", {"action": {"delta": 1}})["call"] == 2
        assert "server restarted" not in server.log()
