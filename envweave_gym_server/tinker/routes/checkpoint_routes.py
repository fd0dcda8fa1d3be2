"""Paths of the SDK's ``RestClient``: training runs and their checkpoints."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from flask import Blueprint, Response, jsonify

from envweave_gym_server.tinker.api_errors import BadInput, NotFound
from envweave_gym_server.tinker.checkpoints import SCHEME, CheckpointFile, expiry
from envweave_gym_server.tinker.paging import page
from envweave_gym_server.tinker.request_bodies import TimeToLive, WeightsPath, body_of
from envweave_gym_server.tinker.tinker_service import the_service

checkpoint_routes = Blueprint("checkpoint_routes", __name__)
_RUN = "/training_runs/<run>"
_CHECKPOINT = f"{_RUN}/checkpoints/<kind>/<name>"


@checkpoint_routes.post("/weights_info")
def weights_info() -> Response:
    """Return the base model and the shape of a checkpoint."""
    about = the_service().checkpoints.find(body_of(WeightsPath).tinker_path)
    return jsonify(
        base_model=about.base_model,
        is_lora=True,
        lora_rank=about.lora.rank,
        train_unembed=about.lora.train_unembed,
        train_mlp=about.lora.train_mlp,
        train_attn=about.lora.train_attn,
        optimizer_config={"type": "adamw"},
    )


@checkpoint_routes.get("/training_runs")
def training_runs() -> Response:
    """List the models in training, and those that have checkpoints, the last used first."""
    chosen, cursor = page(sorted(_runs().values(), key=lambda one: one["last_request_time"], reverse=True))
    return jsonify(training_runs=chosen, cursor=cursor)


@checkpoint_routes.get(_RUN)
def training_run(run: str) -> Response:
    """Return one model."""
    found = _runs(run).get(run)
    if found is None:
        raise NotFound(f"there is no training run {run} on this server")
    return jsonify(found)


def _runs(run: str | None = None) -> dict[str, dict[str, Any]]:
    service = the_service()
    found: dict[str, dict[str, Any]] = {}
    for about in service.checkpoints.all(run):
        last = "last_checkpoint" if about.kind == "weights" else "last_sampler_checkpoint"
        about_run = found.setdefault(about.run, _run_of_checkpoint(about))
        about_run.setdefault(last, about.listed())
    for model in service.models.all():
        if run in (None, model.model_id):
            known = found.get(model.model_id, {})
            found[model.model_id] = known | _run(
                model.model_id, model.base.name, model.lora.rank, model.last_request, model.metadata
            )
    return found


def _run_of_checkpoint(about: CheckpointFile) -> dict[str, Any]:
    return _run(about.run, about.base_model, about.lora.rank, about.created, None)


def _run(run: str, base: str, rank: int, last: datetime, metadata: Any) -> dict[str, Any]:
    return {
        "training_run_id": run,
        "base_model": base,
        "model_owner": "local",
        "is_lora": True,
        "lora_rank": rank,
        "corrupted": False,
        "last_request_time": last.isoformat(),
        "user_metadata": metadata,
    }


@checkpoint_routes.get("/checkpoints")
def all_checkpoints() -> Response:
    """List all checkpoints, the newest first."""
    chosen, cursor = page([one.listed() for one in the_service().checkpoints.all()])
    return jsonify(checkpoints=chosen, cursor=cursor)


@checkpoint_routes.get(f"{_RUN}/checkpoints")
def checkpoints(run: str) -> Response:
    """List the checkpoints of a run."""
    return jsonify(checkpoints=[one.listed() for one in the_service().checkpoints.all(run)])


@checkpoint_routes.delete(_CHECKPOINT)
def delete(run: str, kind: str, name: str) -> tuple[str, int]:
    """Delete a checkpoint."""
    the_service().checkpoints.delete(f"{SCHEME}{run}/{kind}/{name}")
    return "", 204


@checkpoint_routes.put(f"{_CHECKPOINT}/ttl")
def set_ttl(run: str, kind: str, name: str) -> tuple[str, int]:
    """Set when a checkpoint expires."""
    the_service().checkpoints.set_expiry(
        f"{SCHEME}{run}/{kind}/{name}", expiry(body_of(TimeToLive).ttl_seconds)
    )
    return "", 204


@checkpoint_routes.route(f"{_CHECKPOINT}/<any(publish):part>", methods=["POST", "DELETE"])
@checkpoint_routes.get(f"{_CHECKPOINT}/<any(archive, external_weights_urls):part>")
def not_of_checkpoints(run: str, kind: str, name: str, part: str) -> Response:
    """Refuse publishing and downloads: the files are on this machine."""
    folder = the_service().checkpoints.folder
    what = "cannot be published" if part == "publish" else "has no archive to download"
    raise BadInput(f"{SCHEME}{run}/{kind}/{name} {what} here: its safetensors file is in {folder}")
