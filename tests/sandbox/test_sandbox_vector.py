"""Rows in processes of their own, some of whose actions are hostile: all steps end, and nothing is left."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
from sandboxes import needs

import envweave_gym  # noqa: F401 - registers the IDs

ROWS = 4
BENIGN = "x = sum(range(100)); x"
HOSTILE = (
    "while True: pass",
    "import os; os._exit(1)",
    "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
    "import os\nwhile True: os.fork()",
    "import os; os.kill(os.getpid(), 19)",
    "import os, struct; os.write(3, struct.pack('!I', 10) + b'[' * 10)",
    "print('x' * 10 ** 6)\nopen('big', 'wb').write(b'x' * 10 ** 6); open('../stray', 'w')",
    "import threading\ndef f():\n  while True: pass\nthreading.Thread(target=f, daemon=True).start()",
)


def played(method: str, hostile: tuple[str, ...]) -> None:
    """Play a vector, one hostile action a step, and close it."""
    env: Any = gym.make_vec(
        "envweave/CodeAct-v0",
        num_envs=ROWS,
        vectorization_mode="async",
        vector_kwargs={"context": method},
        step_timeout=1.0,
    )
    env.reset(seed=0)
    rows = [one.pid for one in psutil.Process().children()]
    for step, code in enumerate(hostile):
        foe = step % ROWS
        actions = [BENIGN] * ROWS
        actions[foe] = code
        observation, rewards, _, truncated, _ = env.step(tuple(actions))
        others = np.arange(ROWS) != foe
        assert [observation["value"][row] for row in np.flatnonzero(others)] == ["4950"] * (ROWS - 1)
        assert observation["success"][others].all()
        assert not truncated.any()
        assert not rewards.any()
    env.close()
    folders = [one for pid in rows for one in Path(tempfile.gettempdir()).glob(f"envweave-sandbox-{pid}-*")]
    assert folders == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_hostile_rows_harm_no_others_and_leave_nothing(method: str) -> None:
    needs("landlock")
    played(method, HOSTILE[1:2])  # what a process opens once and for all is there then
    gc.collect()
    processes, descriptors = descendants(), open_descriptors()
    played(method, HOSTILE)
    gc.collect()
    assert descendants() <= processes  # those of other tests may end meanwhile
    assert open_descriptors() <= descriptors


def descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
