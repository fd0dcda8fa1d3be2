"""Client of a server of the Open Reward Standard: HTTP with JSON, and server-sent events for calls of tools.

Nothing that changes a session is sent twice: a lost connection is the end of the session, not a second try.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from envweave_gym.core.faults import InvalidArgument, SessionLost, shown
from envweave_gym.core.secret_reference import Secret, check_encrypted
from envweave_gym.hubs.ors.ors_messages import Block, Problem, Split, TaskCount, ToolReply, Tools, ToolSpec
from envweave_gym.net.http import HttpConnection, Response
from envweave_gym.os_support.process_local import Owner

_T = TypeVar("_T")

LARGEST_BODY = 1 << 26
_CLOSE_TIMEOUT_S = 2.0
_LARGEST_LINE = 1 << 20
_NO_SESSION = (404, 410)


class OrsRefused(ConnectionError):
    """The server has refused a request, or answered with something that is not in the protocol."""


class OrsClient:
    """Connection to one server, with at most one session of an environment at a time."""

    def __init__(self, url: str, token: Secret, timeout_s: float) -> None:
        """``timeout_s`` limits each exchange; ``token`` is sent as ``X-API-Key``."""
        self.url, self._timeout_s = checked_url(url, token), timeout_s
        self._connection = HttpConnection(self.url)
        self._headers = {"X-API-Key": token.reveal()} if token else {}
        self._session: str | None = None
        self._owner = Owner()

    def environments(self) -> list[str]:
        """Return the names of the server's environments; the first is its default."""
        return self._get("/list_environments", list[str])

    def splits(self, env: str) -> list[str]:
        """Return the names of the splits of an environment's tasks."""
        return [one.name for one in self._get(f"/{quote(env, safe='')}/splits", list[Split])]

    def count(self, env: str, split: str) -> int:
        """Return the number of tasks of a split."""
        return self._post(f"/{quote(env, safe='')}/num_tasks", {"split": split}, TaskCount).num_tasks

    def begin(self, env: str, split: str, index: int) -> tuple[list[Block], list[ToolSpec]]:
        """Open a session for a task; return its prompt, and the tools of the environment and of the task."""
        self.end()
        lines = self._events("/create_session", {})
        session = next((data for event, data in lines if event == "task_id" and data), None)
        lines.close()
        if session is None or not session.isprintable() or not session.isascii():
            raise OrsRefused(f"{self.url} answers /create_session without the id of a session")
        self._session, self._owner = session, Owner()
        self._post("/create", {"env_name": env, "split": split, "index": index}, dict[str, Any])
        path = f"/{quote(env, safe='')}"
        prompt = self._get(f"{path}/prompt", list[Block])
        return prompt, self._get(f"{path}/task_tools", Tools).tools

    def call(self, env: str, tool: str, given: dict[str, Any]) -> ToolReply:
        """Call a tool, and return its reply; raise ``SessionLost`` if the server has dropped the session."""
        parts: list[str] = []
        for event, data in self._events(f"/{quote(env, safe='')}/call", {"name": tool, "input": given}):
            if event == "error":
                raise RuntimeError(f"the tool {tool} has failed on {self.url}: {data}")
            if event in ("chunk", "end"):
                parts.append(data)
            if event == "end":
                return self._decoded("".join(parts).encode(), ToolReply, f"the call of {tool}")
        raise SessionLost(f"{self.url} has hung up before the call of {tool} had a reply")

    def end(self) -> None:
        """Delete the session, if there is one; the server deletes one that it does not hear of after 15 minutes."""
        session, self._session = self._session, None
        if session is None or not self._owner.is_here():  # a forked child leaves its parent's session alone
            return
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        headers = {**self._headers, "X-Session-ID": session, "Content-Type": "application/json"}
        try:
            for path in ("/delete", "/delete_session"):
                self._connection.request("POST", path, deadline, headers, b"{}").body(LARGEST_BODY)
        except (OSError, ValueError):
            self._connection.close()

    def close(self) -> None:
        """Delete the session and close the connection."""
        self.end()
        self._connection.close()

    def _get(self, path: str, kind: type[_T]) -> _T:
        return self._exchange("GET", path, b"", kind)

    def _post(self, path: str, body: dict[str, Any], kind: type[_T]) -> _T:
        return self._exchange("POST", path, json.dumps(body).encode(), kind)

    def _exchange(self, method: str, path: str, body: bytes, kind: Any) -> Any:
        response = self._request(method, path, body)
        return self._decoded(response.body(LARGEST_BODY), kind, path)

    def _request(self, method: str, path: str, body: bytes) -> Response:
        headers = {**self._headers, "Content-Type": "application/json"}
        if self._session is not None:
            headers["X-Session-ID"] = self._session
        deadline = time.monotonic() + self._timeout_s
        response = self._connection.request(method, path, deadline, headers, body)
        if response.status == 200:
            return response
        reason = _reason(response.body(LARGEST_BODY))
        self._connection.close()
        if self._session is not None and response.status in _NO_SESSION:
            raise SessionLost(f"{self.url} does not know the session any more: {reason}")
        hint = "; give token='env:NAME'" if response.status in (401, 403) else ""
        raise OrsRefused(f"{self.url}{path} answers with status {response.status}: {reason}{hint}")

    def _decoded(self, body: bytes, kind: Any, what: str) -> Any:
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise OrsRefused(f"{self.url} answers {what} with something else than ORS: {error}") from None

    def _events(self, path: str, body: dict[str, Any]) -> Generator[tuple[str, str]]:
        """Post a body, and yield name and data of each server-sent event."""
        response = self._request("POST", path, json.dumps(body).encode())
        try:
            event, data = "", list[str]()
            for line in self._lines(response):
                field, _, value = line.partition(":")
                if field == "event":
                    event = value.removeprefix(" ")
                elif field == "data":
                    data.append(value.removeprefix(" "))
                elif not line and event:
                    yield event, "\n".join(data)
                    event, data = "", []
        finally:
            if not response.is_whole:
                self._connection.close()

    def _lines(self, response: Response) -> Iterator[str]:
        rest, size = b"", 0
        for piece in response.pieces():
            *whole, rest = (rest + piece).split(b"\n")
            size += len(piece)
            if size > LARGEST_BODY or len(rest) > _LARGEST_LINE:
                raise OrsRefused(f"{self.url} sends more than {LARGEST_BODY} bytes, or a line without an end")
            yield from (line.removesuffix(b"\r").decode(errors="replace") for line in whole)


def checked_url(url: str, token: Secret) -> str:
    """Return a server's URL without a final slash; raise ``InvalidArgument`` for one that is none, or is unsafe."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except (ValueError, AttributeError, TypeError):
        parts, is_url = urlsplit(""), False
    if is_url and (parts.username is not None or parts.password is not None):
        raise InvalidArgument("url= has a user or a password; give the server's key as token='env:NAME'")
    if not is_url or parts.query or parts.fragment:
        raise InvalidArgument(f"url={shown(url)} is no URL of a server; give one like http://host:port")
    if token:
        check_encrypted("url", url)
    return url.rstrip("/")


def _reason(body: bytes) -> str:
    try:
        detail = msgspec.json.decode(body, type=Problem).detail
    except (msgspec.DecodeError, RecursionError):
        detail = body.decode(errors="replace")
    return shown(detail)
