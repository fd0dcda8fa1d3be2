"""What a program reaches for, read off its syntax tree; nothing is run.

A program comes bare or in the Markdown fences of a model's reply: where the text is no Python itself, the
code in its fences is what is read, whatever language they claim.

This teaches, it does not protect: Python has more ways out than a list can name. What keeps a program in is
the sandbox that runs it.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple

MAX_SOURCE = 50_000
"""A longer program is not read: parsing ``a.a.a…`` as the name of a module takes memory by the square."""

TOO_LONG = "length"
"""The violation of a program that is not read."""

# fmt: off
UNSAFE_NAMES = frozenset({
    "eval", "exec", "compile", "open", "breakpoint", "globals", "locals", "vars",
    "__import__", "__builtins__", "__loader__", "__spec__",
    "os", "subprocess", "builtins", "importlib",  # an earlier step may have imported them
})
UNSAFE_MODULES = frozenset({
    "os", "posix", "nt", "subprocess", "posixsubprocess", "pty", "multiprocessing", "ctypes", "ctypeslib",
    "cffi", "fcntl", "mmap", "_io", "pyio", "shutil", "pathlib", "tempfile", "glob", "fileinput", "linecache",
    "shelve",
    "socket", "socketserver", "ftplib", "smtplib", "http.client", "http.server", "urllib.request",
    "requests", "httpx", "aiohttp", "webbrowser",
    "builtins", "importlib", "imp", "runpy", "code", "codeop", "pkgutil", "zipimport", "pickle", "marshal",
    "dill", "cloudpickle",
})
UNSAFE_ATTRIBUTES = frozenset({
    "__base__", "__bases__", "__mro__", "mro", "__subclasses__", "__dict__", "__getattribute__", "__reduce__",
    "__reduce_ex__", "__globals__", "__builtins__", "__code__", "__closure__", "__self__", "__import__",
    "__loader__", "__spec__", "f_back", "f_builtins", "f_code", "f_globals", "f_locals", "tb_frame",
    "gi_frame", "gi_code", "cr_frame", "cr_code", "ag_frame", "ag_code",
})
# fmt: on
OPENERS = frozenset({"open", "open_code", "FileIO", "modules", "_getframe"})
"""Unsafe only as something of an imported module: ``io.open``, ``sys.modules``."""

_NAMERS = {"getattr": slice(1, 2), "attrgetter": slice(None), "methodcaller": slice(0, 1)}
"""Functions that read attributes by name, and which of their arguments are the names."""

_FORMATTERS = frozenset({"format", "format_map", "vformat"})
"""Methods that read the attributes named in the fields of a text: ``"{0.__class__}".format(x)``."""
_FIELD = re.compile(r"\{([^{}]*)")
_FIELD_ATTRIBUTE = re.compile(r"\.(\w+)")

_FILENAME = "<action>"
_MAY_WARN = re.compile(r"\\|\d\.?[A-Za-z]|finally")
_FENCED = re.compile(
    r"(?<![`~])(```+|~~~+)[^\n`~]*\n(.*?)(?:^[ \t]*\1|\1[ \t\r]*$|\Z)", re.DOTALL | re.MULTILINE
)
"""A fence, and the code from the next line to a fence at the start or the end of a line, or to the end."""


class Reading(NamedTuple):
    """A text that should be a program, as it was read."""

    code: str
    """The program: the text, or what stands in its fences."""
    is_python: bool
    unsafe: frozenset[str]
    """What the program reaches for and should not."""


@lru_cache(maxsize=8)
def read_program(text: str) -> Reading:
    """The program in ``text``; each of several fences is read by itself."""
    if len(text) > MAX_SOURCE:
        return Reading(text, False, frozenset({TOO_LONG}))
    tree = parse(text)
    programs = [] if tree else [textwrap.dedent(match[2]) for match in _FENCED.finditer(text)]
    trees = [parse(program) for program in programs] if programs else [tree]
    unsafe = frozenset(thing for tree in trees if tree for thing in _unsafe_things(tree))
    return Reading("\n".join(programs) if programs else text, None not in trees, unsafe)


def parse(source: str) -> ast.Module | None:
    """The syntax tree; ``None`` where Python could not run the text either, or it is too long."""
    if len(source) > MAX_SOURCE:
        return None
    try:
        return _parse_quietly(source)
    except (SyntaxError, ValueError, MemoryError):
        return None
    except RecursionError:
        # How deep a tree may be depends on how deep its reader stands: an empty stack is the same for all.
        with ThreadPoolExecutor(1) as thread:
            reading = thread.submit(_parse_quietly, source)
            return None if reading.exception() else reading.result()


def _parse_quietly(source: str) -> ast.Module:
    """Parse without Python's warnings of, say, ``"\\d"``: they are about somebody else's text."""
    if not _MAY_WARN.search(source):
        return ast.parse(source, _FILENAME)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=re.escape(_FILENAME))
        return ast.parse(source, _FILENAME)


def _unsafe_things(tree: ast.Module) -> Iterator[str]:
    modules, formats = _module_names(tree), _formats(tree)
    called: set[ast.expr] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    yield from _unsafe_module(alias.name)
            case ast.ImportFrom(module=module, names=aliases):
                for alias in aliases:
                    yield from _unsafe_module(f"{module or ''}.{alias.name}".lstrip("."))
                    yield from _unsafe_attribute(alias.name, of_module=True)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _NAMERS:
                called.add(node.func)
                yield from _unsafe_lookup(node, name, modules)
            case ast.Name(id=name, ctx=ast.Load()) if node not in called:
                if name in UNSAFE_NAMES or name in _NAMERS:
                    yield name
            case ast.Attribute(value=owner, attr=name):
                yield from _unsafe_attribute(name, of_module=_root(owner) in modules)
            case ast.MatchClass(kwd_attrs=names):
                for name in names:
                    yield from _unsafe_attribute(name, of_module=False)
            case ast.Constant(value=str(text)) if formats:
                for name in _field_attributes(text):
                    yield from _unsafe_attribute(name, of_module=False)
            case _:
                pass


def _formats(tree: ast.Module) -> bool:
    """Whether the program mentions a formatter, so that any text in it may be one to be formatted."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.Constant(value=str(name)) if name in _FORMATTERS:
                return True
            case _:
                pass
    return False


def _field_attributes(text: str) -> Iterator[str]:
    for field in _FIELD.findall(text):
        yield from _FIELD_ATTRIBUTE.findall(field)


def _unsafe_module(path: str) -> Iterator[str]:
    package, _, rest = path.partition(".")
    inner, bare = rest.partition(".")[0], package.lstrip("_")
    for module in dict.fromkeys((package, bare, inner, f"{bare}.{inner}")):
        if module in UNSAFE_MODULES:
            yield module


def _unsafe_attribute(name: str, *, of_module: bool) -> Iterator[str]:
    if name in UNSAFE_ATTRIBUTES or (of_module and name in OPENERS):
        yield name
    elif of_module:
        yield from _unsafe_module(name)


def _unsafe_lookup(call: ast.Call, namer: str, modules: frozenset[str]) -> Iterator[str]:
    names = call.args[_NAMERS[namer]]
    for name in names:
        match name:
            case ast.Constant(value=str(path)):
                for part in path.split("."):
                    yield from _unsafe_attribute(part, of_module=_root(call.args[0]) in modules)
            case _:
                yield namer
    if not names:
        yield namer


def _root(node: ast.expr) -> str | None:
    """The name a chain of attributes begins with; a longer chain than any module has is not followed."""
    for _ in range(8):
        if not isinstance(node, ast.Attribute):
            break
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _module_names(tree: ast.Module) -> frozenset[str]:
    """The names that stand for modules, or for what was imported from one."""
    names = {"io", "sys"}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names.update(alias.asname or alias.name.split(".")[0] for alias in aliases)
            case ast.Assign(targets=targets, value=ast.Name(id=name)) if name in names:
                names.update(target.id for target in targets if isinstance(target, ast.Name))
            case _:
                pass
    return frozenset(names)
