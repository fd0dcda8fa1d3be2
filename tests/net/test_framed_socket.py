"""Length-prefixed frames over Unix sockets: order, pieces, limits, deadlines, and whom they talk to."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from envweave_gym.net import framed_socket
from envweave_gym.net.framed_socket import FramedSocket, FrameTooLarge, accept, connect, listen

Pair = tuple[FramedSocket, FramedSocket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = (FramedSocket(end, largest=1 << 24) for end in socket.socketpair())
    yield one, other
    one.close()
    other.close()


@pytest.fixture(params=["abstract", "path"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"@envweave/tests/{uuid.uuid4().hex}" if request.param == "abstract" else str(tmp_path / "socket")


def soon() -> float:
    return time.monotonic() + 10


@pytest.mark.parametrize("before", [b"", b"before", bytes(300_000)], ids=["none", "small", "large"])
def test_frames_of_every_size_arrive_as_they_were_sent(before: bytes, pair: Pair) -> None:
    one, other = pair
    frames = [b"one", b"", bytes(300_000), b"last", os.urandom(5_000_000)]
    sender = threading.Thread(target=lambda: [one.send(frame, soon(), before) for frame in frames])
    sender.start()
    for frame in frames:
        assert [other.receive(soon()) for _ in range(2 if before else 1)] == [before, frame][not before :]
    assert not other.ahead
    sender.join(10)


def test_a_frame_that_comes_byte_by_byte_is_whole_also_after_a_deadline_in_between(pair: Pair) -> None:
    one, other = pair
    for byte in b"\x03\0\0\0abc":
        with pytest.raises(TimeoutError):
            other.receive(time.monotonic() + 0.001)
        one.socket.send(bytes([byte]))
    assert other.receive(soon()) == b"abc"


def test_the_deadline_holds_for_the_whole_frame_however_often_a_piece_comes(pair: Pair) -> None:
    one, other = pair
    over = threading.Event()

    def drip() -> None:
        one.socket.send((1000).to_bytes(4, "little"))
        while not over.wait(0.02):
            one.socket.send(b"x")

    dripping = threading.Thread(target=drip)
    dripping.start()
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        other.receive(started + 0.2)
    assert 0.2 <= time.monotonic() - started < 5
    over.set()
    dripping.join(10)


def test_a_peer_that_reads_nothing_is_given_up_at_the_deadline(pair: Pair) -> None:
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        pair[0].send(bytes(8_000_000), started + 0.2)
    assert 0.2 <= time.monotonic() - started < 5


def test_a_deadline_that_is_over_is_one_though_a_frame_has_come(pair: Pair) -> None:
    pair[0].send(b"frame")
    with pytest.raises(TimeoutError):
        pair[1].receive(time.monotonic() - 1)
    assert pair[1].receive() == b"frame"


def test_a_frame_above_the_limit_is_refused_before_it_is_read(pair: Pair) -> None:
    pair[0].socket.send((1 << 31).to_bytes(4, "little"))
    with pytest.raises(FrameTooLarge, match=str(1 << 31)):
        pair[1].receive(soon())


def test_the_end_of_the_peer_is_seen_while_another_thread_receives_and_ends_that(pair: Pair) -> None:
    one, other = pair
    assert not other.is_hung_up
    raised: list[Exception] = []

    def receive() -> None:
        try:
            other.receive()
        except OSError as error:
            raised.append(error)

    waiting = threading.Thread(target=receive)
    waiting.start()
    one.close()
    waiting.join(10)
    assert isinstance(raised[0], ConnectionResetError)
    assert other.is_hung_up


def test_a_connection_is_cut_by_another_thread(pair: Pair) -> None:
    threading.Timer(0.05, pair[0].cut).start()
    with pytest.raises(ConnectionError):
        pair[0].receive(soon())


def test_one_that_connects_and_one_that_accepts_exchange_frames(address: str) -> None:
    with listen(address) as listener:
        client = connect(address, soon())
        server = accept(listener)
        client.send(b"question", soon())
        assert server.receive(soon()) == b"question"
        server.send(b"answer")
        assert client.receive(soon()) == b"answer"
        with pytest.raises(OSError, match="in use"):
            listen(address)
        client.close()
        server.close()


def test_an_address_without_a_listener_fails_at_once() -> None:
    started = time.monotonic()
    with pytest.raises(ConnectionRefusedError):
        connect("@envweave/tests/nobody", started + 5)
    assert time.monotonic() - started < 1


def test_a_full_queue_is_waited_for_until_the_deadline(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framed_socket, "_BACKLOG", 0)
    with listen(address):
        first, started = connect(address, soon()), time.monotonic()
        with pytest.raises(TimeoutError):
            connect(address, started + 1.5)  # longer than one system call waits
        assert 1.5 <= time.monotonic() - started < 5
        first.close()


def test_ends_that_are_closed_here_are_closed_although_a_forked_child_lives_on(address: str) -> None:
    listener = listen(address)
    client, server = connect(address, soon()), accept(listener)
    wait, go = os.pipe()
    child = os.fork()
    if not child:
        os.close(go)
        os.read(wait, 1)
        os._exit(0)
    client.close()
    listener.close()
    try:
        with pytest.raises(ConnectionResetError):
            server.receive(soon())
        with pytest.raises(ConnectionRefusedError):
            connect(address, soon())
    finally:
        os.close(go)
        os.waitpid(child, 0)
        os.close(wait)
        server.close()


def test_a_connection_that_was_closed_here_counts_as_hung_up(pair: Pair) -> None:
    pair[0].close()
    assert pair[0].is_hung_up


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="this system does not say who the peer is")
def test_a_process_of_another_user_is_refused_by_both_ends(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listen(address) as listener:
        client = connect(address, soon())
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        with pytest.raises(PermissionError, match="12345"):
            accept(listener)
        with pytest.raises(ConnectionError):
            client.receive(soon())
        with pytest.raises(PermissionError, match="12345"):
            connect(address, soon())
        client.close()


class CountingSocket(socket.socket):
    """A socket that counts the receive calls that do not wait."""

    polls = 0

    def recv(self, size: int, flags: int = 0) -> bytes:
        self.polls += bool(flags & socket.MSG_DONTWAIT)
        return super().recv(size, flags)


def test_a_slow_peer_is_polled_for_once_and_then_waited_for() -> None:
    end, peer = socket.socketpair()
    counting = CountingSocket(fileno=end.detach())
    receiver, sender = FramedSocket(counting), FramedSocket(peer)

    def reply_late(count: int) -> None:
        for _ in range(count):
            time.sleep(0.002)
            sender.send(b"late")

    try:
        for _ in range(3):  # more than a poll may take, as a busy machine may stop the sender for longer
            late = threading.Thread(target=reply_late, args=[1])
            late.start()
            assert receiver.receive() == b"late"
            late.join()
        polls = counting.polls
        assert polls
        late = threading.Thread(target=reply_late, args=[20])
        late.start()
        assert [receiver.receive() for _ in range(20)] == [b"late"] * 20
        late.join()
        assert counting.polls == polls
    finally:
        receiver.close()
        sender.close()


def test_frames_that_are_there_are_received_without_waiting() -> None:
    end, peer = socket.socketpair()
    counting = CountingSocket(fileno=end.detach())
    receiver, sender = FramedSocket(counting), FramedSocket(peer)
    try:
        for number in range(10):
            sender.send(b"%d" % number)
            assert receiver.receive() == b"%d" % number
        assert counting.polls == 10
    finally:
        receiver.close()
        sender.close()
