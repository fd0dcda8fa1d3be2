"""Transport over a WebSocket, which carries the frames of one session."""

from __future__ import annotations

import ssl
import time
from contextlib import suppress
from typing import NoReturn

from envweave_gym.net.dial import GATEWAY_ERRORS, TunnelRefused
from envweave_gym.net.websocket import ConnectionClosed, HandshakeRefused, open_websocket
from envweave_gym.remote.address import Address
from envweave_gym.remote.errors import hung_up, raise_refused, refusal_in, untrusted
from envweave_gym.remote.transports import lost
from envweave_gym.wire.messages import LARGEST_REPLY

_REFUSALS = (401, 403, 404, 503)
_CLOSE_FRAME_TIMEOUT_S = 0.2
"""Time to wait for the close frame of a server that closed the connection while a frame was sent to it."""


class WebSocketBlocked(Exception):
    """Error if a device between client and server blocks WebSockets."""


class WebSocketTransport:
    """Transport of one session's frames over one WebSocket."""

    def __init__(self, address: Address, session_id: str, deadline: float) -> None:
        self._url, path = address.url, f"/v1/sessions/{session_id}/stream"
        try:
            self._socket = open_websocket(
                address.url, path, deadline, address.headers(), largest=LARGEST_REPLY, at=address.shortcut
            )
        except HandshakeRefused as error:
            _raise_refusal(error, self._url)
        except TunnelRefused:
            raise WebSocketBlocked from None
        except ssl.SSLCertVerificationError as error:
            raise untrusted(self._url, error) from None
        except OSError as error:
            raise lost(self._url, error) from None

    def send(self, frame: bytes, deadline: float, before: bytes = b"") -> None:
        """Send ``frame``, after the frame ``before`` if that is not empty.

        Both go out in one system call, so that the server wakes up once.
        """
        try:
            self._socket.send(frame, deadline, before)
        except OSError as error:
            if not isinstance(error, TimeoutError):
                self._raise_close_frame()
            raise lost(self._url, error) from None

    def _raise_close_frame(self) -> None:
        """Raise the reason in the server's close frame, if another connection would be closed for the same reason."""
        until = time.monotonic() + _CLOSE_FRAME_TIMEOUT_S
        with suppress(OSError):
            while True:
                self.receive(until)

    def receive(self, deadline: float) -> bytes:
        """Return the next frame of the server; pings are answered meanwhile."""
        try:
            return self._socket.receive(deadline)
        except ConnectionClosed as closed:
            raise hung_up(closed, self._url) from None
        except OSError as error:
            raise lost(self._url, error) from None

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def _raise_refusal(error: HandshakeRefused, url: str) -> NoReturn:
    """Raise the error for a refused handshake.

    It is the server's own error reply, a loss if a gateway answered, or else :class:`WebSocketBlocked`.
    """
    refusal = refusal_in(error.body) if error.status in _REFUSALS else None
    if refusal is not None:
        raise_refused(refusal, url)
    if error.status in GATEWAY_ERRORS:
        raise ConnectionError(f"{url} is not reached: HTTP {error.status}") from None
    raise WebSocketBlocked from None
