"""Checks of provider options, such as ``replicas=``, and functions that take them out of keyword arguments."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from envweave_gym.containers.engine import check_image
from envweave_gym.core.config import named
from envweave_gym.core.faults import InvalidArgument, shown

MOST_REPLICAS = 256


def numbers_in(name: str, kwargs: dict[str, Any], noun: str = "replicas") -> tuple[int, int | None]:
    """Remove ``replicas=`` and ``warm=`` from ``kwargs`` and return them; ``warm`` is ``None`` if not given.

    ``name`` and ``noun`` are for the error message if one is no valid number.
    """
    count, warm = kwargs.pop("replicas", 1), kwargs.pop("warm", None)
    check_number(name, "replicas", count, noun)
    if warm is not None:
        check_number(name, "warm", warm, noun, least=0)
    return count, warm


def check_number(name: str, argument: str, value: Any, noun: str = "replicas", *, least: int = 1) -> None:
    """Raise ``InvalidArgument`` unless ``value`` is an int from ``least`` to :data:`MOST_REPLICAS`."""
    if type(value) is not int or not least <= value <= MOST_REPLICAS:
        raise InvalidArgument(
            f"{name}: {argument}={shown(value)} is no number of {noun} from {least} to {MOST_REPLICAS}"
        )


def options_in(kwargs: dict[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """Remove the ``known`` options from ``kwargs``, and return those that were given."""
    return {key: kwargs.pop(key) for key in known if key in kwargs}


def image_in(name: str, options: dict[str, Any], default: str | None) -> str:
    """Remove and return ``image=``, by default ``default``; raise ``InvalidArgument`` if neither is a valid name."""
    image = options.pop("image", default)
    if not isinstance(image, str):
        given = "is in no image that is known" if image is None else f"has image={shown(image)}"
        raise InvalidArgument(f"{name} {given}; name the image whose server has it with image='…'")
    with named(name):
        check_image(image)
    return image


def check_start_timeout(patience: Any) -> None:
    """Raise ``InvalidArgument`` unless ``patience`` is a number of seconds above 0."""
    if type(patience) not in (int, float) or not 0 < patience < threading.TIMEOUT_MAX:
        raise InvalidArgument(f"patience={shown(patience)} is no number of seconds above 0")
