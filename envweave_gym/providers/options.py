"""What ``make`` and fleets are told of the servers they are to start, checked before any is."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from envweave_gym.containers.images import check_image
from envweave_gym.core.faults import InvalidArgument, shown

MOST = 256


def numbers_in(name: str, kwargs: dict[str, Any], noun: str = "replicas") -> tuple[int, int | None]:
    """How many replicas are wanted, and how many more that are ready; taken out of ``kwargs``."""
    count, warm = kwargs.pop("replicas", 1), kwargs.pop("warm", None)
    check_number(name, "replicas", count, noun)
    if warm is not None:
        check_number(name, "warm", warm, noun, least=0)
    return count, warm


def check_number(name: str, argument: str, value: Any, noun: str = "replicas", *, least: int = 1) -> None:
    """Refuse what is no number of replicas."""
    if type(value) is not int or not least <= value <= MOST:
        raise InvalidArgument(
            f"{name}: {argument}={shown(value)} is no number of {noun} from {least} to {MOST}"
        )


def options_in(kwargs: dict[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """Those options that a provider knows, taken out of ``kwargs``."""
    return {key: kwargs.pop(key) for key in known if key in kwargs}


def image_in(name: str, options: dict[str, Any], default: str | None) -> str:
    """The image that is meant, taken out of ``options``."""
    image = options.pop("image", default)
    if not isinstance(image, str):
        given = "is in no image that is known" if image is None else f"has image={shown(image)}"
        raise InvalidArgument(f"{name} {given}; name the image whose server has it with image='…'")
    with named(name):
        check_image(image)
    return image


def check_patience(patience: Any) -> None:
    """Refuse what is no time to wait for a server."""
    if type(patience) not in (int, float) or not 0 < patience < threading.TIMEOUT_MAX:
        raise InvalidArgument(f"patience={shown(patience)} is no number of seconds above 0")


@contextmanager
def named(name: str) -> Generator[None]:
    """Have what is refused in this block name the environment it was for."""
    try:
        yield
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}") from None
