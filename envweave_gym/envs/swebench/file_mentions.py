"""Finds and hides mentions of source files in the text of issues, and counts shared words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache

HIDDEN = "<file>"
"""The replacement of a hidden name in an issue."""
MAX_PATH = 300
"""Limit of a path in characters; files with longer ones are no options."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SOURCE_FOLDER = re.compile(r"^(?:lib|src)/")
_FILE_NAME = re.compile(r"(?<![\w./\\~%@+-])(?:https?://)?[\w./\\~%@+-]*\w\.py[ciwx]?\b")
_TEST_FOLDERS = frozenset({"test", "tests", "testing"})
_TEST_NAME = re.compile(r"test_.*|.*_tests?\.py|tests?\.py|conftest\.py")


class Leak(StrEnum):
    """Levels of how clearly an issue names the file that must change, from the clearest to none.

    The first level that applies is the level of an issue.
    """

    PATH = "path"
    """The issue contains the path, from the root of the repository or as installed."""
    DOTTED = "dotted"
    """The issue contains the dotted name of the module: ``package.module``."""
    NAME = "name"
    """The issue contains the file name: ``module.py``."""
    STEM = "stem"
    """The issue contains the file name without the suffix, as a word."""
    NONE = "none"
    """The issue does not name the file."""


NAMED = (Leak.PATH, Leak.DOTTED, Leak.NAME)
"""The levels at which an issue names the file itself, rather than a word of its name."""


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text or path in lower case; identifiers like ``some_name`` or ``SomeName`` are split."""
    return frozenset(word.lower() for word in _WORD.findall(text) if len(word) > 1)


@lru_cache(maxsize=1 << 16)
def path_words(path: str) -> frozenset[str]:
    """Return the words of a path, without its suffix."""
    return words_of(path.removesuffix(".py"))


def overlap(path: str, issue_words: frozenset[str]) -> int:
    """Return the number of distinct words that a path shares with ``issue_words``."""
    return len(path_words(path) & issue_words)


def leak_of(path: str, issue: str) -> Leak:
    """Return the level at which the text ``issue`` names the file ``path``."""
    installed, module, name = names_of(path)
    if installed in issue:
        return Leak.PATH
    if "." in module and _stands(module, issue):
        return Leak.DOTTED
    if name == "__init__.py":
        return Leak.NONE
    if _stands(name, issue):
        return Leak.NAME
    return Leak.STEM if _stands(name.removesuffix(".py"), issue) else Leak.NONE


def _stands(name: str, text: str) -> bool:
    """Return whether a name occurs as a whole word: ``b`` does in ``a.b``, but ``b.c`` does not in ``a.b.c``."""
    before = r"[\w.]" if "." in name.removesuffix(".py") else r"\w"
    return name in text and re.search(rf"(?<!{before}){re.escape(name)}(?!\w)", text) is not None


@lru_cache(maxsize=1 << 16)
def names_of(path: str) -> tuple[str, str, str]:
    """Return the path without ``src/`` or ``lib/``, as installed, the dotted module name, and the file name."""
    installed = _SOURCE_FOLDER.sub("", path)
    module = installed.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return installed, module, path.rpartition("/")[2]


def is_source(path: str) -> bool:
    """Return whether a path names a Python file that is no test, and is short enough to be an option."""
    *folders, name = path.split("/")
    python = name.endswith(".py") and len(path) <= MAX_PATH and path.isprintable()
    return python and _TEST_FOLDERS.isdisjoint(folders) and not _TEST_NAME.fullmatch(name)


def masked(issue: str, paths: Iterable[str]) -> str:
    """Replace every name of a Python file, and the module names of ``paths``, in an issue by :data:`HIDDEN`."""
    issue = _FILE_NAME.sub(HIDDEN, issue)
    hidden: set[str] = set()
    for path in paths:
        installed, module, _ = names_of(path)
        hidden |= {name.removesuffix(".py") for name in (path, installed) if "/" in name}
        hidden |= {module} if "." in module else set()
    if not hidden:
        return issue
    # A regular expression takes the first alternative that matches, so longer names must come first.
    longest_first = sorted(map(re.escape, hidden), key=len, reverse=True)
    return re.sub(rf"(?<![\w.])(?:{'|'.join(longest_first)})(?!\w)", HIDDEN, issue)


# Files that the rows of the data set mention


def roots_of(paths: Iterable[str]) -> dict[str, str]:
    """Return the top-level packages of the files, with the folder of each: ``{"matplotlib": "lib/"}``."""
    roots: dict[str, str] = {}
    for path in paths:
        folder = _SOURCE_FOLDER.match(path)
        prefix = folder[0] if folder else ""
        roots[path.removeprefix(prefix).partition("/")[0]] = prefix
    return {root: prefix for root, prefix in roots.items() if not root.endswith(".py")}


def mentioned_paths(text: str, roots: dict[str, str]) -> list[str]:
    """Return the paths of source files that a text names, from the root of the repository or as installed.

    ``roots`` is the result of :func:`roots_of`.
    """
    found = [_rooted(name.replace("\\", "/").split("/"), roots) for name in _FILE_NAME.findall(text)]
    return [path for path in dict.fromkeys(found) if is_source(path)]


def _rooted(parts: Sequence[str], roots: dict[str, str]) -> str:
    """Return the part of a path that begins with its last top-level package of the repository; empty if it has none.

    Issues name files by paths like ``/usr/lib/python3/site-packages/package/module.py``.
    """
    for index in range(len(parts) - 2, -1, -1):
        if parts[index] in roots:
            return roots[parts[index]] + "/".join(parts[index:])
    return ""


_IMPORT = re.compile(r"^[ +-]\s*(?:from\s+([\w.]+)\s+import|import\s+([\w.]+))", re.MULTILINE)


def imported_paths(diff: str, roots: dict[str, str], folders: frozenset[str]) -> list[str]:
    """Return the paths of the source files that ``import`` lines of a diff name.

    ``folders`` are the repository's packages, whose path is that of their ``__init__.py``; ``roots`` is the result of
    :func:`roots_of`.
    """
    found: list[str] = []
    for names in _IMPORT.findall(diff):
        parts = "".join(names).split(".")
        if len(parts) > 1 and parts[0] in roots:
            path = roots[parts[0]] + "/".join(parts)
            found.append(f"{path}/__init__.py" if path in folders else f"{path}.py")
    return [path for path in dict.fromkeys(found) if is_source(path)]
