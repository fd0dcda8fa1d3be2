"""The constructor arguments of the tasks of reasoning-gym."""

from __future__ import annotations

from typing import Annotated, Any

from envweave_gym.core.arguments import check_int
from envweave_gym.core.config import Config, local, wire
from envweave_gym.core.faults import InvalidArgument, shown

MAX_SIZE = 1_000_000_000
MAX_PROMPT = 65_536
SYSTEM_PROMPT = (
    "Answer the question. Think step by step, then write the answer, and nothing else, between <answer> and "
    "</answer>. If an example is given, answer in its form."
)


class ReasoningGymConfig(Config, frozen=True, kw_only=True):
    """The arguments of ``envweave/ReasoningGym-v0``."""

    task: Annotated[str, wire("a name of reasoning-gym's data sets, such as `sudoku`")] = "chain_sum"
    size: Annotated[int, wire("how many questions the data set has")] = 500
    data_seed: Annotated[int, wire("generates the `size` questions")] = 0
    config: Annotated[
        dict[str, Any] | None, local("arguments of the task's own config, such as its difficulty")
    ] = None
    system_prompt: Annotated[str, wire('text before the question; `""` for none')] = SYSTEM_PROMPT
    render_mode: Annotated[str | None, local('`"ansi"` or none')] = None

    def __post_init__(self) -> None:
        if not isinstance(self.task, str):
            raise InvalidArgument(f"task={shown(self.task)} is no name of a data set; give one like 'sudoku'")
        check_int("size", self.size, "no number of questions", 1, MAX_SIZE)
        check_int("data_seed", self.data_seed, "no seed", 0, (1 << 31) - 1)
        if not isinstance(self.config, dict | None):
            raise InvalidArgument(f"config={shown(self.config)} is neither a dict nor None")
        for name in ("seed", "size"):
            if name in (self.config or {}):
                instead = "data_seed=" if name == "seed" else "size="
                raise InvalidArgument(f"config has {name!r}; give {instead} for that")
        if not (isinstance(self.system_prompt, str) and len(self.system_prompt) <= MAX_PROMPT):
            raise InvalidArgument(
                f"system_prompt={shown(self.system_prompt)} is no text of at most {MAX_PROMPT} characters"
            )
