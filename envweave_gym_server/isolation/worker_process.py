"""What a child of the zygote does: own the environment of one session, and answer its frames."""

from __future__ import annotations

import faulthandler
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from envweave_gym.core import faults
from envweave_gym.core.faults import REFUSALS, EnvironmentCrashed, EnvweaveError, InvalidArgument, fault_of
from envweave_gym.sandbox.inside.kernel import confine
from envweave_gym.wire.messages import (
    Answer,
    Ask,
    Call,
    Close,
    Create,
    Created,
    Refused,
    Reset,
    Step,
    encode,
    number_of,
    read_call,
)
from envweave_gym_server.core.logs import trace_of, write_logs
from envweave_gym_server.environments.hosted_env import HostedEnv
from envweave_gym_server.isolation.channel import DONE, NOT_DONE, receive, send
from envweave_gym_server.isolation.plan import Plan
from envweave_gym_server.offers.offers import Offers, offers_of

_log = logging.getLogger(__name__)
_REHEARSALS = 10
"""After so many calls Python has changed the code of a function to be fast, and leaves its memory alone."""
KINDS = {
    name: kind
    for name, kind in vars(faults).items()
    if isinstance(kind, type) and issubclass(kind, EnvweaveError)
}
"""The exceptions that the server raises anew when making an environment has raised them here."""


def prepare(plan: Plan) -> Callable[[list[int]], None]:
    """In the zygote: import and rehearse what workers need; gives what each of them does."""
    faulthandler.enable()  # a crash tells its stack
    write_logs()
    plan.carry_out()
    _rehearse()

    def work(descriptors: list[int]) -> None:
        confine(plan.memory)
        np.random.seed(int.from_bytes(os.urandom(4)))  # what is forked has the state of the zygote
        with socket.socket(fileno=descriptors[0]) as connection:
            Worker(plan.offers).work(connection)

    return work


def _rehearse() -> None:
    """Play a little, so that what is imported and cached at first use is there before the forks are."""
    name = "envweave/Counter-v0"
    worker = Worker(offers_of([name]))
    for _ in range(_REHEARSALS):
        for call in (Create(name), Reset(1, 0), Step(2, {"delta": 1}), Ask(-2, "state"), Close(-3)):
            worker.reply(call, encode(call))


class Worker:
    """Makes the environment that the first frame asks for, and passes it the others."""

    def __init__(self, offers: Offers) -> None:
        self._offers = offers
        self._served: HostedEnv | None = None

    def work(self, connection: socket.socket) -> None:
        """Answer frames until the server closes the session, or has gone."""
        with suppress(ConnectionError):
            while True:
                frame = receive(connection)
                message = read_call(frame)
                reply, done = self.reply(message, frame)
                send(connection, (DONE if done else NOT_DONE) + reply)
        self._close()

    def reply(self, message: Call, frame: bytes) -> tuple[bytes, bool]:
        """The reply to a message, and whether it was done."""
        if isinstance(message, Create):
            return self._make(message)
        if isinstance(message, Close):
            self._close()
            return encode(Answer(message.number, None)), True
        if self._served is None:
            return encode(Refused(number_of(message), "NoSession", "the environment is closed")), False
        if not isinstance(message, Ask):
            return self._served.do(message, frame)
        return self._served.answer(message, frame), True

    def _make(self, create: Create) -> tuple[bytes, bool]:
        offer = self._offers.find(create.env_id)
        try:
            self._served = offer.serve(create)
        except REFUSALS as error:
            kind = next(kind for kind in (*type(error).__mro__, InvalidArgument) if kind in KINDS.values())
            return encode(Refused(0, kind.__name__, str(error))), False
        except BaseException as error:  # noqa: BLE001 - an environment may raise anything
            _log.warning("environment not made", extra={"env": offer.name, **trace_of(error)})
            told = f"{offer.name} cannot be made: {fault_of(error).message}"
            refused = Refused(0, EnvironmentCrashed.__name__, told, cause=type(error).__name__)
            return encode(refused), False
        return encode(Created(0)), True

    def _close(self) -> None:
        served, self._served = self._served, None
        if served is not None:
            try:
                served.close()
            except BaseException as error:  # noqa: BLE001 - the session is over all the same
                _log.warning("environment did not close", extra=trace_of(error))
