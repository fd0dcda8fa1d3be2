"""Echo through our OpenEnv protocol against an equal echo on openenv's own server, both by openenv's own client.

It needs nothing but ``make peer``, which makes the venv ``.venv-peer`` with openenv, and ours with the server. In each
round one client process measures both servers in turn, and the next round begins with the other one. A ratio is that
of two neighbours, so that a busy machine matters less; medians are over all rounds. The goal is a ratio of 1.5.
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.processes import PEER_PYTHON, PEERS, Peer, cpu_s, free_port, our_server, running, wait_for
from benchmarks.rounds import show

ROUNDS = 7
PROGRAM = str(PEERS / "openenv_echo.py")
CASES = {"one client, sync": ("sync {url} 3000", 3000), "32 sessions, async": ("sessions {url} 32 200", 6400)}
"""The line for the client, and the number of its steps."""
WARM_UP = "sync {url} 500"


def main() -> None:
    if not PEER_PYTHON.exists():
        print("openenv is not measured: make peer installs it")
        return
    port, python = free_port(), str(PEER_PYTHON)
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with (
        our_server("--protocol", "openenv", "envweave/Echo-v0") as (ours, our_pid),
        running(python, PROGRAM, "serve", str(port), **quiet) as theirs,
        running(python, PROGRAM, "client", **pipes) as client,
    ):
        wait_for(port)
        peer = Peer(client)
        servers = {"ours": (ours, our_pid), "openenv": (f"http://127.0.0.1:{port}", theirs.pid)}
        for url, _ in servers.values():
            peer.measure(WARM_UP.format(url=url))
        rows = [_row(name, partial(_measure, peer, *case), servers) for name, case in CASES.items()]
    show("OpenEnv: steps a second by openenv's own client", rows)


def _measure(peer: Peer, case: str, steps: int, server: tuple[str, int]) -> tuple[float, float]:
    """Steps a second, and the microseconds of CPU that the server took for each."""
    url, pid = server
    before = cpu_s(pid)
    rate = peer.measure(case.format(url=url))
    return rate, (cpu_s(pid) - before) / steps * 1e6


Measure = Callable[[tuple[str, int]], tuple[float, float]]


def _row(name: str, measure: Measure, servers: dict[str, tuple[str, int]]) -> dict[str, Any]:
    """Medians of both servers, and of the ratios of neighbours, in which a busy machine matters less."""
    rates: dict[str, list[float]] = {server: [] for server in servers}
    costs: dict[str, list[float]] = {server: [] for server in servers}
    for number in range(ROUNDS):
        for server in sorted(servers, reverse=number % 2 == 0):
            rate, cost = measure(servers[server])
            rates[server].append(rate)
            costs[server].append(cost)
    ratios = sorted(our / theirs for our, theirs in zip(rates["ours"], rates["openenv"], strict=True))
    return {
        "clients": name,
        "ours": statistics.median(rates["ours"]),
        "openenv": statistics.median(rates["openenv"]),
        "ratio": statistics.median(ratios),
        "lowest": ratios[0],
        "highest": ratios[-1],
        "our CPU us": statistics.median(costs["ours"]),
        "openenv CPU us": statistics.median(costs["openenv"]),
    }


if __name__ == "__main__":
    main()
