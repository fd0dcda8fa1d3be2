"""Joins this process to a Ray cluster, or starts one on this machine that ends with this process."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from envweave_gym.core.faults import InvalidArgument, NotAvailable, need, shown
from envweave_gym.os_support.process_local import ProcessLocal, in_forked_child

RAY_ADDRESS = "RAY_ADDRESS"
"""Environment variable that Ray itself reads for the address of a cluster."""
_CONNECT_TIMEOUT_S = 3.0
"""Time limit for connecting to the head node; Ray itself would try for minutes."""
# The HTTP/2 preface and an empty SETTINGS frame; a gRPC server answers with its own, whose type is byte 3 of 9.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_FRAME_HEAD_BYTES, _SETTINGS_FRAME = 9, b"\x04"
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
_USAGE_STATS = "RAY_USAGE_STATS_ENABLED"
_lock = ProcessLocal(threading.RLock)  # reentrant: garbage collection may close environments in the block
_is_forked = False
"""Whether this process was forked from one that was part of a cluster; Ray does not work in such a process."""
_own: str | None = None
"""Address of the cluster that this process has started."""


def cluster(address: str | None = None, *, may_start: bool = False, near: str | None = None) -> Any:
    """Make this process part of a cluster, and return the module ``ray``.

    The first that applies: the cluster that it is part of already; the one at ``address`` or
    :data:`RAY_ADDRESS`; the one at ``near``, if it still answers; with ``may_start`` a new one on this machine;
    else any that this machine is part of. Raise ``NotAvailable`` if that fails.
    """
    ray: Any = need("ray", "ray", "backend='ray'")
    if _is_forked:
        raise NotAvailable(
            "Ray does not work in a process that was forked from one that uses it; start processes with "
            "context='spawn', or as Ray's own actors"
        )
    with _lock.value:
        if ray.is_initialized():
            _check_it_is(ray, address)
        elif address := address or os.environ.get(RAY_ADDRESS) or (near if near and is_there(near) else None):
            _join(ray, address)
        elif may_start:
            _start(ray)
        else:
            _join(ray, "auto")
    return ray


def address_of(ray: Any) -> str:
    """Return ``host:port`` of the head node of the cluster that this process is part of."""
    return ray.get_runtime_context().gcs_address


def is_own(ray: Any) -> bool:
    """Return whether this process started the cluster; if so, nobody will add a node with more resources."""
    return _own == address_of(ray)


def is_there(address: str) -> bool:
    """Return whether the server at ``host:port`` speaks HTTP/2, as the head node of a cluster does."""
    parts = urlsplit(f"//{address}")
    try:
        with socket.create_connection(
            (parts.hostname or "", parts.port or 0), _CONNECT_TIMEOUT_S
        ) as connection:
            connection.settimeout(_CONNECT_TIMEOUT_S)
            connection.sendall(_HELLO)
            return connection.recv(_FRAME_HEAD_BYTES, socket.MSG_WAITALL)[3:4] == _SETTINGS_FRAME
    except (OSError, ValueError):
        return False


def _check_it_is(ray: Any, address: str | None) -> None:
    there = address_of(ray)
    if address not in (None, "auto", "local", there) and "://" not in str(address):
        raise InvalidArgument(
            f"ray_address={shown(address)} is not the cluster that this process is part of, {there}; leave "
            "it out, or call ray.shutdown() first"
        )


def _join(ray: Any, address: str) -> None:
    if "://" not in address and ":" in address and not is_there(address):
        raise NotAvailable(
            f"there is no Ray cluster at {address}; start one there with 'ray start --head', or leave "
            f"ray_address= and {RAY_ADDRESS} out to have one of your own"
        )
    with _explain_errors(f"the Ray cluster at {address} cannot be joined"):
        ray.init(address=address, **_QUIET)


def _start(ray: Any) -> None:
    global _own
    # Ray would report usage statistics of a cluster that the user did not start.
    before = os.environ.get(_USAGE_STATS)
    os.environ[_USAGE_STATS] = before or "0"
    try:
        with _explain_errors("a Ray cluster cannot be started on this machine"):
            _in_a_thread_that_stays(partial(ray.init, address="local", include_dashboard=False, **_QUIET))
    finally:
        if before is None:
            del os.environ[_USAGE_STATS]
    _own = address_of(ray)


def _in_a_thread_that_stays(call: Callable[[], Any]) -> None:
    """Call ``call`` in the main thread, or in a new thread that never ends.

    Linux ends Ray's processes together with the thread that started them (``PR_SET_PDEATHSIG``), not with the
    process.
    """
    if threading.current_thread() is threading.main_thread():
        call()
        return
    done, errors = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            errors.append(error)
        done.set()
        if not errors:
            threading.Event().wait()

    threading.Thread(target=run, name="cluster of Ray", daemon=True).start()
    done.wait()
    if errors:
        raise errors[0]


@contextmanager
def _explain_errors(what: str) -> Generator[None]:
    """Turn any exception of Ray in the block into ``NotAvailable`` with one sentence, which ``what`` begins."""
    try:
        yield
    except Exception as error:
        raise NotAvailable(f"{what}: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """Return the message of a Ray exception in one line, shortened, as it may fill a page."""
    text = " ".join(str(error).split()) or type(error).__name__
    if text.startswith("Version mismatch"):
        text += "; install the same versions on both sides"
    return text if len(text) <= 600 else f"{text[:297]} … {text[-300:]}"


def _note_fork(_: object) -> None:
    global _is_forked
    ray: Any = sys.modules.get("ray")
    _is_forked = _is_forked or (ray is not None and ray.is_initialized())


in_forked_child(_lock, _note_fork)
