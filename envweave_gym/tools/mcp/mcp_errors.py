"""What can go wrong with an MCP server, each in one sentence that names the server."""

from __future__ import annotations

import time

from envweave_gym.core.faults import ToolError


class McpClosed(ToolError):
    """The server has ended, or is out of reach."""

    unsent = False
    """Whether the request that found out was certainly not done."""

    @classmethod
    def before(cls, text: str) -> McpClosed:
        """What a request meets that could not be sent."""
        error = cls(text)
        error.unsent = True
        return error


class McpTimeout(ToolError):
    """The server has not answered in time."""


class McpRefused(ToolError):
    """The server has answered with an error of the protocol."""

    code = 0
    data: object = None

    @classmethod
    def of(cls, text: str, code: int, data: object) -> McpRefused:
        """The error with the number and the data that the server gave it."""
        error = cls(text)
        error.code, error.data = code, data
        return error


def left(deadline: float) -> float:
    """The seconds until a deadline; :class:`TimeoutError` when it is over."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds
