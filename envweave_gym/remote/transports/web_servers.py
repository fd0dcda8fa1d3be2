"""Connector to servers that speak HTTP: WebSockets, or plain HTTP where WebSockets are blocked."""

from __future__ import annotations

from envweave_gym.net.http import HttpConnection, Response
from envweave_gym.remote.address import Address
from envweave_gym.remote.transports import Transport
from envweave_gym.remote.transports.plain_http import HttpTransport
from envweave_gym.remote.transports.websockets import WebSocketBlocked, WebSocketTransport

_LARGEST_METRICS_BYTES = 1 << 24


class WebConnector:
    """Client of a server's HTTP API."""

    sees_abandoned = False

    def __init__(self, address: Address) -> None:
        self._address = address

    def connect(self, session_id: str, deadline: float) -> Transport:
        """Open a WebSocket for the session; return an HTTP transport if the network blocks WebSockets."""
        try:
            return WebSocketTransport(self._address, session_id, deadline)
        except WebSocketBlocked:
            return HttpTransport(self._address, f"/v1/sessions/{session_id}/frames")

    def describe(self, create: bytes, deadline: float) -> bytes:
        """Return the frame with the server's description of the environment that the create message would make."""
        transport = HttpTransport(self._address, "/v1/describe")
        try:
            transport.send(create, deadline)
            return transport.receive(deadline)
        finally:
            transport.close()

    def delete(self, session_id: str, deadline: float) -> None:
        """Close a session on the server, even if its last call is still running."""
        with self._http() as connection:
            self._request(connection, "DELETE", f"/v1/sessions/{session_id}", deadline)

    def is_healthy(self, deadline: float) -> bool:
        """Return whether the server takes calls."""
        with self._http() as connection:
            return connection.request("GET", "/health", deadline).status == 200

    def count_sessions(self, deadline: float) -> int | None:
        """Return the number of sessions on the server, from its metrics; ``None`` if they do not contain it."""
        with self._http() as connection:
            response = self._request(connection, "GET", "/metrics", deadline)
            if response.status != 200:
                return None
            metrics = response.body(_LARGEST_METRICS_BYTES).decode(errors="replace")
        for line in metrics.splitlines():
            name, _, number = line.partition(" ")
            if name == "envweave_sessions":
                return int(float(number))
        return None

    def _http(self) -> HttpConnection:
        return HttpConnection(self._address.url, at=self._address.shortcut)

    def _request(self, connection: HttpConnection, method: str, path: str, deadline: float) -> Response:
        return connection.request(method, path, deadline, self._address.headers())
