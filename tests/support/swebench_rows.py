"""Instances for tests: the toy ones, and the real ones where this machine has them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absent import needs_data

from envweave_gym.data.swebench_lite import SOURCE, Instance, instances
from envweave_gym.data.toy_files import FILES
from envweave_gym.data.toy_repo import diff_between, toy_instances

TOY = toy_instances("test")
TEXT, NUMBERS, INTERVALS, QUEUES, DATES, MONEY = TOY


def rows_here() -> Sequence[Instance]:
    """The 300 rows of the test split, where they are here."""
    folder = os.environ.get("ENVWEAVE_DATA", "/nowhere")
    return instances(SOURCE.hub, "test") if Path(folder, "swebench_lite_test.jsonl").is_file() else ()


def real_rows() -> Sequence[Instance]:
    """The 300 rows of the test split, or none of the test."""
    needs_data("swebench_lite_test.jsonl")
    return rows_here()


def patch_of(path: str, before: str, after: str) -> str:
    """A diff that replaces the one line of a file by another."""
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-{before}\n+{after}\n"


def new_file(path: str, text: str, mode: str = "100644") -> str:
    """A diff that adds a file."""
    lines = text.splitlines()
    body = "".join(f"+{line}\n" for line in lines)
    header = f"diff --git a/{path} b/{path}\nnew file mode {mode}\n--- /dev/null\n+++ b/{path}\n"
    return f"{header}@@ -0,0 +1,{len(lines)} @@\n{body}"


def edit(path: str, before: str, after: str) -> str:
    """A diff that changes a file of the toy repository."""
    return diff_between(path, FILES[path], FILES[path].replace(before, after, 1))


def at_import(code: str, fixed: bool = False) -> str:
    """A diff after which ``toolbox.text`` runs this code when it is imported, and is right if ``fixed``."""
    before = FILES["toolbox/text.py"]
    after = before.replace("text[:length]", "text[: length - 3]") if fixed else before
    return diff_between("toolbox/text.py", before, f"{after}\n\n{code}\n")


def row_of(one: Instance) -> dict[str, Any]:
    """The row as the official package takes it."""
    return {
        "instance_id": one.instance_id,
        "repo": one.repo,
        "version": one.version,
        "image": one.image,
        "eval_script": one.eval_script,
        "FAIL_TO_PASS": list(one.fail_to_pass),
        "PASS_TO_PASS": list(one.pass_to_pass),
        "log_parser": one.log_parser,
        "eval_type": one.eval_type,
    }
