"""Transport to a Ray actor on any node: each frame is an actor call, and its result is the reply."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LookupTimeout
from typing import Any
from urllib.parse import urlsplit

from envweave_gym.net.deadlines import seconds_left, too_late
from envweave_gym.os_support.process_local import Owner
from envweave_gym.providers.ray.cluster import cluster, one_line
from envweave_gym.remote.address import Address
from envweave_gym.remote.transports import lost

_log = logging.getLogger(__name__)


class ActorTransport:
    """Transport that calls an actor; each call takes the result of the previous one, so that Ray keeps their order."""

    def __init__(self, address: Address, channel: bytes, deadline: float) -> None:
        """Look the actor up; raise ``ConnectionError`` if it is not found before ``deadline``.

        ``channel`` is the prefix of all frames (:func:`channel_prefix`), which names the session. It is empty for
        requests of a description, which belong to no session.
        """
        self._url, self._owner = address.url, Owner()
        self._ray = cluster()
        self._actor = actor_at(self._ray, address.url, deadline)
        self._channel = channel
        self._call = self._actor.frames if channel else self._actor.describe
        self._replies: deque[Any] = deque()

    def send(self, frame: bytes, deadline: float, before: bytes = b"") -> None:
        """Send ``frame`` as a call; raise ``ConnectionError`` if the actor is lost.

        ``before`` is a frame to send first, such as the one that creates the session; empty for none.
        """
        if before:
            self.send(before, deadline)
        seconds_left(deadline, self._url)
        if not self._ray.is_initialized():  # or Ray would start a cluster by itself
            raise lost(self._url, "this process has left the cluster")
        try:
            if self._replies:  # Ray starts a call when the results among its arguments are there
                reply = self._call.remote(self._channel + frame, self._replies[-1])
            else:
                reply = self._call.remote(self._channel + frame)
        except Exception as error:  # noqa: BLE001 - Ray raises many types, plain ones too, for an actor that died
            raise lost(self._url, one_line(error)) from None
        self._replies.append(reply)

    def receive(self, deadline: float) -> bytes:
        """Return the reply to the oldest unanswered frame; a large one is an array in Ray's shared memory.

        Raise ``ConnectionError`` if the actor is lost, and ``TimeoutError`` at the deadline.
        """
        if not self._ray.is_initialized():
            raise lost(self._url, "this process has left the cluster")
        try:
            reply = self._ray.get(self._replies[0], timeout=seconds_left(deadline, self._url))
        except TimeoutError:
            raise too_late(self._url) from None
        except Exception as error:  # noqa: BLE001 - as above
            raise lost(self._url, one_line(error)) from None
        self._replies.popleft()
        return reply

    @property
    def next_reply(self) -> Any:
        """Reference to the next reply for ``ray.wait``; ``None`` if no reply is due."""
        return self._replies[0] if self._replies and self._ray.is_initialized() else None

    def close(self) -> None:
        """Close the channel, and tell the actor if it can be reached."""
        channel, self._channel = self._channel, b""
        self._replies.clear()
        if not channel or not self._owner.is_here() or sys.is_finalizing() or not self._ray.is_initialized():
            return
        try:
            self._actor.leave.options(num_returns=0).remote(channel)
        except Exception as error:  # noqa: BLE001 - an actor that died has no channel either
            _log.debug("the hang-up could not be sent to %s: %s", self._url, error)


def channel_prefix(session_id: str, name: str) -> bytes:
    """Return the prefix of the frames of one connection: a length byte, then ``session_id/name``."""
    channel = f"{session_id}/{name}".encode()
    return bytes([len(channel)]) + channel


def actor_name(url: str) -> str:
    """Return ``namespace/name`` of the actor with the URL ``ray+actor://namespace/name``."""
    parts = urlsplit(url)
    return parts.netloc + parts.path


def actor_at(ray: Any, url: str, deadline: float) -> Any:
    """Return the handle of the actor with this URL; raise ``ConnectionError`` if there is none.

    Ray's lookup takes no deadline and blocks for a minute if the head node is silent. So it runs in a thread
    that may outlive the call.
    """
    namespace, _, name = actor_name(url).partition("/")
    lookup = Future[Any]()

    def look_up() -> None:
        try:
            lookup.set_result(ray.get_actor(name, namespace=namespace))
        except Exception as error:  # noqa: BLE001 - the caller raises it
            lookup.set_exception(error)

    threading.Thread(target=look_up, name=f"lookup of {url}", daemon=True).start()
    try:
        return lookup.result(seconds_left(deadline, url))
    except LookupTimeout:
        raise too_late(url) from None
    except Exception as error:  # noqa: BLE001 - Ray raises many types for an actor that died
        raise ConnectionError(f"{url} is no actor of the cluster: {one_line(error)}") from None
