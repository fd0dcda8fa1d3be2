"""SWE-bench Lite as multiple choice: which file must change to resolve an issue."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from envweave_gym.core.config import configured
from envweave_gym.core.faults import InvalidArgument
from envweave_gym.core.seeding import mix
from envweave_gym.data.swebench_lite import Instance, instances
from envweave_gym.envs.swebench.candidate_pools import pool_of
from envweave_gym.envs.swebench.file_distractors import Candidates, distractors
from envweave_gym.envs.swebench.file_mentions import MAX_PATH, Leak, leak_of, masked
from envweave_gym.envs.swebench.instance_env import INSTANCE_OPTIONS, InstanceEnv, shortened
from envweave_gym.envs.swebench.swebench_config import LocConfig
from envweave_gym.envs.tasks.choice_env import ChoiceEnv, Question
from envweave_gym.envs.tasks.option_letters import shuffled

QUESTION = "Which of these files of the repository must be changed to resolve the issue?"


class SWEBenchLocEnv(InstanceEnv[Any, Any], ChoiceEnv[Instance]):
    """Environment that asks which one of some files must be changed to resolve an issue of a real project.

    ``info["leak"]`` says how clearly the issue, as shown, names the right file (:class:`Leak`). The hints of the
    data set and the names of its tests are never shown.
    """

    metadata: dict[str, Any] = {**ChoiceEnv.metadata, "reset_options": INSTANCE_OPTIONS}
    name = "envweave/SWEBenchLiteLocMCQ-v0"

    @configured(LocConfig)
    def __init__(self, config: LocConfig) -> None:
        tasks = instances(config.dataset, config.split)
        super().__init__(
            tasks,
            config,
            dataset=config.dataset,
            split=config.split,
            options=config.options,
            longest=config.max_issue + _longest_frame(config.options),
        )
        self._cut, self._masks = config.max_issue, config.mask_paths
        self._pool = pool_of(tasks, config.candidates, config.dataset, config.split)
        self.issue, self._instance_id, self._leak = "", "", Leak.NONE

    def ask(self, task: Instance) -> Question:
        """Return the question about one issue, with its options in the order of the episode."""
        candidates = self._pool.of(task)
        issue = self.issue = self._shown_issue(task, candidates)
        self._instance_id, self._leak = task.instance_id, leak_of(candidates.answer, issue)
        # The draw depends on the ID and not on the row number, so a filtered data set asks the same questions.
        key = mix(self.key, _number_of(task.instance_id))
        wrong = self.wrong_options(candidates, key)
        if not wrong:
            raise InvalidArgument(
                f"{self.name}: nothing is known of {task.repo} that could be a wrong option for "
                f"{task.instance_id}; give candidates= a file of candidates or a checkout"
            )
        options, right = shuffled(candidates.answer, wrong, key)
        return Question(f"Repository: {task.repo}\n\nIssue:\n{issue}\n\n{QUESTION}", options, right)

    def wrong_options(self, candidates: Candidates, key: int) -> tuple[str, ...]:
        """Draw the wrong options for the issue as it is shown; ``key`` is the seed."""
        return distractors(candidates, self.issue, self.options - 1, key)

    def _shown_issue(self, task: Instance, candidates: Candidates) -> str:
        issue = task.problem_statement.strip()
        if self._masks:
            issue = masked(issue, {*task.gold_files, *candidates.paths()})
        return shortened(issue, self._cut)

    def task_info(self) -> dict[str, Any]:
        """Return the fields about the issue for every ``info``, such as how clearly it names the right file."""
        return {**super().task_info(), "instance_id": self._instance_id, "leak": str(self._leak)}

    def episode_state(self) -> dict[str, Any]:
        """Return the state of the episode, and the source of the wrong options."""
        return {**super().episode_state(), "candidates": self._pool.kind}


def _number_of(instance_id: str) -> int:
    """Hash the ID of an instance to a 64-bit number."""
    return int.from_bytes(hashlib.blake2b(instance_id.encode(), digest_size=8).digest())


def _longest_frame(options: Any) -> int:
    """Return the maximum number of characters of a prompt without the text of its issue."""
    return 1000 + (MAX_PATH + 10) * (options if isinstance(options, int) else 0)


def accuracy_by_leak(infos: Iterable[Mapping[str, Any]]) -> dict[str, tuple[float, int]]:
    """Return the accuracy and the number of episodes for each level of leak, and for ``"all"``.

    ``infos`` are the infos of steps, of single environments or of vectors. Infos without ``correct``, such as those
    of resets and faults, are ignored.
    """
    right: dict[str, list[bool]] = defaultdict(list)
    for info in infos:
        for leak, correct in _outcomes(info):
            right[leak].append(correct)
            right["all"].append(correct)
    levels = [level for level in (*map(str, Leak), "all") if level in right]
    return {level: (sum(right[level]) / len(right[level]), len(right[level])) for level in levels}


def _outcomes(info: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Return a pair (``leak``, ``correct``) for each answered question in an info of a step.

    ``leak`` says how clearly the issue names the right file (:class:`Leak`). A single environment's info gives one
    pair, a vector's one for each row that has just answered, those under ``final_info`` included.
    """
    final = info.get("final_info")  # in the autoreset mode SAME_STEP
    ended = _outcomes(final) if isinstance(final, Mapping) else []
    if "correct" not in info:
        return ended
    if not isinstance(info["correct"], np.ndarray):
        return [*ended, (str(info["leak"]), bool(info["correct"]))]
    rows = zip(info["leak"], info["correct"], info.get("_correct", info["correct"] >= 0), strict=True)
    return [*ended, *((str(leak), bool(correct)) for leak, correct, there in rows if there)]
