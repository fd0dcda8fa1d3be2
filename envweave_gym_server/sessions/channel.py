"""Frames of one client to one session, whichever transport carries them."""

from __future__ import annotations

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.wire.frame_limits import TooManyValues, check_call
from envweave_gym.wire.hash_collisions import SMALL_FRAME
from envweave_gym.wire.messages import (
    NUMBERLESS,
    Answer,
    Call,
    Create,
    encode,
    number_of,
    pack,
    read_call,
)
from envweave_gym_server.core.errors import BadRequest
from envweave_gym_server.sessions.service import SessionService
from envweave_gym_server.sessions.session import Left, Session


class ClientChannel:
    """Server end of one client's frames to a session, which is attached from the first frame until :meth:`close`.

    While a session is attached, its lease does not run.
    """

    def __init__(self, service: SessionService, session_id: str, left: Left) -> None:
        """``left`` returns whether the client has disconnected."""
        self._service, self._session_id, self._left = service, session_id, left
        self._session: Session | None = None

    def answer(self, frame: bytes) -> bytes:
        """Return the reply frame; any error is reported in it."""
        message = None
        try:
            # As in read_message(), whose call would cost something in every step.
            if len(frame) >= SMALL_FRAME:
                check_call(frame)
            message = read_call(frame)
            session = self._session
            if session is None or session.core.closed or isinstance(message, Create):
                session, reply = self._attach(message, frame)
            else:
                reply = session.call(message, frame, self._left)
            if session.core.closed:
                self._service.sessions.forget(self._session_id)
        except Exception as error:  # noqa: BLE001 - the client learns of everything that happens
            problem, number = (
                (unreadable(error), NUMBERLESS) if message is None else (error, number_of(message))
            )
            reply = encode(self._service.refusal_of(problem, number))
        return reply

    def _attach(self, message: Call, frame: bytes) -> tuple[Session, bytes]:
        """Find or create the session, and execute its first call on this channel."""
        sessions, left = self._service.sessions, self._left
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
        """Detach from the session, whose lease runs from now on."""
        session, self._session = self._session, None
        if session is not None:
            session.detach(self._left)


def describe(service: SessionService, frame: bytes) -> bytes:
    """Return the frame with the description of the environment that the create message ``frame`` would make."""
    try:
        message = read_message(frame)
        if not isinstance(message, Create):
            raise BadRequest("send the message that would create the session")
        return encode(Answer(NUMBERLESS, pack(service.description(message))))
    except Exception as error:  # noqa: BLE001 - the client learns of everything that happens
        return encode(service.refusal_of(error, NUMBERLESS))


def read_message(frame: bytes) -> Call:
    """Decode the message in a frame; raise ``BadRequest`` or ``InvalidArgument`` if that fails."""
    try:
        if len(frame) >= SMALL_FRAME:
            check_call(frame)
        return read_call(frame)
    except (ValueError, TypeError, RecursionError) as error:
        raise unreadable(error) from None


def unreadable(error: Exception) -> Exception:
    """Return the error to report for a frame that :func:`read_call` or its checks have refused."""
    if isinstance(error, TooManyValues):
        return InvalidArgument(str(error))
    if isinstance(error, ValueError | TypeError | RecursionError):
        return BadRequest(f"that is no message: {error or type(error).__name__}")
    return error
