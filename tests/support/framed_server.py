"""A server of sessions behind a framed Unix socket, in this process."""

from __future__ import annotations

import time
import uuid
from typing import Any

from servers import TOKEN

from envweave_gym.net.framed_socket import FramedSocket, connect, listen
from envweave_gym.wire.messages import Hello, encode
from envweave_gym_server.core.settings import Settings
from envweave_gym_server.offers.offers import Everything
from envweave_gym_server.protocols.native.framed_sessions import FramedSessions
from envweave_gym_server.sessions.service import SessionService


class FramedServer:
    """A service behind a framed socket, and connections to it."""

    def __init__(self, **settings: Any) -> None:
        self.address = f"@envweave/tests/{uuid.uuid4().hex}"
        self.service = SessionService(Everything(), Settings(**settings))
        self._peers: list[FramedSocket] = []
        FramedSessions(self.service, listen(self.address), TOKEN).start()

    def connect(self, session: str = "", token: str = TOKEN) -> FramedSocket:
        """Connect, and ask for a session."""
        peer = connect(self.address, soon())
        self._peers.append(peer)
        peer.send(encode(Hello(token, session)))
        return peer

    def stop(self) -> None:
        """Stop the service, then hang up."""
        self.service.stop()
        for peer in self._peers:
            peer.close()


def soon() -> float:
    """The deadline of what a test waits for."""
    return time.monotonic() + 30
