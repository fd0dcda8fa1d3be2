"""Models in training: an adapter over a base model, its gradients, and the state of its optimiser."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from envweave_gym_server.tinker.api_errors import BadInput, NotFound
from envweave_gym_server.tinker.models import training_pass
from envweave_gym_server.tinker.models.base_model import BaseModel
from envweave_gym_server.tinker.models.lora import LoraAdapter
from envweave_gym_server.tinker.models.losses import Datum, LossConfig
from envweave_gym_server.tinker.models.training_pass import PassResult
from envweave_gym_server.tinker.request_bodies import AdamParams, LoraConfig
from envweave_gym_server.tinker.samplers import Weights

MAX_MODELS, LARGEST_RANK = 64, 1024
_ADAM = "adam."
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class TrainingModel:
    """One adapter in training; gradients add up until a step of the optimiser."""

    def __init__(self, model_id: str, base: BaseModel, lora: LoraConfig, metadata: Any = None) -> None:
        """Make an adapter that changes nothing yet; its first factors are drawn from ``lora.seed``."""
        self.model_id, self.base, self.lora, self.metadata = model_id, base, lora, metadata
        self.steps, self.last_seq_id = 0, 0
        self._failure: str | None = None
        self.order = threading.Lock()
        self.last_request = datetime.now(UTC)
        self.adapter = LoraAdapter(
            base.transformer.config,
            lora.rank,
            lora.seed or 0,
            train_attn=lora.train_attn,
            train_mlp=lora.train_mlp,
            train_unembed=lora.train_unembed,
        )
        self._parameters = self.adapter.parameters()
        self._adam = self._new_adam()

    @property
    def session_id(self) -> str:
        """The session that made the model."""
        return session_of(self.model_id)

    def forward(self, datums: Sequence[Datum], loss: str, config: LossConfig) -> PassResult:
        """Return the log-probabilities of targets, without gradients."""
        return training_pass.forward(self.base.transformer, self.adapter, datums, loss, config)

    def forward_backward(self, datums: Sequence[Datum], loss: str, config: LossConfig) -> PassResult:
        """Add the gradient of a loss; if the pass fails, so does the next step of the optimiser."""
        try:
            return training_pass.forward_backward(self.base.transformer, self.adapter, datums, loss, config)
        except BaseException as error:
            self.fail_next_step(str(error) or type(error).__name__)
            raise

    def fail_next_step(self, reason: str) -> None:
        """Note that a pass failed: a client cuts one call in several, and must not train on a part of it."""
        self._failure = self._failure or reason

    def optim_step(self, params: AdamParams) -> dict[str, float]:
        """Make one AdamW step and return its metrics; a gradient that is not finite is dropped with an error."""
        self._check_passes()
        gradients = [one for one in self._parameters if one.grad is not None]
        limit = params.grad_clip_norm if params.grad_clip_norm > 0 else math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(gradients, limit)) if gradients else 0.0
        if not math.isfinite(norm):
            self._adam.zero_grad(set_to_none=True)
            raise BadInput(
                "the gradient is not finite, so it was dropped and no step was made; check the inputs"
            )
        for group in self._adam.param_groups:
            group["lr"], group["betas"] = params.learning_rate, (params.beta1, params.beta2)
            group["eps"], group["weight_decay"] = params.eps, params.weight_decay
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        self.steps += 1
        if not all(bool(one.isfinite().all()) for one in self._parameters):
            raise BadInput(
                f"weights are not finite after the step: learning_rate {params.learning_rate} is too large; load "
                "an earlier checkpoint, and give a smaller one"
            )
        return {"grad_norm": norm, "learning_rate": params.learning_rate}

    def _check_passes(self) -> None:
        """Drop the gradients, once, if a pass since the last step failed."""
        failure = self._failure
        if failure is not None:
            self._drop_gradients()
            raise BadInput(
                f"no step was made and all gradients were dropped, because a pass before it failed: {failure}; "
                "send the passes again, then the step"
            )

    def _drop_gradients(self) -> None:
        self._adam.zero_grad(set_to_none=True)
        self._failure = None

    def snapshot(self) -> Weights:
        """Return the weights of now for sampling."""
        return Weights(self.base, self.adapter.snapshot())

    def state(self, *, with_optimizer: bool) -> dict[str, Tensor]:
        """Return copies of the weights and, if wanted, of the optimiser's moments."""
        state = self.adapter.state()
        if with_optimizer:
            for index, moments in self._adam.state_dict()["state"].items():
                state |= {f"{_ADAM}{index}.{name}": moments[name].clone() for name in _MOMENTS}
        return state

    def load(self, state: Mapping[str, Tensor], *, with_optimizer: bool) -> None:
        """Set weights and, if wanted, the optimiser's moments to those of a checkpoint; drop all gradients."""
        self.adapter.load({name: one for name, one in state.items() if not name.startswith(_ADAM)})
        self._drop_gradients()
        self._adam = self._new_adam()
        if not with_optimizer:
            return
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in state.items():
            if name.startswith(_ADAM):
                index, moment = name.removeprefix(_ADAM).split(".")
                moments.setdefault(int(index), {})[moment] = tensor.clone()
        self._adam.load_state_dict({**self._adam.state_dict(), "state": moments})

    def _new_adam(self) -> torch.optim.AdamW:
        return torch.optim.AdamW(self._parameters, lr=0.0, weight_decay=0.0, fused=True)


class TrainingModels:
    """The table of models in training."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_id: dict[str, TrainingModel] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, model: TrainingModel) -> None:
        """Add a model that was made or loaded; refuse one that is there, which a repeated request would reset."""
        with self._lock:
            if model.model_id in self._by_id:
                raise BadInput(f"model {model.model_id} exists; it was made by an earlier request")
            self.check_room()  # again: other requests were accepted before the first of them was done
            self._by_id[model.model_id] = model

    def check_room(self) -> None:
        """Refuse another model over the limit."""
        if len(self._by_id) >= MAX_MODELS:
            raise BadInput(f"{MAX_MODELS} models are in training here; close a ServiceClient first")

    def find(self, model_id: str) -> TrainingModel:
        """Return a model; raise :class:`NotFound`."""
        model = self._by_id.get(model_id)
        if model is None:
            raise NotFound(
                f"model {model_id} is not known: its session has ended, or the server was restarted; "
                "create a training client from the last checkpoint"
            )
        model.last_request = datetime.now(UTC)
        return model

    def all(self) -> list[TrainingModel]:
        """Return the models, the oldest first."""
        with self._lock:
            return list(self._by_id.values())

    def drop(self, model_id: str) -> None:
        """Drop a model, if it is there."""
        with self._lock:
            self._by_id.pop(model_id, None)

    def drop_session(self, session_id: str) -> None:
        """Drop the models of a session that has ended."""
        with self._lock:
            for model_id in [key for key in self._by_id if session_of(key) == session_id]:
                del self._by_id[model_id]


def session_of(model_id: str) -> str:
    """Return the session in the id of a model or sampler, ``SESSION:train:0`` or ``SESSION:sample:0``."""
    return model_id.split(":", 1)[0]
