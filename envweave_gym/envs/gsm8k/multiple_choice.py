"""GSM8K as multiple choice: a word problem, its result, and three wrong results."""

from __future__ import annotations

from envweave_gym.core.config import configured
from envweave_gym.core.faults import InvalidArgument
from envweave_gym.data.gsm8k import GSM8K, MAX_QUESTION, Problem
from envweave_gym.data.sources import rows_of
from envweave_gym.envs.gsm8k.gsm8k_config import GSM8KMCQConfig
from envweave_gym.envs.gsm8k.number_distractors import WRONG_OPTIONS, options_of
from envweave_gym.envs.tasks.choice_env import ChoiceEnv, Question
from envweave_gym.envs.tasks.option_letters import shuffled

_MAX_OPTIONS = 1024
"""Limit of a prompt in characters, without its question."""


class GSM8KMCQEnv(ChoiceEnv[Problem]):
    """Environment that asks which of four numbers answers a word problem.

    The three wrong numbers depend on the problem alone (:mod:`envweave_gym.envs.gsm8k.number_distractors`); the
    order of the four is drawn from the seed.
    """

    name = "envweave/GSM8KMCQ-v0"

    @configured(GSM8KMCQConfig)
    def __init__(self, config: GSM8KMCQConfig) -> None:
        super().__init__(
            rows_of(GSM8K, config.dataset, config.split),
            config,
            dataset=config.dataset,
            split=config.split,
            options=WRONG_OPTIONS + 1,
            longest=MAX_QUESTION + _MAX_OPTIONS,
        )

    def ask(self, task: Problem) -> Question:
        """Return the problem with its options, in the order of the episode."""
        try:
            right, wrong = options_of(task)
        except ValueError as error:
            raise InvalidArgument(
                f"{self.name}: problem {self.index}: {error}; give a data set whose results are numbers"
            ) from None
        options, place = shuffled(right, wrong, self.key)
        return Question(task.question, options, place)
