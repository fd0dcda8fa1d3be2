"""What a program reaches for, read off its syntax tree; nothing is run.

A program comes bare or in the Markdown fences of a model's reply: where the text is no Python itself, the
code in its fences is what is read, whatever language they claim.

This teaches, it does not protect: Python has more ways out than a list can name. What keeps a program in is
the sandbox that runs it.
"""

from __future__ import annotations

import ast
import keyword
import re
import textwrap
import threading
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeVar, cast

from envweave_gym.os_support.process_local import ProcessLocal

MAX_SOURCE = 50_000
"""A longer program is not read."""
MAX_DOTTED = 100
"""The limit of dots in the name of an imported module. A longer one, as ``a.a.a…``, is not parsed: that takes
memory by the square of its length, 700 MB for 50 kB."""
_MAX_MODULE = 200
"""Characters; a longer name is that of no module, and is not joined with the names imported from it."""

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
_filtering = ProcessLocal(threading.Lock)
"""Held while the filters of warnings are changed, which all threads share: rows are read in threads."""
_MAY_WARN = re.compile(r"\\|\d\.?[A-Za-z]|finally")
_FENCED = re.compile(
    r"(?<![`~])(```+|~~~+)([^\n`~]*)\n(.*?)(?:^[ \t]*\1|\1[ \t\r]*$|\Z)", re.DOTALL | re.MULTILINE
)
"""A fence, its language, and the code from the next line to a fence at the start or the end of a line, or to
the end of the text."""
_DOT = re.compile(r"(?<![\s\\])[\s\\]*+\.[\s\\]*+")
"""A dot with the white space and the continued lines around it."""
_LONG_CHAIN = re.compile(rf"(?:\b(?:import|from)\b|,)[\s\\.]*+(?:\w++\.){{{MAX_DOTTED}}}")
"""Such a chain where the name of a module may be, in a text without white space around its dots."""
_PYTHON = re.compile(r"\s*(?:python|py|ipython|repl)[\d.]*(?:\s|$)", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d]\w*(?:['\u2019]\w+)?")
_SENTENCE = re.compile(r"(?:[\w\s\u201c\u201d,;:.!?%$\u20ac()-]|(?<=\w)['\u2019](?=\w))+")
_SHORTEST_SENTENCE = 3
"""Words; fewer may be a program that is wrong."""
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
    if _is_too_long(text):
        return Reading(text, False, frozenset({TOO_LONG}))
    tree = parse(text)
    programs = [] if tree else [_fenced_code(match) for match in _FENCED.finditer(text)]
    trees = [parse(program) for program in programs] if programs else [tree]
    unsafe = frozenset(thing for tree in trees if tree for thing in _unsafe_things(tree))
    return Reading("\n".join(programs) if programs else text, None not in trees, unsafe)


def _is_too_long(source: str) -> bool:
    """Whether a program, or the name of a module in it, is too long; takes linear time."""
    return len(source) > MAX_SOURCE or _LONG_CHAIN.search(_DOT.sub(".", source)) is not None


def program_in(reply: str, *, joined: bool = False) -> str:
    """The program that a reply asks to run: the last fenced one, or with ``joined`` all of them together.

    Fences marked as Python count before unmarked ones, and these before others, which may show an output. A
    reply without fences, or one that is Python as it is, is the program itself.
    """
    fences = list(_FENCED.finditer(reply))
    if not fences or parse(reply) is not None:
        return reply
    marked = [fence for fence in fences if _PYTHON.match(fence[2])]
    unmarked = [fence for fence in fences if not fence[2].strip()]
    programs = [_fenced_code(fence) for fence in marked or unmarked or fences]
    return "\n".join(programs) if joined else programs[-1]


def is_prose(text: str) -> bool:
    """Whether a text that is no Python begins with a line of plain words, as ``The answer is 42.`` is one.

    Two names side by side, neither of them a keyword, are never Python.
    """
    first = text.strip().partition("\n")[0]
    words = first.split()
    if len(words) < _SHORTEST_SENTENCE or keyword.iskeyword(words[0]) or not _SENTENCE.fullmatch(first):
        return False
    bare = [word.strip(".,;:!?()\u201c\u201d") for word in words]
    names = [bool(_WORD.fullmatch(word)) and not keyword.iskeyword(word) for word in bare]
    return any(left and right for left, right in pairwise(names)) and parse(text) is None


def _fenced_code(fence: re.Match[str]) -> str:
    """The code in a fence, without the marks of the block quote that the fence stands in."""
    before = fence.string[fence.string.rfind("\n", 0, fence.start()) + 1 : fence.start()]
    code, quote = fence[3], _QUOTE.match(before)
    if quote:
        marks = rf"^(?:[ \t]*>){{1,{quote[0].count('>')}}} ?"
        code = re.sub(marks, "", code, flags=re.MULTILINE)
    return textwrap.dedent(code)


def parse(source: str) -> ast.Module | None:
    """The syntax tree; ``None`` where Python could not run the text either, or it is too long."""
    if _is_too_long(source):
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
    with _filtering.value, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=re.escape(_FILENAME))
        return ast.parse(source, _FILENAME)


_Node = TypeVar("_Node", bound=ast.AST)


class _Nodes:
    """The nodes of a syntax tree by their type, each type in the order of :func:`ast.walk`."""

    def __init__(self, tree: ast.Module) -> None:
        self._by_type: dict[type[ast.AST], list[ast.AST]] = {}
        for node in ast.walk(tree):
            self._by_type.setdefault(type(node), []).append(node)

    def of(self, kind: type[_Node]) -> list[_Node]:
        """Those of one type."""
        return cast("list[_Node]", self._by_type.get(kind, []))


def _unsafe_things(tree: ast.Module) -> Iterator[str]:
    nodes = _Nodes(tree)
    modules = _modules(nodes)
    for alias in (alias for node in nodes.of(ast.Import) for alias in node.names):
        yield from _unsafe_module(alias.name)
    for node in nodes.of(ast.ImportFrom):
        module = _module_of(node)
        for alias in node.names:
            yield from _unsafe_module(f"{module}.{alias.name}".lstrip("."))
            yield from _unsafe_attribute(alias.name, module)
    yield from _unsafe_names(nodes, modules)
    for node in nodes.of(ast.Attribute):
        yield from _unsafe_attribute(node.attr, _path(node.value, modules))
    for name in (name for node in nodes.of(ast.MatchClass) for name in node.kwd_attrs):
        yield from _unsafe_attribute(name)
    if _formats(nodes):
        for node in nodes.of(ast.Constant):
            for name in _field_attributes(node.value) if isinstance(node.value, str) else ():
                yield from _unsafe_attribute(name)


def _unsafe_names(nodes: _Nodes, modules: Mapping[str, str]) -> Iterator[str]:
    """The unsafe names that are read, and what functions that take names of attributes are given."""
    called: set[ast.expr] = set()
    for node in nodes.of(ast.Call):
        match node.func:
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in _NAMERS:
                called.add(node.func)
                yield from _unsafe_lookup(node, name, modules)
            case _:
                pass
    starred = _starred(nodes)
    for node in nodes.of(ast.Name):
        if node not in called and isinstance(node.ctx, ast.Load):
            if node.id in UNSAFE_NAMES or node.id in _NAMERS:
                yield node.id
            if node.id in starred:
                yield starred[node.id]


def _module_of(node: ast.ImportFrom) -> str:
    """The module that names are imported from; empty where that is the package, or none has such a name."""
    module = node.module or ""
    return module if len(module) <= _MAX_MODULE else ""


def _formats(nodes: _Nodes) -> bool:
    """Whether the program mentions a formatter, so that any text in it may be one to be formatted."""
    is_read = any(node.attr in _FORMATTERS for node in nodes.of(ast.Attribute))
    return is_read or any(
        isinstance(node.value, str) and node.value in _FORMATTERS for node in nodes.of(ast.Constant)
    )


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


def _modules(nodes: _Nodes) -> dict[str, str]:
    """The names that stand for modules, or for what was imported from one, and what that is.

    A name that is given by an import and an assignment stands for what was assigned.
    """
    modules = {name: name for name in _MAY_BE_THERE}
    for alias in (alias for node in nodes.of(ast.Import) for alias in node.names):
        package = alias.name.partition(".")[0]
        modules[alias.asname or package] = alias.name if alias.asname else package
    for node in nodes.of(ast.ImportFrom):
        module = _module_of(node)
        modules |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in node.names}
    for node in nodes.of(ast.Assign):
        if (path := _path(node.value, modules)) is not None:
            modules |= {target.id: path for target in node.targets if isinstance(target, ast.Name)}
    return modules


def _starred(nodes: _Nodes) -> dict[str, str]:
    """The unsafe names that ``from module import *`` may have brought, and what they stand for."""
    starred: dict[str, str] = {}
    packages = {
        _module_of(node).rpartition(".")[2]
        for node in nodes.of(ast.ImportFrom)
        if node.module and any(alias.name == "*" for alias in node.names)
    }
    for module in packages:
        parts = [part for part in UNSAFE_MODULES if part.startswith(f"{module}.")]
        starred |= {part.rpartition(".")[2]: part for part in parts}
        starred |= {name: name for name in UNSAFE_ATTRIBUTES}
    return starred
