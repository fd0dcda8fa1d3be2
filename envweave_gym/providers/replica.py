"""What every provider gives: one server, which its process keeps up."""

from __future__ import annotations

import atexit
import http.client
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable
from urllib.parse import urlsplit

from envweave_gym.faults import NotAvailable
from envweave_gym.remote.address import unix_path
from envweave_gym.remote.dialling import at_unix_socket
from envweave_gym.remote.upkeep import Upkeep

_PAUSE, _ASK_EVERY = 0.01, 0.1
_LAST_WORDS = 2000
_ON_ITS_WAY = 0.2
"""So many seconds a thread may take to begin whose start was interrupted."""
_T = TypeVar("_T")


@runtime_checkable
class Replica(Protocol):
    """One server process, wherever it runs; clients know it by its URL."""

    url: str
    upkeep: Upkeep
    """How those who use it keep it up."""
    starts: int
    """How often it has been started."""

    def ensure(self) -> None:
        """Start it unless it runs, behind the same URL; what its processes knew is lost then."""
        ...

    def logs(self) -> str:
        """What it has written."""
        ...

    def rest(self) -> None:
        """End it, and leave nothing behind, until somebody asks for it again."""
        ...

    def stop(self) -> None:
        """End it for good, and leave nothing behind."""
        ...


Start = Callable[..., Replica]
"""Starts a replica; the token it is to ask for may be given as ``token=``."""


# Many of them at the same time


def start_all(starts: Sequence[Start]) -> list[Replica]:
    """Start all at the same time; where one cannot be, or somebody interrupts, none is left."""
    started: list[Replica] = []
    try:
        for error in at_once([lambda start=start: started.append(start()) for start in starts]):
            if error is not None:
                raise error
    except BaseException:
        stop_all(started)
        raise
    return started


def stop_all(replicas: Sequence[Replica]) -> None:
    """Stop all at the same time."""
    for outcome in at_once([replica.stop for replica in replicas]):
        if isinstance(outcome, BaseException):
            raise outcome


def at_once(calls: Sequence[Callable[[], _T]]) -> list[_T | BaseException]:
    """What each call gives or raises, all in threads of their own, which work at the end of the process too.

    Who is interrupted meanwhile hears of it when all are done that had begun. Where no thread can begin, as
    when the interpreter ends, the calls are made here one after the other.
    """
    if len(calls) == 1:
        return [_outcome(calls[0])]
    outcomes: list[Any] = [None] * len(calls)
    done = [threading.Event() for _ in calls]

    def run(place: int) -> None:
        try:
            outcomes[place] = calls[place]()
        except BaseException as error:  # noqa: BLE001 - it is told to whoever waits
            outcomes[place] = error
        finally:
            done[place].set()

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(calls))]
    interruption: KeyboardInterrupt | None = None
    try:
        for place, thread in enumerate(threads):
            try:
                thread.start()
            except RuntimeError:
                outcomes[place] = _outcome(calls[place])
    except KeyboardInterrupt as error:
        interruption = error
        time.sleep(_ON_ITS_WAY)
    for thread, end in zip(threads, done, strict=True):
        while thread.ident is not None and not end.is_set():
            try:
                end.wait()  # Thread.join forgets a thread that runs, where it is interrupted
            except KeyboardInterrupt as error:
                interruption = error
    if interruption is not None:
        raise interruption
    return outcomes


def _outcome(call: Callable[[], _T]) -> _T | BaseException:
    """What a call gives or raises in this thread, whose interruption is no outcome."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - it is told to whoever waits
        return error


_running: set[Replica] = set()
_ending = threading.Event()
_registering = threading.Lock()


def stop_at_exit(replica: Replica, wanted: bool = True) -> None:
    """Have it stopped when this process ends, with all others at the same time; or no more."""
    with _registering:
        if not wanted:
            _running.discard(replica)
        elif _ending.is_set():
            raise NotAvailable("this process is ending; nothing is started any more")
        else:
            _running.add(replica)


def is_ending() -> bool:
    """Whether this process ends just now."""
    return _ending.is_set()


@atexit.register
def _stop_at_exit() -> None:
    with _registering:
        _ending.set()
        replicas = list(_running)
    stop_all(replicas)


def _forget_all() -> None:
    """A process that was forked has no replica, and a lock that nobody holds."""
    global _registering
    _running.clear()
    _registering = threading.Lock()


os.register_at_fork(after_in_child=_forget_all)


# How it is


def wait_until_healthy(
    url: str, seconds: float, ended: Callable[[], str | None], what: str, logs: Callable[[], str]
) -> None:
    """Wait for the health check of a server that has just been started.

    ``ended`` says why it has ended, where it has, ``what`` names it in errors, and ``logs`` gives its log.
    """
    deadline = time.monotonic() + seconds
    asked = time.monotonic()
    while not is_healthy(url):
        now = time.monotonic()
        if now - asked > _ASK_EVERY:
            asked = now
            if (why := ended()) is not None:
                raise NotAvailable(f"{what} ended before its server answered: {why}")
        if now > deadline:
            late = f"{what} did not serve within {seconds:g} s; is 'envweave serve' what it runs?"
            raise NotAvailable(f"{late} It last said: {last_words(logs())}")
        time.sleep(_PAUSE)


def is_healthy(url: str, timeout: float = 1.0) -> bool:
    """Whether a server takes calls."""
    return _answer(url, "/health", timeout)[0] == 200


def answers(url: str, timeout: float) -> bool:
    """Whether a server answers at all: one that is full, or is stopping, does too."""
    return _answer(url, "/health", timeout)[0] != 0


def sessions_of(url: str, token: str | None, timeout: float) -> int | None:
    """How many sessions a server has open, as far as it says so."""
    status, text = _answer(url, "/metrics", timeout, token)
    for line in text.splitlines() if status == 200 else ():
        name, _, number = line.partition(" ")
        if name == "envweave_sessions":
            return int(float(number))
    return None


def _answer(url: str, path: str, timeout: float, token: str | None = None) -> tuple[int, str]:
    """The status and the text of what a server answers; the status is 0 where it does not."""
    at = unix_path(url)
    place = urlsplit(url if at is None else "http://localhost")
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=timeout)
    try:
        if at is not None:
            connection.sock = at_unix_socket(at, timeout)
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()


def last_words(log: str) -> str:
    """The end of a log, in one line."""
    return " | ".join(line.strip() for line in log[-_LAST_WORDS:].splitlines() if line.strip()) or "(no log)"
