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
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple

MAX_SOURCE = 50_000
"""A longer program is not read: parsing ``a.a.a…`` as the name of a module takes memory by the square."""

TOO_LONG = "length"
"""The violation of a program that is not read."""

# fmt: off
UNSAFE_NAMES = frozenset({
    "eval", "exec", "compile", "open", "breakpoint", "globals", "locals", "vars", "get_ipython",
    "__import__", "__builtins__", "__loader__", "__spec__",
    "os", "subprocess", "builtins", "importlib",  # an earlier step may have imported them
})
"""Unsafe to mention."""
UNSAFE_MODULES = frozenset({
    # the system and its processes
    "os", "posix", "nt", "subprocess", "posixsubprocess", "pty", "multiprocessing", "ctypes", "ctypeslib",
    "cffi", "fcntl", "mmap", "pexpect", "psutil", "tkinter",
    # files
    "_io", "pyio", "shutil", "pathlib", "posixpath", "ntpath", "genericpath", "tempfile", "glob",
    "fileinput", "linecache", "shelve", "dbm", "sqlite3", "zipfile", "tarfile", "logging.FileHandler",
    "logging.config", "logging.handlers", "numpy.load", "numpy.loadtxt", "numpy.genfromtxt", "numpy.fromfile",
    "numpy.memmap", "numpy.save", "numpy.savez", "numpy.savez_compressed", "numpy.savetxt",
    # the network
    "socket", "socketserver", "ssl", "ftplib", "smtplib", "poplib", "imaplib", "telnetlib", "http.client",
    "http.server", "urllib.request", "xmlrpc", "requests", "httpx", "aiohttp", "urllib3", "websockets",
    "webbrowser", "asyncio.open_connection", "asyncio.open_unix_connection", "asyncio.start_server",
    "asyncio.start_unix_server",
    # the interpreter: importing by name, running text, reaching every object
    "builtins", "importlib", "frozen_importlib", "frozen_importlib_external", "imp", "runpy", "code",
    "codeop", "pkgutil", "zipimport", "pickle", "marshal", "dill", "cloudpickle", "types.CodeType",
    "timeit.timeit", "timeit.repeat", "timeit.Timer", "cProfile.run", "cProfile.runctx", "profile.run",
    "profile.runctx", "trace.Trace", "doctest", "pdb", "bdb", "pydoc", "rlcompleter", "IPython",
    "gc.get_objects", "gc.get_referrers", "gc.get_referents", "xxsubinterpreters", "interpreters",
    "pip", "ensurepip", "venv", "sys.*",
})
"""Unsafe to import, or to reach through another module; with a dot only as that part of that module."""
UNSAFE_ATTRIBUTES = frozenset({
    "__base__", "__bases__", "__mro__", "mro", "__subclasses__", "__dict__", "__getattribute__", "__reduce__",
    "__reduce_ex__", "__globals__", "__builtins__", "__code__", "__closure__", "__self__", "__import__",
    "__loader__", "__spec__", "f_back", "f_builtins", "f_code", "f_globals", "f_locals", "tb_frame",
    "gi_frame", "gi_code", "cr_frame", "cr_code", "ag_frame", "ag_code",
    "load_module", "exec_module", "ProcessPoolExecutor", "create_subprocess_exec",
    "create_subprocess_shell", "subprocess_exec", "subprocess_shell", "tofile",
})
"""Unsafe to read, or to import, whatever they belong to."""
OPENERS = frozenset({
    "open", "open_code", "FileIO", "modules", "_getframe", "_current_frames", "meta_path", "path_hooks",
    "path_importer_cache",
})
"""Unsafe only as something of an imported module: ``io.open``, ``sys.modules``."""

_MAY_BE_THERE = ("io", "sys", "asyncio", "gc", "timeit")
"""Modules that an earlier step may have imported, and that are unsafe only in part."""

_NAMERS = {
    "getattr": slice(1, 2), "getattr_static": slice(1, 2), "attrgetter": slice(None),
    "methodcaller": slice(0, 1),
}
# fmt: on
"""Functions that read attributes by name, and which of their arguments are the names."""

VIOLATIONS = UNSAFE_NAMES | UNSAFE_MODULES | UNSAFE_ATTRIBUTES | OPENERS | set(_NAMERS) | {TOO_LONG}
"""All that may be found."""

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
_QUOTE = re.compile(r"(?:[ \t]*>)+")


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
    programs = [] if tree else [_fenced_code(match) for match in _FENCED.finditer(text)]
    trees = [parse(program) for program in programs] if programs else [tree]
    unsafe = frozenset(thing for tree in trees if tree for thing in _unsafe_things(tree))
    return Reading("\n".join(programs) if programs else text, None not in trees, unsafe)


def _fenced_code(fence: re.Match[str]) -> str:
    """The code in a fence, without the marks of the block quote that the fence stands in."""
    before = fence.string[fence.string.rfind("\n", 0, fence.start()) + 1 : fence.start()]
    code, quote = fence[2], _QUOTE.match(before)
    if quote:
        marks = rf"^(?:[ \t]*>){{1,{quote[0].count('>')}}} ?"
        code = re.sub(marks, "", code, flags=re.MULTILINE)
    return textwrap.dedent(code)


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
    modules, formats, starred = _modules(tree), _formats(tree), _starred(tree)
    called: set[ast.expr] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    yield from _unsafe_module(alias.name)
            case ast.ImportFrom(module=module, names=aliases):
                for alias in aliases:
                    yield from _unsafe_module(f"{module or ''}.{alias.name}".lstrip("."))
                    yield from _unsafe_attribute(alias.name, module or "")
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _NAMERS:
                called.add(node.func)
                yield from _unsafe_lookup(node, name, modules)
            case ast.Name(id=name, ctx=ast.Load()) if node not in called:
                if name in UNSAFE_NAMES or name in _NAMERS:
                    yield name
                if name in starred:
                    yield starred[name]
            case ast.Attribute(value=owner, attr=name):
                yield from _unsafe_attribute(name, _path(owner, modules))
            case ast.MatchClass(kwd_attrs=names):
                for name in names:
                    yield from _unsafe_attribute(name)
            case ast.Constant(value=str(text)) if formats:
                for name in _field_attributes(text):
                    yield from _unsafe_attribute(name)
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


def _unsafe_attribute(name: str, module: str | None = None) -> Iterator[str]:
    """What there is to ``name`` as an attribute: of a module by its path, or of an unknown object."""
    if name in UNSAFE_ATTRIBUTES or (module is not None and name in OPENERS):
        yield name
    elif module is not None:
        yield from _unsafe_module(name)
        part = f"{module.rpartition('.')[2]}.{name}"
        if part in UNSAFE_MODULES:
            yield part


def _unsafe_lookup(call: ast.Call, namer: str, modules: Mapping[str, str]) -> Iterator[str]:
    names = call.args[_NAMERS[namer]]
    for name in names:
        match name:
            case ast.Constant(value=str(path)):
                for part in path.split("."):
                    yield from _unsafe_attribute(part, _path(call.args[0], modules))
            case _:
                yield namer
    if not names:
        yield namer


def _path(node: ast.expr, modules: Mapping[str, str]) -> str | None:
    """The dotted path of a module, or of what is in one; a longer chain than any has is not followed."""
    path = ""
    for _ in range(8):
        if not isinstance(node, ast.Attribute):
            break
        node, path = node.value, f".{node.attr}{path}"
    return modules[node.id] + path if isinstance(node, ast.Name) and node.id in modules else None


def _modules(tree: ast.Module) -> dict[str, str]:
    """The names that stand for modules, or for what was imported from one, and what that is."""
    modules = {name: name for name in _MAY_BE_THERE}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    package = alias.name.partition(".")[0]
                    modules[alias.asname or package] = alias.name if alias.asname else package
            case ast.ImportFrom(module=module, names=aliases):
                modules |= {alias.asname or alias.name: f"{module or ''}.{alias.name}" for alias in aliases}
            case ast.Assign(targets=targets, value=value) if (path := _path(value, modules)) is not None:
                modules |= {target.id: path for target in targets if isinstance(target, ast.Name)}
            case _:
                pass
    return modules


def _starred(tree: ast.Module) -> dict[str, str]:
    """The unsafe names that ``from module import *`` may have brought, and what they stand for."""
    starred: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(path), names=[ast.alias(name="*")]):
                module = path.rpartition(".")[2]
                parts = [part for part in UNSAFE_MODULES if part.startswith(f"{module}.")]
                starred |= {part.rpartition(".")[2]: part for part in parts}
                starred |= {name: name for name in UNSAFE_ATTRIBUTES}
            case _:
                pass
    return starred
