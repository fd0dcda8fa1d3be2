"""Requests and frames that are made to end a server or to keep it busy: refused, and the server goes on."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.msgpack import Ext
from servers import RunningServer, running_server

from envweave_gym.wire import hash_collisions
from envweave_gym.wire.hash_collisions import MOST_COMPARISONS, check_keys
from envweave_gym.wire.messages import Answer, Ask, Create, Refused, Reset, encode, pack, read_reply
from envweave_gym.wire.values import ARRAY, BIG_INT, OBJECTS, PAIRS, SCALAR, SET, STREAM, TUPLE, dumps
from envweave_gym_server.core.errors import BadRequest
from envweave_gym_server.sessions.channel import read_message

_PRIME = (1 << 61) - 1
"""Python hashes a number as its remainder by this."""
_encode = msgspec.msgpack.Encoder().encode


@pytest.fixture(scope="module", params=["thread", "process"])
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    with running_server("envweave/Counter-v0", isolation=request.param) as server:
        yield server


def describe(server: RunningServer, frame: bytes, path: str = "/v1/describe") -> Any:
    options = {"data": frame, "headers": {"Content-Type": "application/msgpack"}}
    response = server.ask("POST", path, **options)
    assert response.status_code < 500
    return read_reply(response.content)


def assert_is_well(server: RunningServer) -> None:
    """It answers, in the process that it began with."""
    assert isinstance(describe(server, encode(Create("envweave/Counter-v0"))), Answer)
    assert "server restarted" not in server.log()


def scalar(dtype: str) -> Ext:
    name = dtype.encode()
    return Ext(SCALAR, struct.pack(f"<BB{len(name)}sq", len(name), 0, name, 1))


@pytest.mark.parametrize("unit", ["0s", "00000s", "01s", "000000as"])
def test_a_date_with_a_multiple_of_zero_does_not_end_the_server(server: RunningServer, unit: str):
    for dtype in ("<M8[s]", f"<M8[{unit}]", f"<m8[{unit}]"):
        reply = describe(server, encode(Create("envweave/Counter-v0", kwargs={"x": scalar(dtype)})))
        assert isinstance(reply, Refused)
        assert "no argument 'x'" in reply.message or "no dtype" in reply.message
    assert_is_well(server)


def test_names_of_arguments_are_checked_before_their_values_are_looked_at(server: RunningServer):
    reply = describe(server, encode(Create("envweave/Counter-v0", kwargs={"x": pack({(1, 2): [3]})})))
    assert isinstance(reply, Refused)
    assert (reply.kind, "'x'" in reply.message) == ("InvalidArgument", True)


def native(keys: list[bytes]) -> msgspec.Raw:
    return msgspec.Raw(b"\xdf" + struct.pack(">I", len(keys)) + b"".join(key + b"\x00" for key in keys))


def pairs(keys: list[bytes]) -> Ext:
    return Ext(PAIRS, _encode([[msgspec.Raw(key), 0] for key in keys]))


def big(size: int) -> list[bytes]:
    return [_encode(Ext(BIG_INT, hex(_PRIME * (step + 9)).encode())) for step in range(size)]


@pytest.mark.parametrize("form", [native, pairs])
def test_keys_that_collide_are_refused_before_they_are_hashed(
    server: RunningServer, form: Callable[[list[bytes]], Any]
):
    frame = encode(Create("envweave/Counter-v0", kwargs={"target": form(big(100_000))}))
    began = time.monotonic()
    reply = describe(server, frame)
    assert time.monotonic() - began < 5  # it took 60 s and more
    assert isinstance(reply, Refused)
    assert "keys" in reply.message
    assert_is_well(server)


MANY = 2100
HOSTILE_KEYS = {
    "integers": [_encode((step << 40) + 7) for step in range(MANY)],
    "floats": [_encode(float(step)) for step in range(MANY)],
    "lists": [_encode([step, 1]) for step in range(MANY)],
    "tuples": [_encode(Ext(TUPLE, _encode([step, 1]))) for step in range(MANY)],
    "scalars": [dumps(np.complex128(step)) for step in range(MANY)],
}


@pytest.mark.parametrize("kind", HOSTILE_KEYS)
@pytest.mark.parametrize("form", [native, pairs])
def test_keys_hashed_without_a_secret_are_bounded(form: Callable[[list[bytes]], Any], kind: str):
    for around in (lambda inner: inner, lambda inner: [1, "x" * 300, inner], lambda inner: {"a": [inner]}):
        frame = encode(Create("x", kwargs={"y": around(form(HOSTILE_KEYS[kind]))}))
        with pytest.raises(ValueError, match="keys"):
            check_keys(frame)
        check_keys(encode(Create("x", kwargs={"y": around(form(HOSTILE_KEYS[kind][:2000]))})))


def extension(code: int, value: Any) -> Ext:
    return Ext(code, _encode(value))


BIG = [msgspec.Raw(key) for key in big(20_000)]
COLLIDING = np.array([complex(3_000_000_000_000 - 1_000_003 * step, step) for step in range(20_000)])
"""Python hashes a complex number as its real part and 1,000,003 times its imaginary part."""
HIDDEN = {
    "set": extension(SET, [False, BIG]),
    "frozen set": extension(SET, [True, BIG]),
    "set of a tuple": extension(SET, [False, extension(TUPLE, BIG)]),
    "set of objects": extension(SET, [False, extension(OBJECTS, [[len(BIG)], BIG])]),
    "set of an array": extension(SET, [False, pack(COLLIDING)]),
    "set of a set": extension(SET, [False, extension(SET, [False, [[], *BIG]])]),
    "body of a set as a tuple": extension(SET, extension(TUPLE, [False, BIG])),
    "pairs of an array": extension(PAIRS, pack(np.stack([COLLIDING, COLLIDING], 1))),
    "pairs of rows": extension(PAIRS, [pack(row) for row in np.stack([COLLIDING, COLLIDING], 1)]),
    "pairs of a tuple": extension(PAIRS, extension(TUPLE, [[key, 0] for key in BIG])),
    "pairs of tuples": extension(PAIRS, [extension(TUPLE, [key, 0]) for key in BIG]),
    "long tuples": extension(SET, [False, [extension(TUPLE, [0] * 400 + [key]) for key in BIG[:400]]]),
    "long lists": native([_encode([0] * 400 + [step]) for step in range(400)]),
    "frozen sets": extension(SET, [False, [extension(SET, [True, BIG[at : at + 30]]) for at in range(2000)]]),
    "after what is skipped": [
        extension(STREAM, {"requests": [], "events": [], "unknown": Ext(TUPLE, b"\xc6\x7f\xff\xff\xff")}),
        extension(SET, [False, BIG]),
    ],
    "after an extension that is too long": [
        extension(
            STREAM,
            {
                "requests": [],
                "events": [],
                "unknown": Ext(TUPLE, b"\xc9\x7f\xff\xff\xff\x03\xc6\x7f\xff\xff\xff"),
            },
        ),
        extension(SET, [False, BIG]),
    ],
}


@pytest.mark.parametrize("way", HIDDEN)
def test_keys_that_are_hidden_in_other_values_are_bounded(way: str):
    frame = encode(Create("x", kwargs={"y": HIDDEN[way]}))
    began = time.monotonic()
    with pytest.raises(BadRequest):
        read_message(frame)
    assert time.monotonic() - began < 5  # it took up to 30 s


@pytest.mark.parametrize(
    "value",
    [
        extension(SET, [False, extension(TUPLE, [1, 2])]),
        extension(SET, [False, pack(np.arange(2))]),
        extension(PAIRS, pack(np.zeros((2, 2)))),
        extension(PAIRS, [pack(np.zeros(2))]),
        extension(PAIRS, {1: 2}),
    ],
)
def test_members_and_pairs_are_plain_lists_in_small_frames_too(value: Ext):
    with pytest.raises(BadRequest, match="list"):
        read_message(encode(Create("x", kwargs={"y": value})))


def test_sets_that_people_send_are_read_and_those_of_replies_have_any_size():
    keyed = {(row, place, "name"): {row} for row in range(30) for place in range(9)}
    value = [set(range(2000)), frozenset(map(str, range(50_000))), keyed, {1 << 70: {(1, frozenset({2}))}}]
    read = read_message(encode(Create("x", kwargs={"y": pack(value)})))
    assert isinstance(read, Create)
    assert read.kwargs["y"] == value
    assert read_reply(encode(Answer(1, pack(set(range(50_000)))))) == Answer(1, set(range(50_000)))


def test_frames_without_large_maps_or_hashed_items_are_not_walked(monkeypatch: pytest.MonkeyPatch):
    walked: list[bytes] = []
    monkeypatch.setattr(hash_collisions, "_comparisons", lambda frame: walked.append(frame) or 0)
    check_keys(dumps(["a text"] * 10_000))
    check_keys(dumps([{"a": number, "b": (number, None)} for number in range(20, 99)] * 100))
    assert not walked
    for value in ({str(number): 0 for number in range(20)}, {(1, 2): 3}, {1, 2}):
        check_keys(dumps([value, "x" * 10_000]))
        check_keys(dumps([[value] * 200, "x" * 10_000]))
    assert len(walked) == 6


def test_many_small_maps_count_together_and_texts_do_not_count():
    rows = [{(row, place): 0 for place in range(300)} for row in range(1 + MOST_COMPARISONS // 300**2)]
    with pytest.raises(ValueError, match="keys"):
        check_keys(dumps(rows))
    check_keys(dumps(rows[:-1]))
    check_keys(dumps([{(row, 1): 0} for row in range(10_000)]))
    check_keys(dumps({f"word {number}": {b"x": b"y" * 300} for number in range(10_000)}))
    check_keys(
        dumps({"names": ["é" * 40] * 5000, "array": np.zeros(9999), "deep": [[[None, 1.5, -(1 << 40)]]]})
    )


# What NumPy and msgspec do not take


CODE_POINTS = Ext(ARRAY, struct.pack("<BB3sI", 3, 1, b"<U1", 1) + b"\xff\xff\xff\xff")
CODE_POINT = Ext(SCALAR, struct.pack("<BB3s", 3, 0, b">U1") + b"\x00\x11\x00\x00")


@pytest.mark.parametrize("value", [CODE_POINTS, CODE_POINT], ids=["array", "scalar"])
def test_text_beyond_unicode_is_refused_as_no_message(server: RunningServer, value: Ext):
    reply = describe(server, encode(Create("envweave/Counter-v0", kwargs={"target": value})))
    assert isinstance(reply, Refused)
    assert (reply.kind, "Unicode" in reply.message) == ("BadRequest", True)


@pytest.mark.parametrize(
    "key", [np.str_("a"), 1 << 70, True, None, (1, "a"), "\ud800"], ids=lambda key: ascii(key)
)
def test_arguments_with_odd_keys_are_refused_by_the_environment(server: RunningServer, key: Any):
    frame = encode(Create("envweave/Counter-v0", kwargs={"target": pack({"in": [{key: 1, "b": 2}]})}))
    reply = describe(server, frame)
    assert isinstance(reply, Refused)
    assert (reply.kind, "target" in reply.message) == ("InvalidArgument", True)


NO_UNIT = Ext(ARRAY, struct.pack("<BB3sIq", 3, 1, b"<M8", 1, 1))
NO_UNIT_SCALAR = Ext(SCALAR, struct.pack("<BB3sq", 3, 0, b"<M8", 1))


@pytest.mark.parametrize("argument", ["x", "target", "render_mode", "reset_deadline", "on_fault"])
def test_values_that_cannot_be_printed_are_refused(server: RunningServer, argument: str):
    for value in (NO_UNIT, NO_UNIT_SCALAR, [NO_UNIT], {"a": [NO_UNIT_SCALAR]}):
        reply = describe(server, encode(Create("envweave/Counter-v0", kwargs={argument: value})))
        assert isinstance(reply, Refused)
        assert reply.kind in ("InvalidArgument", "EnvironmentCrashed")
        assert argument != "x" or "no argument 'x'" in reply.message


def opened(server: RunningServer, api: str, **kwargs: Any) -> str:
    """The path of the frames of a new session."""
    name = f"{api}-{time.monotonic_ns()}"
    describe(server, encode(Create("envweave/Counter-v0", api, kwargs)), f"/v1/sessions/{name}/frames")
    return f"/v1/sessions/{name}/frames"


@pytest.mark.parametrize("number", [-(1 << 63), -1, 0, (1 << 64) - 1])
def test_a_question_may_have_any_number(server: RunningServer, number: int):
    session = opened(server, "gym")
    reply = describe(server, encode(Ask(number, "weather")), session)
    assert isinstance(reply, Refused)
    assert (reply.kind, reply.number) == ("InvalidArgument", number)


@pytest.mark.parametrize("rows", [5, 1.5, True, np.zeros(2), np.array([1, None], object), (1, 2), "ab", {}])
def test_malformed_options_of_rows_are_refused_and_the_session_goes_on(server: RunningServer, rows: Any):
    session = opened(server, "vector", num_envs=2)
    reply = describe(server, encode(Reset(1, 0, pack({"rows": rows}))), session)
    assert isinstance(reply, Refused)
    assert (reply.kind, "rows" in reply.message, reply.committed) == ("InvalidArgument", True, 0)


def test_a_duration_is_no_seed(server: RunningServer):
    reply = describe(server, encode(Reset(1, pack(np.timedelta64(5, "s")))), opened(server, "gym"))
    assert isinstance(reply, Refused)
    assert (reply.kind, "seed" in reply.message) == ("InvalidArgument", True)


# Plain HTTP


def said(server: RunningServer, request: str, *headers: str, body: bytes = b"") -> tuple[int, str]:
    """The status and the rest of what a server says to a request that is written by hand."""
    head = "\r\n".join((request + " HTTP/1.1", "Host: localhost", "Connection: close", *headers, "", ""))
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(head.encode() + body)
        with client.makefile("rb") as answer:
            text = answer.read().decode()
    return int(text.split()[1]), text


@pytest.mark.parametrize(
    "chunk", [b"zz\r\n", b"-5\r\nhello\r\n", b"\r\n", b"5\r\nhelloXX0\r\n\r\n", b"0x5\r\n"]
)
@pytest.mark.parametrize("path", ["/v1/sessions", "/v1/describe"])
def test_chunks_that_cannot_be_read_are_a_bad_request(server: RunningServer, path: str, chunk: bytes):
    chunked = (f"Authorization: Bearer {server.token}", "Transfer-Encoding: chunked")
    status, text = said(server, f"POST {path}", *chunked, body=chunk)
    assert status == 400
    assert "BadRequest" in text


@pytest.mark.parametrize("header", ["SCRIPT_NAME: /other", "Script_Name: /v1", "PATH_INFO: /v1/envs"])
def test_headers_say_nothing_about_the_path(server: RunningServer, header: str):
    assert said(server, "GET /health", header)[0] == 200


def test_a_method_that_is_not_allowed_is_answered_with_those_that_are(server: RunningServer):
    for request, allowed in (("DELETE /health", {"GET", "HEAD"}), ("GET /v1/sessions", {"POST"})):
        status, text = said(server, request, f"Authorization: Bearer {server.token}")
        allow = next(line for line in text.splitlines() if line.startswith("Allow: "))
        assert status == 405
        assert set(allow.removeprefix("Allow: ").split(", ")) == {*allowed, "OPTIONS"}
