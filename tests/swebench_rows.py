"""Instances for tests: the toy ones, and the real ones where this machine has them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from absent import absent

from envweave_gym.data.swebench_lite import SOURCE, Instance, instances
from envweave_gym.data.toy_repo import toy_instances

TOY = toy_instances("test")
TEXT, NUMBERS, INTERVALS, QUEUES, DATES, MONEY = TOY


def rows_here() -> Sequence[Instance]:
    """The 300 rows of the test split, where they are here."""
    folder = os.environ.get("ENVWEAVE_DATA", "/nowhere")
    return instances(SOURCE.hub, "test") if Path(folder, "swebench_lite_test.jsonl").is_file() else ()


def real_rows() -> Sequence[Instance]:
    """The 300 rows of the test split, or none of the test."""
    return rows_here() or absent("ENVWEAVE_DATA names no folder with swebench_lite_test.jsonl")


def patch_of(path: str, before: str, after: str) -> str:
    """A diff that replaces the one line of a file by another."""
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-{before}\n+{after}\n"


def new_file(path: str, text: str, mode: str = "100644") -> str:
    """A diff that adds a file."""
    lines = text.splitlines()
    body = "".join(f"+{line}\n" for line in lines)
    header = f"diff --git a/{path} b/{path}\nnew file mode {mode}\n--- /dev/null\n+++ b/{path}\n"
    return f"{header}@@ -0,0 +1,{len(lines)} @@\n{body}"
