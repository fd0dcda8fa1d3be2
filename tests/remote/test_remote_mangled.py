"""What was mangled on its way counts as lost, and is asked for again; nobody fills the memory of a client."""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

import pytest
from remote_peers import Script, Talk, answers, peer, plays, plays_over_http
from remote_worlds import block_websockets

from envweave_gym.net.deadlines import TimedSocket
from envweave_gym.net.websocket import WebSocket, frame_head
from envweave_gym.remote import session
from envweave_gym.remote.transports import plain_http
from envweave_gym.wire import frame_limits
from envweave_gym.wire.messages import CONTENT_TYPE, LARGEST_REPLY, Began, encode

HEADS = {
    "longer than a number": struct.pack("!BBQ", 0x82, 127, (1 << 64) - 1),
    "longer than any memory": struct.pack("!BBQ", 0x82, 127, 1 << 45),
    "longer than any reply": struct.pack("!BBQ", 0x82, 127, LARGEST_REPLY + 1),
    "masked": frame_head(3, masked=True) + b"keyabc",
    "with a reserved bit": frame_head(3, masked=False, first=0x82 | 0x40) + b"abc",
}


def sends(head: bytes) -> Script:
    """Replies with these bytes, and waits until the client has left."""

    def script(talk: Talk) -> None:
        talk.shake_hands()
        talk.frame()
        talk.send(head)
        talk.frame()

    return script


def test_a_reply_with_more_values_than_any_is_not_decoded_and_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "SMALL_REPLY", 100)
    monkeypatch.setattr(frame_limits, "SMALL_REPLY", 100)
    monkeypatch.setattr(frame_limits, "MOST_REPLY_VALUES", 1000)

    def script(talk: Talk) -> None:
        talk.shake_hands()
        talk.frame()
        talk.say(encode(Began(1, [{}] * 1000, {})))
        talk.frame()

    with peer(script, plays) as hostile:
        player = hostile.session(30.0)
        assert player.reset(0, None).observation == 0
        player.abandon()


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_a_frame_whose_head_was_mangled_is_asked_for_again(head: bytes) -> None:
    with peer(sends(head), plays) as mangled:
        session = mangled.session(30.0)
        assert session.reset(0, None).observation == 0
        session.abandon()


def test_a_long_frame_is_read_in_pieces() -> None:
    sizes: list[int] = []

    class Plain(socket.socket):
        def recv(self, bufsize: int, flags: int = 0) -> bytes:
            sizes.append(bufsize)
            return frame_head(LARGEST_REPLY, masked=False) if len(sizes) == 1 else b""

    with Plain() as plain, pytest.raises(ConnectionError, match="closed the connection"):
        WebSocket(TimedSocket(plain), LARGEST_REPLY).receive(time.monotonic() + 60)
    assert len(sizes) == 2
    assert max(sizes) <= 1 << 20


def test_a_body_larger_than_any_reply_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    block_websockets(monkeypatch)
    monkeypatch.setattr(plain_http, "LARGEST_REPLY", 1000)
    large: Any = answers(200, bytes(1001), CONTENT_TYPE)
    with peer(large, plays_over_http) as mangled:
        session = mangled.session(30.0)
        assert session.reset(0, None).observation == 0
        session.abandon()
