"""Sessions over framed Unix sockets: a hello frame names the session, and each later frame is a call."""

from __future__ import annotations

import hmac
import socket
import threading
import time
from contextlib import suppress

from envweave_gym.net.framed_socket import FramedSocket
from envweave_gym.wire.messages import DELETE, HEALTH, NUMBERLESS, Answer, Ask, Hello, encode, read_hello
from envweave_gym_server.core.errors import BadRequest, Unauthorized
from envweave_gym_server.protocols.native.framed_listener import FramedListener
from envweave_gym_server.sessions.channel import ClientChannel, describe, read_message
from envweave_gym_server.sessions.service import SessionService
from envweave_gym_server.sessions.session_protocol import CREATED


class FramedSessions:
    """Server of sessions for processes of the same user that send the right token, over framed sockets."""

    def __init__(
        self, service: SessionService, listener: socket.socket, token: str, *, is_shared: bool = False
    ) -> None:
        """``is_shared`` says that other processes listen on the same socket too."""
        self._service, self._token = service, token.encode()
        self._waiting: set[FramedSocket] = set()
        """Connections whose clients have no running call."""
        self._is_stopping = False
        self._timeout_s = service.settings.client_timeout
        self._listener = FramedListener(
            listener, self._serve, service.settings.largest_frame, is_shared=is_shared
        )
        service.before_stop.append(self.stop)

    def start(self) -> None:
        """Accept connections in a thread."""
        threading.Thread(target=self._listener.run, name="framed listener", daemon=True).start()

    def stop(self) -> None:
        """End all connections, each after its running call."""
        self._is_stopping = True
        self._listener.close()
        for peer in list(self._waiting):
            peer.cut()

    def _serve(self, peer: FramedSocket) -> None:
        hello = self._hello(peer)
        if hello is None:
            return
        if hello.session:
            self._play(peer, hello.session)
        else:
            while (frame := self._next(peer)) is not None:
                peer.send(self._answer(frame), self._deadline())

    def _hello(self, peer: FramedSocket) -> Hello | None:
        """Return the first frame of a connection; ``None`` after refusing one without the token."""
        try:
            hello = read_hello(peer.receive(self._deadline()))
            if not hmac.compare_digest(hello.token.encode(), self._token):
                raise Unauthorized("the token is wrong; the server was started with another")
        except (ValueError, RecursionError, Unauthorized) as error:
            problem = error if isinstance(error, Unauthorized) else BadRequest(f"that is no hello: {error}")
            peer.send(encode(self._service.refusal_of(problem, NUMBERLESS)), self._deadline())
            with suppress(
                OSError
            ):  # a client sends its first call before it reads: closed earlier, that would fail
                peer.receive(self._deadline())
            return None
        return hello

    def _play(self, peer: FramedSocket, session_id: str) -> None:
        channel, held = ClientChannel(self._service, session_id, lambda: peer.is_hung_up), b""
        waiting, timeout_s = self._waiting, self._timeout_s
        try:
            while True:  # the path of every step
                waiting.add(peer)  # before the check: whoever stops cuts all that are in the set afterwards
                if self._is_stopping:
                    return
                frame = peer.receive()
                waiting.discard(peer)
                reply = channel.answer(frame)
                if reply == CREATED and peer.ahead:
                    held = reply  # the client has sent its first reset along with the create, and awaits both
                else:
                    peer.send(reply, time.monotonic() + timeout_s, before=held)
                    held = b""
        finally:
            waiting.discard(peer)
            channel.close()

    def _next(self, peer: FramedSocket) -> bytes | None:
        """Return the next frame; ``None`` once the server stops."""
        self._waiting.add(peer)
        try:
            return None if self._is_stopping else peer.receive()
        finally:
            self._waiting.discard(peer)

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout_s

    def _answer(self, frame: bytes) -> bytes:
        """Return the reply to a frame without a session: requests for descriptions, and questions about the server."""
        sessions, value = self._service.sessions, None
        try:
            message = read_message(frame)
            if not isinstance(message, Ask) or message.question not in (DELETE, HEALTH):
                return describe(self._service, frame)
            if message.question == DELETE:
                sessions.close(str(message.argument))
            else:
                value = {"sessions": len(sessions), "stopping": sessions.stopped}
        except Exception as error:  # noqa: BLE001 - the client learns of everything that happens
            return encode(self._service.refusal_of(error, NUMBERLESS))
        return encode(Answer(message.number, value))
