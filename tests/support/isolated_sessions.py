"""Sessions in processes, and what tests look at in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from crashing_envs import CrashingEnv
from servers import until

from envweave_gym.wire.messages import Ask, Create, Reply, Reset, Step, encode, read_reply
from envweave_gym_server.core.settings import Settings
from envweave_gym_server.isolation.worker_hosts import WorkerHosts
from envweave_gym_server.offers.offers import offer_of_factory, offers_of
from envweave_gym_server.sessions.session import Session
from envweave_gym_server.sessions.session_table import Sessions

__all__ = ["until"]
NAME = "Crashing"
MEMORY = 512 << 20
OFFER = offer_of_factory(CrashingEnv, name=NAME, kwargs=("bad", "curse", "do"))
TRUNCATE = {"on_fault": "truncate", "reset_deadline": 0.0}


def workers_with(**settings: Any) -> WorkerHosts:
    return WorkerHosts(offers_of([OFFER]), Settings(isolation="process", worker_memory=MEMORY, **settings))


@pytest.fixture(scope="module")
def workers() -> Iterator[WorkerHosts]:
    made = workers_with()
    yield made
    made.close()


@pytest.fixture
def sessions(workers: WorkerHosts) -> Iterator[Sessions]:
    made = Sessions(workers.open, most=50, idle_timeout=300)
    yield made
    made.stop()


class Player:
    """A client of one session, call by call."""

    def __init__(self, sessions: Sessions, name: str = "one", **kwargs: Any) -> None:
        create = Create(NAME, "gym", {**TRUNCATE, **kwargs})
        self.session: Session = sessions.create(name, create, encode(create))[0]
        self.frame = b""

    def reset(self, do: str | None = None) -> Any:
        number = self.session.core.committed + 1
        return self.send(Reset(number, 0, {"do": do} if do else None))

    def step(self, action: str) -> Any:
        return self.send(Step(self.session.core.committed + 1, action))

    def send(self, message: Reset | Step | Ask) -> Reply:
        self.frame = encode(message)
        return read_reply(self.session.call(message, self.frame))

    def pid(self) -> int:
        return self.step("nothing").info["pid"]


def is_gone(pid: int) -> bool:
    """Whether there is no such process, not even as a zombie of anybody here; init buries at its leisure."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z" and parent == "1"


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def descendants(pid: int) -> list[int]:
    """All processes that came of this one, as far as parents tell."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found
