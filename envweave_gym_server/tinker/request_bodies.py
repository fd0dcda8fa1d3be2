"""JSON bodies of requests, as typed structs; fields that this server does not use are left out."""

from __future__ import annotations

import hashlib
import math
from typing import Any, Literal, TypeVar

import msgspec
from flask import request

from envweave_gym_server.tinker.api_errors import BadInput
from envweave_gym_server.tinker.prompt_targets import TokenTable

Body = TypeVar("Body")


class LoraConfig(msgspec.Struct, frozen=True):
    """The shape of an adapter, and the seed of its first factors."""

    rank: int = 32
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class ClientConfig(msgspec.Struct):
    """Body of the first request of every client."""

    sdk_version: str = ""


class CreateSession(msgspec.Struct):
    """Body that opens a session."""

    user_metadata: dict[str, Any] | None = None
    display_name: str | None = None


class Heartbeat(msgspec.Struct):
    """Body of a heartbeat, which keeps a session open."""

    session_id: str


class SearchSessions(msgspec.Struct):
    """Body that asks for all sessions, or for the one with an ID."""

    session_id: str | None = None


class FinishSession(msgspec.Struct):
    """Body that ends a session, with the reason."""

    reason: dict[str, Any] = {}
    detail: str | None = None


class CreateModel(msgspec.Struct):
    """Body that makes a model in training: a new adapter over a base model."""

    session_id: str
    model_seq_id: int
    base_model: str
    lora_config: LoraConfig | None = None
    optimizer_config: dict[str, Any] | None = None
    user_metadata: dict[str, Any] | None = None


class ModelId(msgspec.Struct):
    """Body with the ID of a model in training."""

    model_id: str


class AdamParams(msgspec.Struct, forbid_unknown_fields=True):
    """Settings of AdamW for one step."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0

    def check(self) -> None:
        """Refuse settings with which a step makes no sense."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0) or (name.startswith("beta") and value >= 1):
                wanted = "from 0 to below 1" if name.startswith("beta") else "a finite number from 0 on"
                raise BadInput(f"{name} {value} is not {wanted}")


class OptimStep(msgspec.Struct):
    """Body that asks for one step of the optimiser."""

    model_id: str
    seq_id: int = 0
    adam_params: AdamParams | None = None
    optimizer_params: dict[str, Any] | None = None


class SaveWeights(msgspec.Struct):
    """Body that asks for a checkpoint with the state of the optimiser."""

    model_id: str
    path: str | None = None
    seq_id: int = 0
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: dict[str, str] | None = None


class SaveForSampler(msgspec.Struct):
    """Body that asks for a checkpoint for sampling or, without a path, for a sampler of the present weights."""

    model_id: str
    path: str | None = None
    sampling_session_seq_id: int | None = None
    kind: Literal["snapshot", "inflight"] = "snapshot"
    seq_id: int = 0
    ttl_seconds: int | None = None
    user_metadata: dict[str, str] | None = None


class LoadWeights(msgspec.Struct):
    """Body that loads a checkpoint into a model, or into a new one (``session_id`` and ``model_seq_id``)."""

    path: str
    optimizer: bool
    model_id: str | None = None
    seq_id: int = 0
    session_id: str | None = None
    model_seq_id: int | None = None
    base_model: str | None = None
    optimizer_config: dict[str, Any] | None = None
    user_metadata: dict[str, Any] | None = None


class WeightsPath(msgspec.Struct):
    """Body with the path of a checkpoint."""

    tinker_path: str


class CreateSampler(msgspec.Struct):
    """Body that makes a sampler of a base model or of a checkpoint."""

    session_id: str
    sampling_session_seq_id: int
    base_model: str | None = None
    model_path: str | None = None


class SamplerId(msgspec.Struct):
    """Body with the ID of a sampler."""

    sampling_session_id: str


class Chunk(msgspec.Struct):
    """A part of a prompt; this server reads text only."""

    type: str = "encoded_text"
    tokens: list[int] = []


class Prompt(msgspec.Struct):
    """A prompt in parts."""

    chunks: list[Chunk]

    def tokens(self) -> list[int]:
        """Return the tokens; raise :class:`BadInput` for images and sound."""
        for chunk in self.chunks:
            if chunk.type != "encoded_text":
                raise BadInput(f"a chunk of type {chunk.type!r} is not served here; send text tokens only")
        return [token for chunk in self.chunks for token in chunk.tokens]


class SamplingParams(msgspec.Struct):
    """Settings of sampling, as the SDK documents them."""

    max_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str | int] | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0


class Sample(msgspec.Struct):
    """Body of a sampling request: a prompt to continue."""

    prompt: Prompt
    sampling_params: SamplingParams
    sampling_session_id: str
    seq_id: int
    num_samples: int = 1
    prompt_logprobs: bool | None = None
    prompt_logprobs_last_n: int | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: TokenTable | None = None
    prompt_alt_tokens_k: int = 0
    record_stability_info: bool | None = None


class FutureId(msgspec.Struct):
    """Body with the ID of a submitted request."""

    request_id: str


class TimeToLive(msgspec.Struct):
    """Body with the time to live of a checkpoint; ``None`` is without end."""

    ttl_seconds: int | None = None


def body_of(kind: type[Body]) -> Body:
    """Decode the JSON body of the current request; a wrong one becomes a reply with status 400."""
    return msgspec.json.decode(request.get_data() or b"{}", type=kind)


def digest_of_request() -> bytes:
    """Return a digest of the path and body of the current request, by which a repeated one is known."""
    return _digest(request.get_data())


def digest_of_snapshot(body: SaveForSampler) -> bytes:
    """Return the digest of a request for a sampler, without the sampler's number: the SDK repeats it with the next."""
    return _digest(msgspec.json.encode(msgspec.structs.replace(body, sampling_session_seq_id=None)))


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(request.path.encode() + b"\n" + body, digest_size=16).digest()
