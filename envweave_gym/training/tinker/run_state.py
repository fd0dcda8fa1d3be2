"""The state of a run on disk: where to resume after this process or the server was killed."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.training.run_metrics import writing

FILE = "state.json"

SETTINGS_THAT_MAY_CHANGE = frozenset(
    {
        "answer_timeout",
        "backend",
        "base_url",
        "docker_image",
        "episodes",
        "eval_every",
        "local",
        "num_envs",
        "out",
        "resume",
        "run",
        "save_every",
        "server_wait",
        "smollm",
        "success_reward",
        "target_success_rate",
        "tokenizer",
    }
)
"""Options that may differ when a run is resumed; with the others it would be another run."""
SETTINGS_OF_THE_POLICY = frozenset({"adapters", "env_id", "instruction", "model", "prompt", "stop"})
"""Options that a trained policy needs unchanged if it only plays."""


@dataclass
class RunState:
    """The last checkpoint, and what the loop needs to go on as if it had not been interrupted."""

    update: int = 0
    """Updates that are in the checkpoint."""
    checkpoints: dict[str, str] = field(default_factory=dict[str, str])
    """The path of the checkpoint of each adapter; empty before the first one."""
    success: float = 0.0
    """The moving average of success."""
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    retained: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The last two checkpoints and the best one, each with its ``update`` and its ``score``."""

    def advance(self, update: int, checkpoints: dict[str, str], success: float, score: float) -> list[str]:
        """Note newer checkpoints, and return the paths of those that are superseded.

        Of equal scores the earliest is the best.
        """
        self.update, self.checkpoints, self.success = update, checkpoints, success
        newest: dict[str, Any] = {"update": update, "score": score, "checkpoints": checkpoints}
        known = [*self.retained, newest]
        best = max(known, key=lambda one: one["score"])
        self.retained = [one for one in known if one is best or any(one is last for last in known[-2:])]
        kept = {path for one in self.retained for path in one["checkpoints"].values()}
        return [path for one in known for path in one["checkpoints"].values() if path not in kept]

    def save(self, folder: Path) -> None:
        """Write the state; a reader finds either the old file or the new one, also after a crash."""
        path, scratch = folder / FILE, folder / f"{FILE}.new"
        with writing(path):
            with scratch.open("w", encoding="utf-8") as file:
                json.dump(dataclasses.asdict(self), file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(path)

    @staticmethod
    def remove(folder: Path) -> None:
        """Delete the state of an earlier run, so that nobody resumes that run for the one that begins."""
        (folder / FILE).unlink(missing_ok=True)

    @classmethod
    def load(
        cls,
        folder: Path,
        settings: dict[str, Any],
        *,
        defaults: Mapping[str, Any] | None = None,
        only_plays: bool = False,
    ) -> RunState:
        """Read the state of a run; raise ``InvalidArgument`` if there is none, or it had other settings.

        A run of an earlier version, which did not have some option, went on as that option's value in ``defaults``
        says. With ``only_plays`` nothing is trained further, and only the settings of the policy must be the same.
        """
        path = folder / FILE
        try:
            state = cls(**_checked(json.loads(path.read_text(encoding="utf-8"))))
        except FileNotFoundError:
            raise InvalidArgument(
                f"--resume: {folder} has no {FILE}; give the --run and --out of a run"
            ) from None
        except (ValueError, TypeError) as error:
            raise InvalidArgument(f"--resume: {path} cannot be read: {error}") from error
        names = SETTINGS_OF_THE_POLICY if only_plays else settings.keys() - _changeable(settings)
        had = {**(defaults or {}), **state.settings}
        for name in sorted(names & settings.keys()):
            if had.get(name) != settings[name]:
                raise InvalidArgument(
                    f"--resume: the run had {name}={shown(had.get(name))}, not {shown(settings[name])}; "
                    "give the same, or another --run"
                )
        return state


_TYPES: dict[str, Any] = {
    "update": int,
    "checkpoints": dict,
    "success": int | float,
    "settings": dict,
    "retained": list,
}


def _checked(values: Any) -> dict[str, Any]:
    """Return the values in a state's file; raise ``ValueError`` for those that no run writes."""
    if not isinstance(values, dict):
        raise ValueError("it is no JSON object")
    for name, value in values.items():
        if name not in _TYPES:
            raise ValueError(f"{name!r} is of a later version of this package")
        if not isinstance(value, _TYPES[name]):
            raise ValueError(f"{name!r} is {shown(value)}")
    return values


def _changeable(settings: dict[str, Any]) -> frozenset[str]:
    """Return the options that may change; a linear schedule derives all learning rates from the episodes."""
    fixed = {"episodes"} if settings.get("schedule") == "linear" else set[str]()
    return SETTINGS_THAT_MAY_CHANGE - fixed


def defaults_of(options: Any) -> dict[str, Any]:
    """Return the default of each option, as JSON: what a run had that was begun before the option existed."""
    known = dataclasses.fields(options)
    defaults = {one.name: one.default for one in known if one.default is not dataclasses.MISSING}
    return json.loads(json.dumps(defaults, default=str))


def settings_of(options: Any, **others: Any) -> dict[str, Any]:
    """Return the options of a run, and what else decides its course, as JSON."""
    return json.loads(json.dumps({**dataclasses.asdict(options), **others}, default=str))
