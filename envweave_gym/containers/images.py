"""Which image an ID is in."""

from __future__ import annotations

from typing import Any

from envweave_gym.containers.engine import told
from envweave_gym.faults import InvalidArgument, NotAvailable, shown

CORE = "envweave-core"


def require_image(client: Any, image: str) -> None:
    """Say in one sentence how to come by an image that is not there."""
    from docker.errors import ImageNotFound, NullResource

    with told(f"the image {shown(image)} cannot be looked for"):
        try:
            client.images.get(image)
        except NullResource:
            raise InvalidArgument("image='' names no image; give one like 'envweave-core'") from None
        except ImageNotFound:
            how = "make images" if image.partition(":")[0].startswith("envweave-") else f"docker pull {image}"
            raise NotAvailable(
                f"the image {image} is not on this machine; build or fetch it: {how}"
            ) from None
