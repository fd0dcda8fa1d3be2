"""Replies of a policy: the SDK's sampling client with fixed settings, and requests shared by a group."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from envweave_gym.core.faults import EnvweaveError, need

SEED_BITS = 31
"""Bits of a seed: it fits a C int, which samplers and environments require."""


def seed_of(*parts: object) -> int:
    """Return a seed that depends on ``parts`` alone, the same on every machine."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - SEED_BITS)


@dataclass(frozen=True)
class Reply:
    """The tokens of a sampled reply, with their log-probabilities under the policy that sampled them."""

    tokens: list[int]
    logprobs: list[float]


class Sampler:
    """Sampling from one version of a policy; safe for threads."""

    def __init__(
        self,
        client: Any,
        wait: Callable[[Any], Any],
        *,
        max_tokens: int,
        stop: Sequence[int],
        temperature: float = 1.0,
        context: int | None = None,
    ) -> None:
        """Sample with ``client``, a ``tinker.SamplingClient``; ``wait`` returns the result of one of its futures.

        ``context`` is the longest prompt with its reply, in tokens; ``None`` if it is not known.
        """
        self._client, self._wait = client, wait
        self._types = need("tinker.types", "tinker", "training with Tinker")
        self._max_tokens, self._context = max_tokens, context
        self._stop, self._temperature = list(stop), temperature

    def submit(self, prompt: Sequence[int], count: int, seed: int) -> Any:
        """Send a request for ``count`` replies, and return its future."""
        if self._context is not None and len(prompt) + self._max_tokens > self._context:
            raise PromptTooLong(
                f"a prompt of {len(prompt)} tokens and --max-tokens {self._max_tokens} do not fit the model's "
                f"context of {self._context} tokens"
            )
        settings = self._types.SamplingParams(
            max_tokens=self._max_tokens, seed=seed, stop=self._stop, temperature=self._temperature
        )
        return self._client.sample(self._types.ModelInput.from_ints(list(prompt)), count, settings)

    def replies(self, future: Any) -> list[Reply]:
        """Wait for the replies of a request."""
        sequences = self._wait(future).sequences
        return [Reply(list(one.tokens), [float(value) for value in one.logprobs]) for one in sequences]

    def logprobs(self, prompt: Sequence[int], reply: Sequence[int]) -> Any:
        """Send a request for the log-probabilities of ``reply`` after ``prompt``; return its future."""
        return self._client.compute_logprobs(self._types.ModelInput.from_ints([*prompt, *reply]))


class PromptTooLong(EnvweaveError):
    """Raised for a prompt that leaves no room for a reply; the episode ends there."""


class SharedRequest:
    """The first request of a group: its members that have the same prompt share one request, each with a reply.

    A member with another prompt, as in an environment that ignores its seed, gets a request of its own.
    """

    def __init__(self, count: int, seed: int) -> None:
        self._count, self._seed = count, seed
        self._lock = threading.Lock()
        self._prompt: tuple[int, ...] | None = None
        self._future: Any = None

    def reply(self, sampler: Sampler, prompt: Sequence[int], member: int, own_seed: int) -> Reply:
        """Return the reply of a member of the group."""
        with self._lock:
            if self._prompt is None:
                self._future = sampler.submit(prompt, self._count, self._seed)
                self._prompt = tuple(prompt)
            future = self._future if self._prompt == tuple(prompt) else None
        if future is None:
            return sampler.replies(sampler.submit(prompt, 1, own_seed))[0]
        try:
            return sampler.replies(future)[member]
        except Exception:
            self._forget(future)
            raise

    def _forget(self, failed: Any) -> None:
        """Let the next attempt send the request again."""
        with self._lock:
            if self._future is failed:
                self._prompt = self._future = None


class PromptRequests:
    """Requests of a group in which prompts come back: each prompt is one request, with a reply for each member.

    This saves requests in small games. Elsewhere prompts differ after the first turn, and replies would be wasted.
    """

    def __init__(self, count: int, *key: object) -> None:
        """``key`` has the first parts of the seeds."""
        self._count, self._key = count, key
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, tuple[int, ...]], SharedRequest] = {}

    def reply(self, agent: str, sampler: Sampler, prompt: Sequence[int], member: int) -> Reply:
        """Return the reply of a member of the group to this prompt of an agent."""
        seed = seed_of(*self._key, agent, tuple(prompt))
        with self._lock:
            found = self._requests.setdefault((agent, tuple(prompt)), SharedRequest(self._count, seed))
        return found.reply(sampler, prompt, member, seed)
