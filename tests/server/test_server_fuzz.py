"""Whatever is sent, frames or JSON: a result or one clear sentence, never a failure, no stuck session."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from json_clients import JsonClient, sentence

from envweave_gym.wire.messages import (
    Ask,
    Close,
    Create,
    Refused,
    Reset,
    Step,
    encode,
    pack,
    read_reply,
)

IDS = ["envweave/Counter-v0", "envweave/LineWorld-v0", "envweave/Echo-v0", "envweave/KuhnPoker-v0"]
CLIENT = JsonClient(*IDS, "served_envs:served/Shapes-v0", max_sessions=40, deepest=16, max_rows=16)
fuzz = settings(
    max_examples=120, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)

dtypes = st.sampled_from(["<f4", "<f8", ">i2", "|u1", "|b1", "<i8", "<c8", "<U3", "|S2", "<M8[s]"])
arrays = st.builds(
    lambda dtype, shape: np.zeros(shape, dtype), dtypes, st.lists(st.integers(0, 3), max_size=3).map(tuple)
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-2, 3)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([10**400, -(1 << 63), 1 << 64, "x" * 5000])
)
names = st.sampled_from(["delta", "image", "move", "target", "num_envs", "dtype", "shape"])


def nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=3),
        max_leaves=12,
    )


json_values = nested(scalars)
wire_values = nested(scalars | arrays | st.binary(max_size=8) | st.lists(scalars, max_size=3).map(tuple))
packed = (wire_values | st.builds(dict, delta=st.integers(-1, 4))).map(pack)
questions = ["state", "render", "parse_action", "observe", "record", "global_state", ""]
apis = ["gym", "vector", "aec", "parallel", "", "x"]
messages = st.one_of(
    st.builds(Step, st.just(0), packed),
    st.builds(Reset, st.just(0), packed, packed),
    st.builds(Ask, st.integers(-9, 9), st.sampled_from(questions), packed),
    st.builds(
        Create,
        st.sampled_from([*IDS, "x", ""]),
        st.sampled_from(apis),
        st.dictionaries(names, packed, max_size=3),
    ),
    st.builds(Close, st.integers(-9, 9)),
)


@dataclass
class Sent:
    """A message, the number of its call after the last one, and what happens to its frame."""

    message: Any
    ahead: int
    damage: list[tuple[str, int, bytes]]

    def frame(self, committed: int) -> bytes:
        if isinstance(self.message, Step | Reset):
            self.message.call = committed + self.ahead
        frame = bytearray(encode(self.message))
        for how, where, junk in self.damage:
            at = where % max(len(frame), 1)
            if how == "cut":
                del frame[at:]
            elif how == "double":
                frame[at:at] = frame[at : at + len(junk)]
            else:
                frame[at : at + (len(junk) if how == "replace" else 0)] = junk
        return bytes(frame)


sent = st.builds(
    Sent,
    messages,
    st.sampled_from([1, 1, 1, 0, 2]),
    st.lists(
        st.tuples(
            st.sampled_from(["cut", "double", "replace", "insert"]),
            st.integers(0, 200),
            st.binary(min_size=1, max_size=5),
        ),
        max_size=2,
    ),
)


def refresh(env_id: str) -> str:
    """A session of its own, reset once."""
    session = CLIENT.open(env_id)
    CLIENT.post(f"{session}/reset", {"seed": 1})
    return session


@pytest.mark.parametrize("env_id", ["envweave/Counter-v0", "served/Shapes-v0", "envweave/KuhnPoker-v0"])
def test_no_frame_breaks_a_session(env_id: str):
    session = refresh(env_id)

    @fuzz
    @given(st.lists(sent, min_size=1, max_size=4))
    def send(several: list[Sent]) -> None:
        for one in several:
            if not _is_there(session):
                _reopen(session, env_id)
            frame = one.frame(CLIENT.get(session)["call"])
            response = CLIENT.ask("POST", f"{session}/frames", frame, content_type="application/msgpack")
            reply = read_reply(response.data)
            assert response.status_code < 500
            if isinstance(reply, Refused):
                assert reply.kind != "ServerError"
                assert len(reply.message) < 3000
                assert "Traceback" not in reply.message

    send()
    CLIENT.ask("DELETE", session)
    assert len(CLIENT.state.sessions) <= 30


def _is_there(session: str) -> bool:
    return CLIENT.ask("GET", session).status_code == 200


def _reopen(session: str, env_id: str) -> None:
    CLIENT.post("/v1/sessions", {"id": env_id, "session": session.rpartition("/")[2]}, 201)
    CLIENT.post(f"{session}/reset", {"seed": 1})


@pytest.mark.parametrize("env_id", ["envweave/Counter-v0", "served/Shapes-v0", "envweave/KuhnPoker-v0"])
def test_no_json_breaks_a_session(env_id: str):
    session = refresh(env_id)

    @fuzz
    @given(
        st.sampled_from(["reset", "step"]),
        st.dictionaries(st.sampled_from(["action", "seed", "options", "call"]), json_values, max_size=3),
        st.integers(0, 60),
    )
    def send(call: str, body: dict[str, Any], cut: int) -> None:
        data = json.dumps(body).encode()
        data = data[: -(cut - 50)] if cut > 50 else data
        response = CLIENT.ask("POST", f"{session}/{call}", data)
        if response.status_code != 200:
            assert response.status_code in (400, 409, 422)
            sentence(response.json)
        CLIENT.post(f"{session}/reset", {"seed": 1})

    send()
    CLIENT.ask("DELETE", session)


@fuzz
@given(
    st.dictionaries(st.sampled_from(["id", "kwargs", "num_envs", "api", "session"]), json_values, max_size=4),
    st.sampled_from([*IDS, None]),
)
def test_no_json_makes_a_broken_session(body: dict[str, Any], env_id: str | None):
    body = body if env_id is None else {**body, "id": env_id}
    response = CLIENT.ask("POST", "/v1/sessions", body)
    assert response.status_code in (201, 400, 404, 409, 422)
    if response.status_code == 201:
        session = "/v1/sessions/" + response.json["session"]
        CLIENT.post(f"{session}/reset")
        CLIENT.ask("DELETE", session)
    else:
        sentence(response.json)
