"""Bounded memory of the chats after a port's responses, from which later requests go on by the responses' IDs."""

from __future__ import annotations

import threading

from envweave_gym.episode.message import Message

MAX_RESPONSES = 1024
MAX_BYTES = 128 << 20
"""Longest bodies of the requests and responses that the chats are made of, in all."""


class RememberedChats:
    """Chats by response; of too many the oldest are forgotten."""

    def __init__(self) -> None:
        self.chats: dict[str, tuple[Message, ...]] = {}
        """The chats, without instructions; a request may look one up while another one is added."""
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def add(self, name: str, chat: tuple[Message, ...], size: int) -> None:
        """Remember a chat; ``size`` is what its last request and response have added to it."""
        with self._lock:
            self.chats[name], self._sizes[name] = chat, size
            self._bytes += size
            while len(self.chats) > MAX_RESPONSES or (self._bytes > MAX_BYTES and len(self.chats) > 1):
                oldest = next(iter(self.chats))
                del self.chats[oldest]
                self._bytes -= self._sizes.pop(oldest)

    def clear(self) -> None:
        """Forget all chats."""
        with self._lock:
            self.chats.clear()
            self._sizes.clear()
            self._bytes = 0
