"""A local Tinker server with the tiny base model, for the tests of a module."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

import pytest
from absent import needs_module

from envweave_gym.training.tinker.local_server import LocalServer

ARGUMENTS = os.environ.get("ENVWEAVE_TEST_TINKER", "--tiny --threads 1").split()
"""Options of the server, of which the environment may name others."""


@pytest.fixture(scope="module")
def tinker_server() -> Iterator[LocalServer]:
    """A deterministic server, whose key is in the environment while the module runs."""
    for module in ("tinker", "torch", "jinja2"):
        needs_module(module)
    with LocalServer(*ARGUMENTS, "--deterministic") as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKER_API_KEY", server.api_key)
        patch.delenv("TINKER_BASE_URL", raising=False)
        yield server


def digest(server: LocalServer, checkpoint: str) -> str:
    """Return the SHA-256 of a checkpoint's adapter and optimiser on disk."""
    run, kind, name = checkpoint.removeprefix("tinker://").split("/")
    (weights,) = (server.folder / run.replace(":", "+") / kind).glob(f"{name}.*.safetensors")
    return hashlib.sha256(weights.read_bytes()).hexdigest()
