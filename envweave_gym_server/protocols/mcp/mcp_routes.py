"""HTTP routes of MCP: ``POST /mcp`` for a runner, ``POST /mcp/SESSION`` for each of its agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
from flask import Blueprint, Flask, Response, current_app, request, url_for

from envweave_gym.core.protocols import AGENT
from envweave_gym_server.core.errors import Unauthorized
from envweave_gym_server.protocols.current_app import TokenCheck, accept_tokens, service
from envweave_gym_server.protocols.json_rpc import PARSE_ERROR, Json, RpcError, error_of, is_response
from envweave_gym_server.protocols.mcp.agent_tokens import AgentToken, AgentTokens
from envweave_gym_server.protocols.mcp.agent_tools import AgentTools
from envweave_gym_server.protocols.mcp.protocol_eras import Tools, is_stateless, reply_to
from envweave_gym_server.protocols.mcp.runner_tools import RunnerTools
from envweave_gym_server.protocols.rest.openapi import operation
from envweave_gym_server.protocols.rest.schemas import client, json_response, received

runner = Blueprint("mcp", __name__)
"""``/mcp``, for a runner with the token of the server."""
agents = Blueprint("mcp_agents", __name__)
"""``/mcp/SESSION``, for agents with tokens of their own."""

_TOKENS, _OPENENV = "envweave_agent_tokens", "envweave_openenv_mcp"
OpenEnvAnswer = Callable[[Any], Json]
"""Function that returns the reply to a JSON-RPC request in OpenEnv's form."""


def register_mcp(
    app: Flask, openenv: OpenEnvAnswer | None = None, has_password: TokenCheck | None = None
) -> None:
    """Add the routes to an application; ``openenv`` answers the requests of OpenEnv's clients at ``/mcp``.

    ``has_password`` returns whether a request has the token in the way of those clients.
    """
    app.extensions[_TOKENS], app.extensions[_OPENENV] = AgentTokens(), openenv
    app.register_blueprint(runner)
    app.register_blueprint(agents)
    if has_password is not None:
        accept_tokens(app, runner.name, has_password)
    accept_tokens(app, agents.name, lambda: _agent_token() is not None)


@runner.post("/mcp")
@operation(dict[str, Any], takes=dict[str, Any], refuses=(400, 404, 413))
def mcp() -> Response:
    """Make, reset, step and close environments, by MCP's JSON-RPC."""
    message = _message()
    openenv = current_app.extensions[_OPENENV]
    if openenv is not None and _is_for_openenv(message):
        return json_response(openenv(message))
    return _answered(message, RunnerTools(service(), _tokens(), _url_of, client()).toolset)


@agents.post("/mcp/<session_id>")
@operation(dict[str, Any], takes=dict[str, Any], refuses=(400, 404, 413))
def mcp_agent(session_id: str) -> Response:
    """Act and observe as one agent of a session, by MCP's JSON-RPC."""
    message, token = _message(), _agent_token()
    if token is None and _bearer().startswith("agent."):
        raise Unauthorized("the token is that of another session or server; give the one that make returned")
    agent, nonce = (AGENT, None) if token is None else (token.agent, token.nonce)
    return _answered(message, AgentTools(service(), session_id, agent, nonce, client()).toolset)


def _tokens() -> AgentTokens:
    return cast("AgentTokens", current_app.extensions[_TOKENS])


def _headers() -> Mapping[str, str]:
    return cast("Mapping[str, str]", request.headers)


def _bearer() -> str:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


def _agent_token() -> AgentToken | None:
    """Return the agent's token of this request; ``None`` if it has none for the session of its path."""
    token = _tokens().read(_bearer())
    session_id = (request.view_args or {}).get("session_id")
    return token if token is not None and token.session == session_id else None


def _url_of(session_id: str) -> str:
    return url_for("mcp_agents.mcp_agent", session_id=session_id, _external=True)


def _message() -> Any:
    """Return the body as JSON; a malformed one is answered as the text that it is."""
    try:
        return msgspec.json.decode(received())
    except (ValueError, RecursionError) as error:
        return RpcError(PARSE_ERROR, f"Parse error: {error}")


def _is_for_openenv(message: Any) -> bool:
    """Return whether a request is one of OpenEnv's clients, or none at all, which OpenEnv answers with status 200."""
    if not isinstance(message, dict) or is_response(message) or is_stateless(message, _headers()):
        return False
    method, params = message.get("method"), message.get("params")
    if not isinstance(method, str):
        return True
    return method.startswith("openenv/") or (isinstance(params, dict) and "session_id" in params)


def _answered(message: Any, tools: Tools) -> Response:
    if isinstance(message, RpcError):
        return json_response(error_of(None, message), 400)
    reply, status = reply_to(message, _headers(), tools)
    return Response(status=status) if reply is None else json_response(reply, status)
