"""An environment that brings its process down in every way there is."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from envweave_gym.core.spaces import Unicode


def segfault() -> None:
    ctypes.string_at(0)


def bomb() -> None:
    hoard: list[bytes] = []
    while True:
        hoard.append(b"x" * (16 << 20))


def loop() -> None:
    while True:
        pass


def leave_behind(*, daemon: bool) -> int:
    """Start a process that nobody waits for; a daemon takes leave of its parent and its session."""
    program = "import time; time.sleep(1000)"
    if not daemon:
        return subprocess.Popen([sys.executable, "-c", program], close_fds=False).pid
    start = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {program!r}],"
    start += " start_new_session=True, stdout=subprocess.DEVNULL); print(p.pid)"
    return int(subprocess.run([sys.executable, "-c", start], stdout=subprocess.PIPE, check=True).stdout)


def open_files() -> list[str]:
    """What this process has open beside what it reads and writes as a program."""
    found: list[str] = []
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the list itself was one
            if descriptor > 2:
                found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return found


DEEDS: dict[str, Any] = {
    "segfault": segfault,
    "exit": lambda: os._exit(3),
    "quiet exit": lambda: os._exit(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "abort": os.abort,
    "interrupt": lambda: signal.raise_signal(signal.SIGINT),
    "bomb": bomb,
    "loop": loop,
    "nap": lambda: time.sleep(0.5),
    "child": lambda: leave_behind(daemon=False),
    "daemon": lambda: leave_behind(daemon=True),
    "speak": lambda: print("spoken on stdout") or print("spoken on stderr", file=sys.stderr),
    "unsocket": lambda: os.closerange(3, 256),
    "random": lambda: [random.random(), float(np.random.random())],
    "sockets": lambda: len([one for one in open_files() if one.startswith("socket:")]),
    "limits": lambda: Path("/proc/self/oom_score_adj").read_text().strip(),
    "long": lambda: "x" * (1 << 20),
    "nothing": lambda: None,
}
"""What an action does; what it gives is in the info."""


class CrashingEnv(gym.Env[str, str]):
    """Does what the action says, and counts."""

    metadata = {"render_modes": []}

    def __init__(self, bad: str = "", curse: str = "") -> None:
        """``bad`` is done here; ``curse`` names a file: while that is there, this ends the process."""
        self.action_space, self.observation_space = Unicode(64), Unicode(64)
        self.count = 0
        if bad == "raise":
            raise OSError("the device is not there")
        if bad:
            DEEDS[bad]()
        if curse and Path(curse).exists():
            os._exit(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        if options:
            DEEDS[options["do"]]()
        return "ready", {"pid": os.getpid()}

    def step(self, action: str) -> Any:
        self.count += 1
        result = DEEDS[action]()
        return f"{action} {self.count}", 1.0, False, False, {"pid": os.getpid(), "result": result}

    def parse_action(self, text: str, agent: str | None = None) -> str:
        DEEDS[text]()
        return text

    def episode_state(self) -> dict[str, Any]:
        return {"count": self.count}


@dataclass
class Move:
    by: int


@dataclass
class Place:
    x: int


class Untyped:
    """What is served with models that it does not name itself."""

    def __init__(self) -> None:
        self.x = 0

    def reset(self) -> Any:
        self.x = 0
        return Place(0)

    def step(self, action: Any) -> Any:
        self.x += action.by
        return Place(self.x), 0.0, False
