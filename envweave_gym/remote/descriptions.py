"""Requests for a server's description of an environment: spaces, metadata, agents."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np

from envweave_gym.core.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.remote.address import Address
from envweave_gym.remote.errors import NotAServer, raise_refused
from envweave_gym.remote.transports import lost
from envweave_gym.wire.frame_limits import check_reply
from envweave_gym.wire.messages import Answer, Create, Refused, encode, read_reply
from envweave_gym.wire.values import MOST_BITS, fits, pack

_PLAIN = (bool, int, float, str, bytes, np.generic, Enum, type(None))
_SECRET = re.compile(r"(?<=://)[^/?#]*@|[?#].*", re.DOTALL)
_PAUSES = (0.02, 0.04, 0.08, 0.16, 0.32)
"""Seconds between attempts to request a description after a lost connection."""


def remote_name(env_id: str, url: str) -> str:
    """Return a name for error messages: the ID without its module, or the URL without secrets if that is empty."""
    return env_id.rpartition(":")[2] or (_SECRET.sub("", url) if isinstance(url, str) else url)


def create_message(name: str, env_id: str, api: str, kwargs: dict[str, Any]) -> Create:
    """Return the message that creates an environment; raise ``InvalidArgument`` for kwargs that cannot be sent."""
    for argument, value in kwargs.items():
        if not _travels(value):
            raise InvalidArgument(
                f"{name}: {argument}={shown(value)} cannot be sent to a server; "
                f"give numbers (integers of at most {MOST_BITS:,} bits), texts, arrays, or lists, tuples and "
                "dicts of those"
            )
    return Create(env_id, api, pack(kwargs))


def _travels(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    if isinstance(value, Mapping):
        return all(_travels(key) and _travels(item) for key, item in value.items())
    if isinstance(value, int):
        return fits(value)
    return isinstance(value, _PLAIN) or (isinstance(value, list | tuple) and all(map(_travels, value)))


def describe(address: Address, create: Create, deadline: float) -> dict[str, Any]:
    """Return a copy of the server's description of the environment that ``create`` would make.

    The description is requested once and cached; forked processes inherit the cache. ``deadline`` is in
    seconds.
    """
    return copy.deepcopy(_described(address, encode(create), deadline))


@lru_cache(maxsize=256)
def _described(address: Address, create: bytes, deadline: float) -> dict[str, Any]:
    frame = _request(address, create, time.monotonic() + deadline)
    try:
        check_reply(frame)
        reply = read_reply(frame)
    except (ValueError, RecursionError) as error:
        raise NotAvailable(f"{address.url} is no envweave-gym server: it sent {shown(frame[:80])}") from error
    if isinstance(reply, Refused):
        raise_refused(reply, address.url)
    if not isinstance(reply, Answer):
        raise NotAvailable(f"{address.url} answered with {type(reply).__name__}; it speaks another version")
    return reply.value


def _request(address: Address, create: bytes, until: float) -> bytes:
    """Request a description; retry after a pause if the connection is lost, until the time ``until``."""
    for pause in _PAUSES:
        try:
            return _request_once(address, create, until)
        except ConnectionError:
            if time.monotonic() + pause > until:
                raise
        time.sleep(pause)
    return _request_once(address, create, until)


def _request_once(address: Address, create: bytes, until: float) -> bytes:
    address.ensure()
    try:
        return address.connector().describe(create, until)
    except NotAServer as error:
        raise NotAvailable(str(error)) from None
    except OSError as error:
        raise lost(address.url, error) from None
