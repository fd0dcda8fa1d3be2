"""MCP over stdio: starts a server as a process, and exchanges JSON messages, one a line, over its pipes.

A thread for each server reads its output, and writes the bytes that did not fit into the pipe at once. So a server
that stops reading or writing delays no caller beyond the caller's deadline.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from envweave_gym.core.faults import ToolError, shown
from envweave_gym.tools.mcp.mcp_session import (
    LARGEST_MESSAGE,
    LineBuffer,
    McpClosed,
    McpTimeout,
    Message,
    cancellation,
    messages_in,
    response_to,
)
from envweave_gym.tools.mcp.server_process import ServerProcess
from envweave_gym.tools.mcp.server_spec import ServerSpec

_CHUNK_BYTES = 1 << 16
_MAX_JUNK = 1 << 20
"""Limit of bytes in lines that are no messages, before the first message and between two."""


class StdioTransport:
    """A ``Transport`` that starts a server as a process and exchanges messages over its stdin and stdout."""

    def __init__(self, spec: ServerSpec) -> None:
        self._server, self._process = str(spec), ServerProcess(spec)
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._changed = threading.Condition()
        """Guards the following attributes; notified of responses and of the end."""
        self._responses: dict[int, Message | None] = {}
        """The response to each request that a caller waits for, by request ID; None until it comes."""
        self._last_id = 0
        self._unsent, self._queued, self._sent = bytearray(), 0, 0
        """Bytes that are still to be written, and the total numbers of bytes queued and written so far."""
        self._received = LineBuffer(self._server)
        self._junk, self._junk_bytes = b"", 0
        self._has_ended = False
        """Whether a pipe is closed; :attr:`_failure` is set later, when it is known how the server ended."""
        self._failure: ToolError | None = None
        self._poll, (self._woken, self._waker) = select.poll(), socket.socketpair()
        self._waker.setblocking(False)
        arguments = weakref.ref(self), self._poll, self._woken, self._process
        thread = threading.Thread(target=_serve, args=arguments, name="MCP server", daemon=True)
        self._end = weakref.finalize(self, _end, self._process, thread, self._waker)
        thread.start()

    # For callers

    def request(self, message: Message, deadline: float, headers: Mapping[str, str]) -> Message:
        """Send a request and wait for its response; at the deadline cancel it and raise ``McpTimeout``."""
        request_id = message["id"]
        with self._changed:
            self._responses[request_id], self._last_id = None, max(self._last_id, request_id)
            try:
                end = self._queue(message, deadline)
                self._wait(lambda: self._responses[request_id] is not None, deadline)
                response = self._responses[request_id]
                if response is None:
                    raise self._error(message, end)
                return response
            finally:
                del self._responses[request_id]

    def notify(self, message: Message, deadline: float, headers: Mapping[str, str]) -> None:
        """Send a notification."""
        with self._changed:
            self._queue(message, deadline)

    def _queue(self, message: Message, deadline: float) -> int:
        """Queue a message and write as much as the pipe takes; return the total number of bytes queued so far."""
        # If the server has ended already, the thread will find out soon. Then the message is not sent, so the caller
        # can safely send it again to another process.
        if self._failure is None and (self._has_ended or _has_hung_up(self._stdout)):
            self._wait(lambda: False, deadline)
        if self._failure is not None or self._has_ended:
            raise McpClosed(str(self._failure or f"{self._server} has ended"), unsent=True)
        self._append(message)
        self._flush()
        if self._unsent or self._has_ended:
            _wake(self._waker)
        return self._queued

    def _append(self, message: Message) -> None:
        data = msgspec.json.encode(message) + b"\n"
        self._unsent += data
        self._queued += len(data)

    def _flush(self) -> None:
        try:
            while self._unsent and self._failure is None:
                count = os.write(self._stdin, self._unsent)
                del self._unsent[:count]
                self._sent += count
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._has_ended = True

    def _wait(self, is_done: Callable[[], bool], deadline: float) -> None:
        seconds = deadline - time.monotonic()
        self._changed.wait_for(lambda: is_done() or self._failure is not None, max(seconds, 0))

    def _error(self, message: Message, end: int) -> ToolError:
        """Return the error for a request without a response; ``end`` is the position behind its last byte.

        If not all bytes before ``end`` were written, the server has not executed the request.
        """
        if self._failure is not None:
            is_closed = isinstance(self._failure, McpClosed)
            text = str(self._failure)
            return McpClosed(text, unsent=self._sent < end) if is_closed else ToolError(text)
        if self._sent < end:  # after half a message the server could not parse the next one
            self._fail(McpClosed(f"{self._server} has stopped reading in the middle of a message"))
        elif message["method"] != "initialize" and not self._has_ended:
            self._append(cancellation(message["id"]))
            _wake(self._waker)
        printed = f"; it printed {shown(self._junk.decode(errors='replace'))}" if self._junk else ""
        return McpTimeout(f"{self._server} has not answered {message['method']} in time{printed}")

    # For the thread

    def handle(self, ready: set[int]) -> bool:
        """Read from the descriptors in ``ready``, and write queued bytes; return False after the server's end."""
        if self._woken.fileno() in ready:
            self._woken.recv(_CHUNK_BYTES)
        stderr = self._process.stderr.fileno()
        if stderr in ready and self._process.read_stderr() == b"":
            self._poll.unregister(stderr)
        piece = os.read(self._stdout, _CHUNK_BYTES) if self._stdout in ready else None
        with self._changed:
            try:
                for line in self._received.lines_with(piece or b""):
                    self._accept_line(line)
            except ToolError as error:
                self._fail(error)
            self._flush()
            self._has_ended = self._has_ended or piece == b""
            with suppress(KeyError):  # if it was not registered
                self._poll.unregister(self._stdin)
            if self._unsent:  # a pipe that is registered without need would always be ready
                self._poll.register(self._stdin, select.POLLOUT)
        # without the lock, as this may take seconds: callers wait for it to their own deadlines
        if self._has_ended and self._failure is None:
            self._fail(McpClosed(f"{self._server} {self._process.describe_end()}"))
        return self._failure is None

    def _accept_line(self, line: bytes) -> None:
        messages = messages_in(line)
        if messages is not None:
            self._junk, self._junk_bytes = b"", 0
            for message in messages:
                self._accept(message)
        elif line.strip():
            self._junk, self._junk_bytes = line[:200], self._junk_bytes + len(line)
            if self._junk_bytes > _MAX_JUNK:
                printed = shown(self._junk.decode(errors="replace"))
                raise ToolError(f"{self._server} prints {printed} and more that is no message of MCP")

    def _accept(self, message: Message) -> None:
        """Give a response to the caller that waits for it, or respond to a request; ignore notifications."""
        number = message.get("id")
        if "method" in message:
            if number is not None:
                self._append(response_to(message))
                if len(self._unsent) > LARGEST_MESSAGE:
                    raise ToolError(f"{self._server} sends requests and does not read the responses")
        elif type(number) is not int or not 0 < number <= self._last_id:
            text = f": {shown(message['error'])}" if "error" in message else ""
            raise ToolError(
                f"{self._server} sends a response with the id {shown(number)}, which no request has{text}"
            )
        elif number in self._responses:  # otherwise its caller has timed out
            self._responses[number] = message
            self._changed.notify_all()

    # The end

    def _fail(self, failure: ToolError) -> None:
        """Make all callers, waiting ones and later ones, raise ``failure``."""
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    @property
    def failed(self) -> bool:
        """Whether no further request can succeed."""
        return self._failure is not None

    def close(self) -> None:
        """End the server."""
        self._fail(McpClosed(f"{self._server} was closed"))
        self._end()

    def forget(self) -> None:
        """Close the pipes in a forked process; they would keep the parent's server alive.

        The lock is not acquired, as a thread of the parent may have held it during the fork.
        """
        self._failure = McpClosed(f"{self._server} belongs to another process")
        if self._end.detach():
            self._process.forget()
            self._woken.close()
            self._waker.close()


def _serve(
    transport: weakref.ref[StdioTransport], poll: select.poll, woken: socket.socket, process: ServerProcess
) -> None:
    """Handle events of a server in a thread until the server ends, and close the pipes from it.

    During a wait only a weak reference to the transport is held. So an unused transport is garbage-collected, which
    ends its server.
    """
    for source in (woken, process.stdout, process.stderr):
        poll.register(source, select.POLLIN)
    goes_on = True
    while goes_on:
        ready = {descriptor for descriptor, _ in poll.poll()}
        live = transport()
        goes_on = live is not None and live.handle(ready)
        del live
    woken.close()
    process.close_outputs()


def _end(process: ServerProcess, thread: threading.Thread, waker: socket.socket) -> None:
    process.end()
    _wake(waker)  # needed if another process holds the server's stdout open
    waker.close()
    if thread is not threading.current_thread():
        thread.join()


def _wake(waker: socket.socket) -> None:
    with suppress(OSError):  # it is about to wake up, or has ended
        waker.send(b"!")


def _has_hung_up(descriptor: int) -> bool:
    """Return whether no process has the other end of a pipe open."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return bool(poll.poll(0))
