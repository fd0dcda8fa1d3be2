"""A server in a container, reached through a port of this machine's loopback, or a Unix socket.

The container is its owner's: labels say so, and whatever an owner that was killed leaves behind is removed by
the next one that starts. One that dies is started again at the same port.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from typing import Any

from envweave_gym.containers.box import NO_NETWORK, Box
from envweave_gym.containers.engine import engine, told
from envweave_gym.containers.entrance import Entrance, LoopbackPort, SocketFolder
from envweave_gym.containers.images import require_image
from envweave_gym.containers.network import closed_network, remove_unused
from envweave_gym.containers.ownership import labels_of_owner
from envweave_gym.containers.sweep import sweep
from envweave_gym.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.providers.replica import is_healthy, last_words, stop_at_exit, wait_until_healthy
from envweave_gym.providers.shared import numbers_in, shared_urls
from envweave_gym.remote.address import remember_token
from envweave_gym.remote.upkeep import Upkeep, keep_up

OPTIONS = ("image", *(field.name for field in fields(Box)))
"""What ``make`` takes beside ``backend="docker"``, ``replicas`` and ``warm``."""
_PATIENCE = 60.0
_PAUSE = 1.0
"""So many seconds pass between a start that failed and the next."""
_GRACE = 2
"""So many seconds a server has for the steps that are under way when it is stopped."""
_LOG = {"type": "json-file", "config": {"max-size": "10m", "max-file": "2"}}
_LINES = 1000
"""So many lines of its log are read."""
_RESTED, _STOPPED = "there is none", "it was stopped meanwhile"
_log = logging.getLogger(__name__)


class DockerReplica:
    """One container."""

    def __init__(
        self,
        image: str,
        box: Box | None = None,
        *,
        token: str | None = None,
        ids: Sequence[str] = (),
        patience: float = _PATIENCE,
    ) -> None:
        """Start it, and wait until it serves.

        ``box`` says what it may do and use, ``token`` what it asks for, and ``ids`` what it serves: by
        default one that is made up, and what the image has.
        """
        self.image, self._box, self._ids, self._patience = image, box or Box(), ids, patience
        self._client = engine()
        require_image(self._client, image)
        self._token = token or secrets.token_urlsafe(32)
        # the same thread may come again: collecting garbage closes environments, which may be the last ones
        self._owner, self._lock = os.getpid(), threading.RLock()
        self.starts, self._is_over = 0, False
        self._failed, self._not_before = "", 0.0
        self._container: Any = None
        self._entrance: Entrance = LoopbackPort()
        self._place: tuple[str, int] | None = None
        stop_at_exit(self)
        try:
            if self._box.network == NO_NETWORK:
                self._entrance = SocketFolder()
            with self._lock:
                self._start()
        except BaseException:
            self.stop()
            raise
        self.url = self._entrance.url
        remember_token(self.url, self._token)
        self.upkeep = Upkeep(self.ensure, place=self.place)
        keep_up(self.url, self.upkeep)

    def place(self) -> tuple[str, int] | None:
        """Where the container itself is: the engine's proxy behind the port costs as much as a step."""
        return self._place

    def ensure(self) -> None:
        """Start it again where it has died; a process that was forked from the owner leaves that to it."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            why = None if self._is_over else self._ended()
            if why is not None and why is not _RESTED:
                _log.warning("the container of %s is started again: %s", self.image, why)
                self._remove()
            if why is not None:
                self._start_again()

    def _start_again(self) -> None:
        """Start another, not more often than once in a while where it fails each time."""
        if time.monotonic() < self._not_before:
            raise NotAvailable(self._failed)
        try:
            self._start()
        except (InvalidArgument, NotAvailable) as error:  # of what it was given a folder may be gone
            again = f"a container of {self.image} cannot be started again: "
            self._failed = f"{'' if isinstance(error, NotAvailable) else again}{error}"
            self._not_before = time.monotonic() + _PAUSE
            raise NotAvailable(self._failed) from None

    def _start(self) -> None:
        """Start one, and wait until it serves; one that does not is removed."""
        try:
            self._started(f"a container of {self.image}")
        except BaseException:
            try:
                self._remove()
            except NotAvailable as error:  # what is raised is why it did not start
                _log.warning("%s", error)
            raise

    def _started(self, what: str) -> None:
        with told(f"{what} cannot be started"):
            sweep(self._client)
            self._container = self._create()
            self._container.start()
            self._container.reload()
        if (why := self._ended()) is not None:
            raise NotAvailable(f"{what} ended before its server answered: {why}")
        inside = self._entrance.found(self._container.attrs)
        wait_until_healthy(self._entrance.url, self._patience, self._ended, what, self.logs)
        if self._is_over:
            raise NotAvailable(f"{what} cannot be started: {_STOPPED}")
        self.starts += 1
        self._place = inside if inside and is_healthy(f"http://{inside[0]}:{inside[1]}") else None

    def _create(self) -> Any:
        is_alone = self._box.network == NO_NETWORK
        with nullcontext(NO_NETWORK) if is_alone else closed_network(self._client) as network:
            boxed, entered = self._box.arguments(network), self._entrance.arguments()
            merged = {
                name: boxed.pop(name, {}) | entered.pop(name, {}) for name in ("environment", "volumes")
            }
            merged["environment"]["ENVWEAVE_TOKEN"] = self._token
            return self._client.containers.create(
                self.image,
                list(self._ids) or None,
                labels=labels_of_owner(),
                name=f"envweave-{secrets.token_hex(6)}",
                log_config=_LOG,
                **merged,
                **entered,
                **boxed,
            )

    def _ended(self) -> str | None:
        """Why the container runs no more; ``None`` while it does, or nobody can say."""
        from docker.errors import NotFound
        from requests import RequestException

        if self._is_over:
            return _STOPPED
        if self._container is None:
            return _RESTED
        try:
            self._container.reload()
        except NotFound:
            return "somebody has removed it"
        except RequestException as error:
            _log.warning("the engine cannot be asked for the container of %s: %s", self.image, error)
            return None
        state = self._container.attrs["State"]
        if state["Running"]:
            return None
        if state["OOMKilled"]:
            return f"it took more than its memory ({self._box.memory}); give it more with memory="
        return f"exit code {state['ExitCode']}, and it last said: {last_words(self.logs())}"

    def logs(self) -> str:
        """The end of what the container has written."""
        from requests import RequestException

        if (container := self._container) is None:
            return ""
        try:
            return container.logs(tail=_LINES).decode(errors="replace")
        except RequestException as error:
            return f"(its log cannot be read: {error})"

    def stop(self) -> None:
        """Stop the container for good; one that is just being started too."""
        if os.getpid() != self._owner:
            return
        self._is_over = True
        keep_up(self._entrance.url, None)
        try:
            self.rest()
        finally:
            self._entrance.close()
            stop_at_exit(self, False)

    def rest(self) -> None:
        """Stop the container, and remove it and all it had; the next connection starts another."""
        from requests import RequestException

        if os.getpid() != self._owner:
            return
        with self._lock:
            if self._container is None:
                return
            try:
                self._container.stop(timeout=_GRACE)
            except RequestException as error:  # it has ended already, or the removal tells
                _log.info("the container of %s was not stopped: %s", self.image, error)
            self._remove()
            try:
                remove_unused(self._client)
            except (RequestException, NotAvailable) as error:  # whoever goes next takes it along
                _log.warning("the network of containers stays: %s", error)

    def _remove(self) -> None:
        """Remove the container, which is known until it is gone."""
        from docker.errors import APIError

        self._place = None
        if (container := self._container) is None:
            return
        with told(f"the container {container.name} cannot be removed"):
            try:
                container.remove(force=True, v=True)
            except APIError as error:
                if error.status_code not in (404, 409):  # somebody else has removed it, or is removing it
                    raise
        self._container = None


# What asks for it


def docker_urls(name: str, image: str | None, kwargs: dict[str, Any]) -> list[str]:
    """The URLs of containers that are shared, whose options are taken out of ``kwargs``."""
    count, warm = numbers_in(name, kwargs, "containers")
    start = docker_start(name, image, kwargs)
    return _urls(start, count, warm)


def docker_start(name: str, image: str | None, kwargs: dict[str, Any]) -> partial[DockerReplica]:
    """What starts a container, whose options are taken out of ``kwargs``."""
    options = {key: kwargs.pop(key) for key in OPTIONS if key in kwargs}
    image = options.pop("image", image)
    if not isinstance(image, str):
        given = "is in no image that is known" if image is None else f"has image={shown(image)}"
        raise InvalidArgument(f"{name} {given}; name the image whose server has it with image='…'")
    try:
        return partial(DockerReplica, image, Box(**options))
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}") from None


def _urls(start: partial[DockerReplica], count: int, warm: int | None = None) -> list[str]:
    return shared_urls(("docker", repr(start)), count, start, partial(_again, start), warm)


def _again(start: partial[DockerReplica]) -> str:
    return _urls(start, 1)[0]
