"""A cache folder that a process of its own makes; imports no torch."""

from __future__ import annotations

import json
from pathlib import Path

from envweave_gym_server.tinker.models.cache_folders import made_once


def make_cache(folder: str, log: str) -> None:
    def write(unfinished: Path) -> None:
        with open(log, "a") as file:
            file.write("made\n")
        (unfinished / "content.json").write_text(json.dumps(list(range(1000))))

    made_once(Path(folder), write)
    assert json.loads((Path(folder) / "content.json").read_text())[-1] == 999
