"""Paths of sampling: sessions of samplers, and requests to continue a prompt."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import flask
import msgspec
from flask import Blueprint, Response, jsonify

from envweave_gym_server.tinker.api_errors import BadInput
from envweave_gym_server.tinker.engine import Sampling
from envweave_gym_server.tinker.futures import Reply
from envweave_gym_server.tinker.models.decoding import SampleRequest, SampleResult, check_request
from envweave_gym_server.tinker.protobuf_bodies import sample_reply
from envweave_gym_server.tinker.request_bodies import (
    CreateSampler,
    Prompt,
    Sample,
    SamplerId,
    SamplingParams,
    body_of,
    digest_of_request,
)
from envweave_gym_server.tinker.samplers import Sampler, Weights
from envweave_gym_server.tinker.tinker_service import TinkerService, the_service

sampling_routes = Blueprint("sampling_routes", __name__)
MAX_SAMPLES = 4096


@sampling_routes.post("/create_sampling_session")
def create_sampling_session() -> Response:
    """Make a sampler of a base model or of a checkpoint."""
    body, service = body_of(CreateSampler), the_service()
    service.sessions.touch(body.session_id)
    sampler_id = f"{body.session_id}:sample:{body.sampling_session_seq_id}"
    if sampler_id not in service.samplers:
        service.samplers.add(_new_sampler(service, sampler_id, body))
        service.check_open(body.session_id)
    return jsonify(type="create_sampling_session", sampling_session_id=sampler_id)


def _new_sampler(service: TinkerService, sampler_id: str, body: CreateSampler) -> Sampler:
    if body.model_path is None:
        if body.base_model is None:
            raise BadInput("a sampler needs base_model or model_path")
        base = service.base(body.base_model)
        return Sampler(sampler_id, body.session_id, base, service.base_weights[base.name])
    file = service.checkpoints.find(body.model_path).weights
    load = partial(service.load_weights, body.model_path, file)
    weights = load()
    if body.base_model not in (None, weights.base.name):
        raise BadInput(f"{body.model_path} is of {weights.base.name}, not of {body.base_model}")
    return Sampler(sampler_id, body.session_id, weights.base, weights, body.model_path, load)


@sampling_routes.post("/join_sampling_session")
def join_sampling_session() -> Response:
    """Number a copy of a sampling client, so that its requests have ids of their own."""
    number = the_service().samplers.join(body_of(SamplerId).sampling_session_id)
    return jsonify(type="join_sampling_session", client_counter=number)


@sampling_routes.get("/samplers/<sampler_id>")
def get_sampler(sampler_id: str) -> Response:
    """Return the base model of a sampler."""
    sampler = the_service().samplers.find(sampler_id)
    return jsonify(sampler_id=sampler_id, base_model=sampler.base.name, model_path=sampler.model_path)


@sampling_routes.post("/asample")
def asample() -> Response:
    """Submit a sampling request."""
    body, service = body_of(Sample), the_service()
    sampler = service.samplers.find(body.sampling_session_id)
    service.sessions.touch(sampler.session_id)
    if not 1 <= body.num_samples <= MAX_SAMPLES:
        raise BadInput(f"num_samples {body.num_samples} is not served here; give 1 to {MAX_SAMPLES}")
    request_id = f"{sampler.sampler_id}#{body.seq_id}"
    sequence_ids = [f"{request_id}#{index}" for index in range(body.num_samples)]
    if service.futures.find(request_id, digest_of_request()) is None:
        _submit(service, sampler, service.samplers.weights_of(sampler), request_id, sequence_ids, body)
    return jsonify(request_id=request_id, sample_sequence_ids=sequence_ids)


def _submit(
    service: TinkerService,
    sampler: Sampler,
    weights: Weights,
    request_id: str,
    sequence_ids: list[str],
    body: Sample,
) -> None:
    number = sampler.sampler_id.rsplit(":", 1)[-1]
    request = sample_request(sampler, body, service.seed(body.sampling_params.seed, number, body.seq_id))

    options = msgspec.structs.replace(body, prompt=Prompt([]))  # the request holds it, in fewer bytes

    def encode(result: SampleResult) -> Reply:
        if options.record_stability_info:
            for sequence_id, sequence in zip(sequence_ids, result.sequences, strict=True):
                service.records.add(sequence_id, sampler.session_id, request.prompt, sequence.tokens)
        return sample_reply(result, options)

    future, is_new = service.futures.add(
        request_id, sampler.session_id, digest_of_request(), len(flask.request.get_data())
    )
    if is_new:
        service.engine.submit(Sampling(future, weights, request, encode))


def sample_request(sampler: Sampler, body: Sample, seed: int) -> SampleRequest:
    """Return a client's request as the model reads it, checked; without ``stop`` the base's own tokens end it."""
    if body.prompt_alt_tokens_k:
        raise BadInput("prompt_alt_tokens_k is not served here; leave it out")
    params, config = body.sampling_params, sampler.base.transformer.config
    prompt = body.prompt.tokens()
    stop_ids, stop_strings = _stops(params, sampler.base.eos)
    room = config.context - len(prompt)
    request = SampleRequest(
        _compact(prompt),
        body.num_samples,
        room if params.max_tokens is None else params.max_tokens,
        params.temperature,
        params.top_k,
        params.top_p,
        stop_ids,
        stop_strings,
        seed,
        bool(body.prompt_logprobs),
        body.topk_sample_logprobs,
        body.topk_prompt_logprobs,
    )
    try:
        check_request(config, request)
    except ValueError as error:
        raise BadInput(str(error)) from None
    table = body.target_prompt_logprobs
    if table is None:
        return request
    return replace(request, prompt_targets=table.targets(len(prompt), config.vocabulary))


def _compact(tokens: list[int]) -> Sequence[int]:
    """Return tokens in 4 bytes each, or as they are if one is no token at all, which the check says then."""
    try:
        return array("i", tokens)
    except OverflowError:
        return tokens


def _stops(params: SamplingParams, eos: frozenset[int]) -> tuple[frozenset[int], tuple[str, ...]]:
    """Return tokens and strings that end a sequence; ``stop=[]`` is neither, strings come beside the base's own."""
    if params.stop is None:
        return eos, ()
    given = [params.stop] if isinstance(params.stop, str) else params.stop
    strings = tuple(one for one in given if isinstance(one, str))
    if "" in strings:
        raise BadInput("a stop string is empty, which ends every reply at once; leave it out")
    tokens = frozenset(one for one in given if isinstance(one, int))
    return (tokens | eos if strings else tokens), strings
