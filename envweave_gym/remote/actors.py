"""Frames to a server that is a Ray actor: each is a call, and its reply the result of that."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillLooking
from typing import Any
from urllib.parse import urlsplit

from envweave_gym.net.deadlines import seconds_left, too_late
from envweave_gym.os_support.process_local import Owner
from envweave_gym.remote.address import Address
from envweave_gym.remote.ray_cluster import cluster, one_line
from envweave_gym.remote.transports import lost

_log = logging.getLogger(__name__)


class ActorTransport:
    """Calls of an actor, each of which begins when the one before it is done."""

    def __init__(self, address: Address, line: bytes, deadline: float) -> None:
        """On a line of a session; without one for what describes environments."""
        self._url, self._owner = address.url, Owner()
        self._ray = cluster()
        self._actor = actor_at(self._ray, address.url, deadline)
        self._line = line
        self._call = self._actor.frames if self._line else self._actor.describe
        self._replies: deque[Any] = deque()

    def send(self, frame: bytes, deadline: float, before: bytes = b"") -> None:
        """Send a frame, and perhaps one before it."""
        if before:
            self.send(before, deadline)
        seconds_left(deadline, self._url)
        if not self._ray.is_initialized():  # or Ray would start a cluster by itself
            raise lost(self._url, "this process has left the cluster")
        try:
            if self._replies:  # a result that a call takes is waited for, so that they keep their order
                reply = self._call.remote(self._line + frame, self._replies[-1])
            else:
                reply = self._call.remote(self._line + frame)
        except Exception as error:  # noqa: BLE001 - of an actor that is gone Ray tells by many, plain ones too
            raise lost(self._url, one_line(error)) from None
        self._replies.append(reply)

    def receive(self, deadline: float) -> bytes:
        """The reply to the oldest frame whose reply has not been received.

        A large one is an array in memory that is shared with all processes of this machine.
        """
        if not self._ray.is_initialized():
            raise lost(self._url, "this process has left the cluster")
        try:
            reply = self._ray.get(self._replies[0], timeout=seconds_left(deadline, self._url))
        except TimeoutError:
            raise too_late(self._url) from None
        except Exception as error:  # noqa: BLE001 - the same
            raise lost(self._url, one_line(error)) from None
        self._replies.popleft()
        return reply

    @property
    def next_reply(self) -> Any:
        """What ``ray.wait`` takes to wait for the next reply; ``None`` where none is to come."""
        return self._replies[0] if self._replies and self._ray.is_initialized() else None

    def close(self) -> None:
        """Hang up, and let the actor know if it is there."""
        line, self._line = self._line, b""
        self._replies.clear()
        if not line or not self._owner.is_here() or sys.is_finalizing() or not self._ray.is_initialized():
            return
        try:
            self._actor.leave.options(num_returns=0).remote(line)
        except Exception as error:  # noqa: BLE001 - that it is gone is as good
            _log.debug("the hang-up could not be sent to %s: %s", self._url, error)


def line_of(session_id: str, name: str) -> bytes:
    """What stands before the frames of one connection: the length of the rest, the session, and a name."""
    line = f"{session_id}/{name}".encode()
    return bytes([len(line)]) + line


def place_in(url: str) -> str:
    """The namespace and the name of an actor, out of its URL, ``ray+actor://namespace/name``."""
    parts = urlsplit(url)
    return parts.netloc + parts.path


def actor_at(ray: Any, url: str, deadline: float) -> Any:
    """The actor with this URL.

    Ray takes no deadline here, and tries for a minute where the head of the cluster is silent; so it is asked
    in a thread, which may be left behind.
    """
    namespace, _, name = place_in(url).partition("/")
    lookup = Future[Any]()

    def look_up() -> None:
        try:
            lookup.set_result(ray.get_actor(name, namespace=namespace))
        except Exception as error:  # noqa: BLE001 - whoever waits raises it
            lookup.set_exception(error)

    threading.Thread(target=look_up, name=f"lookup of {url}", daemon=True).start()
    try:
        return lookup.result(seconds_left(deadline, url))
    except StillLooking:
        raise too_late(url) from None
    except Exception as error:  # noqa: BLE001 - of an actor that is gone Ray tells in many ways
        raise ConnectionError(f"{url} is no actor of the cluster: {one_line(error)}") from None
