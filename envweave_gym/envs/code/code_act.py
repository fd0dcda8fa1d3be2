"""CodeAct: actions are Python, with tools; errors are observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envweave_gym.envs.code.offered_tools import OfferedTools, described
from envweave_gym.envs.code.program_env import Options, ProgramEnv, named
from envweave_gym.episode.message import message
from envweave_gym.rewards.transforms import RewardFunction
from envweave_gym.sandbox import Names

FILES = '''
def file_read(path: str) -> str:
    """The text of a file. What is in /tmp is in the folder of the episode, as relative paths are."""
    with open(path.removeprefix("/tmp/"), encoding="utf-8") as file:
        return file.read()


def file_write(path: str, content: str) -> str:
    """Write a text into a file. What is in /tmp is in the folder of the episode, as relative paths are."""
    import os

    place = path.removeprefix("/tmp/")
    os.makedirs(os.path.dirname(place) or ".", exist_ok=True)
    with open(place, "w", encoding="utf-8") as file:
        return f"{file.write(content)} characters are in {path}"
'''
"""The functions that read and write files of an episode; they run in the sandbox, as programs do."""
_ABOUT_THE_END = "- final_answer(x: Any) -> None: Give the answer, which ends the episode."
_ABOUT_FILES = """- file_read(path: str) -> str: The text of a file.
- file_write(path: str, content: str) -> str: Write a text into a file."""


class CodeActEnv(ProgramEnv):
    """Each action is a program, in a namespace that lasts as long as the episode and has ``math`` bound.

    The episode ends where a program calls ``final_answer(x)``. ``transform`` says what a step is worth.
    ``tools`` are functions, or MCP servers as ``mcp.json`` has them; with ``files`` there are ``file_read``
    and ``file_write`` too.
    """

    metadata: dict[str, Any] = {
        "render_modes": ["ansi"],
        "render_fps": 1,
        "ignores_seed": True,  # it seeds the module random of programs, and nothing of the environment
        "reset_options": ("task",),
    }
    name = "envweave/CodeAct-v0"
    how_to_act = (
        "Write a Python program, alone or in a ```python block. Later programs see its variables. You are "
        "shown what it prints and the value of its last expression. `final_answer(value)` in it gives the "
        "answer."
    )

    def __init__(
        self,
        tools: Any = (),
        transform: RewardFunction | None = None,
        task: str = "",
        files: bool = False,
        tools_per_episode: bool = False,
        step_timeout: float = 10.0,
        checkpoint: bool = False,
        on_lost: str = "restart",
        isolation: str = "landlock",
        memory: int | str = "512m",
        python: str | None = None,
        warm: Sequence[str] = (),
        render_mode: str | None = None,
    ) -> None:
        with named(self.name):
            options = Options(
                step_timeout=step_timeout,
                checkpoint=checkpoint,
                on_lost=on_lost,
                isolation=isolation,
                memory=memory,
                python=python,
                warm=warm,
            )
            taken = ("final_answer", *(("file_read", "file_write") if files else ()))
            offered = OfferedTools(tools, per_episode=tools_per_episode, taken=taken)
            super().__init__(options, tools=offered, transform=transform, render_mode=render_mode)
        self._task, self._has_files = task, files

    def _begin(self, options: dict[str, Any]) -> None:
        task = str(options.get("task", self._task))
        ours = [_ABOUT_FILES, _ABOUT_THE_END] if self._has_files else [_ABOUT_THE_END]
        functions = described(self._offered.now(), "\n".join(ours))
        self.emit(message("user", "\n\n".join(filter(None, (task, self.how_to_act, functions)))))

    def _names(self) -> Names:
        source = FILES if self._has_files else ""
        return Names(seed=self._seed, ends={"final_answer": "final"}, source=source)
