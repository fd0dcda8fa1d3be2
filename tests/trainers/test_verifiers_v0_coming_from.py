"""The lines of docs/coming-from.md for users of verifiers make the environment that the page says they make."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("verifiers", reason="verifiers is not installed: run make trainers")

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("default")]


def test_coming_from_verifiers(example: Any) -> None:
    after = example("verifiers_before")
    assert len(after["environment"].get_dataset()) == 8
    assert after["correct"]([{"role": "assistant", "content": " 6 "}], "6") == 1.0
