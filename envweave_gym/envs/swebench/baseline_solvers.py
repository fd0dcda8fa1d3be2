"""Heuristic solvers of "which file must change?": baselines that a model must beat.

Each ranks the options by one property, such as the number of words that a path shares with the issue, or how
often it is the answer of other issues. It chooses the option with the highest rank, its inverse the lowest.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from envweave_gym.envs.swebench.candidate_pools import answer_of
from envweave_gym.envs.swebench.file_mentions import NAMED, Leak, leak_of, overlap, path_words, words_of
from envweave_gym.envs.swebench.localisation import SWEBenchLocEnv


@dataclass(frozen=True)
class SolverInput:
    """The input of a heuristic solver: a question, and how often each file is the answer of an issue."""

    issue: str
    options: tuple[str, ...]
    answers: Counter[str]
    """The number of rows whose answer is a file, by the path of the file."""
    right: int
    """The index of the right option."""

    @cached_property
    def words(self) -> frozenset[str]:
        """The words of the issue."""
        return words_of(self.issue)

    def shared(self, path: str) -> int:
        """Return the number of words that a path shares with the issue."""
        return overlap(path, self.words)

    def leak(self, path: str) -> Leak:
        """Return the level at which the text of the issue names a file (:class:`Leak`)."""
        return leak_of(path, self.issue)

    def chance(self, solver: Solver, *, inverse: bool = False) -> float:
        """Return the probability that a solver, or its inverse, is right if it breaks ties at random."""
        worth = [solver(self, path) for path in self.options]
        best = min(worth) if inverse else max(worth)
        return (worth[self.right] == best) / worth.count(best)


Solver = Callable[[SolverInput, str], Any]
"""Function from a question and one of its options to a rank; the solver chooses the option with the highest."""

_LEVELS = list(reversed(Leak))


def _named(question: SolverInput, path: str) -> bool:
    return question.leak(path) in NAMED


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


SOLVERS: dict[str, Solver] = {
    "words of the path in the issue": SolverInput.shared,
    "the same, as a part of its words": lambda question, path: (
        question.shared(path) / max(1, len(path_words(path)))
    ),
    "named in the issue, then words": lambda question, path: (_named(question, path), question.shared(path)),
    "how clearly named, then words": lambda question, path: (
        _LEVELS.index(question.leak(path)),
        question.shared(path),
    ),
    "how often an answer": lambda question, path: question.answers[path],
    "how often an answer of other rows": lambda question, path: (
        question.answers[path] - (path == question.options[question.right])
    ),
    "ever an answer, then words": lambda question, path: (question.answers[path] > 0, question.shared(path)),
    "others in the same folder": lambda question, path: sum(
        _folder(other) == _folder(path) for other in question.options
    ),
    "length of the path": lambda question, path: len(path),
}
"""All solvers, by a description of the property that they rank options by."""


@dataclass(frozen=True)
class Accuracy:
    """The accuracies of a solver and its inverse: over all issues, and over those that do not name the file."""

    direct: float
    inverse: float
    direct_no_leak: float
    inverse_no_leak: float


def accuracies(env: SWEBenchLocEnv, seeds: Iterable[int]) -> dict[str, Accuracy]:
    """Return the accuracy of every solver, by its description, over all tasks of ``env`` with each of ``seeds``."""
    chances: dict[tuple[str, bool, bool], list[float]] = defaultdict(list)
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    for task in env.tasks:
        answers[task.repo][answer_of(task)] += 1
    repos = [task.repo for task in env.tasks]
    for seed in seeds:
        for index, repo in enumerate(repos):
            _, info = env.reset(seed=seed, options={"index": index})
            question = SolverInput(env.issue, env.question.options, answers[repo], env.question.right)
            for name, solver in SOLVERS.items():
                for inverse in (False, True):
                    chance = question.chance(solver, inverse=inverse)
                    chances[name, inverse, info["leak"] == Leak.NONE].append(chance)
    return {name: _accuracy(chances, name) for name in SOLVERS}


def _accuracy(chances: dict[tuple[str, bool, bool], list[float]], name: str) -> Accuracy:
    def mean(inverse: bool, *leaks: bool) -> float:
        every = [chance for leak in leaks for chance in chances[name, inverse, leak]]
        return sum(every) / max(1, len(every))

    return Accuracy(mean(False, True, False), mean(True, True, False), mean(False, True), mean(True, True))
