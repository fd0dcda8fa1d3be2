"""The worker's end of its socket to the host process: frames of JSON, each after its length (4 bytes, big-endian)."""

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
    """Return the content of a frame: a value as JSON bytes. Lone surrogates are encoded, not refused."""
    return json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")


class ToolError(Exception):
    """Raised in a program when a tool failed, refused the call, or does not exist."""

    __module__ = "builtins"  # so that tracebacks show the name without a module


class Channel:
    """The worker's end of its socket to the host process; any number of threads may use it at the same time.

    Of the threads that wait, one reads the socket for all: it hands replies to the threads whose calls they answer,
    and commands to the main thread.
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
        """Forget the descriptor without closing it, in a forked copy that has opened another file under its number."""
        self._socket.detach()

    def send(self, message: Message) -> None:
        """Send a message as one frame."""
        data = encoded(message)
        with self._sending:
            self._socket.sendall(LENGTH.pack(len(data)) + data)

    def next_command(self) -> Message:
        """Wait for the next command of the host process and return it; raise ``EOFError`` if the host has ended."""
        return self._wait(lambda: self._orders.popleft() if self._orders else None)

    def call(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call a tool of the host process, wait, and return its result; raise :class:`ToolError` if the tool fails."""
        with self._arrived:
            self._numbers += 1
            number = self._numbers
        self.send({"ev": "call", "id": number, "name": name, "args": args, "kwargs": kwargs})
        reply = self._wait(lambda: self._replies.pop(number, None))
        if reply.get("error") is not None:
            raise ToolError(reply["error"])
        return reply.get("value")

    def send_hello(self, message: Message, descriptors: list[int]) -> None:
        """Send the first frame together with descriptors for the host process, and close these descriptors here."""
        data = encoded(message)
        given = array.array("i", descriptors)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)] if descriptors else []
        self._socket.sendmsg([LENGTH.pack(len(data)) + data], rights)
        for descriptor in descriptors:
            os.close(descriptor)

    def receive_descriptors(self, count: int) -> list[int]:
        """Receive and return the descriptors that the host process sends, with a single byte, after a command."""
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
        """Read and return the next frame; if a signal handler raises meanwhile, no bytes are lost."""
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
