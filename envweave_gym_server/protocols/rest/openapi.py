"""Generator of the OpenAPI document of the JSON API, from its views and the types of their bodies."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from flask import Flask

from envweave_gym.core.version import __version__
from envweave_gym_server.protocols.rest.schemas import Problem

_JSON = "application/json"
_BY_ID = "/openenv/{env_id}/"
"""Prefix of OpenEnv's routes of each ID; the server's only ID has them at the root too, by the same views."""
_ABOUT = (
    "Plays environments. Programs step over WebSockets at /v1/sessions/{session_id}/stream, which "
    "envweave_gym.make opens; the calls here are the same in JSON, and may be mixed with them."
)
_DONE = {101: "What follows on this connection is a WebSocket."}
_REFUSALS = {
    400: "The body is no JSON, or the request is malformed.",
    401: "The token is missing or wrong.",
    403: "The host or the web page is not answered.",
    404: "There is no such environment or session.",
    409: "Another call is the next one, or a reset is.",
    413: "The body is too large.",
    422: "An argument or an action is not what is taken.",
    503: "There is no room, or the server is stopping.",
}
_QUERY: dict[str, dict[str, Any]] = {
    "api": {"schema": {"enum": ["gym", "vector", "aec", "parallel"]}},
    "arrays": {
        "description": "How arrays are written.",
        "schema": {"enum": ["lists", "base64"], "default": "lists"},
    },
    "since": {
        "description": "The number of the last call that is known, as the header Last-Event-ID has it.",
        "schema": {"type": "integer", "minimum": 0, "maximum": 10**18 - 1},
    },
    "session_id": {
        "description": "A name of your own for the session; without one the call has an environment of its own.",
        "schema": {"type": "string"},
    },
    "follow": {
        "description": "Whether to wait for more.",
        "schema": {"enum": ["true", "false"], "default": "true"},
    },
}
_PATH: dict[str, dict[str, Any]] = {
    "env_id": {"description": "An ID; its slash may stay as it is.", "schema": {"type": "string"}},
    "session_id": {"schema": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$"}},
}


@dataclass(frozen=True)
class Operation:
    """Part of the document that a view's name and docstring do not give."""

    gives: Any
    """Type or types of the response body, or a content type; ``None`` if there is no body."""
    takes: Any = None
    status: int = 200
    query: tuple[str, ...] = ()
    refuses: tuple[int, ...] = ()


_View = TypeVar("_View", bound=Callable[..., Any])


def operation(gives: Any, **fields: Any) -> Callable[[_View], _View]:
    """Decorate a view with its part of the OpenAPI document."""

    def noted(view: _View) -> _View:
        vars(view)["operation"] = Operation(gives, **fields)
        return view

    return noted


def document(app: Flask) -> dict[str, Any]:
    """Return the OpenAPI document, as JSON."""
    views = [
        (rule, app.view_functions[rule.endpoint], vars(app.view_functions[rule.endpoint])["operation"])
        for rule in app.url_map.iter_rules()
        if "operation" in vars(app.view_functions[rule.endpoint])
    ]
    types = [Problem, *(kind for *_, one in views for kind in (one.takes, *_types(one.gives)) if kind)]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(map(str, types), schemas, strict=True))
    paths: dict[str, Any] = {}
    for rule, view, one in views:
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
        [method] = (rule.methods or set()) - {"HEAD", "OPTIONS"}
        paths.setdefault(path, {})[method.lower()] = _operation(path, view, one, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "envweave-gym", "version": __version__, "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(
    path: str, view: Callable[..., Any], one: Operation, schema_of: dict[str, Any]
) -> dict[str, Any]:
    named = [
        *(
            {"name": name, "in": "path", "required": True, **_PATH[name]}
            for name in re.findall(r"{(\w+)}", path)
        ),
        *({"name": name, "in": "query", **_QUERY[name]} for name in one.query),
    ]
    name = f"{view.__name__}_by_id" if path.startswith(_BY_ID) else view.__name__
    entry: dict[str, Any] = {"operationId": name, "summary": (view.__doc__ or "").splitlines()[0]}
    entry |= {"parameters": named} if named else {}
    entry |= {"security": []} if path == "/health" else {}
    if one.takes is not None:
        entry["requestBody"] = {"required": True, "content": {_JSON: {"schema": schema_of[str(one.takes)]}}}
    refused = {"content": {_JSON: {"schema": schema_of[str(Problem)]}}}
    usual = (403,) if path == "/health" else (401, 403)
    done = _DONE.get(one.status, "Done.")
    entry["responses"] = {str(one.status): {"description": done, **_content(one.gives, schema_of)}}
    for status in sorted({*usual, *one.refuses}):
        entry["responses"][str(status)] = {"description": _REFUSALS[status], **refused}
    return entry


def _content(gives: Any, schema_of: dict[str, Any]) -> dict[str, Any]:
    if gives is None:
        return {}
    if isinstance(gives, str):
        return {"content": {gives: {"schema": {"type": "string"}}}}
    schemas = [schema_of[str(kind)] for kind in _types(gives)]
    return {"content": {_JSON: {"schema": {"anyOf": schemas} if len(schemas) > 1 else schemas[0]}}}


def _types(gives: Any) -> tuple[Any, ...]:
    if gives is None or isinstance(gives, str):
        return ()
    return gives if isinstance(gives, tuple) else (gives,)
