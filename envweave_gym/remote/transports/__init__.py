"""Transports, which carry frames to a server and replies back; the scheme of the URL selects one."""

from __future__ import annotations

import pkgutil
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Protocol

from envweave_gym.net.deadlines import too_late

if TYPE_CHECKING:
    from envweave_gym.remote.address import Address


class Transport(Protocol):
    """Connection that sends frames and receives their replies in order, each before a deadline.

    Deadlines are values of ``time.monotonic``. Losses raise ``OSError``, or ``TimeoutError`` after the
    deadline, and callers send the frame again. Errors that another attempt would repeat, such as a too large
    frame, are of other types.
    """

    def send(self, frame: bytes, deadline: float, before: bytes = b"") -> None:
        """Send ``frame`` without waiting for its reply; replies to earlier frames may still be due.

        ``before`` is a frame to send first, such as the one that creates the session; empty for none.
        """
        ...

    def receive(self, deadline: float) -> bytes:
        """Return the reply to the oldest unanswered frame."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class Connector(Protocol):
    """Client of one server, of which each URL scheme has its own class; losses raise ``OSError``."""

    sees_abandoned: ClassVar[bool]
    """Whether the server notices by itself which sessions its clients have abandoned."""

    def __init__(self, address: Address) -> None: ...

    def connect(self, session_id: str, deadline: float) -> Transport:
        """Return a connected transport for the frames of one session."""
        ...

    def describe(self, create: bytes, deadline: float) -> bytes:
        """Return the frame with the server's description of the environment that the create message would make."""
        ...

    def delete(self, session_id: str, deadline: float) -> None:
        """Close a session on the server, even if its last call is still running."""
        ...

    def is_healthy(self, deadline: float) -> bool:
        """Return whether the server takes calls."""
        ...

    def count_sessions(self, deadline: float) -> int | None:
        """Return the number of sessions on the server; ``None`` if the server does not report it."""
        ...


CONNECTORS = {
    "http": f"{__name__}.web_servers:WebConnector",
    "https": f"{__name__}.web_servers:WebConnector",
    "http+unix": f"{__name__}.web_servers:WebConnector",
    "unix": f"{__name__}.unix_sockets:UnixConnector",
    "ray+actor": "envweave_gym.providers.ray.actor_connector:ActorConnector",
}
"""Connector class of each URL scheme, loaded when it is first used."""
UNFORKABLE = frozenset({"ray+actor"})
"""URL schemes whose connections do not work in a forked process."""
VECTORS = {"ray+actor": "envweave_gym.providers.ray.actor_vector:RayVectorEnv"}
"""Vector class of the URL schemes that do not use ``RemoteVectorEnv``."""


def connector_to(address: Address) -> Connector:
    """Return the connector for the scheme of ``address``."""
    return _connector(address.scheme)(address)


@cache
def _connector(scheme: str) -> type[Connector]:
    return pkgutil.resolve_name(CONNECTORS[scheme])


def lost(url: str, error: Exception | str) -> Exception:
    """Return an exception that means a lost connection, with the URL in its message.

    ``TimeoutError`` and ``ConnectionRefusedError`` keep their types; other errors become ``ConnectionError``.
    """
    if isinstance(error, TimeoutError):
        return too_late(url)
    reason = str(error) or type(error).__name__
    kind = ConnectionRefusedError if isinstance(error, ConnectionRefusedError) else ConnectionError
    subject = f"{url}:" if isinstance(error, str) else f"{url} does not answer:"
    return kind(reason if reason.startswith(url) else f"{subject} {reason}")
