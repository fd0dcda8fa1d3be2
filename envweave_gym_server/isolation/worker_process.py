"""Program of a worker process: makes the environment of one session, and answers the frames sent to it."""

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
from envweave_gym.net.framed_socket import FramedSocket
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
from envweave_gym_server.isolation.worker_setup import WorkerSetup
from envweave_gym_server.offers.offers import Offers, offers_of

_log = logging.getLogger(__name__)
DONE, NOT_DONE = b"\1", b"\0"
"""First byte of a worker's reply: whether the call was executed."""
_REHEARSALS = 10
"""Number of calls after which Python has specialised a function's code and writes to it no more.

Memory that is not written to stays shared between the zygote and its forks.
"""
KINDS = {
    name: kind
    for name, kind in vars(faults).items()
    if isinstance(kind, type) and issubclass(kind, EnvweaveError)
}
"""Exception classes, by name, that the server raises again if a constructor raised them in a worker."""


def prepare(setup: WorkerSetup) -> Callable[[list[int]], None]:
    """In the zygote: import the code that workers need and play a few steps; return the main function of a worker."""
    faulthandler.enable()  # a crash prints its stack
    write_logs()
    setup.apply()
    _rehearse()

    def work(descriptors: list[int]) -> None:
        confine(setup.memory)
        np.random.seed(int.from_bytes(os.urandom(4)))  # a fork has the state of the zygote
        peer = FramedSocket(socket.socket(fileno=descriptors[0]))
        try:
            WorkerLoop(setup.offers).run(peer)
        finally:
            peer.close()

    return work


def _rehearse() -> None:
    """Play a few steps in the zygote, so that all forks share the imports and caches of the first use."""
    name = "envweave/Counter-v0"
    worker = WorkerLoop(offers_of([name]))
    for _ in range(_REHEARSALS):
        for call in (Create(name), Reset(1, 0), Step(2, {"delta": 1}), Ask(-2, "state"), Close(-3)):
            worker.reply(call, encode(call))


class WorkerLoop:
    """Main loop of a worker: makes the environment that the first frame requests, then executes further frames."""

    def __init__(self, offers: Offers) -> None:
        self._offers = offers
        self._env: HostedEnv | None = None

    def run(self, peer: FramedSocket) -> None:
        """Answer frames until the server closes the connection."""
        with suppress(ConnectionError):
            while True:
                frame = peer.receive()
                reply, done = self.reply(read_call(frame), frame)
                peer.send((DONE if done else NOT_DONE) + reply)
        self._close()

    def reply(self, message: Call, frame: bytes) -> tuple[bytes, bool]:
        """Return the reply to a message, and whether the call was executed."""
        if isinstance(message, Create):
            return self._make(message)
        if isinstance(message, Close):
            self._close()
            return encode(Answer(message.number, None)), True
        if self._env is None:
            return encode(Refused(number_of(message), "NoSession", "the environment is closed")), False
        if not isinstance(message, Ask):
            return self._env.do(message, frame)
        return self._env.answer(message, frame), True

    def _make(self, create: Create) -> tuple[bytes, bool]:
        offer = self._offers.find(create.env_id)
        try:
            self._env = offer.serve(create)
        except REFUSALS as error:
            kind = next(kind for kind in (*type(error).__mro__, InvalidArgument) if kind in KINDS.values())
            return encode(Refused(0, kind.__name__, str(error))), False
        except BaseException as error:  # noqa: BLE001 - an environment may raise anything
            _log.warning("environment not made", extra={"env": offer.name, **trace_of(error)})
            message = f"{offer.name} cannot be made: {fault_of(error).message}"
            refused = Refused(0, EnvironmentCrashed.__name__, message, cause=type(error).__name__)
            return encode(refused), False
        return encode(Created(0)), True

    def _close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            try:
                env.close()
            except BaseException as error:  # noqa: BLE001 - the session is over all the same
                _log.warning("environment did not close", extra=trace_of(error))
