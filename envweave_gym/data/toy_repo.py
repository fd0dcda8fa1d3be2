"""Generates the synthetic rows of SWE-bench Lite: issues of a toy repository, with the patches that close them.

The rows have the official schema. The hash of the base commit is computed as git does it: a repository with the files
:data:`FILES`, committed with :data:`COMMIT_ENVIRONMENT`, has the same hash.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterable

from envweave_gym.data.swebench_lite import Instance
from envweave_gym.data.toy_files import FILES
from envweave_gym.data.toy_issues import ISSUES, Issue

REPO, VERSION = "toy/toolbox", "1.0"
AUTHOR, EMAIL, SECONDS = "Toy Maker", "toy@localhost", 1_600_000_000
MESSAGE = "A toolbox\n"
"""Message of the base commit; the constants above are its author, e-mail address and time."""
COMMIT_ENVIRONMENT = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", AUTHOR), ("EMAIL", EMAIL), ("DATE", f"{SECONDS} +0000"))
}
"""Environment variables with which git creates a commit of the same hash as the rows' base commit."""

_CREATED = "2020-09-13T12:26:40Z"
_TEST = re.compile(r"^def (test_\w+)", re.MULTILINE)
_SCRIPT = """\
#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
git config --global --add safe.directory /testbed
cd /testbed
git status
git show
git -c core.fileMode=false diff {base}
git checkout {base} {test}
git apply -v - <<'EOF_114329324912'
{patch}
EOF_114329324912
: '>>>>> Start Test Output'
python tests/runtests.py -rA {test}
: '>>>>> End Test Output'
git checkout {base} {test}
"""


def toy_instances(split: str) -> tuple[Instance, ...]:
    """Return the rows of the split ``"test"`` or ``"dev"``, one for each issue."""
    return tuple(_instance(issue) for issue in ISSUES[split])


def _instance(issue: Issue) -> Instance:
    path, before, base = issue.path, FILES[issue.path], base_commit()
    tested = FILES.get(issue.test_path, "")
    test_patch = diff_between(issue.test_path, tested, tested + issue.tests)
    return Instance(
        instance_id=f"toy__toolbox-{issue.number}",
        repo=REPO,
        base_commit=base,
        patch=diff_between(path, before, before.replace(issue.before, issue.after)),
        test_patch=test_patch,
        problem_statement=issue.text,
        version=VERSION,
        failing=_tests(issue.test_path, issue.tests),
        passing=_tests(issue.test_path, tested),
        created_at=_CREATED,
        environment_setup_commit=base,
        eval_script=_SCRIPT.format(base=base, test=issue.test_path, patch=test_patch),
        log_parser="parse_log_pytest",
    )


def _tests(path: str, text: str) -> tuple[str, ...]:
    return tuple(f"{path}::{name}" for name in _TEST.findall(text))


def diff_between(path: str, before: str, after: str) -> str:
    """Return the change of a file as a git diff; a file whose text is empty before is created."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    source = f"a/{path}" if before else "/dev/null"
    mode = "" if before else "new file mode 100644\n"
    return f"diff --git a/{path} b/{path}\n{mode}" + "".join(
        difflib.unified_diff(old, new, source, f"b/{path}")
    )


# The hash of the commit, as git computes it


def base_commit() -> str:
    """Return the hash of the commit with all files, which is the base commit of every row."""
    tree = _tree((path.split("/"), text.encode()) for path, text in FILES.items())
    who = f"{AUTHOR} <{EMAIL}> {SECONDS} +0000"
    return _hash("commit", f"tree {tree}\nauthor {who}\ncommitter {who}\n\n{MESSAGE}".encode())


def _tree(files: Iterable[tuple[list[str], bytes]]) -> str:
    folders: dict[str, list[tuple[list[str], bytes]]] = {}
    entries: list[tuple[str, str, str]] = []
    for (name, *rest), content in files:
        if rest:
            folders.setdefault(name, []).append((rest, content))
        else:
            entries.append((name, "100644", _hash("blob", content)))
    # Git sorts a folder as if its name ended in a slash, and stores the name without it.
    entries += [(f"{name}/", "40000", _tree(inside)) for name, inside in folders.items()]
    listed = [
        f"{mode} {name.rstrip('/')}\0".encode() + bytes.fromhex(sha) for name, mode, sha in sorted(entries)
    ]
    return _hash("tree", b"".join(listed))


def _hash(kind: str, content: bytes) -> str:
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()
