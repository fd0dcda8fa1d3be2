"""Finds the codec of a request by its path, and writes lists of models and errors in each API's form."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, unquote

import msgspec

from envweave_gym.programs.dialects.anthropic_messages import AnthropicMessages
from envweave_gym.programs.dialects.chat_completions import ChatCompletions
from envweave_gym.programs.dialects.dialect import Dialect, Target
from envweave_gym.programs.dialects.gemini import Gemini
from envweave_gym.programs.dialects.legacy_completions import LegacyCompletions
from envweave_gym.programs.dialects.responses import Responses

_ALL: tuple[Dialect, ...] = (
    ChatCompletions(),
    Responses(),
    AnthropicMessages(),
    Gemini(),
    LegacyCompletions(),
)
DIALECTS: Mapping[str, Dialect] = {one.name: one for one in _ALL}

# A base URL may end with the version or not; what stands before the version is the prefix.
_PATH = re.compile(r"(?:(?:/(?P<prefix>[\w.~-]+))?/(?P<version>v1(?:beta|alpha)?\d*))?/(?P<route>[^?]+)")
_GEMINI = re.compile(r"models/(?P<model>[^:]+):(?P<method>\w+)")
_POSTS = {
    "chat/completions": ("chat_completions", "complete"),
    "completions": ("legacy_completions", "complete"),
    "responses": ("responses", "complete"),
    "responses/input_tokens": ("responses", "count"),
    "messages": ("anthropic_messages", "complete"),
    "messages/count_tokens": ("anthropic_messages", "count"),
}
_METHODS = {"generateContent": "complete", "streamGenerateContent": "complete", "countTokens": "count"}
KEPT_HEADERS = frozenset(
    {
        "anthropic-beta",
        "anthropic-version",
        "openai-beta",
        "originator",
        "session-id",
        "session_id",
        "thread-id",
        "user-agent",
        "x-claude-code-session-id",
        "x-codex-parent-thread-id",
        "x-codex-turn-metadata",
        "x-litellm-session-id",
        "x-openai-subagent",
        "x-parent-session-id",
        "x-session-id",
        "x-stainless-read-timeout",
        "x-stainless-retry-count",
        "x-stainless-timeout",
    }
)
"""The headers that say which program asks, for which of its agents, and for how long it waits."""


class Route(msgspec.Struct, frozen=True):
    """The meaning of a path."""

    kind: str
    """``complete``, ``count``, ``models``, or ``""`` for a path that no API has."""
    dialect: Dialect
    model: str = ""
    is_stream: bool = False
    is_array: bool = False
    prefix: str = ""

    def target(self, path: str, headers: Mapping[str, str], body: bytes) -> Target:
        """Return the part of a request outside of its body."""
        kept = {name: headers[name] for name in KEPT_HEADERS if name in headers}
        digest = hashlib.sha256(path.encode(errors="replace") + b"\n" + body).hexdigest()
        return Target(self.kind, self.model, self.is_stream, self.is_array, self.prefix, kept, body, digest)


def route_of(method: str, path: str, query: str, headers: Mapping[str, str]) -> Route:
    """Return the meaning of a path; one that no API has gets the codec that its caller probably reads."""
    found = _PATH.fullmatch(path)
    version, route = (found["version"] or "", found["route"]) if found else ("", "")
    prefix = (found["prefix"] or "") if found else ""
    prefix = "" if prefix == "v1" else prefix  # the base URL had a version, and the client has added its own
    if method == "POST" and route in _POSTS:
        name, kind = _POSTS[route]
        return Route(kind, DIALECTS[name], prefix=prefix)
    gemini = _GEMINI.fullmatch(route)
    if method == "POST" and gemini and gemini["method"] in _METHODS:
        is_stream = gemini["method"] == "streamGenerateContent"
        is_array = is_stream and "sse" not in parse_qs(query).get("alt", ())
        kind, model = _METHODS[gemini["method"]], unquote(gemini["model"])
        return Route(kind, DIALECTS["gemini"], model, is_stream, is_array, prefix)
    dialect = DIALECTS[_guessed(version, route, headers)]
    if method == "GET" and route.partition("/")[0] == "models":
        return Route("models", dialect, unquote(route.partition("/")[2]), prefix=prefix)
    return Route("", dialect)


def _guessed(version: str, route: str, headers: Mapping[str, str]) -> str:
    if "anthropic-version" in headers or route.startswith("messages"):
        return "anthropic_messages"
    if version.startswith(("v1b", "v1a")) or "x-goog-api-key" in headers or ":" in route:
        return "gemini"
    return "chat_completions"


def models_body(dialect: Dialect, models: tuple[str, ...], one: str) -> dict[str, Any] | None:
    """Return the answer to ``GET /models``, or to that for ``one`` model; ``None`` if there is no such model."""
    rows = {name: _model_row(dialect.name, name) for name in models}
    if one:
        return rows.get(one)
    listed = list(rows.values())
    if dialect.name == "gemini":
        return {"models": listed}
    if dialect.name == "anthropic_messages":
        ends = {"first_id": models[0] if models else None, "last_id": models[-1] if models else None}
        return {"data": listed, "has_more": False, **ends}
    return {"object": "list", "data": listed}


def _model_row(dialect: str, name: str) -> dict[str, Any]:
    if dialect == "gemini":
        methods = ["generateContent", "countTokens"]
        return {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": methods}
    if dialect == "anthropic_messages":
        return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    return {"id": name, "object": "model", "created": 0, "owned_by": "envweave"}


def json_bytes(value: Any) -> bytes:
    """Return a value as JSON; lone surrogates are escapes."""
    return json.dumps(value).encode()
