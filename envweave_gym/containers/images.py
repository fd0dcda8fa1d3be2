"""Which image an ID is in."""

from __future__ import annotations

import re
from typing import Any

from envweave_gym.containers.engine import told
from envweave_gym.core.faults import InvalidArgument, NotAvailable, shown

CORE = "envweave-core"
_NAME = re.compile(r"[a-z0-9][\w.:/@-]*", re.ASCII | re.IGNORECASE)


def check_image(image: str) -> None:
    """Refuse what no image can be called."""
    if not _NAME.fullmatch(image):
        raise InvalidArgument(f"image={shown(image)} names no image; give one like 'envweave-core'")


def is_ours(image: str) -> bool:
    """Whether the name is that of an image that ``make images`` built: no registry and no owner before it."""
    return image.partition(":")[0].startswith("envweave-") and "/" not in image


def require_image(client: Any, image: str) -> None:
    """Say in one sentence how to come by an image that is not there."""
    from docker.errors import ImageNotFound

    check_image(image)
    with told(f"the image {shown(image)} cannot be looked for"):
        try:
            client.images.get(image)
        except ImageNotFound:
            how = "make images" if is_ours(image) else f"docker pull {image}"
            raise NotAvailable(
                f"the image {image} is not on this machine; build or fetch it: {how}"
            ) from None
