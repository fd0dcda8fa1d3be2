"""``python -m benchmarks hostile``: many programs at once, some of them hostile, for a long time.

32 ``envweave/CodeAct-v0`` in an ``AsyncVectorEnv`` play 10,000 steps; one action in twenty is hostile.
The lines say how long it took, how the actions ended, what was left when the vector was closed, and for how
long when one was killed.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil

import envweave_gym  # noqa: F401 - registers the IDs

ROWS, HOSTILE = 32, 0.05
CLEANUP_TIMEOUT_S = 30.0
"""Limit of the wait for what is left of a killed process."""
BENIGN = (
    "1 + 1",
    "x = [i * i for i in range(1000)]; sum(x)",
    "import json; json.dumps({'a': list(range(100))})",
    "print('\\n'.join(map(str, range(200))))",
    "def f(n): return 1 if n < 2 else n * f(n - 1)\nf(50)",
    "open('a.txt', 'w').write('text'); open('a.txt').read()",
    "1 / 0",
)
FOES = (
    "while True: pass",
    "import os; os._exit(1)",
    "import os\nwhile True: os.fork()",
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
    "l = []\nwhile True: l.append(bytearray(10**7))",
    "import ctypes; ctypes.string_at(0)",
    "print('x' * 10**7)",
    "open('big', 'wb').write(b'x' * (100 << 20))",
    "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
    "import threading\ndef f():\n    while True: pass\nthreading.Thread(target=f, daemon=True).start()",
    "import os, struct; os.write(3, struct.pack('!I', 10) + b'[' * 10)",
    "import os\nfor n in range(200):\n    try: os.close(n)\n    except OSError: pass",
    "import os\nwhile True: os.open('/dev/null', os.O_RDONLY)",
    "import os; os.kill(os.getpid(), 19)",
    "import socket; socket.create_connection(('127.0.0.1', 22), 1)",
)


_rows_seen: set[int] = set()


def play(method: str, steps: int, seed: int = 0, announces: bool = False) -> dict[str, Any]:
    """Play, close, and count what is left; with ``announces`` print a line when it begins."""
    _made(method, ROWS).close()  # what a process opens once and for all is there before it is counted
    gc.collect()
    before = _left()
    env = _made(method, ROWS)
    env.reset(seed=seed)
    if announces:
        print("it plays", flush=True)
    _rows_seen.update(one.pid for one in psutil.Process().children())
    random, ends = np.random.default_rng(seed), Counter[str]()
    started, slowest, lately = time.perf_counter(), 0.0, 0
    for step in range(steps):
        foes = random.random(ROWS) < HOSTILE
        actions = tuple(
            FOES[random.integers(len(FOES))] if foe else BENIGN[random.integers(len(BENIGN))] for foe in foes
        )
        began = time.perf_counter()
        observation = env.step(actions)[0]
        slowest = max(slowest, time.perf_counter() - began)
        for foe, success in zip(foes, observation["success"], strict=True):
            ends[f"{'hostile' if foe else 'benign'} {'ok' if success else 'failed'}"] += 1
        if step == steps // 10:
            lately = _memory()
        if step % 500 == 499:
            print(f"{method}: {step + 1} steps", file=sys.stderr, flush=True)
    took, grown = time.perf_counter() - started, _memory() - lately
    env.close()
    del env
    gc.collect()
    time.sleep(2)
    return {
        "start method": method,
        "steps": steps,
        "rows": ROWS,
        "seconds": round(took, 1),
        "slowest step, s": round(slowest, 2),
        "memory grown since a tenth of it, MB": round(grown / 1e6, 1),
        **dict(sorted(ends.items())),
        "left": _difference(before, _left()),
    }


def _made(method: str, rows: int) -> Any:
    return gym.make_vec(
        "envweave/CodeAct-v0",
        num_envs=rows,
        vectorization_mode="async",
        vector_kwargs={"context": method},
        step_timeout=0.1,
    )


def kill_one(method: str) -> dict[str, Any]:
    """Kill a process that plays, and see how long anything is left of it."""
    victim = [sys.executable, "-m", "benchmarks.hostile", "--victim", "--method", method]
    with subprocess.Popen(victim, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()  # it plays
            family = psutil.Process(child.pid).children(recursive=True)
        finally:
            child.kill()
    began, pids = time.perf_counter(), [child.pid, *(one.pid for one in family)]
    while any(map(_runs, family)) or _folders(pids):
        if time.perf_counter() - began > CLEANUP_TIMEOUT_S:
            break
        time.sleep(0.02)
    return {
        "start method": method,
        "processes when it was killed": len(family),
        "nothing is left after, s": round(time.perf_counter() - began, 2),
        "left": f"{sum(map(_runs, family))} processes, {len(_folders(pids))} folders",
    }


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _left() -> dict[str, int]:
    """What there is of this process, its rows being gone."""
    process = psutil.Process()
    own = [one for one in process.children(recursive=True) if "resource_tracker" not in _command(one)]
    folders = _folders([process.pid, *_rows_seen])
    return {"folders": len(folders), "processes": len(own), "files": process.num_fds()}


def _folders(pids: list[int]) -> list[Path]:
    """The scratch folders of these processes, whose names begin with theirs."""
    return [path for pid in pids for path in Path(tempfile.gettempdir()).glob(f"envweave-sandbox-{pid}-*")]


def _command(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def _difference(before: dict[str, int], after: dict[str, int]) -> str:
    left = [f"{after[name] - before[name]} {name}" for name in before if after[name] > before[name]]
    return ", ".join(left) or "nothing"


def _memory() -> int:
    """Of this process, those that it has started for its rows, and their zygotes: what is theirs alone."""
    own = psutil.Process()
    rows = own.children()
    zygotes = [zygote for row in rows for zygote in row.children()]
    return sum(one.memory_full_info().uss for one in (own, *rows, *zygotes))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--method", choices=multiprocessing.get_all_start_methods())
    parser.add_argument("--victim", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.victim:
        play(args.method, 1_000_000, announces=True)
        return
    for method in [args.method] if args.method else ["fork", "spawn"]:
        for row in (play(method, args.steps), kill_one(method)):
            print("; ".join(f"{name}: {value}" for name, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
