"""Replicas that are started, ended and given up together."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from envweave_gym.core.faults import NotAvailable
from envweave_gym.os_support.process_local import ProcessLocal

if TYPE_CHECKING:
    from envweave_gym.providers.replica import Replica, Start

_ON_ITS_WAY = 0.2
"""So many seconds a thread may take to begin whose start was interrupted."""
_T = TypeVar("_T")


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


class _Running(set["Replica"]):
    """The replicas that end with this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


_running = ProcessLocal(_Running)
_ending = threading.Event()


def stop_at_exit(replica: Replica, wanted: bool = True) -> None:
    """Have it stopped when this process ends, with all others at the same time; or no more."""
    running = _running.value
    with running.lock:
        if not wanted:
            running.discard(replica)
        elif _ending.is_set():
            raise NotAvailable("this process is ending; nothing is started any more")
        else:
            running.add(replica)
            atexit.unregister(_stop_first)  # before all that was imported for it ends
            atexit.register(_stop_first)


def is_ending() -> bool:
    """Whether this process ends just now."""
    return _ending.is_set()


@atexit.register
def _stop_at_exit() -> None:
    """Last of all too: what is registered while others are called at the end is called no more."""
    with _running.value.lock:
        _ending.set()
        replicas = list(_running.value)
    stop_all(replicas)


def _stop_first() -> None:
    _stop_at_exit()
