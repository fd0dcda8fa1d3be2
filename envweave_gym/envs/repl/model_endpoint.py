"""A client for OpenAI-compatible chat endpoints, with retries and a deadline."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import msgspec

from envweave_gym.core.faults import EnvweaveError, InvalidArgument, shown
from envweave_gym.core.secret_reference import Secret, check_reference, secret_at

DEFAULT_MODEL = "Qwen/Qwen3-Coder-480B-A35B-Instruct"
Chat = list[dict[str, str]]
"""Type of a list of messages, each a dict with ``role`` and ``content``."""

_URL = re.compile(r"https?://[^\s@?#]+")
_BUSY = frozenset({408, 425, 429})
"""HTTP statuses below 500 after which another attempt is made."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 20.0
"""Seconds of the pause after the first attempt, which doubles after each, and the limit of that pause."""
_MAX_REPLY_BYTES = 8 << 20
_SHORTEST_KEY = 16
"""Length in characters from which a key is hidden in replies.

A shorter one, such as ``none`` for servers that accept any key, is not secret and may be a word of the reply."""
_LONGEST_QUOTE = 300
"""Limit of characters that are quoted from an endpoint's error."""


class SubcallFailed(EnvweaveError):
    """Raised when a sub-call fails; the program is shown the text, which contains no secret."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An OpenAI-compatible endpoint, and the parameters of requests to it."""

    base_url: str
    """The URL of the endpoint without ``/chat/completions``."""
    model: str = DEFAULT_MODEL
    """The name of the model, unless a call names another."""
    api_key: str | None = None
    """The reference to the key, ``env:NAME`` or ``file:PATH``; ``None`` if the endpoint needs no key."""
    max_tokens: int = 2048
    temperature: float = 0.7
    deadline: float = 120.0
    """The seconds within which a reply must come, including all attempts and pauses."""
    attempts: int = 4
    """The limit of attempts if the endpoint is busy or does not answer."""

    def __post_init__(self) -> None:
        if not _URL.fullmatch(self.base_url):
            # the value is not shown, as a URL with a user or a query may contain a secret
            raise InvalidArgument(
                "base_url= must be a URL like 'http://host:port/v1'; give the key as api_key='env:NAME'"
            )
        check_reference("api_key=", self.api_key)
        if not 0 < self.deadline <= 86_400 or not 1 <= self.attempts <= 100:
            raise InvalidArgument(
                f"deadline={self.deadline:g} must be a number of seconds up to 86400, and "
                f"attempts={self.attempts} an int from 1 to 100"
            )

    @classmethod
    def of(cls, given: Any) -> Endpoint:
        """Return an endpoint from an ``Endpoint`` or a dict of its fields; raise ``InvalidArgument`` otherwise."""
        if isinstance(given, cls):
            return given
        try:
            return msgspec.convert(given, cls)
        except msgspec.ValidationError as error:
            # the sentence contains the field's name but not its value, which might be a secret
            known = ", ".join(cls.__struct_fields__)
            raise InvalidArgument(f"llm= is no endpoint: {error}; its fields are {known}") from None

    def chat(self, messages: Chat, model: str | None = None, secret: Secret | None = None) -> str:
        """Return the model's reply to messages; a non-empty ``secret`` is used in place of the configured key.

        Raise :class:`SubcallFailed` if no reply comes before the deadline or the endpoint refuses the request.
        """
        key = secret or secret_at(self.api_key)
        until = time.monotonic() + self.deadline
        pause, failure = _FIRST_PAUSE_S, ""
        for attempt in range(self.attempts):
            if attempt:
                time.sleep(min(pause, max(until - time.monotonic(), 0)))
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            try:
                return self._post(messages, model or self.model, key, until)
            except _Busy as error:
                failure, pause = str(error), max(pause, error.pause)
            if time.monotonic() + pause > until:
                break
        raise SubcallFailed(key.hidden_in(failure))

    def _post(self, messages: Chat, model: str, key: Secret, until: float) -> str:
        from envweave_gym.net.http import BodyTooLarge, HttpConnection

        body = {
            "model": model,
            "messages": messages,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
        }
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key.reveal()}"
        try:
            with HttpConnection(self.base_url) as connection:
                data = msgspec.json.encode(body)
                response = connection.request("POST", "/chat/completions", until, headers, data)
                text, status = response.body(_MAX_REPLY_BYTES).decode(errors="replace"), response.status
                wait = response.headers.get("Retry-After", "")
        except BodyTooLarge:
            raise SubcallFailed(
                f"{self.base_url} sent a reply of more than {_MAX_REPLY_BYTES >> 20} MB"
            ) from None
        except OSError as error:
            raise _Busy(f"{self.base_url} does not answer: {type(error).__name__}") from None
        except ValueError as error:  # a header has invalid characters
            raise SubcallFailed(f"{self.base_url} cannot be requested: {error}") from None
        if status == 200:
            return _reply_in(text, self.base_url, key)
        why = key.hidden_in(f"{self.base_url} answered with status {status}: {' '.join(text.split())}")
        if status in _BUSY or status >= 500:
            raise _Busy(why[:_LONGEST_QUOTE], float(wait) if wait.isdecimal() else 0.0)
        raise SubcallFailed(why[:_LONGEST_QUOTE])


class _Busy(Exception):
    """Raised when an attempt failed and another may succeed, after ``pause`` seconds at least."""

    def __init__(self, why: str, pause: float = 0.0) -> None:
        super().__init__(why)
        self.pause = pause


def _reply_in(text: str, url: str, key: Secret) -> str:
    try:
        reply = json.loads(text)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        raise SubcallFailed(f"{url} sent no chat completion: {shown(key.hidden_in(text))}") from None
    if not isinstance(reply, str):
        raise SubcallFailed(f"{url} sent a reply without text: {key.hidden_in(shown(reply))}")
    return reply if len(key.reveal()) < _SHORTEST_KEY else key.hidden_in(reply)
