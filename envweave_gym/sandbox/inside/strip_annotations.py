"""An import hook for Python 3.6 that loads the modules of this package without their annotations.

That version has no ``from __future__ import annotations``. It would evaluate the annotations and fail on newer syntax.
"""

import ast
from importlib.machinery import PathFinder, SourceFileLoader
from typing import Any, Optional


class _WithoutAnnotations(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return ast.Pass()
        return ast.Assign([node.target], self.visit(node.value))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Optional[ast.AST]:
        return None if node.module == "__future__" else node


class _Loader(SourceFileLoader):
    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:
        tree = ast.fix_missing_locations(_WithoutAnnotations().visit(ast.parse(data, path)))
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)


class Finder:
    """Finds the modules of a package as usual, and loads them without annotations."""

    def __init__(self, package: str) -> None:
        self._prefix = package + "."

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of a module of the package, with a loader that strips annotations; called by importlib."""
        spec = PathFinder.find_spec(name, path, target) if name.startswith(self._prefix) else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec
