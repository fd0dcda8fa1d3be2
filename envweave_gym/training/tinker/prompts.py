"""Prompts as tokens: chat messages by the tokenizer's template or as plain text, extended without re-tokenising.

The tokens of a conversation only grow: a reply is appended as it was sampled, and of the next prompt only the text
after that reply is tokenised. If the rendered history does not begin with what the row contains, as when a template
drops earlier reasoning, the conversation begins a new row.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from envweave_gym.chat import ChatHistory, ChatMessage, text_of
from envweave_gym.core.faults import InvalidArgument, need, shown
from envweave_gym.training.tinker.datums import TokenRow

KINDS = ("chat", "plain")
_PLACEHOLDER = "\u2402reply\u2402"
_CACHED_TEXTS = 1024
"""Texts whose tokens are cached, in 4 bytes each: 50 MB for prompts of 12,000 tokens."""


class Prompts:
    """A tokenizer with one way to write messages as text; safe for threads."""

    def __init__(self, tokenizer: Any, kind: str = "chat", stop: str = "") -> None:
        """Choose ``kind`` "chat" or "plain"; ``stop`` ends a reply, besides the end of a turn or of a text."""
        if kind not in KINDS:
            raise InvalidArgument(f"--prompt {shown(kind)} is unknown; give {' or '.join(KINDS)}")
        if kind == "chat" and not getattr(tokenizer, "chat_template", None):
            raise InvalidArgument("the tokenizer of this model has no chat template; give --prompt plain")
        if kind == "chat":
            need("jinja2", "tinker", "rendering a chat template")
        self._tokenizer, self._kind, self._stop = tokenizer, kind, stop
        # The fast tokenizers raise "Already borrowed" if two threads use one at once.
        self._lock = threading.Lock()
        self._encode = lru_cache(_CACHED_TEXTS)(self._encode_uncached)
        self.end = self._find_end()
        """The token that ends a reply; empty for plain prompts without ``stop``."""
        self.stop_tokens = sorted({tokenizer.eos_token_id, *self.end} - {None})

    def render(self, messages: Sequence[ChatMessage], *, reply_next: bool = True) -> str:
        """Return the messages as one text, at whose end the model replies."""
        if self._kind == "plain":
            return _plain(messages)
        with self._lock:
            return self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=reply_next
            )

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without tokens that the tokenizer would add around it."""
        return list(self._encode(text))

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, special ones included."""
        with self._lock:
            return self._tokenizer.decode(list(tokens), skip_special_tokens=False)

    def reply_text(self, tokens: Sequence[int]) -> str:
        """Return the text of a reply, without the token or text that ended it."""
        ended = bool(tokens) and tokens[-1] in self.stop_tokens
        text = self.decode(tokens[:-1] if ended else tokens)
        return text.partition(self._stop)[0] if self._stop else text

    def _encode_uncached(self, text: str) -> array[int]:
        with self._lock:
            return array("i", self._tokenizer.encode(text, add_special_tokens=False))

    def _find_end(self) -> list[int]:
        """Return the token that ``stop`` is, or else that follows a reply in the template."""
        if self._stop:
            tokens = self.encode(self._stop)
            if len(tokens) != 1:
                raise InvalidArgument(
                    f"--stop {shown(self._stop)} is {len(tokens)} tokens of this model; give one"
                )
            return tokens
        if self._kind == "plain":
            return []
        exchange = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _PLACEHOLDER}]
        after = self.render(exchange, reply_next=False).rpartition(_PLACEHOLDER)[2]
        return self.encode(after.strip())[:1]


class Conversation:
    """The chat of one role in an episode as token rows for training."""

    def __init__(self, prompts: Prompts, history: ChatHistory) -> None:
        self._prompts, self.history = prompts, history
        self.rows: list[TokenRow] = []
        self._text = ""
        """The text of the last row, as far as it is tokenised."""

    def prompt(self) -> list[int]:
        """Return the tokens that the model continues: the last row with the new messages, or a new row."""
        text = self._prompts.render(self.history.messages)
        if self.rows and text.startswith(self._text):
            added = text[len(self._text) :]
        else:
            self.rows.append(TokenRow())
            added = text
        self.rows[-1].add_prompt(self._prompts.encode(added))
        self._text = text
        return list(self.rows[-1].tokens)

    def answer(self, tokens: Sequence[int], logprobs: Sequence[float]) -> str:
        """Append a sampled reply to the row, and return its text, which belongs into the history."""
        self.rows[-1].add_reply(tokens, logprobs)
        self._text += self._prompts.decode(tokens)
        return self._prompts.reply_text(tokens)


def _plain(messages: Sequence[ChatMessage]) -> str:
    """Join the contents: a reply follows its prompt directly, every other message begins on a line of its own."""
    text = ""
    for message in messages:
        if text and message["role"] != "assistant" and not text.endswith("\n"):
            text += "\n"
        text += text_of(message)
    return text
