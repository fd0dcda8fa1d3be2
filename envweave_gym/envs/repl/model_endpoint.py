"""A client of OpenAI-compatible chat endpoints, with retries and a deadline."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import msgspec

from envweave_gym.core.faults import EnvweaveError, InvalidArgument, shown
from envweave_gym.envs.repl.secret import Secret, check_reference, secret_at

DEFAULT_MODEL = "Qwen/Qwen3-Coder-480B-A35B-Instruct"
Chat = list[dict[str, str]]
"""Messages with ``role`` and ``content``."""

_URL = re.compile(r"https?://[^\s@?#]+")
_BUSY = frozenset({408, 425, 429})
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 20.0
"""The pause after the first attempt, which doubles with each, and its limit."""
_LARGEST_REPLY = 8 << 20
_SHORTEST_KEY = 16
"""The fewest characters of a key that is hidden in replies. A shorter one, such as ``none`` for servers that
take any, is no secret and may be a word of the reply."""
_LONGEST_QUOTE = 300
"""The most characters of an endpoint's error that are passed on."""


class SubcallFailed(EnvweaveError):
    """A sub-call failed; the text is for the program and contains no secret."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An OpenAI-compatible endpoint and the parameters of requests to it."""

    base_url: str
    """The URL before ``/chat/completions``."""
    model: str = DEFAULT_MODEL
    """The default model."""
    api_key: str | None = None
    """A reference to the key: ``env:NAME`` or ``file:PATH``."""
    max_tokens: int = 2048
    temperature: float = 0.7
    deadline: float = 120.0
    """Seconds for a reply, with all attempts."""
    attempts: int = 4
    """The most attempts at a busy endpoint."""

    def __post_init__(self) -> None:
        if not _URL.fullmatch(self.base_url):
            # what is no plain URL may hold a secret, so it is not shown
            raise InvalidArgument(
                "base_url= is to be a URL like 'http://host:port/v1'; a key is named by api_key='env:NAME'"
            )
        check_reference("api_key=", self.api_key)
        if not 0 < self.deadline <= 86_400 or not 1 <= self.attempts <= 100:
            raise InvalidArgument(
                f"deadline={self.deadline:g} is to be a number of seconds up to 86400, and "
                f"attempts={self.attempts} a number from 1 to 100"
            )

    @classmethod
    def of(cls, given: Any) -> Endpoint:
        """Parse the description of an endpoint."""
        if isinstance(given, cls):
            return given
        try:
            return msgspec.convert(given, cls)
        except msgspec.ValidationError as error:
            # the sentence names the field and no value, which might be a secret
            known = ", ".join(cls.__struct_fields__)
            raise InvalidArgument(f"llm= is no endpoint: {error}; it takes {known}") from None

    def chat(self, messages: Chat, model: str | None = None, secret: Secret | None = None) -> str:
        """Return the reply to messages; ``secret`` replaces the key."""
        key = secret or secret_at(self.api_key)
        until = time.monotonic() + self.deadline
        pause, failure = _PAUSE_S, ""
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
                text, status = response.body(_LARGEST_REPLY).decode(errors="replace"), response.status
                wait = response.headers.get("Retry-After", "")
        except BodyTooLarge:
            raise SubcallFailed(
                f"{self.base_url} sent a reply of more than {_LARGEST_REPLY >> 20} MB"
            ) from None
        except OSError as error:
            raise _Busy(f"{self.base_url} does not answer: {type(error).__name__}") from None
        except ValueError as error:  # of a header
            raise SubcallFailed(f"{self.base_url} cannot be asked: {error}") from None
        if status == 200:
            return _reply_in(text, self.base_url, key)
        why = key.hidden_in(f"{self.base_url} answered with status {status}: {' '.join(text.split())}")
        if status in _BUSY or status >= 500:
            raise _Busy(why[:_LONGEST_QUOTE], float(wait) if wait.isdecimal() else 0.0)
        raise SubcallFailed(why[:_LONGEST_QUOTE])


class _Busy(Exception):
    """An attempt failed, and another may succeed."""

    def __init__(self, why: str, pause: float = 0.0) -> None:
        super().__init__(why)
        self.pause = pause


def _reply_in(text: str, url: str, key: Secret) -> str:
    try:
        reply = json.loads(text)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        raise SubcallFailed(f"{url} sent no reply of a chat model: {shown(key.hidden_in(text))}") from None
    if not isinstance(reply, str):
        raise SubcallFailed(f"{url} sent a reply without text: {key.hidden_in(shown(reply))}")
    return reply if len(key.reveal()) < _SHORTEST_KEY else key.hidden_in(reply)
