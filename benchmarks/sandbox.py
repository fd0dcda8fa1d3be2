"""Steps of untrusted programs against other people's executors, and what episodes, forks and workers take.

The peers need a venv of their own, which ``make peer`` makes, and ``docker exec`` needs Docker and the image
``envweave-core``; without them their rows are missing. Where much else runs on a machine, run it as
``chrt -r 1 python -m benchmarks sandbox``.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import psutil

import envweave_gym  # noqa: F401 - registers the IDs
from benchmarks.peers.programs import CODE
from benchmarks.processes import PEER_PYTHON, PEERS, Peer, running
from benchmarks.remote import timed
from benchmarks.rounds import interleave, show
from envweave_gym.sandbox import Names, Sandbox, Session

ROUNDS, WORKERS, BRANCHES = 7, 100, 20
IMAGE = "envweave-core"
TIMES = {"one": 500, "loop": 5}
"""How often each is run in a round; peers that take milliseconds for it run a tenth."""
Contestants = dict[str, Callable[[], float]]


@contextmanager
def peers() -> Iterator[Peer | None]:
    if not PEER_PYTHON.exists():
        print("smolagents, openenv and ipykernel are not measured: make peer installs them")
        yield None
        return
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with running(str(PEER_PYTHON), str(PEERS / "executors.py"), **pipes) as process:
        yield Peer(process)
        if process.stdin is not None:
            process.stdin.close()
        process.wait(30)


@contextmanager
def container() -> Iterator[str | None]:
    """A container that waits for commands."""
    command = [
        "docker",
        "run",
        "--detach",
        "--rm",
        "--network",
        "none",
        "--entrypoint",
        "sleep",
        IMAGE,
        "inf",
    ]
    try:
        name = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        print(f"docker exec is not measured: there is no engine, or no image {IMAGE}; make images makes it")
        yield None
        return
    try:
        yield name
    finally:
        subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)


def docker_exec(name: str, code: str) -> float:
    command = ["docker", "exec", name, "python", "-c", code]
    return timed(lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=True), 1)[0]


def named(session: Session) -> Session:
    session.name(Names())
    return session


def of_gym(env: Any, code: str) -> float:
    env.reset(seed=0)
    return statistics.median(timed(lambda: env.step(code), TIMES["one"]))


def steps(what: str, session: Session, env: Any, peer: Peer | None, name: str | None) -> dict[str, float]:
    """The median of one step of each, in microseconds."""
    code, times = CODE[what], TIMES[what]
    contestants: Contestants = {
        "ours, the executor": lambda: statistics.median(timed(lambda: session.run(code), times)),
    }
    if what == "one":
        contestants["ours, gym.make"] = lambda: of_gym(env, code)
    else:
        compiled = compile(code, "loop", "exec")
        contestants["exec of CPython, in this process"] = lambda: statistics.median(
            timed(lambda: exec(compiled, {}), times)
        )
    if peer is not None:
        for who, often in (("smolagents", times), ("openenv", times), ("ipykernel", max(times // 10, 3))):
            contestants[who] = lambda w=who, n=often: peer.measure(f"{w} {what} {n}")
    if name is not None:
        contestants["docker exec"] = lambda: docker_exec(name, code)
    return interleave(contestants, ROUNDS)


def opened(sandbox: Sandbox) -> float:
    """A new episode, from a worker that is ready."""
    sandbox.fill()
    found: list[Session] = []
    taken = timed(lambda: found.append(named(sandbox.open())), 1)[0]
    found[0].close()
    return taken


def ready(sandbox: Sandbox) -> float:
    """A new episode, with its first step."""
    sandbox.fill()
    found: list[Session] = []

    def begin() -> None:
        found.append(named(sandbox.open()))
        found[0].run("1 + 1")

    taken = timed(begin, 1)[0]
    found[0].close()
    return taken


def forked(session: Session) -> float:
    """The median of a fork, with a small state."""
    found: list[Session] = []
    taken = timed(lambda: found.append(session.fork()), BRANCHES)
    for branch in found:
        branch.close()
    return statistics.median(taken)


def begun(sandbox: Sandbox, cold: Sandbox, session: Session, peer: Peer | None) -> dict[str, float]:
    """The median of what it takes to begin, in microseconds."""
    contestants: Contestants = {
        "an episode from the pool": lambda: statistics.median(opened(sandbox) for _ in range(10)),
        "the same, with its first step": lambda: statistics.median(ready(sandbox) for _ in range(10)),
        "an episode without a pool": lambda: _closed(cold),
        "fork() of an episode": lambda: forked(session),
        "a step that may be taken back": lambda: statistics.median(
            timed(lambda: session.run("1 + 1", checkpoint=True), BRANCHES)
        ),
    }
    if peer is not None:
        contestants["smolagents, a new executor"] = lambda: peer.measure("smolagents fresh 20")
        contestants["openenv, a new executor"] = lambda: peer.measure("openenv fresh 20")
        contestants["ipykernel, a new kernel"] = lambda: peer.measure("ipykernel fresh 1")
    return interleave(contestants, ROUNDS)


def _closed(sandbox: Sandbox) -> float:
    found: list[Session] = []
    taken = timed(lambda: found.append(named(sandbox.open())), 1)[0]
    found[0].close()
    return taken


def memory(sandbox: Sandbox) -> list[float]:
    """The kilobytes that each of many workers has for itself, after a step."""
    sessions = [named(sandbox.open()) for _ in range(WORKERS)]
    for session in sessions:
        session.run("x = list(range(1000)); len(x)")
    used = [psutil.Process(session.process.pid).memory_full_info().uss / 1024 for session in sessions]
    for session in sessions:
        session.close()
    return used


def _table(title: str, medians: dict[str, float], unit: float, column: str, base: str) -> None:
    rows = [
        {"what": who, column: taken / unit, "times": taken / medians[base]} for who, taken in medians.items()
    ]
    show(title, rows)


def main() -> None:
    sandbox, cold = Sandbox(ready=1), Sandbox(ready=0)
    session, env = named(sandbox.open()), gym.make("envweave/CodeAct-v0", max_steps=-1)
    with peers() as peer, container() as name:
        ours = "ours, the executor"
        one = steps("one", session, env, peer, name)
        _table("Sandbox steps: 1 + 1, the median of a step", one, 1000, "ms", ours)
        loop = steps("loop", session, env, peer, name)
        _table("Sandbox loops: 100,000 iterations, the median of a step", loop, 1000, "ms", ours)
        begins = begun(sandbox, cold, session, peer)
        _table("Sandbox episodes: what begins", begins, 1000, "ms", "an episode from the pool")
        used = memory(sandbox)
        rows = [
            {"what": f"one of {WORKERS} workers", "private kB": statistics.median(used), "most": max(used)}
        ]
        if peer is not None:
            kernel = peer.measure("ipykernel memory 1")
            rows.append({"what": "a kernel of ipykernel", "private kB": kernel, "most": kernel})
        show("Sandbox memory: of workers that are alive", rows)
    env.close()
    session.close()
    sandbox.close()
    cold.close()


if __name__ == "__main__":
    sys.exit(main())
