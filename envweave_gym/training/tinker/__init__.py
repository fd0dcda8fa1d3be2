"""Reinforcement learning of language models with the Tinker SDK: one loop over any ID, on a hosted or local server."""

from envweave_gym.training.tinker.grpo import Trainer as Trainer
from envweave_gym.training.tinker.grpo import train as train
from envweave_gym.training.tinker.tinker_options import TinkerOptions as TinkerOptions
