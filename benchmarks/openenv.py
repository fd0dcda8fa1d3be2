"""Echo through our OpenEnv protocol against an equal echo on openenv's own server, both by openenv's own client.

The peer needs a venv of its own, ``.venv-peer``, which ``make peer`` makes. Rounds interleave both servers, and the
same client process measures them.
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.remote import PEER_PYTHON, PEERS, Peer, free_port, our_server, running, wait_for
from benchmarks.rounds import show

ROUNDS = 9
PROGRAM = str(PEERS / "openenv_echo.py")
CASES = {"one client, sync": "sync {url} 3000", "32 sessions, async": "sessions {url} 32 300"}
WARM_UP = "sync {url} 500"


def main() -> None:
    if not PEER_PYTHON.exists():
        print("openenv is not measured: make peer installs it")
        return
    port, python = free_port(), str(PEER_PYTHON)
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with (
        our_server("--protocol", "openenv", "envweave/Echo-v0") as (ours, _),
        running(python, PROGRAM, "serve", str(port), **quiet),
        running(python, PROGRAM, "client", **pipes) as client,
    ):
        wait_for(port)
        peer = Peer(client)
        urls = {"ours": ours, "openenv": f"http://127.0.0.1:{port}"}
        for url in urls.values():
            peer.measure(WARM_UP.format(url=url))
        rows = [_row(name, partial(_measure, peer, case), urls) for name, case in CASES.items()]
    show("OpenEnv: steps a second by openenv's own client", rows)


def _measure(peer: Peer, case: str, url: str) -> float:
    return peer.measure(case.format(url=url))


def _row(name: str, measure: Callable[[str], float], urls: dict[str, str]) -> dict[str, Any]:
    """Medians of both servers, and the median of the ratios of neighbours, in which a busy machine matters less."""
    rates: dict[str, list[float]] = {server: [] for server in urls}
    for number in range(ROUNDS):
        for server in sorted(urls, reverse=number % 2 == 0):
            rates[server].append(measure(urls[server]))
    ratios = sorted(our / theirs for our, theirs in zip(rates["ours"], rates["openenv"], strict=True))
    return {
        "clients": name,
        "ours": statistics.median(rates["ours"]),
        "openenv": statistics.median(rates["openenv"]),
        "ratio": statistics.median(ratios),
        "lowest": ratios[0],
        "highest": ratios[-1],
    }


if __name__ == "__main__":
    main()
