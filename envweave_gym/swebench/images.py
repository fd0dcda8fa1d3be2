"""The images of instances: found, fetched, and removed again where there are too many."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from functools import lru_cache
from typing import Any

from envweave_gym.containers.engine import told
from envweave_gym.containers.images import check_image
from envweave_gym.faults import InvalidArgument, NotAvailable, shown


def images_of(client: Any) -> Images:
    """The images of an engine, as this process has used them."""
    return _images(os.getpid(), client)


@lru_cache(maxsize=4)
def _images(pid: int, client: Any) -> Images:
    return Images(client)


class Images:
    """Fetches images, and remembers which of them it has fetched, by when they were used last."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._fetched: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        self._fetching: dict[str, threading.Lock] = {}

    def require(self, image: str, *, pull: bool = True, keep: int | None = None) -> str:
        """The image, which is there now.

        With ``keep``, of the images that were fetched here only the so many used last stay; others than
        those are never removed.
        """
        check_image(image)
        if keep is not None and (type(keep) is not int or keep < 1):
            raise InvalidArgument(
                f"keep_images={shown(keep)} is no number of images; give an int >= 1 or None"
            )
        with self._lock:
            fetching = self._fetching.setdefault(image, threading.Lock())
        with fetching:
            if not self._is_here(image):
                self._fetch(image, pull)
        self._remember(image, keep)
        return image

    def _is_here(self, image: str) -> bool:
        from docker.errors import ImageNotFound

        with told(f"the image {shown(image)} cannot be looked for"):
            try:
                self._client.images.get(image)
            except ImageNotFound:
                return False
        return True

    def _fetch(self, image: str, pull: bool) -> None:
        way = f"fetch it where there is a network: docker pull {image}"
        if not pull:
            raise NotAvailable(f"the image {image} is not on this machine, and pull=False; {way}")
        try:
            with told(f"the image {image} cannot be fetched"):
                self._client.images.pull(image)
        except NotAvailable as error:
            raise NotAvailable(f"{error}; {way}") from None
        with self._lock:
            self._fetched[image] = None

    def _remember(self, image: str, keep: int | None) -> None:
        with self._lock:
            if image in self._fetched:
                self._fetched.move_to_end(image)
            old = list(self._fetched)[: -keep or None] if keep and len(self._fetched) > keep else []
            for name in old:
                del self._fetched[name]
        for name in old:
            self._remove(name)

    def _remove(self, image: str) -> None:
        """Remove one; one that a container uses stays, and is forgotten."""
        from docker.errors import APIError

        with told(f"the image {shown(image)} cannot be removed"):
            try:
                self._client.images.remove(image)
            except APIError as error:
                if error.status_code not in (404, 409):
                    raise
