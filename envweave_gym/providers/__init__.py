"""Where servers come from: each provider starts one and tells its address."""

from __future__ import annotations

import re
from typing import Any

from envweave_gym.faults import InvalidArgument, NotAvailable, shown

BACKENDS = ("inproc", "subprocess", "docker", "kubernetes", "ray", "http://host:port")
_LATER = ("docker", "kubernetes", "ray")
_URL = re.compile(r"https?://.")


def urls_of(name: str, backend: Any) -> list[str]:
    """The servers that ``backend`` means, none where it is this process; one that is to be started is."""
    if backend is None or backend == "inproc":
        return []
    if backend == "subprocess":
        from envweave_gym.providers.subprocess import own_url

        return [own_url()]
    if isinstance(backend, str) and _URL.match(backend):
        return [backend]
    if isinstance(backend, list) and backend and all(isinstance(u, str) and _URL.match(u) for u in backend):
        return list(backend)
    if isinstance(backend, str) and backend in _LATER:
        raise NotAvailable(
            f"{name}: backend={shown(backend)} needs the container layer, which this version does not have "
            "yet; use 'inproc', 'subprocess' or the URL of a server"
        )
    there_are = ", ".join(map(repr, BACKENDS))
    raise InvalidArgument(f"{name}: backend={shown(backend)} is unknown; there are {there_are}")
