"""Starts and stops replicas in parallel, and stops all of them when the process ends."""

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

_THREAD_BEGINS_WITHIN_S = 0.2
_T = TypeVar("_T")


def start_all(starts: Sequence[Start]) -> list[Replica]:
    """Start replicas in parallel and return them; if one fails, or on Ctrl-C, stop all and raise the error."""
    started: list[Replica] = []
    try:
        for error in run_in_parallel([lambda start=start: started.append(start()) for start in starts]):
            if error is not None:
                raise error
    except BaseException:
        stop_all(started)
        raise
    return started


def stop_all(replicas: Sequence[Replica]) -> None:
    """Stop replicas in parallel; raise the first error after all were tried."""
    for outcome in run_in_parallel([replica.stop for replica in replicas]):
        if isinstance(outcome, BaseException):
            raise outcome


def run_in_parallel(calls: Sequence[Callable[[], _T]]) -> list[_T | BaseException]:
    """Run each call in a thread of its own; return the result or the exception of each.

    A ``KeyboardInterrupt`` is raised after all calls that had begun are done. When the interpreter is shutting
    down no thread can be started, so the calls run in this thread.
    """
    if len(calls) == 1:
        return [_outcome(calls[0])]
    outcomes: list[Any] = [None] * len(calls)
    done = [threading.Event() for _ in calls]

    def run(index: int) -> None:
        try:
            outcomes[index] = calls[index]()
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            outcomes[index] = error
        finally:
            done[index].set()

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(calls))]
    interruption: KeyboardInterrupt | None = None
    try:
        for index, thread in enumerate(threads):
            try:
                thread.start()
            except RuntimeError:
                outcomes[index] = _outcome(calls[index])
    except KeyboardInterrupt as error:
        interruption = error
        time.sleep(_THREAD_BEGINS_WITHIN_S)  # the interrupted start() may have begun its thread
    for thread, end in zip(threads, done, strict=True):
        while thread.ident is not None and not end.is_set():
            try:
                end.wait()  # an interrupted Thread.join() takes the thread for finished
            except KeyboardInterrupt as error:
                interruption = error
    if interruption is not None:
        raise interruption
    return outcomes


def _outcome(call: Callable[[], _T]) -> _T | BaseException:
    """Run a call in this thread; return its result or exception, and let interrupts pass."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - the caller gets it
        return error


class _Running(set["Replica"]):
    """The replicas to stop when this process ends, with a lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


_running = ProcessLocal(_Running)
_ending = threading.Event()


def stop_at_exit(replica: Replica, wanted: bool = True) -> None:
    """Stop a replica, in parallel with all others, when this process ends; ``wanted=False`` undoes that.

    Raise ``NotAvailable`` if the process is ending already.
    """
    running = _running.value
    with running.lock:
        if not wanted:
            running.discard(replica)
        elif _ending.is_set():
            raise NotAvailable("this process is ending; nothing is started any more")
        else:
            running.add(replica)
            # Registered last it is called first, before the modules that the replica uses are shut down.
            atexit.unregister(_stop_first)
            atexit.register(_stop_first)


def is_ending() -> bool:
    """Return whether the exit handlers of this process have begun."""
    return _ending.is_set()


@atexit.register
def _stop_at_exit() -> None:
    """Stop all. It is registered at import too: handlers that exit handlers register are not called."""
    with _running.value.lock:
        _ending.set()
        replicas = list(_running.value)
    stop_all(replicas)


# A function of its own, as unregister(_stop_at_exit) would remove the registration at import too.
def _stop_first() -> None:
    _stop_at_exit()
