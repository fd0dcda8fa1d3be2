"""Frames of JSON between a worker and its host: a length of four bytes, big-endian, and the text."""

from __future__ import annotations

import array
import json
import os
import socket
import struct
import threading
from collections import deque
from typing import Any, Dict

LENGTH = struct.Struct("!I")
Message = Dict[str, Any]


def encoded(value: Any) -> bytes:
    """Return the JSON of a frame; lone surrogates pass through."""
    return json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")


class ToolError(Exception):
    """A tool failed, or no tool has this name; the text says why."""

    __module__ = "builtins"  # tracebacks name what is not with its module


class Channel:
    """The worker's end of the channel, for any number of threads.

    Whichever thread waits reads for all: replies go to the threads that sent the calls, orders to the main
    thread.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._sending, self._arrived = threading.Lock(), threading.Condition(threading.Lock())
        self._is_reading = False
        self._orders: deque[Message] = deque()
        self._replies: dict[int, Message] = {}
        self._numbers = 0
        self._buffer = bytearray()

    def detach(self) -> None:
        """Forget the descriptor without closing it; in a copy it will be another file."""
        self._socket.detach()

    def send(self, message: Message) -> None:
        """Send a frame."""
        data = encoded(message)
        with self._sending:
            self._socket.sendall(LENGTH.pack(len(data)) + data)

    def next_order(self) -> Message:
        """Wait for the next order of the host."""
        return self._wait(lambda: self._orders.popleft() if self._orders else None)

    def call(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call a tool of the host and return its value; raise :class:`ToolError` if it fails."""
        with self._arrived:
            self._numbers += 1
            number = self._numbers
        self.send({"ev": "call", "id": number, "name": name, "args": args, "kwargs": kwargs})
        reply = self._wait(lambda: self._replies.pop(number, None))
        if reply.get("error") is not None:
            raise ToolError(reply["error"])
        return reply.get("value")

    def send_hello(self, message: Message, descriptors: list[int]) -> None:
        """Send the first frame and hand descriptors over to the host, which closes them here."""
        data = encoded(message)
        given = array.array("i", descriptors)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)] if descriptors else []
        self._socket.sendmsg([LENGTH.pack(len(data)) + data], rights)
        for descriptor in descriptors:
            os.close(descriptor)

    def receive_descriptors(self, count: int) -> list[int]:
        """Receive the descriptors that the host sends with a single byte after an order."""
        found = array.array("i")
        _, rights, _, _ = self._socket.recvmsg(1, socket.CMSG_LEN(count * found.itemsize))
        for _, _, data in rights:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
        return list(found)

    def _wait(self, found: Any) -> Message:
        while True:
            with self._arrived:
                message = found()
                while message is None and self._is_reading:
                    self._arrived.wait()
                    message = found()
                if message is not None:
                    return message
                self._is_reading = True
            try:
                message = self._read()
            finally:
                with self._arrived:
                    self._is_reading = False
                    self._arrived.notify_all()
            self._dispatch(message)

    def _dispatch(self, message: Message) -> None:
        with self._arrived:
            if "op" in message:
                self._orders.append(message)
            else:
                self._replies[message["id"]] = message
            self._arrived.notify_all()

    def _read(self) -> Message:
        """Read the next frame; a signal that interrupts this loses no bytes."""
        while len(self._buffer) < LENGTH.size:
            self._receive()
        size = LENGTH.size + LENGTH.unpack_from(self._buffer)[0]
        while len(self._buffer) < size:
            self._receive()
        message = json.loads(self._buffer[LENGTH.size : size])
        del self._buffer[:size]
        return message

    def _receive(self) -> None:
        data = self._socket.recv(1 << 16)
        if not data:
            raise EOFError("the host has gone")
        self._buffer += data
