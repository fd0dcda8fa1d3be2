"""Mentions of files in issues: finding them, hiding them, and counting shared words."""

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
    """How clearly the text of an issue names the file that must change.

    The members go from the clearest to none, and the first one that applies is taken.
    """

    PATH = "path"
    """The issue has its path in the repository, or its installed path."""
    DOTTED = "dotted"
    """The issue has its module: ``package.module``."""
    NAME = "name"
    """The issue has its file name."""
    STEM = "stem"
    """The issue has its file name without the suffix, as a word."""
    NONE = "none"
    """The issue does not name it."""


NAMED = (Leak.PATH, Leak.DOTTED, Leak.NAME)
"""The levels at which an issue names the file itself."""


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text or a path in lower case; ``some_name`` and ``SomeName`` have two each."""
    return frozenset(word.lower() for word in _WORD.findall(text) if len(word) > 1)


@lru_cache(maxsize=1 << 16)
def path_words(path: str) -> frozenset[str]:
    """Return the words of a path, without its suffix."""
    return words_of(path.removesuffix(".py"))


def overlap(path: str, issue_words: frozenset[str]) -> int:
    """Return the number of words of a path that the issue has."""
    return len(path_words(path) & issue_words)


def leak_of(path: str, issue: str) -> Leak:
    """Return how clearly an issue names a file."""
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
    """Return whether a name occurs as a whole word: ``b`` does in ``a.b``, ``b.c`` does not in ``a.b.c``."""
    before = r"[\w.]" if "." in name.removesuffix(".py") else r"\w"
    return name in text and re.search(rf"(?<!{before}){re.escape(name)}(?!\w)", text) is not None


@lru_cache(maxsize=1 << 16)
def names_of(path: str) -> tuple[str, str, str]:
    """Return the installed path of a source file, its module, and its file name."""
    installed = _SOURCE_FOLDER.sub("", path)
    module = installed.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return installed, module, path.rpartition("/")[2]


def is_source(path: str) -> bool:
    """Return whether a file is Python, not a test, and has a path that fits a line."""
    *folders, name = path.split("/")
    python = name.endswith(".py") and len(path) <= MAX_PATH and path.isprintable()
    return python and _TEST_FOLDERS.isdisjoint(folders) and not _TEST_NAME.fullmatch(name)


def masked(issue: str, paths: Iterable[str]) -> str:
    """Return the issue with :data:`HIDDEN` for every name of a Python file and for the modules of ``paths``."""
    issue = _FILE_NAME.sub(HIDDEN, issue)
    hidden: set[str] = set()
    for path in paths:
        installed, module, _ = names_of(path)
        hidden |= {name.removesuffix(".py") for name in (path, installed) if "/" in name}
        hidden |= {module} if "." in module else set()
    if not hidden:
        return issue
    # A regular expression takes the first alternative that matches, so longer names must come first.
    # The longest first, as a regular expression takes the first alternative that matches.
    longest_first = sorted(map(re.escape, hidden), key=len, reverse=True)
    return re.sub(rf"(?<![\w.])(?:{'|'.join(longest_first)})(?!\w)", HIDDEN, issue)


# What rows alone tell of a repository


def roots_of(paths: Iterable[str]) -> dict[str, str]:
    """Return the packages of the files, with the folder before each: ``{"matplotlib": "lib/"}``."""
    roots: dict[str, str] = {}
    for path in paths:
        folder = _SOURCE_FOLDER.match(path)
        prefix = folder[0] if folder else ""
        roots[path.removeprefix(prefix).partition("/")[0]] = prefix
    return {root: prefix for root, prefix in roots.items() if not root.endswith(".py")}


def mentioned_paths(text: str, roots: dict[str, str]) -> list[str]:
    """Return the source files that a text names by a path, repository or installed."""
    found = [_rooted(name.replace("\\", "/").split("/"), roots) for name in _FILE_NAME.findall(text)]
    return [path for path in dict.fromkeys(found) if is_source(path)]


def _rooted(parts: Sequence[str], roots: dict[str, str]) -> str:
    """Return the end of a path from its last part that is a package, or an empty text if there is none."""
    for place in range(len(parts) - 2, -1, -1):
        if parts[place] in roots:
            return roots[parts[place]] + "/".join(parts[place:])
    return ""


_IMPORT = re.compile(r"^[ +-]\s*(?:from\s+([\w.]+)\s+import|import\s+([\w.]+))", re.MULTILINE)


def imported_paths(diff: str, roots: dict[str, str], folders: frozenset[str]) -> list[str]:
    """Return the source files that a diff imports; for a package in ``folders``, its ``__init__``."""
    found: list[str] = []
    for names in _IMPORT.findall(diff):
        parts = "".join(names).split(".")
        if len(parts) > 1 and parts[0] in roots:
            path = roots[parts[0]] + "/".join(parts)
            found.append(f"{path}/__init__.py" if path in folders else f"{path}.py")
    return [path for path in dict.fromkeys(found) if is_source(path)]
