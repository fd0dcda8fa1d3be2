"""LoRA adapters: trainable low-rank changes of a transformer's linear layers."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from envweave_gym_server.tinker.models.llama import ModelConfig

ALPHA = 32.0
"""Scale of a change is ``ALPHA / rank``, as in the hosted service."""


class FrozenAdapter:
    """The weights of an adapter at one time, which training after it does not change."""

    def state(self) -> dict[str, Tensor]:
        """Return the weights by name, as :meth:`LoraAdapter.state` does."""
        raise NotImplementedError


class LoraAdapter:
    """A trainable adapter of one base model; a new one changes nothing until it is trained."""

    def __init__(
        self,
        config: ModelConfig,
        rank: int,
        seed: int = 0,
        *,
        train_attn: bool = True,
        train_mlp: bool = True,
        train_unembed: bool = True,
    ) -> None:
        """Draw the first factors from ``seed``; the second ones are zero. The flags select the layers."""
        raise NotImplementedError

    def parameters(self) -> list[Tensor]:
        """Return the trainable tensors in a fixed order, for an optimiser."""
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """Return copies of the weights by PEFT's names, ``model.layers.0.self_attn.q_proj.lora_A.weight``."""
        raise NotImplementedError

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy weights into the parameters; raise ``ValueError`` if names or shapes differ."""
        raise NotImplementedError

    def snapshot(self) -> FrozenAdapter:
        """Return the weights of now, ready for sampling."""
        raise NotImplementedError
