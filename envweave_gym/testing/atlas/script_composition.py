"""Composes runnable scripts: a rule, the functions that it needs, and the ID, as the text of one Python program.

The functions are read as syntax trees, never imported: the text must run in the Python of a suite. Annotations are
left out, and docstrings but that of the rule, so that the script of a finding stays short.
"""

from __future__ import annotations

import ast
import textwrap
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

Api = Literal["gym", "parallel", "aec"]

_FOLDER = Path(__file__).parent / "scripts"
_OURS = "envweave_gym."
_CONSTANTS = {"ID", "KWARGS"}
"""Constants that the head of a script defines; the modules declare them for type checkers."""

_PARSING = threading.Lock()
"""Held while syntax trees are made: in Python 3.11, threads that do so at once may get a ``SystemError`` (CPython issue
106905)."""

RULES = (
    *(
        "contract",
        "scalar_rewards",
        "unseeded_start",
        "same_seed",
        "same_seed_again",
        "beside_another",
        "different_seeds",
    ),
    *("unseeded_reset", "global_generators", "fresh_observations", "fresh_infos", "own_checker"),
    *("render_changes_nothing", "closes_twice", "leaves_nothing", "gives_memory_back"),
)
"""Names of the rules, in the order in which they are tried."""


def promise_of(rule: str) -> str:
    """Return the sentence that says what a well-behaved environment does."""
    function = _definitions("rule_scripts")[rule]
    assert isinstance(function, ast.FunctionDef)
    return " ".join((ast.get_docstring(function) or rule).split())


def script_of(
    rule: str,
    api: Api,
    env_id: str,
    *,
    imports: Sequence[str] = (),
    kwargs: Mapping[str, Any] | None = None,
    moves: int,
    finding: str = "",
) -> str:
    """Return the program that checks a rule on an environment; ``finding`` is added to its docstring."""
    modules_of_api = ("shared", *(() if api == "gym" else ("games",)), f"{api}_player", "rule_scripts")
    known = {name: node for module in modules_of_api for name, node in _definitions(module).items()}
    needed = _needed(rule, known)
    modules = [ast.unparse(node) for name, node in known.items() if name in needed and _is_import(node)]
    functions = [_stripped(node, name == rule) for name, node in known.items() if name in needed]
    head = [f"{env_id}: {promise_of(rule)}", *(["", finding] if finding else [])]
    text = "\n".join(textwrap.fill(line, 110) for line in head).replace("\\", "\\\\").replace('"""', "'''")
    lines = [
        f'"""{text}\n"""',
        "",
        *_sorted_imports(modules),
        *[f"import {module}" for module in imports if module != "gymnasium" or api != "gym"],
        "",
        f"ID, KWARGS = {env_id!r}, {dict(kwargs or {})!r}",
        *[f"\n\n{text}" for text in functions if text],
        f"\n\n{rule}({moves})",
    ]
    return "\n".join(lines) + "\n"


def _sorted_imports(modules: Sequence[str]) -> list[str]:
    return sorted(dict.fromkeys(modules), key=lambda line: ("numpy" in line or "gymnasium" in line, line))


def _definitions(module: str) -> dict[str, ast.stmt]:
    """Return the statements of a module by the name that each defines; imports of this package are left out."""
    with _PARSING:
        return _parsed(module)


@cache
def _parsed(module: str) -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}
    for node in ast.parse((_FOLDER / f"{module}.py").read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef():
                found[node.name] = node
            case ast.Import():
                found |= {alias.asname or alias.name: ast.Import([alias]) for alias in node.names}
            case ast.Assign(targets=[ast.Name(id=name)]):
                found[name] = node
            case _:
                continue
    return found


def _needed(rule: str, known: Mapping[str, ast.stmt]) -> set[str]:
    """Return the names that a rule uses, directly or through others."""
    needed, open_names = set[str](), [rule]
    while open_names:
        name = open_names.pop()
        if name in needed:
            continue
        needed.add(name)
        used = {node.id for node in ast.walk(known[name]) if isinstance(node, ast.Name)}
        open_names += (used & known.keys()) - _CONSTANTS
    return needed


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import)


class _WithoutAnnotations(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        assert node.value is not None
        return ast.copy_location(ast.Assign([node.target], node.value), node)


def _stripped(node: ast.stmt, is_rule: bool) -> str:
    """Return a function's text without annotations and docstring; an empty text for an import."""
    if _is_import(node):
        return ""
    with _PARSING:
        copied = ast.parse(ast.unparse(node)).body[0]
    if isinstance(copied, ast.FunctionDef) and ast.get_docstring(copied):
        copied.body = copied.body[1:]
    return ast.unparse(ast.fix_missing_locations(_WithoutAnnotations().visit(copied)))
