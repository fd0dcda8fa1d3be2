"""An MCP server as a process: one JSON message a line, by its stdin and stdout.

Whoever waits for an answer reads: one thread at a time does so for all, and hands on to another when its own
answer has come. So a call costs no change of threads, and none is needed that a fork would lose.
"""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from contextlib import suppress

import msgspec

from envweave_gym.core.faults import ToolError, shown
from envweave_gym.tools.mcp.json_rpc import (
    LARGEST_MESSAGE,
    Message,
    cancellation,
    messages_in,
    reply_to,
    too_large,
)
from envweave_gym.tools.mcp.mcp_errors import McpClosed, McpTimeout, left
from envweave_gym.tools.mcp.server_process import KeptProcess
from envweave_gym.tools.mcp.server_spec import ServerSpec

_PIECE = 1 << 16
_MOST_JUNK = 1 << 20
"""Bytes that are no messages which a server may print before the first message, and between two."""
_SLICE = 0.05


class StdioTransport:
    """One running server, for the calls of any number of threads."""

    def __init__(self, spec: ServerSpec) -> None:
        self._what = str(spec)
        self._kept = KeptProcess(spec)
        self._in, self._out = self._kept.stdin.fileno(), self._kept.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._writing = threading.RLock()
        self._changed = threading.Condition()
        self._reads = False
        self._awaited: set[int] = set()
        self._answers: dict[int, Message] = {}
        self._owed: list[Message] = []
        self._newest = 0
        self._buffer, self._searched = bytearray(), 0
        self._junk, self._junk_bytes = b"", 0
        self._failure: ToolError | None = None
        self._at_end = weakref.finalize(self, self._kept.end)

    # Asking

    def request(self, message: Message, deadline: float, headers: object = None) -> Message:
        """Send a request and wait for its answer; who is too late tells the server not to go on."""
        number = message["id"]
        with self._changed:
            self._awaited.add(number)
            self._newest = max(self._newest, number)
        try:
            self._catch_up(deadline)
            self._pay(deadline)
            self._write(message, deadline)
            return self._answer(number, deadline)
        except TimeoutError:
            raise self._late(message) from None
        finally:
            with self._changed:
                self._awaited.discard(number)
                self._answers.pop(number, None)

    def notify(self, message: Message, deadline: float, headers: object = None) -> None:
        """Send what nobody answers."""
        try:
            self._write(message, deadline)
        except TimeoutError:
            raise self._late(message) from None

    def _late(self, message: Message) -> McpTimeout:
        if "id" in message and message["method"] != "initialize" and self._failure is None:
            with suppress(TimeoutError, ToolError):
                self._write(cancellation(message["id"]), time.monotonic() + _SLICE)
        printed = f"; it printed {shown(self._junk.decode(errors='replace'))}" if self._junk else ""
        return McpTimeout(f"{self._what} has not answered {message['method']} in time{printed}")

    def _answer(self, number: int, deadline: float) -> Message:
        """Wait for an answer: as the reading thread, or until another thread has read it."""
        while True:
            with self._changed:
                while self._reads and number not in self._answers and self._failure is None:
                    self._changed.wait(left(deadline))
                if number in self._answers:
                    return self._answers.pop(number)
                if self._failure is not None:
                    raise type(self._failure)(*self._failure.args)
                self._reads = True
            try:
                self._read(left(deadline))
            finally:
                self._stop_reading()
            self._pay(deadline)

    def _stop_reading(self) -> None:
        with self._changed:
            self._reads = False
            self._changed.notify_all()

    def _start_reading(self) -> bool:
        """Become the reading thread, if there is none."""
        with self._changed:
            begins, self._reads = not self._reads, True
        return begins

    # Reading

    def _catch_up(self, deadline: float) -> None:
        """Read what came while nobody asked, and notice here when the server has ended meanwhile."""
        if self._start_reading():
            try:
                while self._failure is None and _ready(self._out, select.POLLIN, 0):
                    self._read(left(deadline))
            finally:
                self._stop_reading()
        if self._failure is not None:
            raise McpClosed.before(str(self._failure))

    def _read(self, seconds: float) -> None:
        """Read a piece, if one comes in time, and hand out the messages that it completes."""
        if not _ready(self._out, select.POLLIN, seconds):
            return
        piece = os.read(self._out, _PIECE)
        if not piece:
            self._fail(McpClosed(self._kept.ending(self._what)))
            return
        self._buffer += piece
        while (end := self._buffer.find(b"\n", self._searched)) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._searched = 0
            self._take(line)
        self._searched = len(self._buffer)
        if len(self._buffer) > LARGEST_MESSAGE:
            self._fail(ToolError(too_large(self._what)))

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        messages = messages_in(line)
        if messages is None:
            self._junk, self._junk_bytes = line[:200], self._junk_bytes + len(line)
            if self._junk_bytes > _MOST_JUNK:
                printed = shown(self._junk.decode(errors="replace"))
                self._fail(ToolError(f"{self._what} prints {printed} and more that is no message of MCP"))
            return
        self._junk, self._junk_bytes = b"", 0
        for message in messages:
            self._sort(message)

    def _sort(self, message: Message) -> None:
        """An answer goes to who waits for it, a question gets ours; what a server tells is not for us."""
        number = message.get("id")
        if "method" in message:
            if number is not None:
                self._owed.append(reply_to(message))
        elif type(number) is int and 0 < number <= self._newest:
            with self._changed:
                if number in self._awaited:
                    self._answers[number] = message
                    self._changed.notify_all()
        else:
            said = f": {shown(message['error'])}" if "error" in message else ""
            self._fail(ToolError(f"{self._what} answers {shown(number)}, which was not asked{said}"))

    # Writing

    def _pay(self, deadline: float) -> None:
        """Send the answers that the server waits for."""
        while self._owed:
            with suppress(IndexError):  # another thread has sent it
                self._write(self._owed.pop(0), deadline)

    def _write(self, message: Message, deadline: float) -> None:
        """Send a message; where the server does not read, read what it may be stuck with."""
        data = memoryview(msgspec.json.encode(message) + b"\n")
        if not self._writing.acquire(timeout=left(deadline)):
            raise TimeoutError
        try:
            self._send(data, deadline)
        except BrokenPipeError:
            self._fail(McpClosed(self._kept.ending(self._what)))
            raise McpClosed.before(str(self._failure)) from None
        finally:
            self._writing.release()

    def _send(self, data: memoryview, deadline: float) -> None:
        size = len(data)
        try:
            while data:
                if self._failure is not None:
                    raise McpClosed.before(str(self._failure))
                try:
                    data = data[os.write(self._in, data) :]
                except BlockingIOError:
                    self._wait_to_write(deadline)
        finally:
            if 0 < len(data) < size:  # the server could make no sense of what comes after half a message
                self._fail(McpClosed(f"{self._what} has stopped reading in the middle of a message"))

    def _wait_to_write(self, deadline: float) -> None:
        seconds = min(left(deadline), _SLICE)
        if not self._start_reading():
            _ready(self._in, select.POLLOUT, seconds)
            return
        try:
            either = select.poll()
            either.register(self._in, select.POLLOUT)
            either.register(self._out, select.POLLIN)
            if any(descriptor == self._out for descriptor, _ in either.poll(seconds * 1000)):
                self._read(0)
        finally:
            self._stop_reading()

    # Ending

    def _fail(self, failure: ToolError) -> None:
        """Let all who wait know; nothing that comes from this process is of use any more."""
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    @property
    def failed(self) -> bool:
        """Whether it is of no use any more."""
        return self._failure is not None

    def close(self) -> None:
        """End the server: its stdin closes, and if it does not end by that, TERM and KILL follow.

        What others may still be reading from is closed when they have all left.
        """
        self._fail(McpClosed(f"{self._what} was closed"))
        with self._writing:
            self._kept.stdin.close()
        self._kept.let_go()

    def forget(self) -> None:
        """In a forked process: let go of what keeps the server of the parent alive.

        No lock is asked for: a thread of the parent may have held it.
        """
        self._failure = McpClosed(f"{self._what} belongs to another process")
        if self._at_end.detach():
            self._kept.forget()


def _ready(descriptor: int, events: int, seconds: float) -> bool:
    """Whether a pipe can be read or written, or becomes so in time."""
    waiting = select.poll()
    waiting.register(descriptor, events)
    return bool(waiting.poll(seconds * 1000))
