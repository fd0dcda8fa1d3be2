"""The images of instances: found, fetched, and removed again where there are too many."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from typing import Any

from envweave_gym.containers.engine import check_image, engine_errors
from envweave_gym.core.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.os_support.process_local import process_cache
from envweave_gym.swebench.workspace import NotHere

PULLING = 1800.0
"""Seconds that fetching an image may take."""


def images_of(client: Any) -> Images:
    """The images of an engine, as this process has used them."""
    return _images(client)


def check_keep(keep: object) -> None:
    """Refuse what is no number of images that may stay."""
    if keep is not None and (type(keep) is not int or keep < 1):
        raise InvalidArgument(f"keep_images={shown(keep)} is no number of images; give an int >= 1 or None")


@process_cache(maxsize=4)
def _images(client: Any) -> Images:
    return Images(client)


class Images:
    """Fetches images, and remembers which of them it has fetched, by when they were used last."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._fetched: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        self._fetching: dict[str, threading.Lock] = {}
        self._users: Counter[str] = Counter()

    def require(self, image: str, *, pull: bool = True, keep: int | None = None) -> str:
        """The image, which is there now, and stays until who has asked calls :meth:`release`.

        With ``keep``, of the images that were fetched here only the last used stay, and all that are
        used; others than those are never removed.
        """
        check_image(image)
        with self._lock:
            self._users[image] += 1
            fetching = self._fetching.setdefault(image, threading.Lock())
        try:
            with fetching:
                if not self._is_here(image):
                    self._fetch(image, pull)
            self._remember(image, keep)
        except BaseException:
            self.release(image)
            raise
        return image

    def release(self, image: str, keep: int | None = None) -> None:
        """Say that one who has asked for an image is done with it."""
        with self._lock:
            self._users[image] -= 1
            self._users += Counter()  # which forgets those that nobody uses
        self._remove_old(keep)

    def _is_here(self, image: str) -> bool:
        from docker.errors import ImageNotFound

        with engine_errors(f"the image {shown(image)} cannot be looked for"):
            try:
                self._client.images.get(image)
            except ImageNotFound:
                return False
        return True

    def _fetch(self, image: str, pull: bool) -> None:
        way = f"fetch it where there is a network: docker pull {image}"
        if not pull:
            raise NotHere(f"the image {image} is not on this machine, and pull=False; {way}")
        try:
            self._pull(image)
        except NotAvailable as error:
            raise NotAvailable(f"{error}; {way}") from None
        with self._lock:
            self._fetched[image] = None

    def _pull(self, image: str) -> None:
        """Fetch it while the engine tells how far it is; it stops where nobody listens any more."""
        from docker.utils import parse_repository_tag
        from urllib3.exceptions import HTTPError

        repository, tag = parse_repository_tag(image)
        deadline = time.monotonic() + PULLING
        with engine_errors(f"the image {image} cannot be fetched"):
            events = self._client.api.pull(repository, tag=tag or "latest", stream=True, decode=True)
            try:
                for event in events:
                    if said := event.get("error"):
                        raise NotAvailable(
                            f"the image {image} cannot be fetched, as the container engine says: {said}"
                        )
                    if time.monotonic() > deadline:
                        raise NotAvailable(f"the image {image} was not here after {PULLING:g} s")
            except HTTPError as error:
                raise NotAvailable(
                    f"the image {image} cannot be fetched: the container engine tells nothing more ({error})"
                ) from None
            finally:
                events.close()

    def _remember(self, image: str, keep: int | None) -> None:
        with self._lock:
            if image in self._fetched:
                self._fetched.move_to_end(image)
        self._remove_old(keep)

    def _remove_old(self, keep: int | None) -> None:
        """Remove surplus images that nothing uses; a request for one waits, and fetches it again."""
        while keep is not None:
            with self._lock:
                unused = [name for name in self._fetched if not self._users[name]]
                if len(self._fetched) <= keep or not unused:
                    return
                name = unused[0]
                del self._fetched[name]
                fetching = self._fetching[name]
            with fetching:
                if not self._is_taken_again(name):
                    self._remove(name)

    def _is_taken_again(self, name: str) -> bool:
        with self._lock:
            if is_used := self._users[name] > 0:
                self._fetched[name] = None
            return is_used

    def _remove(self, image: str) -> None:
        """Remove one; one that a container uses stays, and is forgotten."""
        from docker.errors import APIError

        with engine_errors(f"the image {shown(image)} cannot be removed"):
            try:
                self._client.images.remove(image)
            except APIError as error:
                if error.status_code not in (404, 409):
                    raise
