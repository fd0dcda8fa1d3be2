"""How a server is run: who may use it, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from envweave_gym_server.access import checked_token

Isolation = Literal["thread", "process"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of :func:`envweave_gym_server.create_app`; the defaults are for a server on loopback."""

    token: str | None = None
    """Who sends it as ``Authorization: Bearer …`` may use the server; ``None`` lets everybody in."""
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]")
    """The names in ``Host`` headers that are answered; ``"*"`` answers all. A web page that points a name of
    its own at this machine is kept out by this, other web pages by their ``Origin``."""
    max_sessions: int = 1024
    """So many sessions may be open; another is refused with 503."""
    max_rows: int = 65536
    """So many environments may be in one vector."""
    max_descriptions: int = 8
    """So many environments may be made at once just to be described."""
    idle_timeout: float = 300.0
    """So many seconds a session is kept while no connection is attached and no call is under way."""
    client_timeout: float = 60.0
    """After so many seconds in which a client takes nothing of what it is sent, sends no more of a request or
    does not answer for its machine, its connection ends; its session stays."""
    largest_frame: int = 64 << 20
    """So many bytes a frame or a body may have."""
    deepest: int = 32
    """So deep the kwargs of an environment may nest."""
    isolation: Isolation = "thread"
    """Whether sessions share the server's process, or each has a process of its own that may die alone."""
    worker_memory: int | None = 4 << 30
    """So many bytes of address space the process of a session may take; ``None`` sets no limit. What it
    reserves and does not use counts too: environments that compute on a GPU need far more."""
    call_timeout: float | None = None
    """After so many seconds without an answer the process of a session is killed; ``None`` waits for ever."""
    log_size: int = 32 << 10
    """So many bytes of its last replies a session keeps for those who look on, and an eighth of that before
    anybody has; the oldest are dropped."""
    max_listeners: int = 64
    """So many may look on at once."""
    drain: float = 30.0
    """So many seconds calls under way have to finish once the server is told to stop."""

    def __post_init__(self) -> None:
        if self.token is not None:
            checked_token(self.token, "token=")
