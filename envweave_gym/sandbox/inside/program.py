"""Runs a program's source in a given namespace, like a notebook cell, and formats its errors; also runs commands."""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import re
import signal
import sys
import tokenize
import traceback
import types
from contextlib import suppress
from typing import Any

_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if sys.version_info >= (3, 8) else 0
_NEWLINE = re.compile(r"\r\n?")
r"""Pattern of Python's line ends other than ``\\n``; ``str.splitlines`` would split at further characters."""
_MAX_FRAMES = 40
"""Limit of the stack frames in a traceback; the innermost ones are retained."""
_HERE = __file__.rpartition("/")[0]


class Interrupted(KeyboardInterrupt):
    """Raised in a program when the host process interrupts its step; the variables are retained."""


class FinalAnswer(BaseException):
    """Raised when a program gives its final answer; ``except Exception`` in the program does not catch it."""


def run(source: str, name: str, namespace: dict[str, Any]) -> Any:
    """Run the source; return the value if its last statement is an expression without a semicolon, else ``None``.

    ``await`` is allowed outside of functions. The source is stored under ``name`` in :mod:`linecache`, from which
    tracebacks and :mod:`inspect` read it.
    """
    lines = [f"{line}\n" for line in _NEWLINE.sub("\n", source).split("\n")]
    linecache.cache[name] = len(source), None, lines, name
    tree: ast.Module = compile(source, name, "exec", ast.PyCF_ONLY_AST | _FLAGS, dont_inherit=True)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or _is_followed_by_semicolon(last, lines):
        _execute(compile(tree, name, "exec", _FLAGS, dont_inherit=True), namespace)
        return None
    del tree.body[-1]
    if tree.body:
        _execute(compile(tree, name, "exec", _FLAGS, dont_inherit=True), namespace)
    expression = ast.Expression(last.value)
    value = _execute(compile(expression, name, "eval", _FLAGS, dont_inherit=True), namespace)
    if value is not None:
        namespace["_"] = value
    return value


def _is_followed_by_semicolon(last: ast.Expr, lines: list[str]) -> bool:
    if sys.version_info < (3, 8):  # nodes have no end position, so the last token is searched
        tokens = list(tokenize.generate_tokens(iter(lines).__next__))
        return [one.string for one in tokens if one.type != tokenize.COMMENT and one.string.strip()][
            -1
        ] == ";"
    line, column = last.end_lineno or 0, last.end_col_offset or 0
    return lines[line - 1].encode()[column:].lstrip().startswith(b";")


def _execute(code: types.CodeType, namespace: dict[str, Any]) -> Any:
    if not code.co_flags & inspect.CO_COROUTINE:
        return eval(code, namespace)
    import asyncio

    return asyncio.run(_awaited(types.FunctionType(code, namespace)))


async def _awaited(function: Any) -> Any:
    return await function()


def command(line: list[str], env: dict[str, str]) -> int:
    """Run a command and return its exit code, or minus the number of the signal that ended it.

    If an exception interrupts the wait, the command's process group is killed.
    """
    import subprocess

    with subprocess.Popen(
        line, stdin=subprocess.DEVNULL, env={**os.environ, **env}, start_new_session=True
    ) as process:
        try:
            return process.wait()
        except BaseException:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            raise


def trace_of(error: BaseException) -> str:
    """Return the traceback of an error as text, without the stack frames of the worker's own code."""
    try:
        more: dict[str, Any] = {"compact": True} if sys.version_info >= (3, 10) else {}
        trace = traceback.TracebackException.from_exception(error, limit=-_MAX_FRAMES, **more)
        _drop_own_frames(trace)
        return "".join(trace.format()).rstrip()
    except Exception as failure:  # noqa: BLE001 - the text of a foreign exception may raise anything
        return f"{type(error).__name__}, whose text cannot be shown: {type(failure).__name__}"


def _drop_own_frames(trace: traceback.TracebackException | None) -> None:
    while trace is not None:
        frames = [frame for frame in trace.stack if not frame.filename.startswith(_HERE)]
        trace.stack = traceback.StackSummary.from_list(frames)
        for other in getattr(trace, "exceptions", None) or ():
            _drop_own_frames(other)
        trace = trace.__cause__ or trace.__context__
