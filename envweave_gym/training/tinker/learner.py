"""One LoRA adapter on the server: its updates, its samplers and its checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envweave_gym.core.faults import EnvweaveError, InvalidArgument, NotAvailable, need, shown
from envweave_gym.training.tinker.connection import Connection, ServerLost
from envweave_gym.training.tinker.datums import TrainingRow, in_parts
from envweave_gym.training.tinker.sampling import Sampler, seed_of
from envweave_gym.training.tinker.tinker_options import TinkerOptions

_CLIPPED = ("ppo", "cispo")
_WEIGHTS = "weights for sampling"


@dataclass(frozen=True)
class Step:
    """The rows of an optimiser step, with the log-probabilities that the trainer computed for their targets."""

    rows: Sequence[TrainingRow]
    logprobs: Sequence[NDArray[np.float64]]
    is_first: bool = True
    """Whether it is the first step of an update, whose weights are still those that sampled."""


class Learner:
    """A training client of the SDK, with the sampling client of its newest weights."""

    def __init__(
        self, connection: Connection, options: TinkerOptions, model: str, name: str, path: str = ""
    ) -> None:
        """Create the adapter ``name``, or restore it with its optimiser from the checkpoint at ``path``."""
        self._connection, self._options, self._model = connection, options, model
        self._types = need("tinker.types", "tinker", "training with Tinker")
        self.name = name
        service = connection.service
        if path:
            self.client = _restored(connection, path)
        else:
            self.client = connection.call(
                service.create_lora_training_client,
                model,
                rank=options.rank,
                seed=seed_of("adapter", options.seed, name),
                train_unembed=options.train_unembed,
                what="a new adapter",
            )
        self._sampling = connection.call(self.client.save_weights_and_get_sampling_client, what=_WEIGHTS)
        self._saved: dict[str, int] = {}

    def tokenizer(self) -> Any:
        """Load the tokenizer of the base model; raise ``NotAvailable`` if it cannot be found or read."""
        given, wait = self._options.tokenizer, self._connection.call
        try:
            if not given:
                return wait(self.client.get_tokenizer, what="its tokenizer")
            transformers = need("transformers", "tinker", "loading a tokenizer")
            return wait(transformers.AutoTokenizer.from_pretrained, given, what="the tokenizer")
        except EnvweaveError:
            raise
        except Exception as error:  # of the hub, of files, or of their content
            source = f"--tokenizer {shown(given)}" if given else f"the tokenizer of {self._model}"
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise NotAvailable(
                f"{source} cannot be loaded; give --tokenizer FOLDER or NAME: {reason}"
            ) from error

    def sampler(self, stop: Sequence[int], temperature: float) -> Sampler:
        """Return a sampler of the newest weights."""
        return Sampler(
            self._sampling,
            partial(self._connection.result, what="samples"),
            max_tokens=self._options.max_tokens,
            stop=stop,
            temperature=temperature,
            context=self._connection.context_of(self._model),
        )

    def update(self, rows: Sequence[TrainingRow], learning_rate: float) -> list[Step]:
        """Make the optimiser steps of an update, and take a sampling client of the new weights.

        All requests are sent before the first result is waited for, so that the server never idles.
        """
        options, pending = self._options, list[tuple[Sequence[TrainingRow], Any, Any]]()
        adam = self._types.AdamParams(
            learning_rate=learning_rate,
            beta1=options.adam_beta1,
            beta2=options.adam_beta2,
            eps=options.adam_epsilon,
        )
        for chosen in in_parts(rows, options.substeps):
            datums = [row.datum() for row in chosen]
            passed = self.client.forward_backward(datums, options.loss, self._loss_config())
            pending.append((chosen, passed, self.client.optim_step(adam)))
        sampling = self._connection.begin(self.client.save_weights_and_get_sampling_client)
        steps = [
            Step(chosen, self._logprobs(passed, stepped), is_first=index == 0)
            for index, (chosen, passed, stepped) in enumerate(pending)
        ]
        self._sampling = self._connection.result(sampling, _WEIGHTS)
        return steps

    def _loss_config(self) -> dict[str, float] | None:
        if self._options.loss not in _CLIPPED:
            return None
        return {"clip_low_threshold": self._options.clip_low, "clip_high_threshold": self._options.clip_high}

    def _logprobs(self, passed: Any, stepped: Any) -> list[NDArray[np.float64]]:
        outputs = self._connection.result(passed, "a training pass").loss_fn_outputs
        self._connection.result(stepped, "an optimiser step")
        return [np.asarray(output["logprobs"].tolist(), np.float64) for output in outputs]

    def save(self, name: str) -> str:
        """Save weights and optimiser, and return the path of the checkpoint.

        A name is used once: a save that was interrupted may have taken it, or still takes it.
        """
        times = self._saved[name] = self._saved.get(name, 0) + 1
        unused = name if times == 1 else f"{name}-{times}"
        return self._connection.result(self.client.save_state(unused), "a checkpoint").path

    def save_for_sampling(self, name: str) -> str:
        """Save the weights for sampling, and return their path."""
        return self._connection.result(self.client.save_weights_for_sampler(name), _WEIGHTS).path


def _restored(connection: Connection, path: str) -> Any:
    """Return a training client of a checkpoint; raise ``InvalidArgument`` if the server does not have it."""
    try:
        create = connection.service.create_training_client_from_state_with_optimizer
        return connection.call(create, path, what="the adapter of a checkpoint")
    except ServerLost as error:
        if path not in str(error):
            raise
        raise InvalidArgument(
            f"{error}; give the --base-url of the server that has this checkpoint of the run, or begin again "
            "without --resume"
        ) from error
