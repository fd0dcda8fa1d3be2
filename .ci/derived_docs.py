#!/usr/bin/env python
"""Derives parts of the documentation from the code.

- As a program: writes the table of an ID's arguments below each ``<!-- arguments of ID -->`` in docs/, from its config
  struct; with ``--check`` it only says whether the tables are up to date.
- As a hook of mkdocs: adds the page reference.md, the names of the package with their signatures and docstrings.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
from enum import Enum
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import envweave_gym
from envweave_gym.core.config import arguments_table
from envweave_gym.registry.catalog import CARDS

DOCS = Path(__file__).parent.parent / "docs"
TABLE = re.compile(r"(<!-- arguments of (\S+) -->\n)\n?(?:\|.*\n)*\n*")
HEAD = """# Reference

The names of `envweave_gym`, by their docstrings, and the arguments of the IDs that declare them in a struct.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reference to a build; mkdocs calls this hook."""
    files.append(File.generated(config, "reference.md", content=reference(tables())))
    return files


def tables() -> dict[str, str]:
    return {card.id: arguments_table(pkgutil.resolve_name(card.config)) for card in CARDS if card.config}


def main() -> int:
    pages, derived = dict[Path, str](), tables()
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if TABLE.search(text):
            # A line right below a table would be one of its rows.
            written = TABLE.sub(lambda match: f"{match[1]}\n{derived[match[2]]}\n\n", text)
            pages[path] = f"{written.rstrip()}\n"
    old = [path for path, text in pages.items() if path.read_text(encoding="utf-8") != text]
    for path in old:
        if "--check" in sys.argv:
            print(f"{path.relative_to(DOCS.parent)} is not up to date: run .ci/derived_docs.py")
        else:
            path.write_text(pages[path], encoding="utf-8")
    return 1 if old and "--check" in sys.argv else 0


def reference(derived: dict[str, str]) -> str:
    names = [name for name in envweave_gym.__all__ if not name.startswith("__")]
    parts = [HEAD, "## Names\n", *map(described, names), "## Arguments of IDs\n"]
    parts += [f"### `{env_id}`\n\n{table}\n" for env_id, table in derived.items()]
    return "\n".join(parts)


def described(name: str) -> str:
    value = getattr(envweave_gym, name)
    text = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", inspect.getdoc(value) or "")
    text = re.sub(r" ?::\n", ":\n", text.replace("``", "`"))
    if isinstance(value, type) and issubclass(value, Enum):
        text += "\n\n" + ", ".join(f"`{member}`" for member in value)
    return f"### `{name}{parameters(value)}`\n\n{text}\n"


def parameters(value: Any) -> str:
    if inspect.ismodule(value) or (isinstance(value, type) and issubclass(value, Enum | BaseException)):
        return ""
    signature = inspect.signature(value)
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


if __name__ == "__main__":
    raise SystemExit(main())
