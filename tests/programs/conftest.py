"""A model port and the calls that arrive at it."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from envweave_gym.programs.port.call import Call
from envweave_gym.programs.port.model_port import ModelPort


@pytest.fixture
def calls() -> queue.SimpleQueue[Call]:
    return queue.SimpleQueue()


@pytest.fixture
def port(calls: queue.SimpleQueue[Call]) -> Iterator[ModelPort]:
    opened = ModelPort(calls.put)
    yield opened
    opened.close()
