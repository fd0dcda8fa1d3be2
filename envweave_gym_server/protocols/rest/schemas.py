"""Request and response bodies of the JSON API, one struct each; the OpenAPI document derives from them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, TypeVar, cast, get_args

import msgspec
from flask import Response, request
from msgspec import UNSET, Meta, Struct, UnsetType
from werkzeug.exceptions import ClientDisconnected, HTTPException, RequestEntityTooLarge

from envweave_gym.core.config import one_of
from envweave_gym.core.faults import Fault, InvalidArgument
from envweave_gym.wire.frame_limits import MOST_VALUES
from envweave_gym.wire.values import MOST_BITS, fits
from envweave_gym_server.core.errors import BadRequest
from envweave_gym_server.protocols.client_sockets import has_left, socket_of
from envweave_gym_server.protocols.rest.json_values import Arrays
from envweave_gym_server.sessions.session import Left, stays
from envweave_gym_server.sessions.session_protocol import SESSION_ID

Api = Literal["gym", "vector", "aec", "parallel"]
SessionId = Annotated[str, Meta(pattern=f"^{SESSION_ID}$")]
CallNumber = Annotated[
    int, Meta(ge=1, le=2**63 - 1, description="The number of this call; without one it is the next.")
]


# Requests


class NewSession(Struct, forbid_unknown_fields=True):
    """The body of ``POST /v1/sessions``: the environment to make for a new session."""

    id: Annotated[str, Meta(description="The ID of an environment that is served.")]
    session: Annotated[
        SessionId | None, Meta(description="An id of your own: sent again, nothing is made twice.")
    ] = None
    api: Annotated[Api | None, Meta(description="Without one the first that the environment has.")] = None
    num_envs: Annotated[int, Meta(ge=1)] | None = None
    autoreset_mode: Literal["NextStep", "SameStep", "Disabled"] | None = None
    kwargs: Annotated[
        dict[str, Any], Meta(description="Arguments of the environment, of those it takes from clients.")
    ] = {}


class ResetCall(Struct, forbid_unknown_fields=True):
    """The body of a reset request: the seed and the options of the new episode."""

    seed: int | list[int | None] | None = None
    options: dict[str, Any] | None = None
    call: CallNumber | None = None


class StepCall(Struct, forbid_unknown_fields=True):
    """The body of a step request: the action."""

    action: Annotated[
        Any,
        Meta(
            description="JSON in the form of the action space; an object by agent where they move at once. "
            "Arrays are lists, or objects with dtype, shape and base64."
        ),
    ]
    call: CallNumber | None = None


# Responses


class Problem(Struct, omit_defaults=True):
    """The body of an error response: why the request had no effect, in one sentence."""

    error: str
    message: str
    committed: Annotated[int, Meta(description="The number of the last call that was done.")] = -1


class Opened(Struct):
    """The reply to ``POST /v1/sessions``: the session that it created, or that the same request created before."""

    session: str
    id: str
    api: Api
    call: Annotated[int, Meta(description="The number of the last call that was done.")]


class Played(Struct, omit_defaults=True):
    """The result of a reset or a step; fields that only games or only steps have are left out elsewhere."""

    call: int
    observation: Any
    reward: Any | UnsetType = UNSET
    terminated: Any | UnsetType = UNSET
    truncated: Any | UnsetType = UNSET
    info: Any | UnsetType = UNSET
    agents: list[str] | UnsetType = UNSET
    selection: Annotated[str | UnsetType | None, Meta(description="The agent whose turn it is.")] = UNSET
    earned: Annotated[
        dict[str, Any] | UnsetType, Meta(description="What agents have earned since they acted last.")
    ] = UNSET


class Lost(Struct):
    """The reply to a call that was executed and lost its episode, because the environment raised; reset it."""

    call: int
    fault: Fault


class Session(Struct):
    """The state of a session."""

    session: str
    id: str
    api: str
    call: Annotated[int, Meta(description="The number of the last call that was done.")]
    busy: Annotated[bool, Meta(description="Whether a call is under way.")]
    attached: Annotated[int, Meta(description="How many WebSockets play it.")]
    idle: Annotated[float, Meta(description="Seconds since it was last used.")]
    agents: Annotated[Any, Meta(description="Who must act now, row by row in a vector.")]
    requests: Annotated[Any, Meta(description="The open requests.")]
    state: Annotated[Any, Meta(description="Episode, step_count and more; null while a call is under way.")]


class Environment(Struct):
    """An environment that is served."""

    id: str
    doc: str
    apis: list[str]
    kwargs: Annotated[list[str], Meta(description="The arguments that a client may give.")]


class Environments(Struct):
    """All environments that are served."""

    environments: list[Environment]


class Description(Struct, omit_defaults=True):
    """The description of an environment: spaces, metadata and arguments."""

    id: str
    doc: str
    apis: list[str]
    kwargs: list[str]
    api: str
    metadata: dict[str, Any]
    observation_space: dict[str, Any] | UnsetType = UNSET
    action_space: dict[str, Any] | UnsetType = UNSET
    agents: Annotated[dict[str, Any] | UnsetType, Meta(description="The spaces of each agent of a game.")] = (
        UNSET
    )


class Health(Struct):
    """Whether the server takes calls."""

    status: Literal["healthy", "stopping"]


class Index(Struct):
    """Name, version and the paths of the API."""

    name: str
    version: str
    environments: str
    openapi: str
    metrics: str


_Body = TypeVar("_Body")


def client() -> Left:
    """Return a function that returns whether the client of this request has disconnected; any thread may call it."""
    connection = socket_of(request.environ)
    return stays if connection is None else partial(has_left, connection)


def received() -> bytes:
    """Return the body of the request; raise ``BadRequest`` if it is incomplete.

    If a body has no declared length, werkzeug returns as many bytes as are allowed and drops the rest; that is
    refused too.
    """
    try:
        data = request.get_data(cache=False)
        at_most = request.content_length is None and len(data) == request.max_content_length
        too_long = at_most and request.environ["wsgi.input"].read(1)
    except (ClientDisconnected, OSError):
        raise BadRequest("the body of the request has not come to its end; send it again") from None
    except HTTPException:
        raise
    except Exception as error:  # noqa: BLE001 - each WSGI server has exceptions of its own for broken chunks
        raise BadRequest(f"the body of the request cannot be read: {error}") from None
    if too_long:
        raise RequestEntityTooLarge
    return data


_MOST_MEMBERS = 4 * MOST_VALUES
"""Limit of members of lists, higher than that of frames, because JSON has arrays as lists of numbers."""
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_LONG_INTEGER = b"0" * len(str(1 << MOST_BITS))


def _check_size(data: bytes) -> None:
    """Raise ``InvalidArgument`` for too many values, before decoding: ``[]`` becomes an object of 70 bytes.

    Brackets and commas in texts count too: to tell them apart would take longer than to decode them.
    """
    if len(data) <= MOST_VALUES:
        return
    if data.count(b"{") + data.count(b"[") > MOST_VALUES:
        surplus = f"more than {MOST_VALUES:,} objects and lists (each {{ and [ counts)"
    elif data.count(b",") > _MOST_MEMBERS:
        surplus = f"more than {_MOST_MEMBERS:,} members (each comma counts)"
    else:
        return
    raise InvalidArgument(f"the body has {surplus}; send arrays in base64, or fewer rows at once")


def _check_integers(body: Any, data: bytes) -> None:
    """Raise ``InvalidArgument`` for an integer that is too large; search only bodies with that many digits in a row."""
    if len(data) < len(_LONG_INTEGER) or _LONG_INTEGER not in data.translate(_AS_ZEROS):
        return
    values = list(msgspec.structs.astuple(body)) if isinstance(body, Struct) else [body]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values += value.values()
        elif isinstance(value, list):
            values += value
        elif isinstance(value, int) and not fits(value):
            raise InvalidArgument(
                f"the body has an integer of more than {MOST_BITS:,} bits; send a smaller one, or a text"
            )


def read_body(kind: type[_Body]) -> tuple[_Body, bytes]:
    """Return the decoded body of the request, and its bytes; an empty body counts as an empty object."""
    data = received()
    _check_size(data)
    try:
        body = msgspec.json.decode(data or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"the body is not what this call takes: {error}") from None
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON: {error}") from None
    _check_integers(body, data)
    return body, data


def read_json(data: bytes) -> Any:
    """Return decoded JSON of any form; raise ``BadRequest`` or ``InvalidArgument`` if it is none, or too large."""
    _check_size(data)
    try:
        value = msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"Invalid JSON: {error}") from None
    _check_integers(value, data)
    return value


def read_arrays() -> Arrays:
    """Return the ``arrays`` query parameter: how the response writes arrays."""
    given = request.args.get("arrays", "lists")
    one_of("arrays", given, get_args(Arrays))
    return cast("Arrays", given)


def json_response(value: Any, status: int = 200) -> Response:
    """Return a response with a JSON body."""
    return Response(msgspec.json.encode(value), status, content_type="application/json")
