"""Paths of a client as a whole: its configuration, sessions, telemetry, and what is not served."""

from __future__ import annotations

import re
from typing import Any

from flask import Blueprint, Response, jsonify

from envweave_gym_server.tinker.api_errors import BadInput, Gone, NotFound
from envweave_gym_server.tinker.checkpoints import CheckpointFile
from envweave_gym_server.tinker.client_sessions import ClientSession
from envweave_gym_server.tinker.paging import page
from envweave_gym_server.tinker.request_bodies import (
    ClientConfig,
    CreateSession,
    FinishSession,
    Heartbeat,
    SearchSessions,
    body_of,
)
from envweave_gym_server.tinker.tinker_service import the_service

client_routes = Blueprint("client_routes", __name__)
OLDEST, NEWEST = (0, 25), (0, 38)
"""Versions of the SDK that this server was written for; the binary bodies begin with the first."""
FLAGS: dict[str, Any] = {
    "pjwt_auth_enabled": False,
    "parallel_fwdbwd_chunks": False,  # pieces of one call come one after the other, and are done in that order
    "proto_compress_fwdbwd": False,
    "custom_loss_server_side": False,
    "sample_join_sampling_session": True,
    "sample_use_retrieve_futures": False,  # each future is polled: one round trip less than a poll of all
    "sample_max_concurrent_requests": 512,  # each holds a connection and a thread
}
NOT_SERVED = {
    "audit": "an audit log",
    "auth": "other credentials than API keys",
    "billing": "billing",
    "create_custom_loss": "custom losses on the server; forward_backward_custom runs them in the client",
    "copy_weights": "copies of checkpoints; load one by its path",
    "save_weights_external": "exports of weights; its checkpoints are safetensors files in its --checkpoints folder",
}


def check_sdk_version(version: str) -> None:
    """Refuse an SDK outside the served range; without a version any client is served."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or OLDEST <= (int(match[1]), int(match[2])) <= NEWEST:
        return
    low, high, after = _dotted(OLDEST), _dotted(NEWEST), _dotted((NEWEST[0], NEWEST[1] + 1))
    raise BadInput(
        f"tinker {version[:20]} is not served here, only {low} to {high}: pip install 'tinker>={low},<{after}'"
    )


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


@client_routes.get("/healthz")
def healthz() -> Response:
    """Answer that the server runs; needs no key."""
    return jsonify(status="ok")


@client_routes.post("/client/config")
def config() -> Response:
    """Return the settings of the SDK."""
    check_sdk_version(body_of(ClientConfig).sdk_version)
    return jsonify(FLAGS)


@client_routes.post("/client/dynamic_config")
def dynamic_config() -> Response:
    """Return the settings that the SDK fetches again from time to time."""
    return jsonify(refresh_interval_sec=3600, sample_cancel_enabled=True)


@client_routes.get("/get_server_capabilities")
def capabilities() -> Response:
    """List the base models."""
    models = [
        {
            "model_name": base.name,
            "max_context_length": base.transformer.config.context,
            "trainable": True,
            "sampleable": True,
        }
        for base in the_service().bases.values()
    ]
    return jsonify(supported_models=models)


@client_routes.post("/telemetry")
def telemetry() -> Response:
    """Take telemetry, and keep none."""
    return jsonify(status="accepted")


@client_routes.post("/create_session")
def create_session() -> Response:
    """Open a session."""
    body = body_of(CreateSession)
    session = the_service().sessions.open(body.user_metadata, body.display_name)
    return jsonify(type="create_session", session_id=session.session_id)


@client_routes.post("/session_heartbeat")
def heartbeat() -> Response:
    """Note that a client is there."""
    try:
        the_service().sessions.touch(body_of(Heartbeat).session_id)
    except NotFound as error:
        raise Gone(str(error)) from None  # at which the SDK ends its heartbeats
    return jsonify(type="session_heartbeat")


@client_routes.post("/sessions/<session_id>/finish")
def finish(session_id: str) -> tuple[str, int]:
    """End a session and drop its models and samplers."""
    body = body_of(FinishSession)
    the_service().end_session(
        session_id, {"type": "client_finished", "reason": body.reason, "detail": body.detail}
    )
    return "", 204


@client_routes.get("/sessions")
def sessions() -> Response:
    """List ids of sessions."""
    chosen, _ = page([one.session_id for one in the_service().sessions.all()])
    return jsonify(sessions=chosen)


@client_routes.get("/sessions/<session_id>")
def session(session_id: str) -> Response:
    """Return the models and samplers of a session."""
    service = the_service()
    found = service.sessions.find(session_id)
    if found is None:
        raise NotFound(f"session {session_id} is not known here")
    return jsonify(
        training_run_ids=[one.model_id for one in service.models.all() if one.session_id == session_id],
        sampler_ids=service.samplers.of_session(session_id),
        user_metadata=found.metadata,
        display_name=found.display_name,
    )


@client_routes.post("/sessions/search")
def search() -> Response:
    """List sessions with their state, the newest first; filters other than the id are not applied."""
    wanted = body_of(SearchSessions).session_id
    saved = the_service().checkpoints.all()
    found = [one for one in the_service().sessions.all() if wanted in (None, one.session_id)]
    return jsonify(sessions=[_summary(one, saved) for one in found[:200]], next_cursor=None)


def _summary(one: ClientSession, checkpoints: list[CheckpointFile]) -> dict[str, Any]:
    saved = [about for about in checkpoints if about.run.startswith(f"{one.session_id}:")]
    return {
        "session_id": one.session_id,
        "created_at": one.created.isoformat(),
        "owner": "local",
        "project_id": "local",
        "status": one.status(),
        "checkpoints_count": len(saved),
        "display_name": one.display_name,
        "user_metadata": one.metadata,
        "checkpoint_storage_bytes": sum(about.size for about in saved),
    }


@client_routes.route("/sessions/<session_id>/<any(project, trace_export):part>", methods=["GET", "PUT"])
def not_of_sessions(session_id: str, part: str) -> Response:
    """Refuse projects and traces."""
    raise BadInput(f"this server has no {'projects' if part == 'project' else 'traces'} of sessions")


_REFUSED = ", ".join(NOT_SERVED)


@client_routes.route(f"/<any({_REFUSED}):name>", methods=["GET", "POST", "DELETE"])
@client_routes.route(f"/<any({_REFUSED}):name>/<path:rest>", methods=["GET", "POST", "DELETE"])
def not_served(name: str, rest: str = "") -> Response:
    """Refuse a part of the hosted service that a local server does not have."""
    raise BadInput(f"this server has no {NOT_SERVED[name]}")
