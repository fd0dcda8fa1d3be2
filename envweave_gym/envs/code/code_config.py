"""The constructor arguments of environments whose actions are programs, with their checks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from os import PathLike
from typing import Annotated, Any

from envweave_gym.core.config import Config, local, one_of, true_or_false, wire
from envweave_gym.core.faults import InvalidArgument, shown

_MAX_TIMEOUT_S = 86_400
# The same limit as in sandbox/session.py, which is not imported here: the catalog of IDs imports this module.


class ProgramConfig(Config, frozen=True, kw_only=True):
    """The arguments that all environments with programs share: time limit, sandbox, behaviour after a lost process."""

    step_timeout: Annotated[float, wire("seconds of its own time that a step may take")] = 10.0
    checkpoint: Annotated[
        bool, wire("fork the process before each step, to restore it if the step loses it")
    ] = False
    on_lost: Annotated[
        str, wire('after a step that lost all variables, `"restart"` with none or `"end"` the episode')
    ] = "restart"
    isolation: Annotated[str, local("the isolation level of the sandbox; see sandbox.md")] = "landlock"
    memory: Annotated[int | str, local("the memory limit of an episode")] = "512m"
    python: Annotated[str | None, local("the interpreter of the programs; by default the host's")] = None
    warm: Annotated[Sequence[str], local("modules that are imported before any program runs")] = ()
    render_mode: Annotated[str | None, local('`"ansi"` or none')] = None

    def __post_init__(self) -> None:
        timeout = self.step_timeout
        if type(timeout) not in (int, float) or not 0 < timeout <= _MAX_TIMEOUT_S:
            raise InvalidArgument(
                f"step_timeout={shown(timeout)} is no number of seconds up to {_MAX_TIMEOUT_S:g}"
            )
        if not isinstance(self.python, str | PathLike | None):
            raise InvalidArgument(f"python={shown(self.python)} is no path of an interpreter")
        names = [] if isinstance(self.warm, str) or not isinstance(self.warm, Iterable) else list(self.warm)
        if not all(isinstance(name, str) and name for name in names) or (self.warm and not names):
            raise InvalidArgument(f"warm={shown(self.warm)} must be names of modules, such as ('numpy',)")
        one_of("on_lost", self.on_lost, ("restart", "end"))
        true_or_false("checkpoint", self.checkpoint)


class CodeActConfig(ProgramConfig, frozen=True, kw_only=True):
    """The arguments of ``envweave/CodeAct-v0``."""

    tools: Annotated[Any, local("functions, registries, or MCP servers as `mcp.json` describes them")] = ()
    transform: Annotated[Any, local("the reward function of a step")] = None
    task: Annotated[str, wire("the task that the prompt begins with")] = ""
    files: Annotated[bool, wire("offer `file_read` and `file_write`")] = False
    tools_per_episode: Annotated[bool, local("start the MCP servers anew for each episode")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        true_or_false("files", self.files)
        true_or_false("tools_per_episode", self.tools_per_episode)


class CodingConfig(ProgramConfig, frozen=True, kw_only=True):
    """The arguments of ``envweave/Coding-v0``."""

    transform: Annotated[Any, local("the reward function of a step; by default safety and quality")] = None
    allow: Annotated[Collection[str], wire("what `CodeSafety` does not count as a violation")] = ()
