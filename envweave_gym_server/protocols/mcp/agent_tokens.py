"""Tokens of agents: each lets one agent act in one session, and proves that this server has issued it.

A token holds the session, a random number of its own (the *nonce*) and the agent, signed with a key of this server. So
the server recognises the token of a session that has ended, without storing any: its agent learns by a tool's error
that the session is over. HTTP 401 would tell clients of MCP that the connection is broken. A later session with the
same id has another nonce, and refuses the token.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from typing import NamedTuple

import msgspec

_PREFIX = "agent."
_KEY_BYTES = 32
_LONGEST = 4096


class AgentToken(NamedTuple):
    """Content of a token."""

    session: str
    nonce: str
    agent: str


class AgentTokens:
    """Issues and checks the tokens of one server."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(_KEY_BYTES)

    def issue(self, session: str, nonce: str, agent: str) -> str:
        """Return the token of an agent in a session."""
        content = base64.urlsafe_b64encode(msgspec.json.encode([session, nonce, agent])).decode()
        return f"{_PREFIX}{content}.{self._signature(content)}"

    def read(self, token: str) -> AgentToken | None:
        """Return the content of a token; ``None`` if this server has not issued it."""
        content, _, signature = token.removeprefix(_PREFIX).rpartition(".")
        if not token.startswith(_PREFIX) or len(token) > _LONGEST or not token.isascii():
            return None
        if not hmac.compare_digest(signature, self._signature(content)):
            return None
        return AgentToken(*msgspec.json.decode(base64.urlsafe_b64decode(content), type=tuple[str, str, str]))

    def _signature(self, content: str) -> str:
        return hmac.new(self._key, content.encode(), "sha256").hexdigest()


def new_nonce() -> str:
    """Return the random number that tells a session from others with its id."""
    return secrets.token_urlsafe(12)
