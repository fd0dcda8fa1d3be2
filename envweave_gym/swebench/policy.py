"""What the patch of a model may not touch: what decides whether it is right.

Each of these has scored as resolved, in the official path, patches that solve nothing: a ``conftest.py`` that
says that all tests passed, tests that are edited and survive where the official reset fails. Of the 300 gold
patches of Lite none is refused. A source file that tampers with the tests from inside is not found.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from pathlib import PurePosixPath

from envweave_gym.core.faults import shown
from envweave_gym.core.spaces import encodable
from envweave_gym.data.swebench_lite import Instance
from envweave_gym.swebench.diffs import LONGEST, Change, Diff, parsed

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
"""Folders of which pytest takes the plug-ins that they name, wherever modules are looked for."""
_TEST_FOLDERS = frozenset({"test", "tests", "testing", "_testing", "testutils"})
_TEST_FILE = re.compile(r"(?:test_.*|.*_test|tests|_?testing|testutils)\.py")
_RUNNERS = frozenset({"bin/test", "bin/doctest", "sympy/utilities/pytest.py"})
_ROOTS = ("src", "lib")
_OF_PYTEST = frozenset({"pytest", "_pytest", "pluggy", "iniconfig", "py"})
_PYTEST = "pytest-dev/pytest"
_FILE_MODES = frozenset({"100644", "100755"})
_OF_PATCH_ALONE = re.compile(
    r"^[ \tX]*(?:@@ -|\*{8}|\d+(?:,\d+)?[acd](?:\d+(?:,\d+)?)?[ \t\r]*$).*", re.MULTILINE
)
_LEFT_BY_PATCH = (".orig", ".rej")


def violations(text: str, diff: Diff, instance: Instance) -> tuple[str, ...]:
    """Why a diff is not tried, in sentences, if so; ``text`` is what it was read from."""
    if len(text) > LONGEST:
        return (f"it has {len(text)} characters; at most {LONGEST} are read",)
    if not diff.changes:
        return (NO_DIFF,)
    if "\0" in text or not encodable(text):
        return ("it has characters that no source file has",)
    found = [said for one in diff.changes for said in _of_change(one)]
    found += [said for path in diff.paths if (said := objection(path, instance))]
    return tuple(dict.fromkeys(found))


def violations_of_tree(touched: tuple[str, ...], diff: Diff, instance: Instance) -> tuple[str, ...]:
    """The same of what it has really touched: git and patch may understand a diff in another way than we."""
    found: list[str] = []
    for path in touched:
        if path not in diff.paths and path.endswith(_LEFT_BY_PATCH):
            continue
        said = objection(path, instance)
        if said is None and path not in diff.paths:
            said = f"it touches {shown(path)}, which its headers do not name"
        if said is not None:
            found.append(said)
    return tuple(dict.fromkeys(found))


def violations_by_patch(diff: Diff) -> tuple[str, ...]:
    """The same where ``patch`` took it, which reads parts in other forms too: as ``Index:`` with ``1c1``.

    What git ignores of the tree could be changed by those, and git would not tell.
    """
    strange = _OF_PATCH_ALONE.search(diff.prose)
    return (
        (f"it has {shown(strange[0].strip())}, a part that only the program patch reads",) if strange else ()
    )


def objection(path: str, instance: Instance) -> str | None:
    """Why this file of the repository may not be touched, if so."""
    if (escape := _escape(path)) is not None:
        return f"it touches {shown(path)}: {escape}"
    given, lower = PurePosixPath(path), PurePosixPath(path.lower())
    if path in _RUNNERS:
        return f"it touches {shown(path)}, which decides whether it is right"
    if lower.name in _CONFIGURATION or lower.suffix in _CONFIGURATION_SUFFIXES:
        return f"it touches {shown(path)}, which says how tests are run"
    if any(part.endswith(_METADATA_SUFFIXES) for part in lower.parts):
        return f"it touches {shown(path)}, which says what is installed"
    if _hides_a_module(given, instance):
        return f"it touches {shown(path)}, which hides a module that tests are run with"
    named_so = _TEST_FOLDERS & set(lower.parts[:-1]) or _TEST_FILE.fullmatch(given.name)
    if named_so or path in _test_files(
        instance
    ):  # in one sentence, which tells nobody which tests are hidden
        return f"it touches {shown(path)}, which is of the tests"
    return None


def _escape(path: str) -> str | None:
    """Why a name leads out of the files of the repository, if it does."""
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


def _hides_a_module(path: PurePosixPath, instance: Instance) -> bool:
    """Whether Python finds this file where it looks for a module of its own, or of pytest."""
    parts = path.parts[1:] if path.parts[0] in _ROOTS else path.parts
    name = parts[0].removesuffix(".py") if parts else ""
    others = frozenset[str]() if instance.repo == _PYTEST else _OF_PYTEST
    return path.suffix == ".py" and (name in sys.stdlib_module_names or name in others)


def _of_change(change: Change) -> list[str]:
    """Violations of a change that do not depend on its file."""
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
    return frozenset(parsed(test_patch).paths)


def _test_files(instance: Instance) -> frozenset[str]:
    """The files that the test patch changes."""
    return _files_of(instance.test_patch)
