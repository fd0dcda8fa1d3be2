"""The frames of one client to one session, whichever way they come."""

from __future__ import annotations

from envweave_gym.core.faults import NotAvailable, shown
from envweave_gym.wire.keys import check_keys
from envweave_gym.wire.messages import NUMBERLESS, VERSION, Call, Create, encode, number_of, read_call
from envweave_gym_server.core.errors import BadRequest
from envweave_gym_server.sessions.service import SessionService
from envweave_gym_server.sessions.session import Left, Session


class ClientChannel:
    """Answers one frame after the other; the session is kept from the first one until the line is closed."""

    def __init__(self, server: SessionService, session_id: str, left: Left) -> None:
        """``left`` tells whether the client has hung up."""
        self._server, self._session_id, self._left = server, session_id, left
        self._session: Session | None = None

    def answer(self, frame: bytes) -> bytes:
        """The frame of the reply, which tells whatever goes wrong."""
        number = NUMBERLESS
        try:
            message = read_message(frame)
            number = number_of(message)
            session = self._session
            if session is None or session.closed or isinstance(message, Create):
                session, reply = self._attach(message, frame)
            else:
                reply = session.call(message, frame, self._left)
            if session.closed:
                self._server.sessions.forget(self._session_id)
        except Exception as error:  # noqa: BLE001 - whatever happens is told to the client
            reply = encode(self._server.refusal_of(error, number))
        return reply

    def _attach(self, message: Call, frame: bytes) -> tuple[Session, bytes]:
        """Find or make the session, and do its first call on this line."""
        sessions, left = self._server.sessions, self._left
        if isinstance(message, Create):
            session, reply = sessions.create(self._session_id, message, frame, left)
        else:
            session = sessions.get(self._session_id)
            reply = session.call(message, frame, left)
        if session is not self._session:
            session.attach(left)
            self.close()
            self._session = session
        return session, reply

    def close(self) -> None:
        """Let go of the session, whose lease runs from now on."""
        session, self._session = self._session, None
        if session is not None:
            session.detach(self._left)


def read_message(frame: bytes) -> Call:
    """The message in a frame."""
    try:
        check_keys(frame)
        message = read_call(frame)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadRequest(f"that is no message: {error or type(error).__name__}") from None
    if isinstance(message, Create) and message.version != VERSION:
        raise NotAvailable(
            f"the client speaks version {shown(message.version)} and the server version {VERSION} of the "
            "protocol; install the same version of envweave-gym on both sides"
        )
    return message
