"""Sampled sequences that training requests refer to, for the loss ``stable_reinforce``.

A datum of that loss says of each of its tokens from which sampled sequence it comes. The server checks that these
spans repeat the tokens that it has sampled.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envweave_gym.core.faults import shown
from envweave_gym_server.tinker.api_errors import BadInput

Tokens = NDArray[np.int32]
LARGEST_RECORD = 256 << 20
"""Bytes of recorded tokens, after which the oldest sequences are forgotten."""


@dataclass(frozen=True, slots=True)
class Span:
    """A run of tokens: those ``[offset, offset + length)`` of a sequence's prompt or of its sampled tokens."""

    sequence_id: str
    offset: int
    length: int
    is_sampled: bool


@dataclass(frozen=True, slots=True)
class _Record:
    session_id: str
    prompt: Tokens
    sampled: Tokens

    @property
    def size(self) -> int:
        return self.prompt.nbytes + self.sampled.nbytes


class SampledRecords:
    """Prompts and tokens of sampled sequences, by the id that the server gave each."""

    def __init__(self, largest: int = LARGEST_RECORD) -> None:
        self._largest, self._bytes = largest, 0
        self._lock = threading.Lock()
        self._by_id: OrderedDict[str, _Record] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, sequence_id: str, session_id: str, prompt: Sequence[int], sampled: Sequence[int]) -> None:
        """Record a sequence, and forget the oldest ones over the limit."""
        record = _Record(session_id, np.asarray(prompt, np.int32), np.asarray(sampled, np.int32))
        with self._lock:
            before = self._by_id.pop(sequence_id, None)
            self._by_id[sequence_id] = record
            self._bytes += record.size - (0 if before is None else before.size)
            while self._bytes > self._largest and len(self._by_id) > 1:
                self._bytes -= self._by_id.popitem(last=False)[1].size

    def drop_session(self, session_id: str) -> None:
        """Forget the sequences of a session that has ended."""
        with self._lock:
            for key in [key for key, one in self._by_id.items() if one.session_id == session_id]:
                self._bytes -= self._by_id.pop(key).size

    def check(
        self, spans: Sequence[Span], tokens: Sequence[int], session_id: str, *, compares_prompts: bool
    ) -> None:
        """Raise :class:`BadInput` unless the spans tile ``tokens`` and repeat what was sampled in this session."""
        position = 0
        for span in spans:
            record = self._by_id.get(span.sequence_id)
            if record is None or record.session_id != session_id:
                raise BadInput(
                    f"sequence {shown(span.sequence_id)} was not recorded in this session; sample it with "
                    "record_stability_info=True, and train on it before the server is restarted"
                )
            source = record.sampled if span.is_sampled else record.prompt
            there = source[span.offset : span.offset + span.length]
            here = np.asarray(tokens[position : position + span.length], np.int32)
            differs = len(there) != span.length or (
                (span.is_sampled or compares_prompts) and not np.array_equal(there, here)
            )
            if differs:
                raise BadInput(
                    f"the span at token {position} does not repeat sequence {shown(span.sequence_id)}"
                )
            position += span.length
        if position != len(tokens):
            raise BadInput(f"the provenance spans cover {position} of {len(tokens)} tokens")
