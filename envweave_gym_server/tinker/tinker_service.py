"""All parts of the Tinker server together, and what happens at the end of a session."""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flask import current_app

from envweave_gym.core.faults import nearest
from envweave_gym_server.core.logs import trace_of
from envweave_gym_server.tinker.api_errors import BadInput, NotFound
from envweave_gym_server.tinker.checkpoints import Checkpoints
from envweave_gym_server.tinker.client_sessions import ClientSessions
from envweave_gym_server.tinker.engine import Engine
from envweave_gym_server.tinker.futures import FutureLimits, Futures
from envweave_gym_server.tinker.models.base_model import BaseModel
from envweave_gym_server.tinker.models.lora import LoraAdapter
from envweave_gym_server.tinker.provenance import SampledRecords
from envweave_gym_server.tinker.samplers import Samplers, Weights
from envweave_gym_server.tinker.training_models import TrainingModels

SWEEP_S = 15.0
_NAME = "envweave_tinker"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServiceOptions:
    """Options of the server that change what clients get."""

    deterministic: bool = False
    """Every sampling request is a batch of its own, and seeds that a client leaves out are always the same."""
    threads: int | None = None
    """Threads of torch."""
    sampler_bytes: int = 2 << 30
    """Memory of all snapshots together."""
    silent_s: float = 1800.0
    """Time without a heartbeat after which a session has ended."""
    futures: FutureLimits = field(default_factory=FutureLimits)


class TinkerService:
    """Base models, sessions, models in training, samplers, checkpoints, futures, and the engine."""

    def __init__(self, bases: Iterable[BaseModel], checkpoints: Path, options: ServiceOptions) -> None:
        """Open the folder of checkpoints; nothing runs before :meth:`start`."""
        self.bases = {base.name: base for base in bases}
        self.base_weights = {name: Weights(base) for name, base in self.bases.items()}
        self.sessions = ClientSessions(options.silent_s)
        self.models = TrainingModels()
        self.samplers = Samplers(options.sampler_bytes)
        self.checkpoints = Checkpoints(checkpoints)
        self.futures = Futures(options.futures)
        self.records = SampledRecords()
        self.engine = Engine(self.futures, joins_samples=not options.deterministic, threads=options.threads)
        self._salt = "" if options.deterministic else secrets.token_hex(8)
        self._closed = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name="tinker-sweeper", daemon=True)

    def start(self) -> None:
        """Start the threads."""
        self.engine.start()
        self._sweeper.start()

    def close(self) -> None:
        """End the threads; a pass under way ends first, and sampling at its next token."""
        self._closed.set()
        self.engine.close()
        self._sweeper.join()
        self.checkpoints.close()

    def base(self, name: str) -> BaseModel:
        """Return a base model by its name."""
        base = self.bases.get(name)
        if base is None:
            near = nearest(name, self.bases)
            raise BadInput(
                f"{name!r} is not a base model of this server{near}; it has {', '.join(self.bases)}"
            )
        return base

    def seed(self, given: int | None, *names: object) -> int:
        """Return a seed: from the client's own if there is one, else from the names of its request.

        Without ``deterministic`` the second kind differs between runs of the server.
        """
        parts = ("given", given) if given is not None else (self._salt, *names)
        return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "big")

    def load_weights(self, path: str, file: str) -> Weights:
        """Return the weights of a checkpoint, for sampling; refuse those of another ``file`` saved under its name."""
        about, tensors = self.checkpoints.load(path)
        if about.weights != file:
            raise NotFound(
                f"{path} was saved again, and the weights that this sampler was made of are gone; create another one"
            )
        base, lora = self.base(about.base_model), about.lora
        adapter = LoraAdapter(
            base.transformer.config,
            lora.rank,
            train_attn=lora.train_attn,
            train_mlp=lora.train_mlp,
            train_unembed=lora.train_unembed,
        )
        weights = {name: one for name, one in tensors.items() if not name.startswith("adam.")}
        adapter.load(weights)
        return Weights(base, adapter.snapshot())

    def end_session(self, session_id: str, ended: dict[str, Any]) -> None:
        """Mark a session as ended, and drop everything that it has in memory."""
        if self.sessions.end(session_id, ended):
            self.futures.drop_session(session_id)
            self.engine.discard(session_id)
            self._drop_memory(session_id)

    def check_open(self, session_id: str) -> None:
        """Drop what was just added to a session if it ended meanwhile, and raise :class:`NotFound`."""
        try:
            self.sessions.touch(session_id)
        except NotFound:
            self._drop_memory(session_id)
            raise

    def _drop_memory(self, session_id: str) -> None:
        self.models.drop_session(session_id)
        self.samplers.drop_session(session_id)
        self.records.drop_session(session_id)

    def _sweep(self) -> None:
        while not self._closed.wait(SWEEP_S):
            try:
                self.sweep()
            except Exception as error:  # noqa: BLE001 - the next sweep may succeed, as after a full disk
                _log.warning("sweeping failed", extra=trace_of(error))

    def sweep(self) -> None:
        """Drop what nobody needs any more: silent sessions, fetched results, expired checkpoints."""
        for session_id in self.sessions.silent():
            self.end_session(session_id, {"type": "cancelled", "detail": "no heartbeat for a long time"})
        self.futures.sweep()
        self.checkpoints.sweep()

    def attach(self, app: Any) -> None:
        """Make this the service of a Flask application."""
        app.extensions[_NAME] = self


def the_service() -> TinkerService:
    """Return the service of the current application."""
    return current_app.extensions[_NAME]
