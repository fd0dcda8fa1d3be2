"""The environment CodeAct: actions are Python programs that may call tools, and their errors are observations."""

from __future__ import annotations

from typing import Any

from envweave_gym.core.config import configured
from envweave_gym.envs.code.code_config import CodeActConfig
from envweave_gym.envs.code.offered_tools import OfferedTools, described
from envweave_gym.envs.code.program_env import ProgramEnv
from envweave_gym.episode.message import message
from envweave_gym.sandbox import Names

# Models often write to /tmp, which the sandbox does not have, so these functions map it to the working folder.
FILES = '''
def file_read(path: str) -> str:
    """Return the text of a file. Relative paths and /tmp are in the folder of the episode."""
    with open(path.removeprefix("/tmp/"), encoding="utf-8") as file:
        return file.read()


def file_write(path: str, content: str) -> str:
    """Write a text into a file. Relative paths and /tmp are in the folder of the episode."""
    import os

    path_here = path.removeprefix("/tmp/")
    os.makedirs(os.path.dirname(path_here) or ".", exist_ok=True)
    with open(path_here, "w", encoding="utf-8") as file:
        return f"{file.write(content)} characters are in {path}"
'''
"""Source of the functions for files that ``files=True`` adds; it runs in the sandbox."""
_ABOUT_THE_END = "- final_answer(x: Any) -> None: Give the answer, which ends the episode."
_ABOUT_FILES = """- file_read(path: str) -> str: The text of a file.
- file_write(path: str, content: str) -> str: Write a text into a file."""


class CodeActEnv(ProgramEnv):
    """Environment whose actions are Python programs that may call tools and share one namespace in an episode.

    The episode ends when a program calls ``final_answer(x)``. ``transform`` is the reward function of a step.
    ``tools`` are functions, or MCP servers as ``mcp.json`` describes them. ``files=True`` adds the functions
    ``file_read`` and ``file_write``. The module ``math`` is imported.
    """

    metadata: dict[str, Any] = {
        "render_modes": ["ansi"],
        "render_fps": 1,
        "ignores_seed": True,  # the seed is that of the programs' module random
        "reset_options": ("task",),
    }
    name = "envweave/CodeAct-v0"
    how_to_act = (
        "Write a Python program, alone or in a ```python block. Later programs see its variables. You are "
        "shown what it prints and the value of its last expression. `final_answer(value)` in it gives the "
        "answer."
    )

    @configured(CodeActConfig)
    def __init__(self, config: CodeActConfig) -> None:
        taken = ("final_answer", *(("file_read", "file_write") if config.files else ()))
        tools = OfferedTools(config.tools, per_episode=config.tools_per_episode, taken=taken)
        super().__init__(config, tools=tools, transform=config.transform)
        self._task, self._has_files = config.task, config.files

    def _begin(self, options: dict[str, Any]) -> None:
        task = str(options.get("task", self._task))
        ours = [_ABOUT_FILES, _ABOUT_THE_END] if self._has_files else [_ABOUT_THE_END]
        functions = described(self._offered.registry(), "\n".join(ours))
        self.emit(message("user", "\n\n".join(filter(None, (task, self.how_to_act, functions)))))

    def _names(self) -> Names:
        source = FILES if self._has_files else ""
        return Names(seed=self._seed, ends={"final_answer": "final"}, source=source)
