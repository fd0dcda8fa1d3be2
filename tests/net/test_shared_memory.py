"""Large frames of Unix sockets go through shared memory: values, limits, hostile peers, and nothing left behind."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from envweave_gym.net import framed_socket, shared_memory
from envweave_gym.net.framed_socket import FramedSocket, FrameTooLarge
from envweave_gym.net.shared_memory import SHARED_FRAME, SharedMemory, new_memory

Pair = tuple[FramedSocket, FramedSocket]
LARGE = 3 * SHARED_FRAME


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = (FramedSocket(end, largest=1 << 22) for end in socket.socketpair())
    yield one, other
    one.close()
    other.close()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the frames that went through shared memory."""
    sizes: list[int] = []
    put = SharedMemory.put

    def counted(memory: SharedMemory, frame: bytes) -> bool:
        done = put(memory, frame)
        sizes.extend([len(frame)] * done)
        return done

    monkeypatch.setattr(SharedMemory, "put", counted)
    return sizes


def soon() -> float:
    return time.monotonic() + 10


def send(peer: FramedSocket, *frames: bytes) -> threading.Thread:
    """Send frames in a thread, as the socket does not take large ones at once."""
    thread = threading.Thread(target=lambda: [peer.send(frame, soon()) for frame in frames])
    thread.start()
    return thread


def exchange(client: FramedSocket, server: FramedSocket, reply: bytes) -> bytes:
    """A small request and its reply."""
    client.send(b"request", soon())
    assert server.receive(soon()) == b"request"
    sender = send(server, reply)
    received = client.receive(soon())
    sender.join(10)
    return received


def test_large_frames_go_through_memory_from_the_second_on_and_are_values(
    pair: Pair, sent: list[int]
) -> None:
    client, server = pair
    frames = [os.urandom(LARGE) for _ in range(4)]
    received = [exchange(client, server, frame) for frame in frames]
    assert received == frames, "an earlier frame never changes"
    assert sent == [LARGE] * 3


def test_a_frame_that_does_not_fit_goes_over_the_socket_and_later_ones_through_larger_memory(
    pair: Pair, sent: list[int]
) -> None:
    client, server = pair
    sizes = [LARGE, LARGE, 2_000_000, 2_000_000, SHARED_FRAME - 1]
    for size in sizes:
        assert exchange(client, server, bytes(size)) == bytes(size)
    assert sent == [LARGE, 2_000_000]


def test_frames_that_were_not_taken_yet_stay_as_they_are(pair: Pair, sent: list[int]) -> None:
    client, server = pair
    exchange(client, server, bytes(LARGE))
    frames = [bytes([number]) * LARGE for number in range(3)]
    client.send(b"request", soon())
    server.receive(soon())
    sender = send(server, *frames)
    time.sleep(0.05)
    assert [client.receive(soon()) for _ in frames] == frames
    sender.join(10)
    assert sent[0] == LARGE


def test_both_directions_have_memory_of_their_own(pair: Pair, sent: list[int]) -> None:
    client, server = pair
    for number in range(4):
        request, reply = bytes([number]) * LARGE, bytes([100 + number]) * LARGE
        sender = send(client, request)
        assert server.receive(soon()) == request
        sender.join(10)
        sender = send(server, reply)
        assert client.receive(soon()) == reply
        sender.join(10)
    assert len(sent) == 6


def test_a_large_frame_before_another_one_is_a_large_frame_too(pair: Pair, sent: list[int]) -> None:
    client, server = pair
    for _ in range(3):
        sender = threading.Thread(target=client.send, args=(b"request", soon(), bytes(LARGE)))
        sender.start()
        assert server.receive(soon()) == bytes(LARGE)
        assert server.receive(soon()) == b"request"
        sender.join(10)
        server.send(b"reply", soon())
        assert client.receive(soon()) == b"reply"
    assert sent == [LARGE] * 2


def test_the_limit_of_frames_holds_in_memory_too(pair: Pair) -> None:
    client, server = pair
    exchange(client, server, bytes(LARGE))
    client._largest = LARGE
    with pytest.raises(FrameTooLarge):
        exchange(client, server, bytes(LARGE + 1))


def test_where_there_are_no_memory_files_frames_go_over_the_socket(
    pair: Pair, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framed_socket, "new_memory", lambda size: None)
    for number in range(3):
        assert exchange(*pair, bytes([number]) * LARGE) == bytes([number]) * LARGE
    assert sent == []


def test_where_no_address_space_is_left_for_a_memory_file_frames_go_over_the_socket(
    pair: Pair, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", refuse)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(3):
        assert exchange(*pair, bytes([number]) * LARGE) == bytes([number]) * LARGE
    assert (sent, len(os.listdir("/proc/self/fd"))) == ([], before)


def test_a_frame_in_memory_that_was_replaced_meanwhile_is_a_lost_connection(pair: Pair) -> None:
    client, server = pair
    exchange(client, server, bytes(LARGE))
    exchange(client, server, bytes(LARGE))
    sender = send(server, bytes(2_000_000), b"x" * LARGE)
    assert client.receive(soon()) == bytes(2_000_000)
    sender.join(10)
    client.send(b"request", soon())  # which replaces the memory by a larger one
    with pytest.raises(ConnectionError, match="no frame"):
        client.receive(soon())


def test_a_file_whose_size_may_shrink_is_not_mapped(
    pair: Pair, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that truncates it would kill the process that writes."""
    client, server = pair
    monkeypatch.setattr(shared_memory, "_SEALS", 0)
    exchange(client, server, bytes(LARGE))
    client.send(b"request", soon())
    monkeypatch.undo()
    assert server.receive(soon()) == b"request"
    assert server._outgoing is None


def test_closing_leaves_no_descriptor_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        client, server = map(FramedSocket, socket.socketpair())
        for _ in range(3):
            exchange(client, server, bytes(LARGE))
        client.close()
        server.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_peer_that_names_memory_which_it_has_not_is_a_lost_connection(pair: Pair) -> None:
    client, server = pair
    server.socket.send(b"\xff\xff\xff\xff\x10\0\0\0")
    with pytest.raises(ConnectionError):
        client.receive(soon())


def test_more_bytes_than_the_memory_holds_are_a_lost_connection() -> None:
    made = new_memory(100)
    assert made is not None
    memory, descriptor = made
    os.close(descriptor)
    with pytest.raises(ConnectionError):
        memory.take(memory.capacity + 1)
    memory.close()
    assert not memory.put(b"x")
    with pytest.raises(ConnectionError):
        memory.take(1)
