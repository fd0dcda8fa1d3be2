"""A Python executor for smolagents that runs programs in our sandbox: ``CodeAgent(…, executor=SandboxExecutor())``.

Programs run in a confined process, at the speed of Python and with the whole language. Tools run in this
process. smolagents itself is not imported.
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from envweave_gym.core.faults import EnvweaveError, InvalidArgument, shown
from envweave_gym.envs.code.code_config import ProgramConfig
from envweave_gym.envs.code.program_env import setup_of
from envweave_gym.sandbox import Final, Names, Session, SharedSandbox
from envweave_gym.tools import Parameter, Tool, ToolRegistry
from envweave_gym.tools.json_values import is_json

_ANSWER = "final_answer"
_FINAL_ANSWER_SOURCE = '''
def {name}({argument}):
    """Give the final answer, which ends the task at once."""
    import __main__

    __main__._answer({argument})
'''
"""Source of the function that ends a task: models call it by position or by keyword, as in smolagents."""
_TYPES = {
    "string": "str",
    "boolean": "bool",
    "integer": "int",
    "number": "float",
    "array": "list",
    "object": "dict",
    "null": "None",
}
"""Python types by their names in smolagents; other names become ``Any``."""


class ProgramFailed(EnvweaveError):
    """Raised if a program raises, takes too long, or is killed; the text is the traceback, for the model."""


class CodeOutput(msgspec.Struct, frozen=True):
    """The result of a program, with the fields that ``CodeAgent`` reads."""

    output: Any
    """The final answer, or else the value of the last expression, as JSON or as its ``repr``."""
    logs: str
    """The text that the program printed."""
    is_final_answer: bool


class SandboxExecutor:
    """Runs the programs of one agent in a sandbox process; variables persist until :meth:`cleanup`.

    Arguments and results of tools, variables and the final answer travel as JSON. An answer without a JSON form
    becomes its text.
    """

    def __init__(
        self,
        *,
        step_timeout: float = 30.0,
        isolation: str = "landlock",
        memory: int | str = "512m",
        python: str | None = None,
        warm: Sequence[str] = (),
    ) -> None:
        """Make an executor; its process starts with the first program.

        ``step_timeout`` limits the seconds of a program, without the time in tools. ``isolation`` is a level of the
        sandbox, ``python`` the interpreter of programs, ``memory`` the memory limit. ``warm`` are modules that are
        imported before the first program.
        """
        config = ProgramConfig(
            step_timeout=step_timeout, isolation=isolation, memory=memory, python=python, warm=warm
        )
        self.state: dict[str, Any] = {"_print_outputs": ""}
        """The state that the agent reads: ``_print_outputs`` is the output of the last program, also if it
        failed."""
        self._timeout, self._sandbox = config.step_timeout, SharedSandbox(setup_of(config))
        self._session: Session | None = None
        self._closing: weakref.finalize[..., Any] | None = None
        """The finalizer that ends the session when it is called, or when the executor is garbage-collected."""
        self._tools, self._finish = ToolRegistry(), None
        self._variables: dict[str, Any] = {}
        self._unsent: dict[str, Any] | None = {}
        """The variables that the session does not have yet; ``None`` if it has all variables and tools."""

    # The interface of smolagents

    def send_tools(self, tools: Mapping[str, Any]) -> None:
        """Replace all tools by these; a tool ``final_answer`` is called with the final answer."""
        rest = {name: tool for name, tool in tools.items() if name != _ANSWER}
        self._tools = ToolRegistry([_tool(name, tool) for name, tool in rest.items()])
        self._finish = tools.get(_ANSWER)
        self._unsent = self._unsent or {}

    def send_variables(self, variables: Mapping[str, Any]) -> None:
        """Set variables to these values, which must have a JSON form."""
        for name, value in variables.items():
            if not is_json(value):
                raise InvalidArgument(
                    f"the values of variables are JSON in the sandbox, and {shown(name)} is {shown(value)}; "
                    "give a path to read it from, or a tool that returns it"
                )
        self._variables |= variables
        self._unsent = {**(self._unsent or {}), **variables}

    def __call__(self, code_action: str) -> CodeOutput:
        """Run a program and return its result; raise :class:`ProgramFailed` if it failed."""
        done = self._live_session().run(code_action, timeout=self._timeout)
        self.state["_print_outputs"] = logs = done.stdout + done.stderr
        if done.final is not None:
            return CodeOutput(self._answer(done.final), logs, True)
        if not done.success:
            raise ProgramFailed(done.error)
        return CodeOutput(done.value, logs, False)

    def cleanup(self) -> None:
        """End the process; the next program starts a new one without variables."""
        self._end_session()
        self._sandbox.close()
        self._variables, self._unsent = {}, {}

    # Session and tools

    def _live_session(self) -> Session:
        """Return the session with the current tools and variables; replace a session that is lost."""
        session = self._session
        if session is None or session.why_lost:
            self._end_session()
            self._session = session = self._sandbox.open()
            self._closing = weakref.finalize(self, session.close)
            self._unsent = dict(self._variables)
        if self._unsent is not None:
            session.name(self._names(self._unsent), self._tools)
            self._unsent = None
        return session

    def _end_session(self) -> None:
        self._session, closing, self._closing = None, self._closing, None
        if closing is not None:
            closing()

    def _names(self, values: dict[str, Any]) -> Names:
        # Models may pass the answer by this name.
        argument = next(iter(getattr(self._finish, "inputs", ())), "answer")
        source = _FINAL_ANSWER_SOURCE.format(name=_ANSWER, argument=argument)
        return Names(values=values, ends={"_answer": "final"}, source=source, seed=secrets.randbits(31))

    def _answer(self, final: Final) -> Any:
        """Return the final answer, converted by the agent's own ``final_answer`` tool if there is one."""
        value = final.text if final.value is None and final.text != "None" else final.value
        return value if self._finish is None else self._finish(value)


def _tool(name: str, tool: Callable[..., Any]) -> Tool:
    """Convert a tool of smolagents, or a managed agent, to a :class:`Tool`."""
    inputs: Mapping[str, Any] | None = getattr(tool, "inputs", None)
    if inputs is None:
        return Tool.of(tool, name=name)
    parameters = [
        Parameter(key, _type(one), not one.get("nullable", False), doc=str(one.get("description", "")))
        for key, one in inputs.items()
    ]
    described = [f"    {one.name}: {one.doc}" for one in parameters]
    doc = str(getattr(tool, "description", ""))
    return Tool(
        name=name,
        doc="\n".join([doc, "", "Args:", *described]) if described else doc,
        parameters=tuple(sorted(parameters, key=lambda one: not one.required)),
        returns=_type({"type": getattr(tool, "output_type", "any")}),
        call=partial(_call, tool),
    )


def _call(tool: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    return tool(**arguments)


def _type(described: Mapping[str, Any]) -> str:
    kinds = described.get("type", "any")
    named = [kinds] if isinstance(kinds, str) else list(kinds)
    return " | ".join(_TYPES.get(kind, "Any") for kind in named)
