"""The WebSocket codec: frames, fragments and control frames of both ends, and what is none."""

from __future__ import annotations

import os
import struct
import time

import pytest
from remote_peers import Talk, answers, peer
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, Ping, TextMessage

from envweave_gym.net.websocket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    FINAL,
    PING,
    TEXT,
    ConnectionClosed,
    FrameReader,
    HandshakeRefused,
    Message,
    MessageTooLarge,
    ProtocolError,
    frame_head,
    frame_of,
    open_websocket,
)

SIZES = (0, 1, 125, 126, 65_535, 65_536, 300_000)
LARGEST = 1 << 20


def read(data: bytes, *, masked: bool = False, pieces: int = 1 << 30) -> list[Message]:
    reader, found = FrameReader(masked=masked, largest=LARGEST), list[Message]()
    for start in range(0, len(data), pieces):
        reader.feed(data[start : start + pieces])
        while (message := reader.next()) is not None:
            found.append(message)
    return found


@pytest.mark.parametrize("masked", [False, True], ids=["of a server", "of a client"])
@pytest.mark.parametrize("pieces", [1, 1000, 1 << 30])
def test_frames_of_every_size_arrive_as_they_were_sent_in_whatever_pieces(masked: bool, pieces: int) -> None:
    payloads = [os.urandom(size) for size in (SIZES if pieces > 1 else SIZES[:4])]
    data = b"".join(frame_of(payload, masked=masked) for payload in payloads)
    assert read(data, masked=masked, pieces=pieces) == [Message(BINARY, payload) for payload in payloads]


@pytest.mark.parametrize("is_client", [False, True])
def test_another_library_reads_our_frames_and_we_read_its(is_client: bool) -> None:
    other = Connection(ConnectionType.SERVER if is_client else ConnectionType.CLIENT)
    payload = os.urandom(70_000)
    other.receive_data(frame_of(payload, masked=is_client) + frame_of(b"x", masked=is_client, kind=PING))
    seen = list(other.events())
    assert b"".join(event.data for event in seen if isinstance(event, BytesMessage)) == payload
    assert isinstance(seen[-1], Ping)
    sent = other.send(BytesMessage(payload[:9], message_finished=False)) + other.send(Ping(b"ping"))
    sent += other.send(BytesMessage(payload[9:])) + other.send(TextMessage("ü"))
    expected = [(PING, b"ping"), (BINARY, payload), (TEXT, "ü".encode())]
    assert read(sent, masked=not is_client) == expected


HEADS = {
    "a reserved bit": frame_head(3, masked=False, first=FINAL | BINARY | 0x40) + b"abc",
    "a mask": frame_of(b"abc", masked=True),
    "an unknown kind": frame_head(3, masked=False, first=FINAL | 0x5) + b"abc",
    "a long ping": frame_head(126, masked=False, first=FINAL | PING) + bytes(126),
    "half a ping": frame_head(3, masked=False, first=PING) + b"abc",
    "an end without a beginning": frame_head(3, masked=False, first=FINAL | CONTINUATION) + b"abc",
    "a beginning within a message": frame_head(1, masked=False, first=BINARY)
    + b"a"
    + frame_of(b"b", masked=False),
    "no text": frame_head(1, masked=False, first=FINAL | TEXT) + b"\xff",
}


@pytest.mark.parametrize("data", HEADS.values(), ids=HEADS)
def test_an_invalid_frame_of_a_server_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        read(data)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("!BBQ", FINAL | BINARY, 127, LARGEST + 1),
        struct.pack("!BBQ", FINAL | BINARY, 127, (1 << 64) - 1),
        (frame_head(LARGEST, masked=False, first=BINARY) + bytes(LARGEST))
        + frame_head(1, masked=False, first=FINAL | CONTINUATION),
    ],
    ids=["a frame", "longer than any memory", "in fragments"],
)
def test_a_message_above_the_limit_is_refused_before_it_has_come(data: bytes) -> None:
    with pytest.raises(MessageTooLarge, match=str(LARGEST)):
        read(data)


# The client's end


def soon() -> float:
    return time.monotonic() + 10


def test_a_client_answers_pings_and_learns_why_a_server_closes() -> None:
    pongs: list[bytes] = []

    def talks(talk: Talk) -> None:
        talk.shake_hands()
        talk.say(b"ping", kind=PING)
        message = talk.frame()
        pongs.append(talk.frame())
        talk.say(message)
        talk.say((1001).to_bytes(2, "big") + b"going away", kind=CLOSE)
        talk.frame()

    with peer(talks) as there:
        client = open_websocket(there.url, "/", soon(), {}, largest=LARGEST)
        client.send(b"message", soon())
        assert client.receive(soon()) == b"message"
        assert pongs == [b"ping"]
        with pytest.raises(ConnectionClosed, match="going away") as raised:
            client.receive(soon())
        assert raised.value.code == 1001
        client.close()


def test_the_reason_of_a_close_frame_has_no_codes_for_a_terminal() -> None:
    closed = ConnectionClosed(b"\x03\xe8" + "\x1b[31mbye\r\nfür immer\x9b".encode())
    assert closed.reason == "\ufffd[31mbye\ufffd\ufffdfür immer\ufffd"
    assert str(closed).isprintable()


def test_frames_in_one_piece_with_the_handshake_are_not_lost() -> None:
    def talks(talk: Talk) -> None:
        headers, _ = talk.request()
        talk.send(talk.switching(headers) + frame_of(b"first", masked=False))
        talk.frame()

    with peer(talks) as there:
        client = open_websocket(there.url, "/", soon(), {}, largest=LARGEST)
        assert client.receive(soon()) == b"first"
        client.close()


def test_another_response_to_the_handshake_carries_its_status_and_its_body() -> None:
    with peer(answers(403, b"no")) as there, pytest.raises(HandshakeRefused) as raised:
        open_websocket(there.url, "/", soon(), {}, largest=LARGEST)
    assert (raised.value.status, raised.value.body) == (403, b"no")


def test_a_handshake_that_was_answered_for_another_is_a_loss() -> None:
    def talks(talk: Talk) -> None:
        talk.request()
        talk.send(talk.switching({"sec-websocket-key": "another"}))

    with peer(talks) as there, pytest.raises(ProtocolError, match="key"):
        open_websocket(there.url, "/", soon(), {}, largest=LARGEST)
