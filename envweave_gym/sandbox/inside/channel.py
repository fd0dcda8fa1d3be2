"""Frames of JSON between a worker and its host: four bytes of length, the largest first, and the text."""

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
    """A value as the JSON of a frame; what is half a character stays one."""
    return json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")


class ToolError(Exception):
    """A tool failed, or there is none of this name; the text says why."""

    __module__ = "builtins"  # tracebacks name what is not with its module


class Channel:
    """The worker's end.

    Whichever thread waits reads for all: replies go to the threads that asked, orders to the main thread.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._sending, self._arrived = threading.Lock(), threading.Condition(threading.Lock())
        self._is_read = False
        self._orders: deque[Message] = deque()
        self._replies: dict[int, Message] = {}
        self._numbers = 0
        self._buffer = bytearray()

    def leave(self) -> None:
        """Forget the descriptor, which means something else from now on."""
        self._socket.detach()

    def send(self, message: Message) -> None:
        """Send a frame."""
        data = encoded(message)
        with self._sending:
            self._socket.sendall(LENGTH.pack(len(data)) + data)

    def order(self) -> Message:
        """The next order of the host."""
        return self._wait(lambda: self._orders.popleft() if self._orders else None)

    def call(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """What a tool of the host gives; :class:`ToolError` where it fails."""
        with self._arrived:
            self._numbers += 1
            number = self._numbers
        self.send({"ev": "call", "id": number, "name": name, "args": args, "kwargs": kwargs})
        reply = self._wait(lambda: self._replies.pop(number, None))
        if reply.get("error") is not None:
            raise ToolError(reply["error"])
        return reply.get("value")

    def greet(self, message: Message, descriptors: list[int]) -> None:
        """Send the first frame, which gives the host descriptors; this process has them no more."""
        data = encoded(message)
        given = array.array("i", descriptors)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)] if descriptors else []
        self._socket.sendmsg([LENGTH.pack(len(data)) + data], rights)
        for descriptor in descriptors:
            os.close(descriptor)

    def descriptors(self, count: int) -> list[int]:
        """The descriptors that the host sends after an order, with a single byte."""
        found = array.array("i")
        _, rights, _, _ = self._socket.recvmsg(1, socket.CMSG_LEN(count * found.itemsize))
        for _, _, data in rights:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
        return list(found)

    def _wait(self, found: Any) -> Message:
        while True:
            with self._arrived:
                message = found()
                while message is None and self._is_read:
                    self._arrived.wait()
                    message = found()
                if message is not None:
                    return message
                self._is_read = True
            try:
                message = self._read()
            finally:
                with self._arrived:
                    self._is_read = False
                    self._arrived.notify_all()
            self._sort(message)

    def _sort(self, message: Message) -> None:
        with self._arrived:
            if "op" in message:
                self._orders.append(message)
            else:
                self._replies[message["id"]] = message
            self._arrived.notify_all()

    def _read(self) -> Message:
        """The next frame; what has come of it is kept where a signal interrupts."""
        while len(self._buffer) < LENGTH.size:
            self._more()
        size = LENGTH.size + LENGTH.unpack_from(self._buffer)[0]
        while len(self._buffer) < size:
            self._more()
        message = json.loads(self._buffer[LENGTH.size : size])
        del self._buffer[:size]
        return message

    def _more(self) -> None:
        data = self._socket.recv(1 << 16)
        if not data:
            raise EOFError("the host has gone")
        self._buffer += data
