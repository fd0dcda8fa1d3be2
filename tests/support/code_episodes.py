"""Environments of programs for tests, and what episodes leave behind."""

from __future__ import annotations

import glob
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

import envweave_gym as ew

CODE_ACT = "envweave/CodeAct-v0"


@pytest.fixture
def code_act() -> Iterator[Callable[..., Any]]:
    """Makes CodeAct environments, whose first episode has begun; they are closed with the test."""
    made: list[Any] = []

    def make(**kwargs: Any) -> Any:
        env = ew.make(CODE_ACT, **kwargs)
        made.append(env)
        env.reset(seed=0)
        return env

    yield make
    for env in made:
        env.close()


def ran(env: Any, code: str) -> Any:
    """What running a program in it comes to."""
    return env.step(code)[4]["result"]


def value(env: Any, code: str) -> Any:
    """The value of a program, which must not fail."""
    done = ran(env, code)
    assert done.success, done.error
    return done.value


def left() -> tuple[int, int, int]:
    """How many processes below this one, descriptors and scratch folders of it there are."""
    folders = glob.glob(os.path.join(tempfile.gettempdir(), f"envweave-sandbox-{os.getpid()}-*", "*"))
    return (
        len(psutil.Process().children(recursive=True)),
        len(os.listdir("/proc/self/fd")),
        len(folders),
    )


def settles(wanted: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Whether something comes true in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if wanted():
            return True
        time.sleep(0.02)
    return wanted()
