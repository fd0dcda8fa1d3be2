"""What the tests of all trainers share."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = re.compile(r"<!-- run: (\w+) -->\n```python\n(.*?)```", re.DOTALL)


@pytest.fixture(autouse=True)
def _one_core() -> None:
    """The networks are so small that a second thread only waits; not every environment has torch."""
    if find_spec("torch"):
        import torch

        torch.set_num_threads(1)


@pytest.fixture
def example() -> Callable[..., dict[str, Any]]:
    """Runs the example of this name in docs/ with the ``given`` variables, and returns all variables."""
    sources = {name: code for page in DOCS.glob("*.md") for name, code in EXAMPLE.findall(page.read_text())}

    def run(name: str, **given: Any) -> dict[str, Any]:
        variables: dict[str, Any] = {"__name__": f"example_{name}", **given}
        exec(compile(sources[name], f"example {name}", "exec"), variables)
        return variables

    return run
