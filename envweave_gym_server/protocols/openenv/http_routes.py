"""HTTP routes of OpenEnv: those of the server's default ID at the root, those of every ID under ``/openenv/ID``."""

from __future__ import annotations

import hmac
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Annotated, Any

import msgspec
from flask import Blueprint, Flask, Response, current_app, g, request
from msgspec import Meta, Struct

from envweave_gym.core.faults import InvalidArgument, UnknownEnvironment, shown
from envweave_gym.core.version import __version__
from envweave_gym.wire.messages import NUMBERLESS, Refused
from envweave_gym_server.core.errors import STATUS_OF_KIND, BadRequest, NoSession, Unauthorized
from envweave_gym_server.protocols.client_sockets import TAKEN
from envweave_gym_server.protocols.current_app import accept_tokens, service, websockets
from envweave_gym_server.protocols.json_calls import CallRefused, EpisodeLost
from envweave_gym_server.protocols.json_rpc import (
    PARSE_ERROR,
    Json,
    RpcError,
    answer,
    error_of,
    id_of,
    rpc_error_of,
)
from envweave_gym_server.protocols.native.websocket import Connection
from envweave_gym_server.protocols.openenv.played_session import (
    PlayedSession,
    close_played,
    find_played,
    open_played,
)
from envweave_gym_server.protocols.openenv.socket_loop import play_socket
from envweave_gym_server.protocols.openenv.tool_requests import (
    OpenEnvTools,
    described_family,
    is_about_tools,
    step_with_tools,
)
from envweave_gym_server.protocols.rest import schemas
from envweave_gym_server.protocols.rest.error_replies import reply_with
from envweave_gym_server.protocols.rest.openapi import document, operation
from envweave_gym_server.protocols.rest.schemas import client, json_response, read_body, read_json, received
from envweave_gym_server.sessions.service import SessionService
from envweave_gym_server.sessions.session import Left

openenv = Blueprint("openenv", __name__)
"""Routes at the root and under ``/openenv/ID``."""
routes_by_id_only = Blueprint("openenv_by_id_only", __name__)
"""``/health`` and ``/openapi.json`` under ``/openenv/ID``, for clients whose base URL it is; the root has its own."""
json_rpc = Blueprint("openenv_json_rpc", __name__)
"""``/mcp``; if the protocol MCP is open too, its view serves ``/mcp`` and passes OpenEnv's requests on."""

_UNDER = "/openenv/<path:env_id>"
_REFUSES = (400, 404, 409, 413, 422, 503)
_TIMED_OUT = 504


class StepRequest(Struct, forbid_unknown_fields=True):
    """The body of ``POST /step``."""

    action: dict[str, Any]
    timeout_s: Annotated[float, Meta(gt=0)] | None = None
    """Seconds after which the session is closed, and the reply is 504."""
    request_id: Annotated[
        str | None, Meta(description="With the id of the session's last step, that step is not taken again.")
    ] = None


class Result(Struct):
    """The reply to a reset or a step."""

    observation: dict[str, Any]
    reward: float | None
    done: bool
    metadata: dict[str, Any] | None


class Schemas(Struct):
    """JSON schemas of an environment's actions, observations and states."""

    action: dict[str, Any]
    observation: dict[str, Any]
    state: dict[str, Any]


class Metadata(Struct):
    """Name and description of an environment."""

    name: str
    description: str
    readme_content: str | None = None
    version: str = __version__
    author: str | None = None
    documentation_url: str | None = None


def register_openenv(app: Flask, *, has_mcp: bool) -> None:
    """Add the routes to an application; ``has_mcp`` says that the protocol MCP serves ``/mcp`` at the root."""
    at_root = (openenv,) if has_mcp else (openenv, json_rpc)
    for blueprint in (openenv, json_rpc, routes_by_id_only):
        under = f"{blueprint.name}_under_id"
        app.register_blueprint(blueprint, name=under, url_prefix=_UNDER)
        accept_tokens(app, under, has_password)
    for blueprint in at_root:
        app.register_blueprint(blueprint)
        accept_tokens(app, blueprint.name, has_password)


def has_password() -> bool:
    """Return whether the token is the password of the client's URL, the one way of OpenEnv's older clients."""
    given, token = request.authorization, service().settings.token
    if given is None and "token" not in request.args:
        raise Unauthorized(
            "the token is missing; give it as the password of the URL, as in http://any:TOKEN@host:port, or send it in "
            "the header 'Authorization: Bearer …'"
        )
    if given is None or given.type != "basic" or token is None:
        return False
    return hmac.compare_digest((given.password or "").encode(), token.encode())


@openenv.url_value_preprocessor
@json_rpc.url_value_preprocessor
@routes_by_id_only.url_value_preprocessor
def _take_id(endpoint: str | None, values: dict[str, Any] | None) -> None:
    g.openenv_id = "" if values is None else values.pop("env_id", "")


def environment_name() -> str:
    """Return the ID of the request's path, or the server's default; raise ``UnknownEnvironment`` if it has none."""
    server, given = service(), g.get("openenv_id", "") or service().settings.default
    if not given and len(server.offers) != 1:
        raise UnknownEnvironment(
            "this server has several environments and no default; take the URL of one, "
            f"as in /openenv/{next(iter(server.offers), 'ID')}, or start it with --default ID"
        )
    return server.offers.find(given).name


@openenv.errorhandler(CallRefused)
def _refused(error: CallRefused) -> Response:
    refused = error.refused
    status = STATUS_OF_KIND.get(refused.kind, 422)
    return reply_with(refused, 500 if status == 200 else status)


@openenv.errorhandler(EpisodeLost)
def _lost(error: EpisodeLost) -> Response:
    return reply_with(Refused(NUMBERLESS, "EpisodeLost", str(error)), 500)


# Sessions


@openenv.route("/ws", websocket=True)
def socket() -> Response:
    """Play a session over a WebSocket."""
    server, name = service(), environment_name()
    connection = Connection(request.environ, server.settings.largest_frame, server.settings.client_timeout)
    websockets().add(connection)  # before it opens: the limit must count it when the next one asks
    try:
        connection.open()
        play_socket(server, connection, name, request.args.get("session_id"))
    finally:
        websockets().remove(connection)
        connection.hang_up()
    request.environ[TAKEN] = True
    return Response()


@openenv.get("/ws")
@operation(None, status=101, refuses=(400, 404, 503))
def openenv_socket() -> Response:
    """Play a session over a WebSocket, in OpenEnv's messages."""
    raise BadRequest("this address takes WebSockets; ask for one with 'Upgrade: websocket'")


@openenv.post("/reset")
@operation(Result, takes=dict[str, Any], query=("session_id",), refuses=_REFUSES)
def openenv_reset() -> Response:
    """Begin an episode."""
    data = _body_object()
    server, name, left, session_id = service(), environment_name(), client(), _session_id()
    if session_id is None:
        return _in_own_session(server, name, lambda played: played.reset(data, left), left)
    try:
        played = find_played(server, name, session_id)
    except NoSession:
        played = open_played(server, name, session_id, left)
    return json_response(played.reset(data, left))


@openenv.post("/step")
@operation(Result, takes=StepRequest, query=("session_id",), refuses=_REFUSES)
def openenv_step() -> Response:
    """Take a step; without a session it is the first of an episode of its own."""
    body, _ = read_body(StepRequest)
    server, name, left, session_id = service(), environment_name(), client(), _session_id()
    if session_id is not None:
        return _stepped(server, find_played(server, name, session_id), body, left)
    return _in_own_session(server, name, lambda played: _stepped(server, played, body, left), left)


def _in_own_session(server: SessionService, name: str, play: Any, left: Left) -> Response:
    """Play in a session of its own, which is closed afterwards."""
    played = open_played(server, name, None, left)
    try:
        result = play(played)
        return result if isinstance(result, Response) else json_response(result)
    finally:
        close_played(server, played.session)


def _stepped(server: SessionService, played: PlayedSession, body: StepRequest, left: Left) -> Response:
    def step() -> Json:
        if is_about_tools(body.action):
            return step_with_tools(played, body.action, left)
        return played.step(body.action, left)

    def step_unless_repeated() -> Json:
        if body.request_id is None:
            return step()
        return played.step_once(body.request_id, body.action, step, left)

    if body.timeout_s is None:
        return json_response(step_unless_repeated())
    outcome: SimpleQueue[tuple[Json | None, Exception | None]] = SimpleQueue()

    def report() -> None:
        try:
            outcome.put((step_unless_repeated(), None))
        except Exception as error:  # noqa: BLE001 - the request's own thread raises it
            outcome.put((None, error))

    threading.Thread(target=report, name="openenv step", daemon=True).start()
    with suppress(Empty):
        result, error = outcome.get(timeout=min(body.timeout_s, threading.TIMEOUT_MAX))
        if error is not None:
            raise error
        return json_response(result)
    close_played(server, played.session)
    why = f"the step took more than {body.timeout_s:g} s; its session is closed"
    return reply_with(Refused(NUMBERLESS, "Timeout", why), _TIMED_OUT)


@openenv.get("/state")
@operation(dict[str, Any], query=("session_id",), refuses=(404, 503))
def openenv_state() -> Response:
    """Return the state of a session; without one that of an environment before its first reset."""
    session_id, name = _session_id(), environment_name()
    if session_id is None:
        return json_response({"episode_id": None, "step_count": 0})
    return json_response(find_played(service(), name, session_id).state(client()))


def _session_id() -> str | None:
    return request.args.get("session_id") or None


def _body_object() -> Json:
    body = read_json(received() or b"{}")
    if not isinstance(body, dict):
        raise InvalidArgument(
            f"the body is {shown(body)}, not an object with seed, episode_id and reset options"
        )
    return body


# The environment


@openenv.get("/schema")
@operation(Schemas, refuses=(404, 422, 503))
def openenv_schema() -> Response:
    """Return JSON schemas of actions, observations and states."""
    family = described_family(service(), environment_name())
    return json_response(Schemas(family.action_schema(), family.observation_schema(), family.state_schema()))


@openenv.get("/metadata")
@operation(Metadata, refuses=(404,))
def openenv_metadata() -> Response:
    """Return name and description."""
    offer = service().offers.find(environment_name())
    return json_response(Metadata(offer.name, offer.doc))


@routes_by_id_only.get("/health")
@operation(schemas.Health, refuses=(404, 503))
def openenv_health() -> Response:
    """Return whether the server takes calls."""
    environment_name()
    stopping = service().sessions.stopped
    return json_response(schemas.Health("stopping" if stopping else "healthy"), 503 if stopping else 200)


@routes_by_id_only.get("/openapi.json")
@operation(dict[str, Any], refuses=(404,))
def openenv_document() -> Response:
    """Return the OpenAPI document of the routes of one ID."""
    name, whole, under = environment_name(), document(current_app), "/openenv/{env_id}"
    paths = {path.removeprefix(under): one for path, one in whole["paths"].items() if path.startswith(under)}
    for methods in paths.values():
        for one in methods.values():
            one["parameters"] = [given for given in one["parameters"] if given["name"] != "env_id"]
    return json_response({**whole, "paths": paths, "servers": [{"url": f"/openenv/{name}"}]})


@json_rpc.post("/mcp")
@operation(dict[str, Any], takes=dict[str, Any], refuses=(413,))
def openenv_mcp() -> Response:
    """List and call tools by JSON-RPC; the status is always 200."""
    try:
        message = msgspec.json.decode(received())
    except (ValueError, RecursionError) as error:
        return json_response(error_of(None, RpcError(PARSE_ERROR, f"Parse error: {error}")))
    return json_response(answer_openenv(message))


def answer_openenv(message: Any) -> Json:
    """Return the reply to a JSON-RPC request of OpenEnv's."""
    try:
        tools = OpenEnvTools(service(), environment_name(), client())
    except Exception as error:  # noqa: BLE001 - the client learns of everything that happens
        return error_of(id_of(message), rpc_error_of(error))
    return answer(message, tools.methods) or {}
