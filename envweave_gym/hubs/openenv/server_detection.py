"""Detection whether a URL or an image is a server of OpenEnv, or one of this package."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from envweave_gym.containers.engine import engine, is_ours
from envweave_gym.core.faults import EnvweaveError
from envweave_gym.core.secret_reference import is_private_way, secret_at
from envweave_gym.net.http import HttpConnection
from envweave_gym.remote.errors import refusal_in

_TIMEOUT_S = 5.0
_LARGEST_BODY_BYTES = 4 << 20


def is_openenv(url: str, token: str | None = None) -> bool:
    """Return whether ``url`` leads to a server of OpenEnv; ``False`` if nobody answers there.

    A server of this package that speaks both protocols counts as one of this package. ``token`` is a reference; it is
    not sent to another machine unencrypted. An image on this machine is one of OpenEnv unless its entry point is
    ``envweave serve``.
    """
    scheme, _, rest = url.partition("://")
    if scheme in ("openenv", "openenv+https"):
        return True
    if scheme == "docker":
        return _is_image_of_openenv(rest.partition("#")[0])
    if scheme not in ("http", "https") or "#" in url:
        return False
    try:
        secret = secret_at(token if is_private_way(url) else None)
        headers = {"Authorization": f"Bearer {secret.reveal()}"} if secret else {}
        return not _is_ours(url, headers) and _has_schemas(url, headers)
    except (OSError, ValueError):  # nobody answers, or it is no URL: whoever connects says so
        return False


def _get(url: str, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
    with HttpConnection(url.rstrip("/")) as connection:
        response = connection.request("GET", path, time.monotonic() + _TIMEOUT_S, headers)
        return response.status, response.body(_LARGEST_BODY_BYTES)


def _is_ours(url: str, headers: Mapping[str, str]) -> bool:
    status, body = _get(url, "/v1/envs", headers)
    return refusal_in(body) is not None or (status == 200 and "environments" in _object(body))


def _has_schemas(url: str, headers: Mapping[str, str]) -> bool:
    status, body = _get(url, "/schema", headers)
    return status == 200 and {"action", "observation"} <= _object(body).keys()


def _object(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}


def _is_image_of_openenv(image: str) -> bool:
    if is_ours(image):
        return False
    try:
        config = engine().images.get(image).attrs["Config"]
    except (EnvweaveError, OSError, ImportError):  # whoever starts it says what is missing
        return False
    except Exception as error:  # docker.errors are known only where docker is installed
        if not type(error).__module__.startswith("docker."):
            raise
        return False
    words = [*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())]
    return "envweave serve" not in " ".join(words)
