"""Options of the demos over data sets: where the tasks come from, and the engine's socket for containers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from envweave_gym.core.faults import shown
from envweave_gym.data.rows import SUFFIXES
from envweave_gym.data.sources import FOLDER, SYNTHETIC, may_be_on_hub
from envweave_gym.providers.base import provider_of
from envweave_gym.training.options import option
from envweave_gym.training.tinker.grpo import train
from envweave_gym.training.tinker.tinker_options import TinkerOptions


@dataclass
class DemoOptions(TinkerOptions):
    """The options of a demo whose tasks are rows of a data set."""

    env_id: ClassVar[str] = ""
    """The ID on which the demo trains."""
    held_out_split: ClassVar[str] = ""
    """The split of the data set on which it is evaluated."""

    max_prompt_tokens: int = option(512, "longest prompt, in tokens; the middle of a longer one is left out")
    data: str = option(
        "",
        "rows of the tasks: a folder, a .jsonl file, a name on the hub, or synthetic "
        f"(default: the folder {FOLDER}, else the hub)",
    )
    docker_sock: bool = option(
        False, "let the containers of --backend docker use the engine, which makes them root on this machine"
    )

    def __post_init__(self) -> None:
        """Raise ``InvalidArgument`` for options that contradict each other."""
        super().__post_init__()
        if self.data and "://" not in self.backend:  # else it is a folder of the server
            self._check_data()
        if self.docker_sock and not getattr(provider_of(self.backend), "mounts_data", False):
            raise ValueError(f"--docker-sock is for --backend docker, not {shown(self.backend)}")

    def _check_data(self) -> None:
        """Raise ``ValueError`` for a path that is missing, or a folder without rows."""
        path = Path(self.data).expanduser()
        if not (path.exists() or self.data == SYNTHETIC or may_be_on_hub(self.data)):
            raise ValueError(
                f"--data {self.data}: there is no such file or folder; give a folder or a .jsonl file of rows, "
                "a name on the hub, or synthetic"
            )
        if path.is_dir() and not any(one.suffix in SUFFIXES for one in path.glob("*")):
            raise ValueError(
                f"--data {self.data}: the folder has no file of rows ({', '.join(SUFFIXES)}); give the folder "
                "that has them, or synthetic"
            )

    @property
    def backend_arguments(self) -> dict[str, Any]:
        """The arguments of ``make`` that select the backend."""
        socket = {"docker_sock": True} if self.docker_sock else {}
        return {**super().backend_arguments, **socket}

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``make`` besides the backend's; demos add theirs."""
        return self.dataset

    @property
    def dataset(self) -> dict[str, Any]:
        """The argument ``dataset`` of ``make``; none for a folder, which :meth:`export_data_folder` passes on."""
        return {"dataset": self.data} if self.data and not self._is_folder else {}

    @property
    def _is_folder(self) -> bool:
        return bool(self.data) and Path(self.data).expanduser().is_dir()

    @property
    def has_splits(self) -> bool:
        """Whether tasks can be held out: a single file has one split, whatever is asked of it."""
        return not Path(self.data).expanduser().is_file() if self.data else True

    def export_data_folder(self) -> None:
        """Set the variable that names the folder of data, for this process and the servers that it starts."""
        if self._is_folder:
            os.environ[FOLDER] = str(Path(self.data).expanduser().resolve())


def train_on_data(options: DemoOptions, held_out_resets: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Train on the demo's ID, evaluate on the held-out split where the data has one, and return the results.

    ``held_out_resets`` are the reset options of evaluations, by default none.
    """
    options.export_data_folder()
    held_out = {"split": options.held_out_split} if options.has_splits else None
    return train(
        options.env_id,
        options,
        arguments=options.arguments,
        held_out=held_out,
        held_out_resets=held_out_resets,
    )
