"""Environments on a server against openenv's, a bare flask-sock echo and raw sockets, all on one machine.

The peer needs a venv of its own, ``.venv-peer``, which ``make peer`` makes; without it its rows are missing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import websocket

import envweave_gym
from benchmarks.processes import (
    PEER_PYTHON,
    PEERS,
    Peer,
    children_of,
    free_port,
    our_server,
    running,
    wait_for,
)
from benchmarks.rounds import interleave, show
from envweave_gym.remote.address import Address
from envweave_gym.wire.messages import Create, Reset, Step, Stepped, encode
from envweave_gym.wire.values import pack

ROUNDS = 7
COUNTER, LINE = "envweave/Counter-v0", "envweave/LineWorld-v0"
FOREVER: dict[str, Any] = {"target": 1_000_000, "max_steps": -1}
PAYLOAD = encode(Step(1000, pack({"delta": 1})))


def timed(call: Callable[[], Any], times: int) -> list[float]:
    """How long each of the calls takes, in microseconds."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        taken.append((time.perf_counter() - started) * 1e6)
    return taken


@contextlib.contextmanager
def peer() -> Iterator[Peer | None]:
    if not PEER_PYTHON.exists():
        print("openenv is not measured: make peer installs it")
        yield None
        return
    port, program = free_port(), str(PEERS / "openenv_counter.py")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    python = str(PEER_PYTHON)
    with (
        running(python, program, "serve", str(port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL),
        running(python, program, "client", f"http://127.0.0.1:{port}", **pipes) as client,
    ):
        wait_for(port)
        yield Peer(client)


@contextlib.contextmanager
def echoes() -> Iterator[tuple[int, int]]:
    """The ports of a flask-sock echo and of a raw socket."""
    flask, raw = free_port(), free_port()
    gunicorn = ["gunicorn", "-k", "gthread", "--threads", "64", "-b", f"127.0.0.1:{flask}"]
    with (
        running(
            sys.executable,
            "-m",
            *gunicorn,
            "--no-control-socket",
            "benchmarks.peers.flask_sock_echo:app",
            stderr=subprocess.DEVNULL,
        ),
        running(sys.executable, "-m", "benchmarks.peers.socket_echo", str(raw)),
    ):
        wait_for(flask)
        wait_for(raw)
        yield flask, raw


def flask_echo(port: int) -> Callable[[], float]:
    """The median round trip of the same payload, in microseconds."""
    options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]

    def measure() -> float:
        ws = websocket.WebSocket(sockopt=options, enable_multithread=False, skip_utf8_validation=True)
        ws.connect(f"ws://127.0.0.1:{port}/echo")
        median = statistics.median(timed(lambda: (ws.send_binary(PAYLOAD), ws.recv()), 2000))
        ws.close()
        return median

    return measure


def raw_echo(port: int) -> float:
    with socket.create_connection(("127.0.0.1", port)) as one:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return statistics.median(timed(lambda: (one.sendall(PAYLOAD), one.recv(4096)), 2000))


@contextlib.contextmanager
def unix_echo(reply: bytes) -> Iterator[Callable[[], float]]:
    """A raw ping-pong over a Unix socket with a forked process: the payload of a step, and its reply."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        while theirs.recv(1 << 15):
            theirs.send(reply)
        os._exit(0)
    theirs.close()
    with ours:
        yield lambda: statistics.median(timed(lambda: (ours.send(PAYLOAD), ours.recv(1 << 15)), 2000))
    os.waitpid(pid, 0)


def single_step(url: str) -> float:
    """The median of a step through the public API, in microseconds."""
    env = gym.make(COUNTER, backend=url, **FOREVER)
    env.reset(seed=0)
    median = statistics.median(timed(lambda: env.step({"delta": 1}), 2000))
    env.close()
    return median


def vector_steps(url: str, env_id: str, rows: int, steps: int, **kwargs: Any) -> float:
    """Environment steps a second through the public API."""
    env = envweave_gym.make(env_id, num_envs=rows, backend=url, **kwargs)
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(16)]
    if env_id == COUNTER:
        actions = [{"delta": np.ones(rows, np.int64)}]
    for i in range(5):
        env.step(actions[i % len(actions)])
    started = time.perf_counter()
    for i in range(steps):
        env.step(actions[i % len(actions)])
    rate = rows * steps / (time.perf_counter() - started)
    env.close()
    return rate


def created(url: str, count: int) -> float:
    """Sessions a second, each with its first reset."""
    envs = [gym.make(COUNTER, backend=url) for _ in range(count)]
    started = time.perf_counter()
    for env in envs:
        env.reset(seed=0)
    rate = count / (time.perf_counter() - started)
    for env in envs:
        env.close()
    return rate


def server_memory(pid: int) -> int:
    """The kilobytes of a server's processes, each page counted once."""
    total = 0
    for process in [pid, *children_of(pid)]:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total


def memory_of_sessions(url: str, pid: int, count: int) -> float:
    """The kilobytes that each open session costs the server."""
    envs = [gym.make(COUNTER, backend=url) for _ in range(count)]
    envs[0].reset(seed=0)
    before = server_memory(pid)
    for env in envs[1:]:
        env.reset(seed=0)
        env.step({"delta": 1})
    used = (server_memory(pid) - before) / (count - 1)
    for env in envs:
        env.close()
    return used


def steps_table(url: str, other: Peer | None, flask: int, raw: int) -> None:
    contestants: dict[str, Callable[[], float]] = {
        "ours": lambda: single_step(url),
        "flask-sock echo": flask_echo(flask),
        "raw socket": lambda: raw_echo(raw),
    }
    if other is not None:
        contestants["openenv, sync client"] = lambda: 1e6 / other.measure("sync 2000")
    medians = interleave(contestants, ROUNDS)
    rows = [
        {"who": who, "us a step": us, "steps/s": 1e6 / us, "times ours": us / medians["ours"]}
        for who, us in medians.items()
    ]
    show("Remote steps: one environment, the median of a step", rows)


def subprocess_table() -> None:
    """A step with ``backend="subprocess"`` beside the same bytes over a raw Unix socket, and its vectors."""
    info = gym.make(COUNTER, **FOREVER).reset(seed=0)[1]
    reply = encode(Stepped(1000, pack({"count": np.array(1)}), 0.0, False, False, pack(info)))
    with unix_echo(reply) as echo:
        medians = interleave({"ours": lambda: single_step("subprocess"), "raw Unix socket": echo}, ROUNDS)
    rows = [
        {"who": who, "us a step": us, "times raw": us / medians["raw Unix socket"]}
        for who, us in medians.items()
    ]
    show("Subprocess steps: one environment, the median of a step", rows)
    contestants = {
        f"{name}, {rows}, {backend}": partial(vector_steps, backend, env_id, rows, steps, **kwargs)
        for name, env_id, rows, steps, kwargs in (
            ("LineWorld, native", LINE, 1, 2000, {}),
            ("LineWorld, native", LINE, 1024, 400, {}),
            ("Counter, one by one", COUNTER, 64, 200, FOREVER),
        )
        for backend in ("inproc", "subprocess")
    }
    rates = interleave(contestants, ROUNDS)
    show(
        "Subprocess vectors: environment steps a second",
        [{"who": who, "env steps/s": rate} for who, rate in rates.items()],
    )


def vectors_table(url: str, other: Peer | None) -> None:
    contestants: dict[str, Callable[[], float]] = {}
    for rows, steps in ((1, 2000), (8, 1000), (64, 1000), (1024, 400), (8192, 60)):
        contestants[f"LineWorld, native, {rows}"] = lambda n=rows, s=steps: vector_steps(url, LINE, n, s)
    for rows, steps in ((8, 500), (64, 200), (1024, 20)):
        contestants[f"Counter, one by one, {rows}"] = lambda n=rows, s=steps: vector_steps(
            url, COUNTER, n, s, **FOREVER
        )
    best = 0.0
    if other is not None:
        for count in (1, 8, 64):
            contestants[f"openenv, async client, {count} sessions"] = lambda n=count: other.measure(
                f"sessions {n} {1600 // n}"
            )
    rates = interleave(contestants, ROUNDS)
    best = rates.get("openenv, async client, 64 sessions", float("nan"))
    rows_ = [
        {"who": who, "env steps/s": rate, "times openenv, 64": rate / best} for who, rate in rates.items()
    ]
    show("Remote vectors: environment steps a second", rows_)


def sessions_table(url: str, pid: int, other: Peer | None) -> None:
    contestants: dict[str, Callable[[], float]] = {"ours": lambda: created(url, 200)}
    if other is not None:
        contestants["openenv"] = lambda: other.measure("create 200")
    rates = interleave(contestants, ROUNDS)
    rows = [{"who": who, "create + reset/s": rate, "kB a session": ""} for who, rate in rates.items()]
    rows[0]["kB a session"] = f"{memory_of_sessions(url, pid, 1000):.0f}"
    show("Remote sessions: made and reset a second, and the server's memory for each of 1,000", rows)


def sleepers_table() -> None:
    """How long a step of 1,000 sessions takes that each sleep for a second."""
    from envweave_gym.remote.session import RemoteSession, call_all

    count, sleeper = 1000, "benchmarks.environments:Sleeper"
    with our_server("--max-sessions", "2048", sleeper) as (url, _):
        create = Create("Sleeper", "gym", {})
        sessions = [RemoteSession(Address.of("Sleeper", url), create, 60.0) for _ in range(count)]
        call_all(sessions, [Reset(0, 0) for _ in range(count)])
        taken = [
            timed(lambda: call_all(sessions, [Step(0, 0) for _ in range(count)]), 1)[0] for _ in range(3)
        ]
        for session in sessions:
            session.close()
    rows = [
        {
            "sessions": count,
            "each sleeps, s": 1.0,
            "all have answered after, s": statistics.median(taken) / 1e6,
        }
    ]
    show("Remote sleepers: 1,000 sessions whose step sleeps a second, stepped together", rows)


def isolation_table() -> None:
    with our_server() as (shared, _), our_server("--isolation", "process") as (apart, pid):
        medians = interleave(
            {"thread": lambda: single_step(shared), "process": lambda: single_step(apart)}, ROUNDS
        )
        memory = memory_of_sessions(apart, pid, 100)
    rows = [{"isolation": which, "us a step": us, "kB a session": ""} for which, us in medians.items()]
    rows[1]["kB a session"] = f"{memory:.0f}"
    show("Remote isolation: a process for each session", rows)


def main() -> None:
    os.environ.pop("ENVWEAVE_TOKEN", None)
    with our_server("--max-sessions", "2048") as (url, pid), peer() as other, echoes() as (flask, raw):
        steps_table(url, other, flask, raw)
        vectors_table(url, other)
        sessions_table(url, pid, other)
    subprocess_table()
    sleepers_table()
    isolation_table()


if __name__ == "__main__":
    main()
