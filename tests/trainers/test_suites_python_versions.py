"""The code that runs inside a suite needs Python 3.8 at most, in its syntax and in the standard library."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vermin", reason="vermin is not installed: run make trainers")

import envweave_gym

pytestmark = pytest.mark.trainers

ROOT = Path(envweave_gym.__file__).parent
FILES = sorted((ROOT / "suites" / "inside").glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_syntax_is_that_of_python_3_8(file: Path) -> None:
    ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 8))


def test_no_name_of_the_standard_library_is_newer_than_python_3_8() -> None:
    words = [
        Path(sys.executable).with_name("vermin"),
        "--target=3.8-",
        "--no-tips",
        "--violations",
        *map(str, FILES),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout
