"""Checks of ``envweave doctor`` beyond packages: sandbox levels, data sets and tokens.

They look at this machine alone: no hub is queried, no token is printed, and nothing is downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from envweave_gym.cli.doctor.check import Check

_DEFAULT_LEVEL = "landlock"
_NO_DATA = (
    "put these as .jsonl into a folder that {} names; else the hub is asked (extra 'datasets'), and "
    "dataset='synthetic' needs neither"
)
_TOKENS = {
    "ENVWEAVE_TOKEN": "to use servers that somebody else has started",
    "HF_TOKEN": "for sub-calls of REPLs that Hugging Face answers",
}


def provisions() -> Iterator[Check]:
    """Check the sandbox, the data sets in the data folder, and which tokens are set."""
    yield _sandbox()
    yield _data()
    for name, use in _TOKENS.items():
        given = bool(os.environ.get(name))
        yield Check(
            part="machine",
            name=name,
            status="ok" if given else "missing",
            detail="is set" if given else "is not set",
            next_step="" if given else f"set it {use}",
        )


def _sandbox() -> Check:
    """Check which isolation levels of the sandbox this machine supports; ``isolation=`` picks one of them."""
    from envweave_gym.sandbox import levels

    why_not = {level: levels.why_missing(level) for level in levels.LEVELS}
    reached = [level for level, why in why_not.items() if not why]
    names = [f"{level} (default)" if level == _DEFAULT_LEVEL else level for level in reached]
    lacking = [f"not {level}, as {why}" for level, why in why_not.items() if why and level != "container"]
    works = _DEFAULT_LEVEL in reached
    return Check(
        part="machine",
        name="sandbox",
        status="ok" if works else "missing",
        detail="; ".join([f"levels {', '.join(names) or 'none'}", *lacking]),
        next_step="" if works else "give isolation= a level that is there, or backend='docker'",
    )


def _data() -> Check:
    """Check which files of our data sets the data folder has; missing ones are downloaded from the hub."""
    from envweave_gym.data.gsm8k import GSM8K
    from envweave_gym.data.sources import FOLDER, _in_folder
    from envweave_gym.data.swebench_lite import SOURCE

    files = {f"{one.name}_{split}": _in_folder(one, split) for one in (GSM8K, SOURCE) for split in one.splits}
    there = [name for name, path in files.items() if path is not None]
    absent = [name for name, path in files.items() if path is None]
    folder = os.environ.get(FOLDER)
    has = f"{FOLDER}={folder} has {', '.join(there) or 'no data set'}" if folder else f"{FOLDER} is not set"
    return Check(
        part="machine",
        name="data",
        status="missing" if absent else "ok",
        detail=f"{has}; without {', '.join(absent)}" if absent else has,
        next_step=_NO_DATA.format(FOLDER) if absent else "",
    )
