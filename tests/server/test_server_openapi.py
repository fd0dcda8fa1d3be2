"""The OpenAPI document: it is valid, complete, and what it says is so."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest
from absent import needs_module
from json_clients import JsonClient, sentence

if not os.environ.get("CI"):
    pytest.importorskip("schemathesis")
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

COUNTER = "envweave/Counter-v0"
CLIENT = JsonClient(COUNTER, "envweave/LineRace-v0", token="token-of-tests", max_sessions=300)
CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]
HEADERS = {"Authorization": "Bearer token-of-tests", "Host": "localhost"}
DOCUMENT = CLIENT.get("/openapi.json", headers=HEADERS)


def test_every_call_of_the_json_api_is_in_the_document():
    frames = {"/v1/sessions/{}/frames", "/v1/describe", "/static/{}"}
    routes = {re.sub(r"<[^>]*>", "{}", rule.rule) for rule in CLIENT.app.url_map.iter_rules()}
    assert {re.sub(r"{\w+}", "{}", path) for path in DOCUMENT["paths"]} == routes - frames
    operations = [one for methods in DOCUMENT["paths"].values() for one in methods.values()]
    assert all(one["summary"].endswith(".") and one["operationId"] for one in operations)


def test_the_way_to_a_websocket_is_in_the_document_and_says_so_where_none_is_asked_for():
    reported = DOCUMENT["paths"]["/v1/sessions/{session_id}/stream"]["get"]["responses"]
    assert {"101", "400"} <= reported.keys()
    refused = sentence(CLIENT.get("/v1/sessions/x/stream", 400, headers=HEADERS))
    assert refused.startswith("this address takes WebSockets")


def test_the_document_says_what_json_schema_and_openapi_want():
    jsonschema = needs_module("jsonschema")
    assert DOCUMENT["openapi"] == "3.1.0"
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(DOCUMENT)))
    assert references <= DOCUMENT["components"]["schemas"].keys()
    for path, methods in DOCUMENT["paths"].items():
        for operation in methods.values():
            named = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))
            assert all(response["description"] for response in operation["responses"].values())


SCHEMA = schemathesis.openapi.from_wsgi("/openapi.json", CLIENT.app, headers=HEADERS)


@SCHEMA.parametrize()
@settings(
    max_examples=40,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_whatever_is_sent_is_answered_as_the_document_says(case: Any):
    """Half of the cases name an environment and a session that are there."""
    if len(repr(case.body)) % 2 == 0:
        if "session_id" in case.path_parameters:
            CLIENT.ask("POST", "/v1/sessions", {"id": COUNTER, "session": "there"}, headers=HEADERS)
            case.path_parameters["session_id"] = "there"
        if "env_id" in case.path_parameters:
            case.path_parameters["env_id"] = COUNTER
        if isinstance(case.body, dict) and "id" in case.body:
            case.body["id"] = COUNTER
    if case.operation.path.endswith("/events") and "follow" not in (case.query or {}):
        case.query = {**(case.query or {}), "follow": "false"}
    case.call_and_validate(headers=HEADERS, checks=CHECKS)
