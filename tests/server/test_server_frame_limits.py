"""What is cheap to send and dear to decode is refused however it comes, and the session goes on."""

from __future__ import annotations

import http.client
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import websocket
from framed_server import FramedServer, soon
from json_clients import JsonClient, sentence
from msgspec.msgpack import Ext
from servers import TOKEN, running_server, serving_at

from envweave_gym.providers.ray.actor_calls import channel_prefix
from envweave_gym.wire.messages import (
    CONTENT_TYPE,
    Ask,
    Began,
    Close,
    Create,
    Created,
    Refused,
    Reset,
    Step,
    Stepped,
    encode,
    pack,
    read_reply,
)
from envweave_gym.wire.values import BIG_INT, NATIVE
from envweave_gym_server.protocols.native.actor import ActorServer

COUNTER = "envweave/Counter-v0"
MANY = 8_000_000
MAPS = b"\xdd" + struct.pack(">I", MANY) + b"\x80" * MANY
"""A list of empty maps, which takes half a gigabyte and three seconds."""
DEAR = {
    "maps": msgspec.Raw(MAPS),
    "maps in an extension": Ext(3, MAPS),
    "streams": Ext(NATIVE, msgspec.msgpack.encode((b"", b"\0", None, MAPS, None))),
}
LARGE = Ext(BIG_INT, b"0x" + b"f" * 9000)
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
Send = Callable[[bytes], bytes]
"""Sends a frame to the session ``mine``, and gives that of the reply."""


@contextmanager
def over_http(connect: Callable[[], socket.socket]) -> Iterator[Send]:
    connection = http.client.HTTPConnection("localhost", timeout=30)
    connection.sock = connect()

    def send(frame: bytes) -> bytes:
        headers = {**AUTHORIZED, "Content-Type": CONTENT_TYPE}
        connection.request("POST", "/v1/sessions/mine/frames", frame, headers)
        response = connection.getresponse()
        assert response.status < 500
        return response.read()

    with closing(connection):
        yield send


@contextmanager
def over_websocket(connect: Callable[[], socket.socket]) -> Iterator[Send]:
    stream = websocket.create_connection(
        "ws://localhost/v1/sessions/mine/stream",
        socket=connect(),
        header=[f"{name}: {value}" for name, value in AUTHORIZED.items()],
        suppress_origin=True,
    )

    def send(frame: bytes) -> bytes:
        stream.send_binary(frame)
        return stream.recv()

    with closing(stream):
        yield send


@contextmanager
def over_ray() -> Iterator[Send]:
    server = ActorServer([COUNTER])
    yield lambda frame: server.frames(channel_prefix("mine", "line") + frame)
    server.stop()


@contextmanager
def over_framed_socket() -> Iterator[Send]:
    server = FramedServer()
    peer = server.connect("mine")

    def send(frame: bytes) -> bytes:
        peer.send(frame)
        return peer.receive(soon())

    yield send
    server.stop()


def unix_socket(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(30)
    client.connect(str(path))
    return client


WAYS = ["http", "websocket", "unix http", "unix websocket", "process", "framed socket", "ray"]


@pytest.fixture(scope="module", params=WAYS)
def send(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Send]:
    way: str = request.param
    over = over_http if "http" in way else over_websocket
    if way in ("ray", "framed socket"):
        with over_ray() if way == "ray" else over_framed_socket() as send:
            yield send
    elif "unix" in way:
        path = tmp_path_factory.mktemp("unix") / "sock"
        with serving_at(path), over(lambda: unix_socket(path)) as send:
            yield send
    else:
        isolation = "process" if way == "process" else "thread"
        with (
            running_server(COUNTER, isolation=isolation) as server,
            over(lambda: socket.create_connection(("127.0.0.1", server.port), 30)) as send,
        ):
            yield send


@pytest.fixture
def session(send: Send) -> Iterator[Callable[[Any], Any]]:
    """Plays a session that has been reset: gives the reply to a message."""

    def ask(message: Any) -> Any:
        return read_reply(send(encode(message)))

    assert isinstance(ask(Create(COUNTER)), Created)
    assert isinstance(ask(Reset(1, 1)), Began)
    yield ask
    assert isinstance(ask(Step(2, {"delta": 1})), Stepped)
    ask(Close(-9))


@pytest.mark.parametrize("way", DEAR)
def test_a_frame_that_is_dear_to_decode_is_refused(session: Callable[[Any], Any], way: str):
    value, began = DEAR[way], time.monotonic()
    for message in (
        Step(2, value),
        Reset(2, 1, {"x": value}),
        Ask(-2, "parse_action", value),
        Create(COUNTER, kwargs={"x": value}),
    ):
        reply = session(message)
        assert isinstance(reply, Refused)
        assert (reply.kind, "holds more than 1,048,576 values" in reply.message) == ("InvalidArgument", True)
    assert time.monotonic() - began < 10  # each took three seconds


def test_an_integer_that_is_too_large_is_refused(session: Callable[[Any], Any]):
    for message in (
        Step(2, {"delta": LARGE}),
        Step(2, LARGE),
        Reset(2, LARGE),
        Reset(2, 1, {"x": [LARGE]}),
        Ask(-2, "parse_action", LARGE),
        Create(COUNTER, kwargs={"target": LARGE}),
    ):
        reply = session(message)
        assert isinstance(reply, Refused)
        assert (reply.kind, "integer of more than 4,096 bits" in reply.message) == ("BadRequest", True)


def test_integers_below_the_limit_are_refused_by_the_environment(session: Callable[[Any], Any]):
    for value in ((1 << 4096) - 1, 1 - (1 << 4096)):
        reply = session(Step(2, pack({"delta": value})))
        assert isinstance(reply, Refused)
        assert (reply.kind, "is not in" in reply.message) == ("InvalidAction", True)


# Bodies of JSON


@pytest.fixture(scope="module")
def client() -> JsonClient:
    return JsonClient(COUNTER, "envweave/Echo-v0")


@pytest.mark.parametrize(
    ("many", "says"),
    [
        (b"[" + b"{}," * MANY + b"{}]", "more than 1,048,576 objects and lists"),
        (b"[" + b"[]," * MANY + b"[]]", "more than 1,048,576 objects and lists"),
        (b"[" + b'{"":0},' * (MANY // 4) + b"{}]", "more than 1,048,576 objects and lists"),
        (b"[" + b"0," * MANY + b"0]", "more than 4,194,304 members"),
        (b"{" + b'"":0,' * MANY + b'"":0}', "more than 4,194,304 members"),
    ],
    ids=["objects", "lists", "members", "numbers", "keys"],
)
@pytest.mark.parametrize("call", ["sessions", "reset", "step"])
def test_a_body_that_is_dear_to_decode_is_refused(client: JsonClient, call: str, many: bytes, says: str):
    session = client.open(COUNTER)
    client.post(f"{session}/reset", {"seed": 1})
    body = {
        "sessions": b'{"id": "envweave/Counter-v0", "kwargs": {"target": ' + many + b"}}",
        "reset": b'{"options": {"x": ' + many + b"}}",
        "step": b'{"action": ' + many + b"}",
    }[call]
    reported = client.post("/v1/sessions" if call == "sessions" else f"{session}/{call}", body, 422)
    assert says in sentence(reported)
    client.post(f"{session}/step", {"action": {"delta": 1}})


def test_a_large_body_is_taken(client: JsonClient):
    session = client.open("envweave/Echo-v0")
    client.post(f"{session}/reset", {"seed": 1})
    text = "one, two [three] {four}\n" * 50_000 + "7" * 5000
    reported = client.post(f"{session}/step", {"action": text[-4000:]})
    assert reported["observation"]
    reported = client.post(f"{session}/step", {"action": [0.5] * 2_000_000 + [text]}, 422)
    assert reported["error"] == "InvalidAction"


@pytest.mark.parametrize("digits", [1235, 4299, 5000, 1_000_000])
@pytest.mark.parametrize("sign", ["", "-"])
def test_an_integer_of_thousands_of_digits_is_refused(client: JsonClient, sign: str, digits: int):
    session, number = client.open(COUNTER), (sign + "7" * digits).encode()
    client.post(f"{session}/reset", {"seed": 1})
    for path, body in (
        ("/v1/sessions", b'{"id": "envweave/Counter-v0", "kwargs": {"target": %s}}'),
        ("/v1/sessions", b'{"id": "envweave/Counter-v0", "num_envs": %s}'),
        (f"{session}/reset", b'{"seed": %s}'),
        (f"{session}/reset", b'{"options": {"x": [%s]}}'),
        (f"{session}/step", b'{"action": {"delta": %s}}'),
        (f"{session}/step", b'{"action": %s}'),
        (f"{session}/step", b'{"action": {"delta": 1}, "call": %s}'),
    ):
        reported = client.post(path, body % number, 422)
        assert any(words in sentence(reported) for words in ("4,096 bits", "out of range", ">= 1", "<= 9223"))
        assert len(reported["message"]) < 300
    client.post(f"{session}/step", {"action": {"delta": 1}})
