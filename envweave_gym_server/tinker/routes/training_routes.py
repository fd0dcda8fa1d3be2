"""Paths of training: models, passes, steps of the optimiser, and checkpoints that are saved and loaded."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from flask import Blueprint, Response, jsonify, request

from envweave_gym.core.faults import shown
from envweave_gym_server.tinker.api_errors import BadInput
from envweave_gym_server.tinker.body_limits import take_bytes
from envweave_gym_server.tinker.checkpoints import CheckpointFile, checked_name, expiry
from envweave_gym_server.tinker.engine import Operation
from envweave_gym_server.tinker.futures import Future, Reply, json_reply
from envweave_gym_server.tinker.models.losses import check_datums
from envweave_gym_server.tinker.protobuf_bodies import (
    TrainingRequest,
    decompressed,
    training_reply,
    training_request,
)
from envweave_gym_server.tinker.request_bodies import (
    AdamParams,
    CreateModel,
    LoadWeights,
    LoraConfig,
    ModelId,
    OptimStep,
    SaveForSampler,
    SaveWeights,
    body_of,
    digest_of_request,
    digest_of_snapshot,
)
from envweave_gym_server.tinker.samplers import Sampler
from envweave_gym_server.tinker.tinker_service import TinkerService, the_service
from envweave_gym_server.tinker.training_models import LARGEST_RANK, TrainingModel, session_of

training_routes = Blueprint("training_routes", __name__)


@training_routes.post("/create_model")
def create_model() -> Response:
    """Make an adapter over a base model."""
    body, service = body_of(CreateModel), the_service()
    service.sessions.touch(body.session_id)
    model_id = f"{body.session_id}:train:{body.model_seq_id}"
    base, lora = service.base(body.base_model), body.lora_config or LoraConfig()
    _check_optimizer(body.optimizer_config)
    if not 1 <= lora.rank <= LARGEST_RANK:
        raise BadInput(f"rank {lora.rank} is not served here; give 1 to {LARGEST_RANK}")
    if not (lora.train_attn or lora.train_mlp or lora.train_unembed):
        raise BadInput("train_attn, train_mlp and train_unembed are all off; there is nothing to train")
    seed = service.seed(lora.seed, "init", body.model_seq_id)
    lora = LoraConfig(lora.rank, seed, lora.train_unembed, lora.train_mlp, lora.train_attn)

    def run() -> Reply:
        service.models.add(TrainingModel(model_id, base, lora, body.user_metadata))
        service.check_open(body.session_id)
        return json_reply(type="create_model", model_id=model_id)

    return _submit_first(service, model_id, run)


@training_routes.post("/unload_model")
def unload_model() -> Response:
    """Drop a model."""
    model_id = body_of(ModelId).model_id
    service = the_service()

    def run() -> Reply:
        service.models.drop(model_id)
        return json_reply(type="unload_model", model_id=model_id)

    future, is_new = service.futures.add(
        f"{model_id}#unload", session_of(model_id), digest=digest_of_request()
    )
    if is_new:
        service.engine.submit(Operation(future, run))
    return jsonify(request_id=future.request_id, model_id=model_id)


@training_routes.post("/get_info")
def get_info() -> Response:
    """Return the base model of a model and, to clients on this machine, the folder of its tokenizer.

    Without a folder the SDK looks for a tokenizer of the base model's name on the hub.
    """
    model = the_service().models.find(body_of(ModelId).model_id)
    data = {
        "arch": "llama",
        "model_name": model.base.name,
        "tokenizer_id": str(model.base.tokenizer_folder) if _client_is_on_this_machine() else None,
    }
    return jsonify(
        type="get_info",
        model_id=model.model_id,
        is_lora=True,
        lora_rank=model.lora.rank,
        model_name=model.base.name,
        model_data=data,
        optimizer_config={"type": "adamw"},
    )


def _client_is_on_this_machine() -> bool:
    """Return whether both ends of the connection have the same address, and no proxy says that it forwards."""
    connection = request.environ.get("werkzeug.socket")
    if connection is None or "Forwarded" in request.headers or "X-Forwarded-For" in request.headers:
        return False
    return connection.getsockname()[0] == request.remote_addr


@training_routes.post("/forward_backward")
def forward_backward() -> Response:
    """Submit a forward pass, or a forward and backward pass; the body is protobuf."""
    if request.mimetype != "application/x-protobuf":
        raise BadInput("forward_backward is a protobuf message here, as tinker 0.25 and later send it")
    service = the_service()
    body = decompressed(request.get_data(), request.headers.get("Content-Encoding", ""), take_bytes)
    wanted = training_request(body, take_bytes)
    model = service.models.find(wanted.model_id)
    try:
        _check_pass(service, model, wanted)
    except BadInput as error:
        if not wanted.forward_only:
            _fail_next_step(service, model, wanted.seq_id, str(error))
        raise
    run = model.forward if wanted.forward_only else model.forward_backward
    return _submit(
        service,
        model,
        wanted.seq_id,
        lambda: training_reply(run(wanted.datums, wanted.loss, wanted.loss_config)),
        size=max(len(body), wanted.size),
    )


def _fail_next_step(service: TinkerService, model: TrainingModel, seq_id: int, reason: str) -> None:
    """Let the step after a refused pass fail, when those before it are done; a repeated one changes nothing."""
    with model.order:
        if seq_id <= model.last_seq_id:
            return
        model.last_seq_id = seq_id

        def run() -> Reply:
            model.fail_next_step(reason)
            return json_reply(type="refused")

        service.engine.submit(Operation(Future(f"{model.model_id}#refused", model.session_id), run))


def _check_pass(service: TinkerService, model: TrainingModel, wanted: TrainingRequest) -> None:
    try:
        check_datums(model.base.transformer.config, wanted.datums, wanted.loss, wanted.loss_config)
    except ValueError as error:
        raise BadInput(str(error)) from None
    if wanted.loss != "stable_reinforce":
        return
    for index, (datum, (inputs, targets)) in enumerate(zip(wanted.datums, wanted.spans, strict=True)):
        if not inputs or not targets:
            raise BadInput(
                f"datum {index} needs provenance spans for stable_reinforce: Datum.with_provenance"
            )
        service.records.check(inputs, datum.tokens, model.session_id, compares_prompts=True)
        goals = datum.inputs["target_tokens"].tolist()
        service.records.check(targets, goals, model.session_id, compares_prompts=False)


@training_routes.post("/optim_step")
def optim_step() -> Response:
    """Submit a step of the optimiser."""
    body, service = body_of(OptimStep), the_service()
    model = service.models.find(body.model_id)
    if body.optimizer_params is not None:
        _check_optimizer(body.optimizer_params)
    params = body.adam_params or AdamParams()
    params.check()

    def run() -> Reply:
        return json_reply(type="optim_step", metrics=model.optim_step(params))

    return _submit(service, model, body.seq_id, run)


@training_routes.post("/save_weights")
def save_weights() -> Response:
    """Submit a checkpoint with the state of the optimiser."""
    body, service = body_of(SaveWeights), the_service()
    model = service.models.find(body.model_id)
    about = _description(model, "weights", body.path, body.ttl_seconds, body.user_metadata)

    def run() -> Reply:
        about.steps = model.steps
        path = service.checkpoints.save(model.state(with_optimizer=True), about, overwrite=body.overwrite)
        return json_reply(type="save_weights", path=path)

    return _submit(service, model, body.seq_id, run)


@training_routes.post("/save_weights_for_sampler")
def save_weights_for_sampler() -> Response:
    """Submit a checkpoint for sampling or, without a path, a sampler of the weights of that time."""
    body, service = body_of(SaveForSampler), the_service()
    model = service.models.find(body.model_id)
    if body.path is None and body.sampling_session_seq_id is not None:
        digest = digest_of_snapshot(body)
        return _submit(service, model, body.seq_id, lambda: _snapshot(service, model, body), digest)
    about = _description(model, "sampler_weights", body.path, body.ttl_seconds, body.user_metadata)

    def run() -> Reply:
        about.steps = model.steps
        path = service.checkpoints.save(model.state(with_optimizer=False), about, overwrite=True)
        return json_reply(type="save_weights_for_sampler", path=path)

    return _submit(service, model, body.seq_id, run)


def _snapshot(service: TinkerService, model: TrainingModel, body: SaveForSampler) -> Reply:
    sampler_id = f"{model.session_id}:sample:{body.sampling_session_seq_id}"
    sampler = Sampler(sampler_id, model.session_id, model.base, model.snapshot())
    if body.kind == "inflight":
        service.samplers.add_inflight(sampler, model.model_id)
    else:
        service.samplers.add(sampler)
    service.check_open(model.session_id)
    return json_reply(type="save_weights_for_sampler", path=None, sampling_session_id=sampler_id)


@training_routes.post("/load_weights")
def load_weights() -> Response:
    """Submit the load of a checkpoint, into a new model if the request names a session."""
    body, service = body_of(LoadWeights), the_service()
    about = service.checkpoints.find(body.path)
    _check_optimizer(body.optimizer_config)
    if body.base_model not in (None, about.base_model):
        raise BadInput(f"{body.path} is of {about.base_model}, not of {body.base_model}")
    if body.optimizer and not about.with_optimizer:
        raise BadInput(
            f"{body.path} has no state of an optimiser; load it without, or load one of save_state"
        )
    base = service.base(about.base_model)
    if body.session_id is None:
        model = service.models.find(body.model_id or "")
        if model.lora.rank != about.lora.rank or model.base is not base:
            raise BadInput(
                f"{body.path} has rank {about.lora.rank} and base {base.name}, unlike {model.model_id}"
            )
        return _submit(service, model, body.seq_id, lambda: _load(service, model, body))
    service.sessions.touch(body.session_id)
    model_id = f"{body.session_id}:train:{body.model_seq_id}"

    def run() -> Reply:
        model = TrainingModel(model_id, base, about.lora, body.user_metadata)
        reply = _load(service, model, body)
        service.models.add(model)
        service.check_open(session_of(model_id))
        return reply

    return _submit_first(service, model_id, run)


def _load(service: TinkerService, model: TrainingModel, body: LoadWeights) -> Reply:
    about, tensors = service.checkpoints.load(body.path)
    model.load(tensors, with_optimizer=body.optimizer)
    model.steps = about.steps
    return json_reply(type="load_weights", path=body.path, model_id=model.model_id)


def _description(
    model: TrainingModel, kind: str, name: str | None, ttl: int | None, metadata: dict[str, str] | None
) -> CheckpointFile:
    if name is None:
        raise BadInput("a checkpoint needs a name")
    return CheckpointFile(
        run=model.model_id,
        kind=kind,
        name=checked_name(name),
        weights="",
        size=0,
        base_model=model.base.name,
        lora=model.lora,
        steps=model.steps,
        created=datetime.now(UTC),
        with_optimizer=kind == "weights",
        expires=expiry(ttl),
        metadata=metadata,
    )


def _check_optimizer(config: dict[str, Any] | None) -> None:
    kind = (config or {}).get("type", "adamw")
    if kind != "adamw":
        raise BadInput(f"the optimiser {shown(kind)} is not served here; use adamw (AdamParams)")


def _submit(
    service: TinkerService,
    model: TrainingModel,
    seq_id: int,
    run: Callable[[], Reply],
    digest: bytes | None = None,
    size: int = 0,
) -> Response:
    """Submit an operation of a model, which holds ``size`` bytes; a repeated request gets the future of the first."""
    service.sessions.touch(model.session_id)
    request_id = f"{model.model_id}#{seq_id}"
    digest = digest or digest_of_request()
    with model.order:
        if service.futures.find(request_id, digest) is None:
            if seq_id <= model.last_seq_id:
                raise BadInput(
                    f"request {seq_id} of model {model.model_id} came after request {model.last_seq_id}: "
                    "it was done before, or the client does not keep the order"
                )
            future, _ = service.futures.add(request_id, model.session_id, digest=digest, size=size)
            model.last_seq_id = seq_id
            service.engine.submit(Operation(future, run))
    return jsonify(request_id=request_id, model_id=model.model_id)


def _submit_first(service: TinkerService, model_id: str, run: Callable[[], Reply]) -> Response:
    """Submit the operation that makes a model."""
    request_id = f"{model_id}#0"
    digest = digest_of_request()
    if service.futures.find(request_id, digest) is None:
        service.models.check_room()
    future, is_new = service.futures.add(request_id, session_of(model_id), digest=digest)
    if is_new:
        service.engine.submit(Operation(future, run))
    return jsonify(request_id=future.request_id, model_id=model_id)
