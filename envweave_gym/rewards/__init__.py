"""Reward transforms, the comparison of answers, and the static reading of programs."""

from __future__ import annotations

from envweave_gym.rewards.transforms import CodeQuality as CodeQuality
from envweave_gym.rewards.transforms import CodeSafety as CodeSafety
from envweave_gym.rewards.transforms import Composite as Composite
from envweave_gym.rewards.transforms import MathAnswer as MathAnswer
from envweave_gym.rewards.transforms import RewardFailed as RewardFailed
from envweave_gym.rewards.transforms import RewardTransform as RewardTransform
from envweave_gym.rewards.transforms import TaskCompletion as TaskCompletion
from envweave_gym.rewards.transforms import math_transform as math_transform
from envweave_gym.rewards.transforms import safe_transform as safe_transform
