"""Runs Python source in a namespace that lasts, as a notebook does, and tells what came of it."""

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
"""What Python takes for the end of a line too; other ends that texts know it does not."""
_FRAMES = 40
"""So many frames of a traceback are told, the last ones."""


class Interrupted(KeyboardInterrupt):
    """The host has interrupted a step; its variables are kept."""


class FinalAnswer(BaseException):
    """The program has given its last answer: no ``except Exception`` keeps it from that."""


def run(source: str, name: str, namespace: dict[str, Any]) -> Any:
    """Run it; the value of its last expression, unless a semicolon follows that.

    ``await`` may stand outside of functions. The source is remembered by its name for tracebacks and for
    :mod:`inspect`.
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
    if sys.version_info < (3, 8):  # a node does not know where it ends, and the last token is looked for
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
    """Run a command to its end; its exit code, or minus the signal that ended it."""
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
    """The traceback of an error, without the frames of the worker."""
    try:
        more: dict[str, Any] = {"compact": True} if sys.version_info >= (3, 10) else {}
        told = traceback.TracebackException.from_exception(error, limit=-_FRAMES, **more)
        _clean(told)
        return "".join(told.format()).rstrip()
    except Exception as trouble:  # noqa: BLE001 - what an exception says of itself may raise anything
        return f"{type(error).__name__}, of which no more can be told: {type(trouble).__name__}"


def _clean(told: traceback.TracebackException | None) -> None:
    while told is not None:
        frames = [frame for frame in told.stack if not frame.filename.startswith(_HERE)]
        told.stack = traceback.StackSummary.from_list(frames)
        for other in getattr(told, "exceptions", None) or ():
            _clean(other)
        told = told.__cause__ or told.__context__


_HERE = __file__.rpartition("/")[0]
