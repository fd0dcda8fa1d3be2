"""Clients of servers in this process, for the tests of the JSON API."""

from __future__ import annotations

from typing import Any

from envweave_gym_server.app.app import create_app


class JsonClient:
    """Asks an app of its own as ``curl`` would ask a server."""

    def __init__(self, *what: Any, **options: Any) -> None:
        self.app = create_app(*what, **options)
        self.state = self.app.extensions["envweave"]
        self._client = self.app.test_client()

    def ask(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """The response."""
        sent = {} if body is None else {"data" if isinstance(body, bytes) else "json": body}
        return self._client.open(path, method=method, **sent, **options)

    def get(self, path: str, status: int = 200, **options: Any) -> Any:
        """The JSON that a path gives."""
        return self._reported(self.ask("GET", path, **options), status)

    def post(self, path: str, body: Any = None, status: int = 200, **options: Any) -> Any:
        """The JSON that comes of sending JSON."""
        return self._reported(self.ask("POST", path, {} if body is None else body, **options), status)

    def open(self, env_id: str, **fields: Any) -> str:
        """The path of a new session."""
        return "/v1/sessions/" + self.post("/v1/sessions", {"id": env_id, **fields}, 201)["session"]

    def open_as(self, token: str, env_id: str) -> str:
        """The path of a new session on a server that wants a token."""
        headers = {"Authorization": f"Bearer {token}"}
        return "/v1/sessions/" + self.post("/v1/sessions", {"id": env_id}, 201, headers=headers)["session"]

    @staticmethod
    def _reported(response: Any, status: int) -> Any:
        assert response.status_code == status, response.text
        assert response.mimetype == "application/json"
        return response.json


def sentence(reported: Any) -> str:
    """The one sentence of a refusal."""
    assert reported.keys() <= {"error", "message", "committed"}
    assert "\n" not in reported["message"]
    assert "Traceback" not in reported["message"]
    return reported["message"]
