"""The tasks of reasoning-gym: a generated question, and a reply that the task's own verifier scores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, overload

from envweave_gym.core.arguments import call
from envweave_gym.core.config import configured
from envweave_gym.core.faults import InvalidArgument, nearest, need, shown
from envweave_gym.core.seeding import mix
from envweave_gym.core.spaces import Unicode
from envweave_gym.core.thinking import without_thinking
from envweave_gym.envs.language.own_generators import OwnGenerators
from envweave_gym.envs.language.reasoning_gym_config import MAX_PROMPT, ReasoningGymConfig
from envweave_gym.envs.tasks.task_env import TASK_OPTIONS, TaskEnv
from envweave_gym.episode.message import message
from envweave_gym.episode.stream import metrics

_NAME = "envweave/ReasoningGym-v0"
MAX_QUESTION, MAX_REPLY = 1 << 18, 1 << 16  # characters
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
Entry = dict[str, Any]


class ReasoningGymEnv(TaskEnv[Entry, str, str]):
    """Environment that asks one question of a task of reasoning-gym, and ends with the reply.

    The reward is the score of the task's verifier, from 0 to 1, for the text between the last ``<answer>`` and
    ``</answer>``, or for the whole reply if it has no such tags. ``info`` of the last step has ``expected``, the
    generator's own answer, and ``unreadable``, the error of a verifier that could not read the reply.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1, "reset_options": TASK_OPTIONS}
    name = _NAME

    @configured(ReasoningGymConfig)
    def __init__(self, config: ReasoningGymConfig) -> None:
        self.config, self.render_mode = config, config.render_mode
        self.observation_space = Unicode(MAX_PROMPT + MAX_QUESTION)
        self.action_space = Unicode(MAX_REPLY)
        self._generators = OwnGenerators(_NAME)
        self._data = _data_of(config, self._generators)
        rows = _Questions(self._data, config.data_seed, self._generators)
        super().__init__(rows, dataset=config.task, split="generated")
        self._entry: Entry = {}
        self._text = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Ask the question that the seed draws, or the one named in ``options``."""
        self._entry = self.choose(seed, options)
        prompt, question = self.config.system_prompt, str(self._entry["question"])
        if prompt:
            self.emit(message("system", prompt))
        self.emit(message("user", question))
        self._text = f"{prompt}\n\n{question}" if prompt else question
        return self._text, self.task_info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Score the answer in a reply, and end the episode."""
        reply = without_thinking(action)
        tagged = _ANSWER.findall(reply)
        score, unreadable = self._score((tagged[-1] if tagged else reply).strip())
        self.emit(metrics(score=score))
        info = self.task_info() | {"expected": str(self._entry["answer"]), "unreadable": unreadable}
        return self._text, score, True, False, info

    def _score(self, answer: str) -> tuple[float, str]:
        """Return the verifier's score, and its error if it could not read the answer.

        Many verifiers raise whatever the parsing of a wrong answer raises, which means a score of 0. One that raises
        for its own answer too is broken: that error is the environment's, and no reward.
        """
        with self._generators.in_place():
            try:
                return float(self._data.score_answer(answer, self._entry)), ""
            except Exception as error:  # noqa: BLE001 - verifiers raise whatever parsing raises
                self._data.score_answer(self._entry["answer"], self._entry)
                return 0.0, f"{type(error).__name__}: {error}"

    def render(self) -> Any:
        """Return the prompt."""
        return self._text if self.render_mode == "ansi" else None


class _Questions(Sequence[Entry]):
    """The entries of a data set, each generated when it is read, always with the same random numbers."""

    def __init__(self, data: Any, data_seed: int, generators: OwnGenerators) -> None:
        self._data, self._data_seed, self._generators = data, data_seed, generators

    def __len__(self) -> int:
        return len(self._data)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | Sequence[Entry]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        self._generators.seed(mix(self._data_seed, index))
        with self._generators.in_place():
            return self._data[index]


def _data_of(config: ReasoningGymConfig, generators: OwnGenerators) -> Any:
    factory: Any = need("reasoning_gym", "language", _NAME).factory
    if config.task not in factory.DATASETS:
        hint = nearest(config.task, factory.DATASETS)
        raise InvalidArgument(
            f"task={shown(config.task)} is none of the {len(factory.DATASETS)} of reasoning-gym{hint}; "
            "give a name of reasoning_gym.factory.DATASETS"
        )
    arguments = {**(config.config or {}), "seed": config.data_seed, "size": config.size}
    generators.seed(config.data_seed)
    with generators.in_place():
        try:
            return call(_NAME, factory.create_dataset, {"name": config.task, **arguments})
        except AssertionError as error:  # by which the configs of tasks check themselves
            raise InvalidArgument(
                f"config={shown(config.config)} is refused by {config.task}: {error}"
            ) from error
