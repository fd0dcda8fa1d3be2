"""Which image an ID is in."""

from __future__ import annotations

from typing import Any

from envweave_gym.faults import NotAvailable

CORE = "envweave-core"


def require_image(client: Any, image: str) -> None:
    """Say in one sentence how to come by an image that is not there."""
    from docker.errors import ImageNotFound

    try:
        client.images.get(image)
    except ImageNotFound:
        how = "make images" if image.partition(":")[0].startswith("envweave-") else f"docker pull {image}"
        raise NotAvailable(f"the image {image} is not on this machine; build or fetch it: {how}") from None
