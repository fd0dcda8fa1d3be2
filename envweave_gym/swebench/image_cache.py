"""Pulls the images of instances, and removes the least recently used ones of those it has pulled."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from typing import Any

from envweave_gym.containers.engine import check_image, engine_errors
from envweave_gym.core.faults import NotAvailable, shown
from envweave_gym.os_support.process_local import process_cache
from envweave_gym.swebench.workspace import NotHere

PULL_TIMEOUT_S = 1800.0


@process_cache(maxsize=4)
def images_of(client: Any) -> Images:
    """Return the image cache of a container engine; one for each client in this process."""
    return Images(client)


class Images:
    """An LRU cache, with reference counts, of the images that this process has pulled."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._pulled: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        self._pulling: dict[str, threading.Lock] = {}
        self._users: Counter[str] = Counter()

    def require(self, image: str, *, pull: bool = True, keep: int | None = None) -> str:
        """Pull an image if the engine does not have it, and count one more user until :meth:`release`.

        With ``pull=False`` a missing image is an error. Beyond ``keep`` images (``None``: no limit) the least recently
        used ones are removed. Images in use, and images that the engine had before, are never removed. Raise
        ``NotAvailable`` if the image is missing or cannot be pulled.
        """
        check_image(image)
        with self._lock:
            self._users[image] += 1
            pulling = self._pulling.setdefault(image, threading.Lock())
        try:
            with pulling:
                if not self._is_here(image):
                    self._require_pull(image, pull)
            with self._lock:
                if image in self._pulled:
                    self._pulled.move_to_end(image)
            self._remove_old(keep)
        except BaseException:
            self.release(image)
            raise
        return image

    def release(self, image: str, keep: int | None = None) -> None:
        """Count one user of an image less, and remove unused images beyond ``keep``."""
        with self._lock:
            self._users[image] -= 1
            self._users += Counter()  # drops the entries with a count of 0
        self._remove_old(keep)

    def _is_here(self, image: str) -> bool:
        from docker.errors import ImageNotFound

        with engine_errors(f"the image {shown(image)} cannot be looked for"):
            try:
                self._client.images.get(image)
            except ImageNotFound:
                return False
        return True

    def _require_pull(self, image: str, pull: bool) -> None:
        advice = f"fetch it where there is a network: docker pull {image}"
        if not pull:
            raise NotHere(f"the image {image} is not on this machine, and pull=False; {advice}")
        try:
            self._pull(image)
        except NotAvailable as error:
            raise NotAvailable(f"{error}; {advice}") from None
        with self._lock:
            self._pulled[image] = None

    def _pull(self, image: str) -> None:
        """Pull an image and wait for the end of its progress events.

        Closing the connection, as at the timeout, makes the engine stop the pull.
        """
        from docker.utils import parse_repository_tag
        from urllib3.exceptions import HTTPError

        repository, tag = parse_repository_tag(image)
        deadline = time.monotonic() + PULL_TIMEOUT_S
        with engine_errors(f"the image {image} cannot be fetched"):
            events = self._client.api.pull(repository, tag=tag or "latest", stream=True, decode=True)
            try:
                for event in events:
                    if said := event.get("error"):
                        raise NotAvailable(
                            f"the image {image} cannot be fetched, as the container engine says: {said}"
                        )
                    if time.monotonic() > deadline:
                        raise NotAvailable(f"the image {image} was not here after {PULL_TIMEOUT_S:g} s")
            except HTTPError as error:
                raise NotAvailable(
                    f"the image {image} cannot be fetched: the container engine has hung up ({error})"
                ) from None
            finally:
                events.close()

    def _remove_old(self, keep: int | None) -> None:
        """Remove the least recently used of the unused images beyond ``keep``.

        A thread that requires an image during its removal waits for the lock of the image, and pulls it again.
        """
        while keep is not None:
            with self._lock:
                unused = [name for name in self._pulled if not self._users[name]]
                if len(self._pulled) <= keep or not unused:
                    return
                name = unused[0]
                del self._pulled[name]
                pulling = self._pulling[name]
            with pulling:
                if not self._is_used_again(name):
                    self._remove(name)

    def _is_used_again(self, name: str) -> bool:
        """Return whether a thread requires an image again since it was chosen for removal; if so, retain it."""
        with self._lock:
            if is_used := self._users[name] > 0:
                self._pulled[name] = None
            return is_used

    def _remove(self, image: str) -> None:
        """Remove an image from the engine; one that a container of another program uses stays there."""
        from docker.errors import APIError

        with engine_errors(f"the image {shown(image)} cannot be removed"):
            try:
                self._client.images.remove(image)
            except APIError as error:
                if error.status_code not in (404, 409):
                    raise
