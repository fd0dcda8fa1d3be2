"""The toy repository as folders, without git and as a git repository at the commit its issues are about."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from envweave_gym.data.toy_files import FILES
from envweave_gym.data.toy_repo import COMMIT_ENVIRONMENT, MESSAGE


def git(folder: Path, *command: str) -> str:
    """What git prints in a folder, whatever this machine's configuration says."""
    environment = {
        **os.environ,
        **COMMIT_ENVIRONMENT,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    done = subprocess.run(
        ["git", *command], cwd=folder, env=environment, check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout


def plain_tree(folder: Path) -> Path:
    """The files, without git."""
    for path, text in FILES.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


def checkout(folder: Path) -> Path:
    """A git repository of one commit, the one that the toy rows name."""
    plain_tree(folder)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--cleanup=verbatim", f"--message={MESSAGE}")
    return folder
