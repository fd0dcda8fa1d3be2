"""One worker thread that runs operations in the order in which they were submitted.

Sampling requests of the same weights that wait together are one batch. Weights of a sampler do not change, so a
sampling request may run before operations that were submitted before it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch

from envweave_gym_server.core.logs import trace_of
from envweave_gym_server.tinker.api_errors import ApiError
from envweave_gym_server.tinker.futures import Future, Futures, Reply, failure
from envweave_gym_server.tinker.models.decoding import SampleRequest, SampleResult, sample
from envweave_gym_server.tinker.samplers import Weights

LARGEST_BATCH = 512
"""Sequences in one batch."""
GATHER_S, LONGEST_GATHER_S = 0.002, 0.02
"""A batch starts when no request has come for the first time span, at the latest after the second."""
_CANCELLED = failure("the request was cancelled", "user")
_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Operation:
    """A call on a model, such as a training pass."""

    future: Future
    run: Callable[[], Reply]


@dataclass(eq=False, slots=True)
class Sampling:
    """A sampling request, and the function that encodes its result."""

    future: Future
    weights: Weights
    request: SampleRequest
    encode: Callable[[SampleResult], Reply]


class Engine:
    """Queue and worker thread. With ``joins_samples=False`` every sampling request is a batch of its own."""

    def __init__(self, futures: Futures, *, joins_samples: bool = True, threads: int | None = None) -> None:
        self._futures, self._joins_samples, self._threads = futures, joins_samples, threads
        self._queue: deque[Operation | Sampling] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._worker = threading.Thread(target=self._work, name="tinker-engine", daemon=True)

    def start(self) -> None:
        """Start the worker thread."""
        self._worker.start()

    def close(self) -> None:
        """End the worker thread after the operation that it runs now; sampling ends at its next token."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._worker.join()

    def submit(self, operation: Operation | Sampling) -> None:
        """Append an operation to the queue."""
        with self._changed:
            self._queue.append(operation)
            self._changed.notify_all()

    def discard(self, session_id: str) -> None:
        """Forget the operations of a session that has ended, with the rows that they hold."""
        with self._changed:
            self._queue = deque(one for one in self._queue if one.future.session_id != session_id)

    def _work(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        while True:
            batch = self._take()
            if not batch:
                return
            first = batch[0]
            if isinstance(first, Operation):
                self._finish(first, first.run)
            else:
                self._sample(cast("list[Sampling]", batch))

    def _take(self) -> list[Operation | Sampling]:
        """Remove the next batch from the queue; it is empty when the engine was closed."""
        with self._changed:
            while True:
                while not self._queue and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return []
                if self._joins_samples and all(isinstance(one, Sampling) for one in self._queue):
                    self._gather()
                batch = self._next_batch()
                if batch:
                    return batch

    def _gather(self) -> None:
        """Wait a moment for more sampling requests, which are cheaper together."""
        latest = time.monotonic() + LONGEST_GATHER_S
        count = 0
        while count < len(self._queue) < LARGEST_BATCH and time.monotonic() < latest and not self._closed:
            count = len(self._queue)
            self._changed.wait(GATHER_S)

    def _next_batch(self) -> list[Operation | Sampling]:
        """Remove the first operation that is still wanted, and the sampling requests that can join it."""
        while self._queue and self._queue[0].future.cancelled:
            self._futures.finish(self._queue.popleft().future, _CANCELLED)
        if not self._queue:
            return []
        first = self._queue.popleft()
        batch = [first]
        if not (self._joins_samples and isinstance(first, Sampling)):
            return batch
        count, others = first.request.count, deque[Operation | Sampling]()
        for one in self._queue:
            joins = isinstance(one, Sampling) and one.weights is first.weights and not one.future.cancelled
            if joins and count + cast("Sampling", one).request.count <= LARGEST_BATCH:
                count += cast("Sampling", one).request.count
                batch.append(one)
            else:
                others.append(one)
        self._queue = others
        return batch

    def _sample(self, batch: list[Sampling]) -> None:
        """Run a batch; if it fails, run its requests one by one, so that only the faulty ones fail.

        A request that is cancelled meanwhile ends at its next token, and so do all when the engine is closed, which
        leaves them without a reply: their clients see that the server has gone.
        """
        weights = batch[0].weights
        try:
            results = sample(
                weights.base.transformer,
                weights.adapter,
                [one.request for one in batch],
                weights.base.decode,
                lambda index: not (self._closed or batch[index].future.cancelled),
            )
        except Exception as error:  # noqa: BLE001 - a client gets it as its failed request
            if len(batch) == 1:
                self._fail(batch[0].future, error)
                return
            _log.warning("a batch failed; its requests run one by one", extra=trace_of(error))
            for one in batch:
                self._sample([one])
            return
        if self._closed:
            return
        for one, result in zip(batch, results, strict=True):
            if one.future.cancelled:
                self._futures.finish(one.future, _CANCELLED)
                continue
            self._finish(one, lambda one=one, result=result: one.encode(result))

    def _finish(self, operation: Operation | Sampling, run: Callable[[], Reply]) -> None:
        try:
            reply = run()
        except Exception as error:  # noqa: BLE001 - a client gets it as its failed request
            self._fail(operation.future, error)
        else:
            self._futures.finish(operation.future, reply)

    def _fail(self, future: Future, error: Exception) -> None:
        """Give the client a failed future: the SDK raises ``RequestFailedError`` and does not repeat the request."""
        is_users = isinstance(error, ValueError | ApiError)
        detail = str(error) if is_users else f"the server failed ({type(error).__name__}: {error})"
        extra = {"request_id": future.request_id, "detail": detail}
        _log.warning("failed", extra=extra if is_users else {**extra, **trace_of(error)})
        self._futures.finish(future, failure(detail, "user" if is_users else "server"))
