"""Sources of candidate files, the possible wrong options of "which file must change to resolve this issue?".

There are three: the rows of the data set, a file prepared for it, or checkouts of the repositories. Rows contain
only files that other patches change, and the few files that issues and tests name. The other two cover all files
of the repository, so their wrong options are more plausible.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Protocol

from envweave_gym.core.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.data.rows import Rows, table_of
from envweave_gym.data.sources import FOLDER
from envweave_gym.data.swebench_lite import SOURCE, Instance
from envweave_gym.envs.swebench.file_distractors import Candidates
from envweave_gym.envs.swebench.file_mentions import (
    MAX_PATH,
    NAMED,
    imported_paths,
    is_source,
    leak_of,
    mentioned_paths,
    overlap,
    roots_of,
    words_of,
)
from envweave_gym.envs.swebench.instance_env import indices_of
from envweave_gym.envs.swebench.repository_trees import check_commits, files_at, tree_of

ROWS = "rows"
DEFAULT_FILE = f"{SOURCE.name}_mcq.jsonl"
"""Name of the file with candidates for the test split; used by default if it is in the folder of the data."""


class Pool(Protocol):
    """A source of candidate files for issues."""

    kind: str
    """The name of the source, for ``episode_state()``."""

    def of(self, instance: Instance) -> Candidates:
        """Return the files from which the wrong options of an instance are drawn."""
        ...


def pool_of(tasks: Rows[Instance], candidates: str | Sequence[str] | None, dataset: str, split: str) -> Pool:
    """Return the pool for the argument ``candidates``: the word "rows", or paths of a file or of checkouts.

    ``None`` means the file :data:`DEFAULT_FILE` in the folder of the data, or the rows if there is none. Raise
    ``InvalidArgument`` or ``NotAvailable`` if the argument is invalid or a path does not exist.
    """
    repositories(tasks)
    if candidates is None:
        found = _beside(dataset) if split == SOURCE.splits[0] else None
        return FilePool(found, tasks) if found else RowPool(tasks)
    if candidates == ROWS:
        return RowPool(tasks)
    given = [candidates] if isinstance(candidates, str) else candidates
    if not isinstance(given, list | tuple) or not given or not all(isinstance(path, str) for path in given):
        raise InvalidArgument(f"candidates={shown(candidates)} is no source of candidate files; give {_WAYS}")
    paths = tuple(Path(path).expanduser().absolute() for path in given)
    if missing := [path for path in paths if not path.exists()]:
        raise NotAvailable(f"candidates: there is no {shown(str(missing[0]))}; give {_WAYS}")
    if len(paths) == 1 and paths[0].is_file():
        return FilePool(paths[0], tasks)
    return TreePool(paths, tasks)


_WAYS = f"{ROWS!r}, the path of a file of candidates, or of a checkout or a folder of checkouts"


def _beside(dataset: str) -> Path | None:
    path = Path(dataset).expanduser()
    folder = path if path.is_dir() else path.parent if path.exists() else None
    if dataset == SOURCE.hub and os.environ.get(FOLDER):
        folder = Path(os.environ[FOLDER]).expanduser()
    found = folder and folder / DEFAULT_FILE
    return found if found and found.is_file() else None


def answer_of(instance: Instance) -> str:
    """Return the right option: the first Python file that the gold patch changes, else its first file."""
    files = instance.gold_files
    return next((file for file in files if file.endswith(".py")), files[0] if files else "")


# The rows alone


@dataclass(frozen=True)
class Repository:
    """The files of one repository that the rows of the data set mention."""

    answers: Counter[str] = field(default_factory=Counter)
    """The number of issues whose right option is a file, by path."""
    texts: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of the issue and the test patch of each row."""

    def mentioned(self) -> tuple[str, ...]:
        """Return the files that issues name or tests import, without those that are a right option."""
        roots = roots_of(self.answers)
        named = [path for issue, _ in self.texts for path in mentioned_paths(issue, roots)]
        folders = frozenset(folder for path in (*self.answers, *named) for folder in _folders_of(path))
        imported = [path for _, tests in self.texts for path in imported_paths(tests, roots, folders)]
        return tuple(path for path in dict.fromkeys(named + imported) if path not in self.answers)


def _folders_of(path: str) -> Iterable[str]:
    """Yield the folders of a file, outermost first."""
    return accumulate(path.split("/")[:-1], "{}/{}".format)


@lru_cache(maxsize=8)
def repositories(tasks: Rows[Instance]) -> Mapping[str, Repository]:
    """Collect the files that the rows mention, by repository.

    Raise ``InvalidArgument`` if a patch changes no file, or one with a path longer than :data:`MAX_PATH`.
    """
    known: dict[str, Repository] = defaultdict(Repository)
    for instance in tasks:
        answer = answer_of(instance)
        if not 0 < len(answer) <= MAX_PATH:
            changes = f"a file with a path of {len(answer):,} characters" if answer else "no file"
            raise InvalidArgument(
                f"{instance.instance_id}: its patch changes {changes}; give rows whose patches change "
                f"a file with a path of at most {MAX_PATH}"
            )
        known[instance.repo].answers[answer] += 1
        known[instance.repo].texts.append((instance.problem_statement, instance.test_patch))
    return dict(known)


@lru_cache(maxsize=8)
def _mentioned_by_repo(tasks: Rows[Instance]) -> Mapping[str, tuple[str, ...]]:
    return {repo: known.mentioned() for repo, known in repositories(tasks).items()}


class RowPool:
    """Pool of the data set's rows: files that other patches change, or that issues and tests name."""

    kind = ROWS

    def __init__(self, tasks: Rows[Instance]) -> None:
        self._tasks = tasks

    def of(self, instance: Instance) -> Candidates:
        """Choose the candidates of an instance among the files of its repository in the rows."""
        answers = repositories(self._tasks)[instance.repo].answers
        return candidates_among(
            (*answers, *_mentioned_by_repo(self._tasks)[instance.repo]), instance, answers
        )


# A file of candidates


class FilePool:
    """Pool read from a file of :class:`Candidates` with one instance in each line.

    Raise ``InvalidArgument`` if it does not have the answers of all ``tasks``.
    """

    kind = "file"

    def __init__(self, path: Path, tasks: Rows[Instance]) -> None:
        self._path = path
        self._rows = _candidates_in(path)
        _check_candidates(self._rows, tasks, str(path))

    def of(self, instance: Instance) -> Candidates:
        """Return the candidates that the file has for an instance."""
        return self._rows[indices_of(self._rows)[instance.instance_id]]


def _candidates_in(path: Path) -> Rows[Candidates]:
    return Rows(table_of(path, Candidates), (_candidates_in, (path,)))


@lru_cache(maxsize=8)
def _check_candidates(rows: Rows[Candidates], tasks: Rows[Instance], name: str) -> None:
    indices = indices_of(rows)
    for instance in tasks:
        index, answer = indices.get(instance.instance_id), answer_of(instance)
        if index is None or rows[index].answer != answer:
            has = "nothing" if index is None else f"the answer {shown(rows[index].answer)}"
            raise InvalidArgument(
                f"{name} has {has} for {instance.instance_id}, whose patch changes {answer}; "
                "give the candidates of this data set"
            )


# Checkouts


class TreePool:
    """Pool of all files in checkouts, each listed at the base commit of the issue.

    ``folders`` are checkouts or have them as subfolders. Raise ``NotAvailable`` if one of ``tasks`` has none.
    """

    kind = "tree"

    def __init__(self, folders: tuple[Path, ...], tasks: Rows[Instance]) -> None:
        self._folders, self._tasks = folders, tasks
        check_commits(folders, tasks)

    def of(self, instance: Instance) -> Candidates:
        """Choose the candidates of an instance among the files at its base commit."""
        return _tree_candidates(self._folders, self._tasks, instance)


@lru_cache(maxsize=512)
def _tree_candidates(folders: tuple[Path, ...], tasks: Rows[Instance], instance: Instance) -> Candidates:
    files = files_at(tree_of(folders, instance), instance.base_commit)
    if answer_of(instance) not in files:
        raise InvalidArgument(
            f"{tree_of(folders, instance)} has no {answer_of(instance)}, which the patch of "
            f"{instance.instance_id} changes; give a checkout of {instance.repo}"
        )
    return candidates_among(files, instance, repositories(tasks)[instance.repo].answers)


MAX_PER_KIND = 8
"""Limit of the candidates of each kind except ``popular``, which has no limit."""


def candidates_among(files: Sequence[str], instance: Instance, answers: Counter[str]) -> Candidates:
    """Choose the candidates of an instance among ``files``, all files of its repository.

    ``answers`` counts for how many issues a file is the right option. Files of the gold patch are left out.
    """
    issue, gold = instance.problem_statement, instance.gold_files
    words, answer = words_of(issue), answer_of(instance)
    other = [path for path in files if path not in gold]
    rest = [path for path in other if path not in answers and is_source(path)]
    return Candidates(
        instance_id=instance.instance_id,
        answer=answer,
        # Once for each issue that it answers, so that draws are weighted by that.
        popular=tuple(path for path in other for _ in range(answers[path])),
        near=_most(rest, lambda path: _folders_shared(path, answer)),
        lexical=_most(list(filter(is_source, other)), lambda path: overlap(path, words)),
        mentioned=tuple([path for path in rest if leak_of(path, issue) in NAMED][:MAX_PER_KIND]),
    )


def _most(files: Sequence[str], worth: Callable[[str], int]) -> tuple[str, ...]:
    """Return the :data:`MAX_PER_KIND` files with the highest ``worth``, without those whose worth is 0."""
    return tuple(sorted(filter(worth, files), key=worth, reverse=True)[:MAX_PER_KIND])


def _folders_shared(path: str, other: str) -> int:
    folders, others = path.split("/")[:-1], other.split("/")[:-1]
    shared = zip(folders, others, strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], shared)))
