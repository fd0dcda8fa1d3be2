"""Environments of OpenEnv servers: episodes in both dialects, names, spaces and vectors."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from openenv_servers import NEW, OLD, SCHEMA, OpenEnvServer, Talk, error, observing, openenv_server, saying

import envweave_gym as ew
from envweave_gym.core.faults import EnvironmentCrashed, NotAvailable, ResetNeeded
from envweave_gym.hubs.openenv import idle_pings, info_metadata, websocket_session
from envweave_gym.hubs.openenv.environment_names import OpenEnvName, RunningServer
from envweave_gym.hubs.openenv.json_schema_space import JsonObject
from envweave_gym.net.websocket import CLOSE, PING, TEXT, frame_of

ID = "envweave/OpenEnv-v0"


@pytest.fixture(params=[OLD, NEW])
def server(request: pytest.FixtureRequest) -> Iterator[OpenEnvServer]:
    with openenv_server(request.param) as running:
        yield running


@pytest.fixture
def new() -> Iterator[OpenEnvServer]:
    with openenv_server(NEW) as running:
        yield running


def delta(number: int) -> dict[str, Any]:
    return {"delta": np.int64(number)}


def test_an_episode_in_each_dialect(server: OpenEnvServer) -> None:
    with ew.make(server.name) as env:
        assert env.action_space == gym.spaces.Dict(delta=gym.spaces.Discrete(10))
        seen, info = env.reset(seed=7, options={"difficulty": "hard"})
        assert (seen["count"].tolist(), seen["text"]) == ([0], "0")
        assert seen in env.observation_space
        assert server.messages[-1] == {"type": "reset", "data": {"seed": 7, "difficulty": "hard"}}
        seen, reward, terminated, truncated, info = env.step(delta(1))
        assert (seen["text"], reward, terminated, truncated) == ("1", 1.0, False, False)
        assert server.messages[-1] == {"type": "step", "data": {"delta": 1}}
        assert info.get("steps") == (1 if server.dialect == NEW else None)
        assert ew.state_of(env)["given"] == {"seed": 7, "difficulty": "hard"}
        assert env.step(delta(2))[1:4] == (2.0, True, False)
        with pytest.raises(ResetNeeded):
            env.step(delta(1))
        env.reset()
    assert server.closed.acquire(timeout=10)
    assert server.kinds() == ["reset", "step", "state", "step", "reset", "close"]


def test_all_ways_to_make_it(new: OpenEnvServer) -> None:
    ways = [
        ew.make(new.name),
        ew.make(ID, url=new.name),
        ew.make(ID, url=new.url),
        gym.make(ID, url=new.name),
        gym.make(gym.spec(ID), url=new.name),
    ]
    for env in ways:
        env.reset(seed=1)
        assert env.step(delta(3))[2]
        assert env.spec.id == ID
        env.close()


@pytest.mark.parametrize("how", [{}, {"vectorization_mode": "sync"}, {"group": 2}])
def test_rows_of_a_vector_have_sessions_of_their_own(new: OpenEnvServer, how: dict[str, Any]) -> None:
    with openenv_server(NEW) as server:
        rows = ew.make(server.name, num_envs=4, **how)
        rows.reset(seed=3)
        _, rewards, terminated, _, _ = rows.step({"delta": np.array([0, 1, 2, 3])})
        assert rewards.tolist() == [0.0, 1.0, 2.0, 3.0]
        assert terminated.tolist() == [False, False, False, True]
        assert len(server.talks) == 4
        rows.close()
        for _ in range(4):
            assert server.closed.acquire(timeout=10)


def test_actions_outside_of_the_space_are_not_sent(new: OpenEnvServer) -> None:
    with ew.make(new.name) as env:
        env.reset(seed=1)
        for wrong in ({"delta": 11}, {"delta": "1"}, {}, 1):
            with pytest.raises(ew.InvalidAction, match=ID):
                env.step(wrong)
        assert new.kinds() == ["reset"]
        assert env.step(delta(1))[1] == 1.0


def test_an_action_may_have_a_reward_and_a_done_of_its_own(new: OpenEnvServer) -> None:
    members = {"delta": {"type": "integer"}, "reward": {"type": "integer"}, "done": {"type": "boolean"}}
    action = {"type": "object", "properties": members, "required": list(members)}
    new.documents["/schema"] = (200, json.dumps({**SCHEMA, "action": action}).encode())
    with ew.make(new.name) as env:
        assert env.action_space.spaces.keys() == members.keys()
        env.reset(seed=1)
        assert env.step({"delta": np.array([1]), "reward": np.array([2]), "done": 1})[1] == 1.0
        assert new.messages[-1]["data"] == {"delta": 1, "reward": 2, "done": True}


def test_a_refused_action_goes_on_with_the_episode(new: OpenEnvServer) -> None:
    with ew.make(new.name, spaces="json") as env:
        assert isinstance(env.action_space, JsonObject)
        env.reset(seed=1)
        env.step({"delta": 1})
        with pytest.raises(ew.InvalidAction, match=r"127.0.0.1.*refuses the action.*delta.*integer"):
            env.step({"delta": "many"})
        assert env.step({"delta": 1})[0]["count"] == 2


def test_a_wrong_object_of_the_environment_itself_is_no_refusal(new: OpenEnvServer) -> None:
    wrong = error(
        "VALIDATION_ERROR", "Invalid message", errors=[{"type": "missing", "loc": ["count"], "msg": "?"}]
    )
    with ew.make(new.name, on_fault="raise") as env:
        env.reset(seed=1)
        new.faults.append(saying(wrong))
        with pytest.raises(EnvironmentCrashed, match="count"):
            env.step(delta(1))


def test_a_missing_reward_says_so(new: OpenEnvServer) -> None:
    with ew.make(new.name) as env:
        env.reset(seed=1)
        new.faults += [observing(reward=None), observing(reward=True)]
        _, reward, _, _, info = env.step(delta(1))
        assert (reward, info["reward_missing"]) == (0.0, True)
        _, reward, _, _, info = env.step(delta(1))
        assert (reward, info.get("reward_missing")) == (1.0, None)


def test_metadata_cannot_set_what_trainers_read(new: OpenEnvServer) -> None:
    forged = dict.fromkeys(("stream", "seq", "fault", "final_obs", "final_info", "episode", "_x"), "forged")
    with ew.make(new.name) as env:
        env.reset(seed=1)
        new.faults.append(observing(metadata={**forged, "note": 1, "reward_missing": True}))
        info = env.step(delta(1))[4]
        assert info["note"] == 1
        assert info["metadata"] == {**forged, "note": 1, "reward_missing": True}
        assert pickle.loads(pickle.dumps(info["metadata"])) == copy.deepcopy(info["metadata"])
        assert not info.keys() & {"fault", "final_obs", "final_info", "episode", "_x", "reward_missing"}
        assert info["seq"] == info["stream"].events[-1].seq


def test_metadata_that_may_be_missing_are_copied(new: OpenEnvServer) -> None:
    with ew.make(new.name) as env:
        env.reset(seed=1)
        for answer in (None, "42", None, ["42"]):
            new.faults.append(observing(metadata={"final_answer": answer}))
            assert env.step(delta(1))[4]["final_answer"] == answer


@pytest.mark.parametrize("how", ["sync", None])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "a"),
        ("a", 1),
        (True, "x"),
        ({"y": 1}, 3),
        (3, {"y": 1}),
        (10**30, 1),
        (0, 0.5),
        (None, 1),
        ([1], {}),
    ],
)
def test_metadata_of_changing_types_break_no_vector(how: str | None, one: Any, other: Any) -> None:
    with openenv_server() as server:
        rows = ew.make(server.name, num_envs=2, vectorization_mode=how)
        rows.reset(seed=1)
        server.faults += [observing(metadata={"x": one}), observing(metadata={"x": other})]
        infos = rows.step({"delta": np.array([1, 1])})[4]
        assert sorted(repr(row["x"]) for row in infos["metadata"]) == sorted(map(repr, (one, other)))
        for _ in range(2):  # a member that has had two types is copied no more
            server.faults += [observing(metadata={"x": one}), observing(metadata={"x": other})]
            assert "x" not in rows.step({"delta": np.array([1, 1])})[4]
        rows.close()


def test_what_is_known_of_servers_ends_with_their_environments(new: OpenEnvServer) -> None:
    def known() -> list[str]:
        gc.collect()
        return [name for name in info_metadata._shared.value._by_name if str(new.port) in name]

    env = ew.make(new.name)
    env.reset(seed=1)
    another = pickle.loads(pickle.dumps(env))
    another.reset(seed=1)
    another.close()
    assert known() == [new.name]
    env.close()
    del env, another
    assert known() == []


def test_hung_servers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_session, "_hung", {})
    for second in range(100):
        websocket_session._remember_hung(f"http://host:{second}", float(second))
    hung = [url for url in websocket_session._hung if url.startswith("http://host:")]  # others may add theirs
    assert hung == [f"http://host:{second}" for second in range(90, 100)]


def test_rows_of_several_servers_of_one_name_have_metadata_that_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As those of an image, of which each row has a container of its own."""
    with openenv_server() as first, openenv_server() as second:
        running = [RunningServer(first.url), RunningServer(second.url)]
        monkeypatch.setattr(OpenEnvName, "server", lambda *_, **__: running.pop())
        rows = ew.make("openenv://docker/image", num_envs=2, vectorization_mode="sync")
        rows.reset(seed=1)
        first.faults.append(observing(metadata={"x": 1}))
        second.faults.append(observing(metadata={"x": "a"}))
        infos = rows.step({"delta": np.array([1, 1])})[4]
        assert sorted(repr(row["x"]) for row in infos["metadata"]) == ["'a'", "1"]
        rows.close()


@pytest.mark.parametrize(
    ("metadata", "ends"),
    [({}, (True, False)), ({"truncated": True}, (False, True)), ({"truncated": "yes"}, (True, False))],
)
def test_done_means_terminated_unless_the_metadata_differ(
    new: OpenEnvServer, metadata: dict[str, Any], ends: tuple[bool, bool]
) -> None:
    with ew.make(new.name) as env:
        env.reset(seed=1)
        new.faults.append(observing(done=True, metadata=metadata))
        assert env.step(delta(1))[2:4] == ends


def test_an_episode_that_is_over_at_its_reset_ends_with_the_next_step(new: OpenEnvServer) -> None:
    with ew.make(new.name) as env:
        new.faults.append(observing(done=True))
        env.reset(seed=1)
        assert env.step(delta(1))[1:4] == (0.0, True, False)
        assert new.kinds() == ["reset"]


def test_pickles_and_copies_have_no_session(new: OpenEnvServer) -> None:
    env = ew.make(new.name)
    env.reset(seed=1)
    env.step(delta(1))
    for another in (pickle.loads(pickle.dumps(env)), copy.deepcopy(env)):
        lost = another.step(delta(1))
        assert lost[3] is True
        assert lost[4]["fault"].kind == "lost"
        another.reset(seed=1)
        assert another.step(delta(1))[0]["text"] == "1"
        another.close()
    assert env.step(delta(1))[0]["text"] == "2"
    env.close()


def test_a_server_without_schemas_has_json_spaces(new: OpenEnvServer) -> None:
    del new.documents["/schema"]
    with ew.make(new.name) as env:
        env.reset(seed=1)
        assert env.step({"delta": 1})[0] == {"count": 1, "text": "1"}


def test_replies_of_a_model_become_actions(new: OpenEnvServer) -> None:
    with ew.make(new.name) as env:
        assert ew.parse_action(env, '{"delta": 2}') == {"delta": 2}
        assert ew.parse_action(env, '```json\n{"delta": 2, "why": "more"}\n```') == {"delta": 2}
        for reply in ("2", '{"delta": 12}', "[1]", '{"delta": "2"}', "{"):
            with pytest.raises(ew.InvalidAction, match=ID):
                ew.parse_action(env, reply)


def test_a_text_alone_is_the_reply_itself() -> None:
    say = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
    more = {**say, "properties": {**say["properties"], "loud": {"type": "boolean", "default": False}}}
    for action in (say, more):
        with openenv_server(schema={**SCHEMA, "action": action}) as server, ew.make(server.name) as env:
            assert ew.parse_action(env, "hello {") == {"message": "hello {"}
            assert ew.parse_action(env, '{"message": "hello"}') == {"message": "hello"}


def test_tokens_are_references_and_are_sent(new: OpenEnvServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "s3cret")
    monkeypatch.setenv("ENVWEAVE_TOKEN", "of another server")
    with ew.make(new.name, token="env:MY_TOKEN") as env:
        env.reset(seed=1)
        assert [headers.get("authorization") for _, headers in new.requests] == ["Bearer s3cret"] * 2
    new.requests.clear()
    ew.make(new.name).close()
    assert "authorization" not in new.requests[0][1]
    with pytest.raises(ew.InvalidArgument, match="not the secret itself"):
        ew.make(new.name, token="s3cret")
    for far in ("openenv://far.example:8000", "http://192.0.2.7", "openenv://localhost.example"):
        with pytest.raises(ew.InvalidArgument, match="over https:// only"):
            ew.make(ID, url=far, token="env:MY_TOKEN")
    with pytest.raises(ew.InvalidArgument, match="env:NOT_SET"):
        ew.make(new.name, token="env:NOT_SET")


def test_secrets_are_sent_with_resets_and_are_in_no_event_or_error(new: OpenEnvServer) -> None:
    with ew.make(new.name) as env:
        env.unwrapped.entrust(hf_token="hf_s3cret")
        info = env.reset(seed=1)[1]
        assert new.messages[-1]["data"] == {"seed": 1, "hf_token": "hf_s3cret"}
        assert "s3cret" not in repr(info)
        new.faults.append(saying(error("VALIDATION_ERROR", "no: hf_s3cret")))
        with pytest.raises(ew.InvalidArgument) as caught:
            env.reset(seed=1)
        assert "s3cret" not in str(caught.value)
        with pytest.raises(ew.InvalidArgument, match="cannot be sent") as caught:
            env.reset(seed=1, options={"what": object()})
        assert "s3cret" not in str(caught.value)
        assert b"s3cret" not in pickle.dumps(env)
        env.unwrapped.entrust()
        env.reset(seed=1)
        assert new.messages[-1]["data"] == {"seed": 1}


def test_secrets_go_to_another_machine_over_tls_only(new: OpenEnvServer) -> None:
    with ew.make(f"openenv://0.0.0.0:{new.port}") as env:  # another machine, as far as the client knows
        with pytest.raises(ew.InvalidArgument, match="over https:// only") as caught:
            env.unwrapped.entrust(hf_token="hf_s3cret")
        assert "s3cret" not in str(caught.value)
        env.unwrapped.entrust()
        env.reset(seed=1)
        assert new.messages[-1]["data"] == {"seed": 1}


@pytest.mark.parametrize(
    "fault",
    [
        saying(error("EXECUTION_ERROR", f"{'x' * 490} hf_s3cret")),  # which is shortened there
        saying(error("NO_SUCH_CODE", "no: hf_s3cret")),
        saying(error("VALIDATION_ERROR", "no", errors=[{"loc": ["count"], "msg": "hf_s3cret"}])),
        observing(observation={"count": "hf_s3cret", "text": "hf_s3cret"}),
        observing(reward="hf_s3cret"),
        lambda talk: talk.client.sendall(frame_of(b"\x03\xe8hf_s3cret", masked=False, kind=CLOSE)),
    ],
)
def test_faults_of_steps_have_no_secrets(new: OpenEnvServer, fault: Any) -> None:
    with ew.make(new.name) as env:
        env.unwrapped.entrust(hf_token="hf_s3cret")
        env.reset(seed=1)
        env.unwrapped.entrust()  # the server has it all the same
        new.faults.append(fault)
        info = env.step(delta(1))[4]
        assert "…" in info["fault"].message
        assert "hf_s" not in repr(info)


def test_options_of_a_reset_are_checked(new: OpenEnvServer) -> None:
    with ew.make(new.name) as env:
        with pytest.raises(ew.InvalidArgument, match=r"reset\(seed="):
            env.reset(options={"seed": 1})
        with pytest.raises(ew.InvalidArgument, match="cannot be sent as JSON"):
            env.reset(options={"what": object()})
        with pytest.raises(ew.InvalidArgument, match="cannot be sent as JSON"):
            env.reset(options={"what": "\ud800"})
        assert "reset" not in new.kinds()


def test_pings_between_calls_are_answered(new: OpenEnvServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_pings, "_LOOK_EVERY_S", 0.01)
    with ew.make(new.name) as env:
        env.reset(seed=1)
        (talk,) = new.talks
        talk.ping()
        assert talk.pongs.wait(10)
        assert env.step(delta(1))[0]["text"] == "1"


def test_a_ping_that_came_with_a_reply_is_answered(
    new: OpenEnvServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reply_and_ping(talk: Talk) -> None:
        data = {"observation": {"count": 1, "text": "1"}, "reward": 1.0, "done": False}
        reply = json.dumps({"type": "observation", "data": data}).encode()
        frames = frame_of(reply, masked=False, kind=TEXT) + frame_of(b"?", masked=False, kind=PING)
        talk.client.sendall(frames)  # in one packet

    monkeypatch.setattr(idle_pings, "_LOOK_EVERY_S", 0.01)
    with ew.make(new.name) as env:
        env.reset(seed=1)
        new.faults.append(reply_and_ping)
        env.step(delta(1))
        assert new.talks[0].pongs.wait(10)
        assert env.step(delta(1))[0]["text"] == "1"


def test_closing_from_another_thread_ends_a_step(new: OpenEnvServer) -> None:
    waits = threading.Event()
    with ew.make(new.name) as env:
        env.reset(seed=1)
        new.faults.append(lambda talk: waits.set())
        closer = threading.Thread(target=lambda: waits.wait(10) and env.unwrapped.close())
        closer.start()
        assert env.step(delta(1))[4]["fault"].kind == "lost"
        closer.join(10)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("openenv://", "names no OpenEnv server"),
        ("openenv://docker", "names no image"),
        ("openenv://docker/", "names no image"),
        ("openenv://hf/owner", "names no Space"),
        ("openenv://hf/../x", "names no Space"),
        ("openenv://hf/a/b/c", "names no Space"),
        ("openenv://hf/.a/b", "names no Space"),
        ("openenv://host:99999", "names no OpenEnv server"),
        ("openenv://host:0", "names no OpenEnv server"),
        ("openenv://user:s3cret@host:1", r"the URL holds a secret; .* give token='env:NAME'"),
        ("openenv://host:1/?token=s3cret", r"the URL holds a secret; .* give token='env:NAME'"),
        ("openenv://host:1?key=s3cret", "names no OpenEnv server"),
        ("openenv+https://[::1", "names no OpenEnv server"),
    ],
)
def test_wrong_names_are_refused(name: str, why: str) -> None:
    with pytest.raises(ew.InvalidArgument, match=why) as caught:
        ew.make(name)
    assert "s3cret" not in str(caught.value)


def test_wrong_arguments_are_refused(new: OpenEnvServer) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"spaces": "typed"}, "there are 'auto' and 'json'"),
        ({"call_deadline": 0}, "call_deadline"),
        ({"memory": "1g"}, "takes no argument 'memory' for .* which runs already"),
        ({"url": "x"}, "leave url= out"),
        ({"backend": "docker"}, "leave backend= out"),
        ({"backend": "venv"}, "leave backend= out"),
        ({"api": "aec"}, "gym"),
        ({"use_docker": 1}, "use_docker"),
        ({"tag": 1}, "tag"),
    ]
    for kwargs, why in wrong:
        with pytest.raises(ew.InvalidArgument, match=why):
            ew.make(new.name, **kwargs)
    with pytest.raises(ew.InvalidArgument, match="leave backend= out"):
        ew.make(ID, url=new.name, backend="subprocess")
    with pytest.raises(ew.InvalidArgument, match="url"):
        ew.make(ID)
    with pytest.raises(NotAvailable, match=r"make_nothing|use_docker=False|install"):
        ew.make("openenv://hf/owner/name", backend="venv")
