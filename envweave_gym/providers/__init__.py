"""Where servers come from: each provider starts one and tells its address."""

from __future__ import annotations

import re
from typing import Any

from envweave_gym.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.remote.address import SCHEMES

BACKENDS = ("inproc", "subprocess", "docker", "kubernetes", "ray", "http://host:port")
_LATER = ("kubernetes", "ray")
_URL = re.compile(rf"({'|'.join(map(re.escape, SCHEMES))})://.")


def urls_of(name: str, backend: Any, kwargs: dict[str, Any], image: str | None = None) -> list[str]:
    """The servers that ``backend`` means, none where it is this process; those to be started are.

    What says how they are started is taken out of ``kwargs``; ``image`` is the one it is in by default.
    """
    if backend is None or backend == "inproc":
        return []
    if backend == "subprocess":
        from envweave_gym.providers.subprocess import own_url

        return [own_url()]
    if backend == "docker":
        from envweave_gym.providers.shared import docker_urls

        return docker_urls(name, image, kwargs)
    if isinstance(backend, str) and _URL.match(backend):
        return [backend]
    if isinstance(backend, list) and backend and all(isinstance(u, str) and _URL.match(u) for u in backend):
        return list(backend)
    if isinstance(backend, str) and backend in _LATER:
        raise NotAvailable(
            f"{name}: backend={shown(backend)} needs its provider, which this version does not have yet; "
            "use 'inproc', 'subprocess', 'docker' or the URL of a server"
        )
    there_are = ", ".join(map(repr, BACKENDS))
    raise InvalidArgument(f"{name}: backend={shown(backend)} is unknown; there are {there_are}")
