"""A client of OpenAI-compatible endpoints, which may be busy, slow or wrong."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import msgspec

from envweave_gym.core.faults import EnvweaveError, InvalidArgument, shown
from envweave_gym.envs.repl.hidden_secrets import Secret, check_reference, secret_at

HUGGING_FACE = "https://router.huggingface.co/v1"
"""The endpoint of Hugging Face's inference."""
DEFAULT_MODEL = "Qwen/Qwen3-Coder-480B-A35B-Instruct"
Chat = list[dict[str, str]]
"""Messages, each with ``role`` and ``content``."""

_URL = re.compile(r"https?://[^\s@?#]+")
_BUSY = frozenset({408, 425, 429})
_PAUSE, _LONGEST_PAUSE = 0.5, 20.0
_LARGEST = 8 << 20
_SHORTEST_KEY = 16
"""Keys have at least this many characters. A shorter one, as ``none`` for servers that take any, is no secret
and may well be a word of a reply."""
_LONGEST_QUOTE = 300
"""The longest part of an endpoint's error that is passed on, in characters."""


class SubcallFailed(EnvweaveError):
    """A sub-call has no answer; the text is for the program, and has no secret in it."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An OpenAI-compatible endpoint, and what is asked of it."""

    base_url: str
    """Up to what comes before ``/chat/completions``."""
    model: str = DEFAULT_MODEL
    """The default model."""
    api_key: str | None = None
    """Where the key is: ``env:NAME`` or ``file:PATH``."""
    max_tokens: int = 2048
    temperature: float = 0.7
    deadline: float = 120.0
    """How many seconds an answer may take, with all attempts."""
    attempts: int = 4
    """How often a busy endpoint is asked at most."""

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
        """The endpoint that a dictionary describes."""
        if isinstance(given, cls):
            return given
        try:
            return msgspec.convert(given, cls)
        except msgspec.ValidationError as error:
            # the sentence names the field and no value, which might be a secret
            known = ", ".join(cls.__struct_fields__)
            raise InvalidArgument(f"llm= is no endpoint: {error}; it takes {known}") from None

    def chat(self, messages: Chat, model: str | None = None, secret: Secret | None = None) -> str:
        """The reply to messages; ``secret`` stands for the key where it is given."""
        key = secret or secret_at(self.api_key)
        until = time.monotonic() + self.deadline
        pause, failure = _PAUSE, ""
        for attempt in range(self.attempts):
            if attempt:
                time.sleep(min(pause, max(until - time.monotonic(), 0)))
                pause = min(2 * pause, _LONGEST_PAUSE)
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
                text, status = response.body(_LARGEST).decode(errors="replace"), response.status
                wait = response.headers.get("Retry-After", "")
        except BodyTooLarge:
            raise SubcallFailed(f"{self.base_url} sent a reply of more than {_LARGEST >> 20} MB") from None
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
    """An attempt has failed, and another may not."""

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
