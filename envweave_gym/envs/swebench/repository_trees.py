"""Finds the checkout of an instance in given folders, and lists the files of its base commit.

In a git repository the tree of the commit is read, whatever is checked out. So one full clone, even a bare
one, serves all issues of its project. Of a folder without git the files on disk are listed.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from envweave_gym.core.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.data.swebench_lite import Instance

GIT_TIMEOUT_S = 30.0
"""Limit in seconds of one git command."""

_COMMIT = re.compile(r"[0-9a-f]{7,64}")


def tree_of(folders: tuple[Path, ...], instance: Instance) -> Path:
    """Return the checkout of an instance: a subfolder of one of ``folders``, or one of them itself.

    A subfolder must have the name of the instance or of its repository. Raise ``NotAvailable`` if there is none.
    """
    names = (instance.instance_id, instance.repo.replace("/", "__"), instance.repo.rpartition("/")[2])
    inside = [parent / name for parent in folders for name in (*names, *(f"{name}.git" for name in names))]
    for folder in (*inside, *folders):
        if git_of(folder) or any((folder / file).is_file() for file in instance.gold_files):
            return folder
    raise NotAvailable(
        f"candidates: {', '.join(map(str, folders))} has no checkout of {instance.repo}; clone it there as "
        f"{names[1]}, or into a folder of its own as {names[0]}"
    )


def git_of(folder: Path) -> Path | None:
    """Return the git directory of a checkout or a bare repository, or ``None`` if the folder is neither."""
    if (folder / ".git").exists():
        return folder / ".git"
    return folder if (folder / "HEAD").is_file() and (folder / "objects").is_dir() else None


def check_commits(folders: tuple[Path, ...], instances: Iterable[Instance]) -> None:
    """Raise ``NotAvailable`` if an instance has no checkout, or its git repository lacks the base commit."""
    needed: dict[Path, list[Instance]] = {}
    for instance in instances:
        needed.setdefault(tree_of(folders, instance), []).append(instance)
    for folder, here in needed.items():
        git = git_of(folder)
        if git is not None:
            _check_commits(git, here)


def _check_commits(git: Path, instances: list[Instance]) -> None:
    for instance in instances:
        if not _COMMIT.fullmatch(instance.base_commit):
            raise InvalidArgument(
                f"{instance.instance_id}: base_commit={shown(instance.base_commit)} is no hash of a commit"
            )
    # One process for all commits: a call of git for each takes minutes with 300 instances.
    queries = "".join(f"{instance.base_commit}^{{tree}}\n" for instance in instances)
    answers = _git(git, "cat-file", "--batch-check", given=queries).splitlines()
    for instance, answer in zip(instances, answers, strict=True):
        if " tree " not in answer:
            raise NotAvailable(
                f"{git} has no commit {instance.base_commit}, which {instance.instance_id} is about; fetch it"
            )


@lru_cache(maxsize=64)
def files_at(folder: Path, commit: str) -> tuple[str, ...]:
    """Return the paths of all files of a checkout at a commit, from git, or of those on disk without git."""
    git = git_of(folder)
    if git is not None:
        return tuple(filter(None, _git(git, "ls-tree", "-r", "-z", "--name-only", commit).split("\0")))
    found = [Path(where, file).relative_to(folder) for where, _, files in os.walk(folder) for file in files]
    return tuple(sorted(path.as_posix() for path in found))


def _git(git: Path, *command: str, given: str = "") -> str:
    """Run a command of git on the git directory ``git``, with stdin ``given``, and return its stdout.

    Raise ``NotAvailable`` if it fails or takes longer than :data:`GIT_TIMEOUT_S`.
    """
    try:
        done = subprocess.run(
            ["git", f"--git-dir={git}", *command],  # --git-dir: no repository of a parent folder
            input=given.encode(),
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
            check=True,
        )
    except FileNotFoundError:
        raise NotAvailable(f"there is no command git to read {git} with; install it") from None
    except subprocess.TimeoutExpired:
        raise NotAvailable(f"git did not answer about {git} within {GIT_TIMEOUT_S:g} s") from None
    except subprocess.CalledProcessError as error:
        said = " ".join(error.stderr.decode(errors="replace").split())
        raise NotAvailable(f"{git} is no repository that git can read: {said}") from None
    return done.stdout.decode(errors="surrogateescape")
