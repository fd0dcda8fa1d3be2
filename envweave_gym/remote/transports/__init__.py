"""Transports carry frames to servers and replies back; the scheme of a server's URL selects the transport."""

from __future__ import annotations

import pkgutil
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Protocol

from envweave_gym.net.deadlines import too_late

if TYPE_CHECKING:
    from envweave_gym.remote.address import Address


class Transport(Protocol):
    """Sends frames and receives their replies in the same order; a deadline covers a whole frame or reply.

    Losses raise ``OSError``, or ``TimeoutError`` after the deadline; callers send the frame again. Errors that
    another attempt would repeat, such as a frame larger than the server takes, are of other types.
    """

    def send(self, frame: bytes, deadline: float, before: bytes = b"") -> None:
        """Send the frame ``before``, unless it is empty, and then ``frame``; replies need not be received first."""
        ...

    def receive(self, deadline: float) -> bytes:
        """Receive the reply to the oldest frame whose reply has not been received."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class Connector(Protocol):
    """Reaches the server at one address, in the way of its URL's scheme; losses raise ``OSError``."""

    sees_abandoned: ClassVar[bool]
    """Whether the server notices by itself which sessions its clients have abandoned."""

    def __init__(self, address: Address) -> None: ...

    def connect(self, session_id: str, deadline: float) -> Transport:
        """Return a transport that is connected for the frames of one session."""
        ...

    def describe(self, create: bytes, deadline: float) -> bytes:
        """Return the frame that describes the environment that a create would make."""
        ...

    def delete(self, session_id: str, deadline: float) -> None:
        """Close a session, whose call may still be under way."""
        ...

    def is_healthy(self, deadline: float) -> bool:
        """Return whether the server takes calls."""
        ...

    def count_sessions(self, deadline: float) -> int | None:
        """Return how many sessions the server has; ``None`` if the server does not tell."""
        ...


CONNECTORS = {
    "http": f"{__name__}.web_servers:WebConnector",
    "https": f"{__name__}.web_servers:WebConnector",
    "http+unix": f"{__name__}.web_servers:WebConnector",
    "unix": f"{__name__}.unix_sockets:UnixConnector",
    "ray+actor": "envweave_gym.providers.ray.actor_connector:ActorConnector",
}
"""The connector class of each URL scheme, loaded when it is used."""
UNFORKABLE = frozenset({"ray+actor"})
"""The schemes whose connections do not work in a forked process."""
VECTORS = {"ray+actor": "envweave_gym.providers.ray.actor_vector:RayVectorEnv"}
"""The vector class of each URL scheme that does not use ``RemoteVectorEnv``."""


def connector_to(address: Address) -> Connector:
    """Return the connector to a server."""
    return _connector(address.scheme)(address)


@cache
def _connector(scheme: str) -> type[Connector]:
    return pkgutil.resolve_name(CONNECTORS[scheme])


def lost(url: str, error: Exception | str) -> Exception:
    """Return a connection error as a loss, with the URL in the message.

    ``TimeoutError`` and ``ConnectionRefusedError`` keep their types; other errors become ``ConnectionError``.
    """
    if isinstance(error, TimeoutError):
        return too_late(url)
    reason = str(error) or type(error).__name__
    kind = ConnectionRefusedError if isinstance(error, ConnectionRefusedError) else ConnectionError
    subject = f"{url}:" if isinstance(error, str) else f"{url} does not answer:"
    return kind(reason if reason.startswith(url) else f"{subject} {reason}")
