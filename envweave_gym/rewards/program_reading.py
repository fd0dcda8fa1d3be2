"""Finds the program in a model's reply, and unsafe names and imports in its syntax tree, without running it.

The reply may be a bare program, or have it in Markdown fences. If the reply itself is no Python, the code in its
fences is read, also if they are marked as another language.

The result is for rewards, not for protection: a program can reach anything in more ways than a list can name. The
sandbox that runs the program protects.
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
"""Limit of a program in characters; a longer one is not parsed."""
MAX_DOTTED = 100
"""Limit of dots in the name of an imported module.

A longer one, such as ``a.a.a…``, is not parsed: that takes memory by the square of its length, 700 MB for 50
kB.
"""
_MAX_MODULE = 200
"""Limit of a module's name in characters; names imported from a longer one are looked up on their own."""

TOO_LONG = "length"
"""Name of the violation of a program that is too long to be parsed."""

# fmt: off
UNSAFE_NAMES = frozenset({
    "eval", "exec", "compile", "open", "breakpoint", "globals", "locals", "vars", "get_ipython",
    "__import__", "__builtins__", "__loader__", "__spec__",
    "os", "subprocess", "builtins", "importlib",  # an earlier step may have imported them
})
"""Names that a program must not mention."""
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
"""Modules that a program must not import or reach; with a dot, only that part of the module."""
UNSAFE_ATTRIBUTES = frozenset({
    "__base__", "__bases__", "__mro__", "mro", "__subclasses__", "__dict__", "__getattribute__", "__reduce__",
    "__reduce_ex__", "__globals__", "__builtins__", "__code__", "__closure__", "__self__", "__import__",
    "__loader__", "__spec__", "f_back", "f_builtins", "f_code", "f_globals", "f_locals", "tb_frame",
    "gi_frame", "gi_code", "cr_frame", "cr_code", "ag_frame", "ag_code",
    "load_module", "exec_module", "ProcessPoolExecutor", "create_subprocess_exec",
    "create_subprocess_shell", "subprocess_exec", "subprocess_shell", "tofile",
})
"""Attributes that a program must not read or import, of any object."""
OPENERS = frozenset({
    "open", "open_code", "FileIO", "modules", "_getframe", "_current_frames", "meta_path", "path_hooks",
    "path_importer_cache",
})
"""Attributes that are unsafe only of an imported module, such as ``io.open`` or ``sys.modules``."""

_MAYBE_IMPORTED = ("io", "sys", "asyncio", "gc", "timeit")
"""Modules of which only parts are unsafe, and which an earlier step may have imported."""

_NAMERS = {
    "getattr": slice(1, 2), "getattr_static": slice(1, 2), "attrgetter": slice(None),
    "methodcaller": slice(0, 1),
}
# fmt: on
"""Functions that read attributes by name; the slice selects the arguments that are names."""

VIOLATIONS = UNSAFE_NAMES | UNSAFE_MODULES | UNSAFE_ATTRIBUTES | OPENERS | set(_NAMERS) | {TOO_LONG}
"""The names of all violations."""

_FORMATTERS = frozenset({"format", "format_map", "vformat"})
"""Methods that read attributes named in a format string: ``"{0.__class__}".format(x)``."""
_FIELD = re.compile(r"\{([^{}]*)")
_FIELD_ATTRIBUTE = re.compile(r"\.(\w+)")

_FILENAME = "<action>"
_filtering = ProcessLocal(threading.Lock)
"""Lock for changes of the warning filters, which all threads share; rows may be read in threads."""
_MAY_WARN = re.compile(r"\\|\d\.?[A-Za-z]|finally")
_FENCED = re.compile(
    r"(?<![`~])(```+|~~~+)([^\n`~]*)\n(.*?)(?:^[ \t]*\1|\1[ \t\r]*$|\Z)", re.DOTALL | re.MULTILINE
)
"""A fence: its marks, its language, and its code, up to closing marks at the start or end of a line, or to
the end of the text."""
_DOT = re.compile(r"(?<![\s\\])[\s\\]*+\.[\s\\]*+")
"""A dot, with the white space and the line continuations around it."""
_LONG_CHAIN = re.compile(rf"(?:\b(?:import|from)\b|,)[\s\\.]*+(?:\w++\.){{{MAX_DOTTED}}}")
"""A module name with too many dots, in a text without white space around its dots."""
_PYTHON = re.compile(r"\s*(?:python|py|ipython|repl)[\d.]*(?:\s|$)", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d]\w*(?:['\u2019]\w+)?")
_SENTENCE = re.compile(r"(?:[\w\s\u201c\u201d,;:.!?%$\u20ac()-]|(?<=\w)['\u2019](?=\w))+")
_SHORTEST_SENTENCE = 3
"""Least number of words of a sentence; a shorter line may be a wrong program."""
_QUOTE = re.compile(r"(?:[ \t]*>)+")


class Reading(NamedTuple):
    """The program in a text, whether it is Python, and its violations."""

    code: str
    """The program: the text, or the code in its fences."""
    is_python: bool
    unsafe: frozenset[str]
    """The names of the program's violations."""


@lru_cache(maxsize=8)
def read_program(text: str) -> Reading:
    """Find the program in ``text`` and its violations; code in several fences is parsed separately."""
    if _is_too_long(text):
        return Reading(text, False, frozenset({TOO_LONG}))
    tree = parse(text)
    programs = [] if tree else [_fenced_code(match) for match in _FENCED.finditer(text)]
    trees = [parse(program) for program in programs] if programs else [tree]
    unsafe = frozenset(thing for tree in trees if tree for thing in _unsafe_things(tree))
    return Reading("\n".join(programs) if programs else text, None not in trees, unsafe)


def _is_too_long(source: str) -> bool:
    """Return whether a program, or the name of a module in it, is too long; takes linear time."""
    return len(source) > MAX_SOURCE or _LONG_CHAIN.search(_DOT.sub(".", source)) is not None


def program_in(reply: str, *, joined: bool = False) -> str:
    """Return the program that a reply asks to run: the last fenced one, or with ``joined`` all of them.

    Fences marked as Python precede unmarked ones, and these precede others, which may show an output. A reply
    that has no fences, or is Python itself, is the program.
    """
    fences = list(_FENCED.finditer(reply))
    if not fences or parse(reply) is not None:
        return reply
    marked = [fence for fence in fences if _PYTHON.match(fence[2])]
    unmarked = [fence for fence in fences if not fence[2].strip()]
    programs = [_fenced_code(fence) for fence in marked or unmarked or fences]
    return "\n".join(programs) if joined else programs[-1]


def is_prose(text: str) -> bool:
    """Return whether a text begins with a line of plain words (``The answer is 42.``) and is no Python.

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
    """Return the code in a fence, without the marks of a block quote around the fence."""
    before = fence.string[fence.string.rfind("\n", 0, fence.start()) + 1 : fence.start()]
    code, quote = fence[3], _QUOTE.match(before)
    if quote:
        marks = rf"^(?:[ \t]*>){{1,{quote[0].count('>')}}} ?"
        code = re.sub(marks, "", code, flags=re.MULTILINE)
    return textwrap.dedent(code)


def parse(source: str) -> ast.Module | None:
    """Return the syntax tree, or ``None`` if Python cannot parse the text or it is too long."""
    if _is_too_long(source):
        return None
    try:
        return _parse_quietly(source)
    except (SyntaxError, ValueError, MemoryError):  # null bytes raise ValueError, deep nesting MemoryError
        return None
    except RecursionError:
        # The parser's depth limit counts from the caller's stack, so a new thread gives all callers the same limit.
        with ThreadPoolExecutor(1) as thread:
            reading = thread.submit(_parse_quietly, source)
            return None if reading.exception() else reading.result()


def _parse_quietly(source: str) -> ast.Module:
    """Parse without Python's warnings, such as that of ``"\\d"``, as the text is not this program's own."""
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
        """Return the nodes of one type."""
        return cast("list[_Node]", self._by_type.get(kind, []))


def _unsafe_things(tree: ast.Module) -> Iterator[str]:
    nodes = _Nodes(tree)
    modules = _modules(nodes)
    for alias in (alias for node in nodes.of(ast.Import) for alias in node.names):
        yield from _unsafe_module(alias.name)
    for node in nodes.of(ast.ImportFrom):
        module = _module_of(node)
        for alias in node.names:
            # A relative import may have no module.
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
    """Yield the unsafe names that are read, and unsafe attributes that are read by name."""
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
    """Return the module of an import; empty for the package itself, or for a name that is too long."""
    module = node.module or ""
    return module if len(module) <= _MAX_MODULE else ""


def _formats(nodes: _Nodes) -> bool:
    """Return whether the program mentions ``format`` or the like, so that any text in it may be a format string."""
    is_read = any(node.attr in _FORMATTERS for node in nodes.of(ast.Attribute))
    return is_read or any(
        isinstance(node.value, str) and node.value in _FORMATTERS for node in nodes.of(ast.Constant)
    )


def _field_attributes(text: str) -> Iterator[str]:
    for field in _FIELD.findall(text):
        yield from _FIELD_ATTRIBUTE.findall(field)


def _unsafe_module(path: str) -> Iterator[str]:
    package, _, rest = path.partition(".")
    inner, bare = rest.partition(".")[0], package.lstrip("_")  # _posixsubprocess counts as posixsubprocess
    for module in dict.fromkeys((package, bare, inner, f"{bare}.{inner}")):
        if module in UNSAFE_MODULES:
            yield module


def _unsafe_attribute(name: str, module: str | None = None) -> Iterator[str]:
    """Yield the violations of reading an attribute of ``module`` (a dotted path), or of an unknown object (None)."""
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
    """Return the dotted path of a module or of an object in one; ``None`` for any other expression."""
    path = ""
    # No chain of attributes in the lists is longer.
    for _ in range(8):
        if not isinstance(node, ast.Attribute):
            break
        node, path = node.value, f".{node.attr}{path}"
    return modules[node.id] + path if isinstance(node, ast.Name) and node.id in modules else None


def _modules(nodes: _Nodes) -> dict[str, str]:
    """Return the names that stand for modules, or for objects imported from one, with their paths.

    A name that is both imported and assigned stands for the assigned value.
    """
    modules = {name: name for name in _MAYBE_IMPORTED}
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
    """Return the unsafe names that ``from module import *`` may have bound, with their full names."""
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
