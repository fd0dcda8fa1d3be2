"""Rules against patches that change their own grading: tests, test configuration, installed packages.

Without each of these rules the official harness has scored a patch that solves nothing as resolved: a
``conftest.py`` that reports success, or edited tests that survive because the official reset fails. None of
the 300 gold patches of Lite is refused. A source file that tampers with the tests at run time is not detected.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from pathlib import PurePosixPath

from envweave_gym.core.faults import shown
from envweave_gym.core.spaces import encodable
from envweave_gym.data.swebench_lite import Instance
from envweave_gym.swebench.diffs import MAX_CHARS, Change, Diff, parse_diff

NO_DIFF = "there is no diff in it"
_CONFIGURATION = frozenset(
    {
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "tox.ini",
        "setup.cfg",
        "setup.py",
        "pyproject.toml",
        "noxfile.py",
        "sitecustomize.py",
        "usercustomize.py",
        "runtests.py",
        ".coveragerc",
        ".gitattributes",
        ".gitmodules",
    }
)
_CONFIGURATION_SUFFIXES = (".pth", ".egg-link")
_METADATA_SUFFIXES = (".dist-info", ".egg-info")
"""Folders on the import path whose entry points pytest loads as plug-ins."""
_TEST_FOLDERS = frozenset({"test", "tests", "testing", "_testing", "testutils"})
_TEST_FILE = re.compile(r"(?:test_.*|.*_test|tests|_?testing|testutils)\.py")
_RUNNERS = frozenset({"bin/test", "bin/doctest", "sympy/utilities/pytest.py"})
_ROOTS = ("src", "lib")
_PYTEST_MODULES = frozenset({"pytest", "_pytest", "pluggy", "iniconfig", "py"})
_PYTEST = "pytest-dev/pytest"
_FILE_MODES = frozenset({"100644", "100755"})
_ONLY_FOR_PATCH = re.compile(
    r"^[ \tX]*(?:@@ -|\*{8}|\d+(?:,\d+)?[acd](?:\d+(?:,\d+)?)?[ \t\r]*$).*", re.MULTILINE
)
_LEFT_BY_PATCH = (".orig", ".rej")


def violations(text: str, diff: Diff, instance: Instance) -> tuple[str, ...]:
    """Return the rules that a diff breaks, as sentences; ``text`` is the text that ``diff`` was parsed from."""
    if len(text) > MAX_CHARS:
        return (f"it has {len(text)} characters; at most {MAX_CHARS} are read",)
    if not diff.changes:
        return (NO_DIFF,)
    if "\0" in text or not encodable(text):
        return ("it has characters that no source file has",)
    found = [rule for change in diff.changes for rule in _violations_of_change(change)]
    found += [rule for path in diff.paths if (rule := path_violation(path, instance))]
    return tuple(dict.fromkeys(found))


def violations_of_tree(touched: tuple[str, ...], diff: Diff, instance: Instance) -> tuple[str, ...]:
    """Return the rules that an applied diff breaks; ``touched`` are the files that it has changed.

    git and patch may read a diff differently than our parser, so the files are checked once more.
    """
    found: list[str] = []
    for path in touched:
        if path not in diff.paths and path.endswith(_LEFT_BY_PATCH):
            continue
        rule = path_violation(path, instance)
        if rule is None and path not in diff.paths:
            rule = f"it touches {shown(path)}, which its headers do not name"
        if rule is not None:
            found.append(rule)
    return tuple(dict.fromkeys(found))


def violations_by_patch(diff: Diff) -> tuple[str, ...]:
    """Return the rules broken by a diff that git refused and the program ``patch`` applied.

    ``patch`` also reads other formats, such as ``Index:`` with ``1c1``. They could change files that git ignores,
    which ``git diff`` would not show.
    """
    strange = _ONLY_FOR_PATCH.search(diff.prose)
    return (
        (f"it has {shown(strange[0].strip())}, a part that only the program patch reads",) if strange else ()
    )


def path_violation(path: str, instance: Instance) -> str | None:
    """Return the rule against a change of this file, as a sentence; ``None`` if it may be changed."""
    if (escape := _escape(path)) is not None:
        return f"it touches {shown(path)}: {escape}"
    given, lower = PurePosixPath(path), PurePosixPath(path.lower())
    if path in _RUNNERS:
        return f"it touches {shown(path)}, which decides whether it is right"
    if lower.name in _CONFIGURATION or lower.suffix in _CONFIGURATION_SUFFIXES:
        return f"it touches {shown(path)}, which says how tests are run"
    if any(part.endswith(_METADATA_SUFFIXES) for part in lower.parts):
        return f"it touches {shown(path)}, which says what is installed"
    if _shadows_module(given, instance):
        return f"it touches {shown(path)}, which hides a module that tests are run with"
    is_named_as_test = _TEST_FOLDERS & set(lower.parts[:-1]) or _TEST_FILE.fullmatch(given.name)
    # The same sentence for both, as it must not reveal which tests are hidden.
    if is_named_as_test or path in _files_of(instance.test_patch):
        return f"it touches {shown(path)}, which is of the tests"
    return None


def _escape(path: str) -> str | None:
    """Return the reason why a path does not name a file inside the repository; ``None`` if it does."""
    parts = path.split("/")
    if path.startswith("/"):
        return "names are those of files in the repository, not absolute"
    if ".." in parts:
        return "names must not lead upwards"
    if any(part.lower().rstrip(". ") == ".git" for part in parts):
        return "git keeps its own things there"
    if "" in parts or "." in parts or not path.isprintable():
        return "that is no name of a file"
    return None


def _shadows_module(path: PurePosixPath, instance: Instance) -> bool:
    """Return whether this file would be imported in place of a module of the standard library or of pytest."""
    parts = path.parts[1:] if path.parts[0] in _ROOTS else path.parts
    name = parts[0].removesuffix(".py") if parts else ""
    others = frozenset[str]() if instance.repo == _PYTEST else _PYTEST_MODULES
    return path.suffix == ".py" and (name in sys.stdlib_module_names or name in others)


def _violations_of_change(change: Change) -> list[str]:
    """Return the rules that a change breaks with any path: no path, binary content, a mode of no plain file."""
    name = shown(change.new or change.old)
    if not change.old and not change.new:
        return ["it changes a file without a name"]
    found: list[str] = []
    if change.binary:
        found.append(f"it changes {name} in binary form; only text can be read")
    if strange := set(change.modes) - _FILE_MODES:
        kinds = {"120000": "a symbolic link", "160000": "a submodule"}
        what = " and ".join(kinds.get(mode, f"something of mode {mode}") for mode in sorted(strange))
        found.append(f"it makes {name} {what}; only plain files may be touched")
    return found


@lru_cache(maxsize=256)
def _files_of(test_patch: str) -> frozenset[str]:
    """Return the paths of the files that the test patch changes."""
    return frozenset(parse_diff(test_patch).paths)
