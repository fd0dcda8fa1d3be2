"""Samplers: weights that a client samples from, the base model's, a checkpoint's, or a snapshot of training.

The weights of a sampler do not change, but for ``inflight`` samplers of a training model, which share the newest.
Snapshots are kept in memory up to a limit, after which the session that has most loses its least recently used ones.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from envweave_gym_server.tinker.api_errors import NotFound
from envweave_gym_server.tinker.models.base_model import BaseModel
from envweave_gym_server.tinker.models.lora import FrozenAdapter

MAX_SAMPLERS = 10_000


@dataclass(eq=False, slots=True)
class Weights:
    """A base model with an adapter, or without one; requests of the same object can be one batch."""

    base: BaseModel
    adapter: FrozenAdapter | None = None

    @property
    def size(self) -> int:
        """Bytes of the adapter."""
        return 0 if self.adapter is None else self.adapter.size


@dataclass(eq=False)
class Sampler:
    """A sampling session of a client."""

    sampler_id: str
    session_id: str
    base: BaseModel
    weights: Weights | None
    """``None`` if they were dropped and can be loaded again."""
    model_path: str | None = None
    load: Callable[[], Weights] | None = None
    clones: int = 0
    """Copies of its client in other processes, which number their requests from ``clone * 1_000_000_000`` on."""

    @property
    def size(self) -> int:
        """Bytes of memory that end with this sampler."""
        return 0 if self.weights is None else self.weights.size


class Samplers:
    """The table of samplers, the last used one at its end."""

    def __init__(self, largest: int = 2 << 30, most: int = MAX_SAMPLERS) -> None:
        """``largest`` is the limit of the adapters' bytes together, ``most`` that of samplers."""
        self._largest, self._most = largest, most
        self._lock = threading.Lock()
        self._by_id: OrderedDict[str, Sampler] = OrderedDict()
        self._inflight: dict[str, Weights] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, sampler_id: str) -> bool:
        return sampler_id in self._by_id

    def add(self, sampler: Sampler) -> Sampler:
        """Add a sampler, or return the one that has its id already; drop old ones over the limit."""
        with self._lock:
            known = self._by_id.setdefault(sampler.sampler_id, sampler)
            self._by_id.move_to_end(sampler.sampler_id)
            self._drop_over_limits()
            return known

    def add_inflight(self, sampler: Sampler, model_id: str) -> Sampler:
        """Add a sampler with the newest weights of a model, which all its ``inflight`` samplers get."""
        with self._lock:
            shared = self._inflight.setdefault(model_id, Weights(sampler.base))
            if sampler.weights is not None:
                shared.adapter = sampler.weights.adapter
            sampler.weights = shared
        return self.add(sampler)

    def find(self, sampler_id: str) -> Sampler:
        """Return a sampler and note its use; raise :class:`NotFound`."""
        with self._lock:
            sampler = self._by_id.get(sampler_id)
            if sampler is not None:
                self._by_id.move_to_end(sampler_id)
                return sampler
        raise NotFound(
            f"sampler {sampler_id} is not known: its session has ended, the server was restarted, or newer "
            "snapshots took its memory; save weights under a name to keep them"
        )

    def join(self, sampler_id: str) -> int:
        """Return the number of another copy of a sampler's client, from 1 on."""
        sampler = self.find(sampler_id)
        with self._lock:
            sampler.clones += 1
            return sampler.clones

    def weights_of(self, sampler: Sampler) -> Weights:
        """Return a sampler's weights, from their checkpoint if they were dropped."""
        weights = sampler.weights
        if weights is None:
            if sampler.load is None:
                raise NotFound(f"sampler {sampler.sampler_id} has no weights; create another one")
            weights = sampler.load()
            with self._lock:
                sampler.weights = weights
                self._drop_over_limits()
        return weights

    def drop_session(self, session_id: str) -> None:
        """Drop the samplers of a session that has ended."""
        with self._lock:
            for sampler_id, sampler in list(self._by_id.items()):
                if sampler.session_id == session_id:
                    del self._by_id[sampler_id]
            for model_id in [key for key in self._inflight if key.startswith(f"{session_id}:")]:
                del self._inflight[model_id]

    def of_session(self, session_id: str) -> list[str]:
        """Return the ids of a session's samplers."""
        with self._lock:
            return [key for key, sampler in self._by_id.items() if sampler.session_id == session_id]

    def _drop_over_limits(self) -> None:
        """Drop samplers over the limit of their number, and weights over that of their bytes.

        Weights that can be loaded again are dropped without their sampler.
        """
        while len(self._by_id) > self._most and (sampler := self._next_to_drop(lambda _: 1)) is not None:
            del self._by_id[sampler.sampler_id]
        total = sum(sampler.size for sampler in self._by_id.values())
        while total > self._largest and (sampler := self._next_to_drop(lambda one: one.size)) is not None:
            total -= sampler.size
            if sampler.load is None:
                del self._by_id[sampler.sampler_id]
            sampler.weights = None

    def _next_to_drop(self, cost_of: Callable[[Sampler], int]) -> Sampler | None:
        """Return the least recently used sampler of the session whose samplers cost most together.

        So a client that makes many snapshots loses its own, and not those of others. The last used one stays.
        """
        costs: Counter[str] = Counter()
        for sampler in self._by_id.values():
            costs[sampler.session_id] += cost_of(sampler)
        candidates = [sampler for sampler in list(self._by_id.values())[:-1] if cost_of(sampler)]
        # Of equal values max() returns the first, which was not used for the longest time.
        return max(candidates, key=lambda sampler: costs[sampler.session_id], default=None)
