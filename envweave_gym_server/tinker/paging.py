"""Pages of lists, by the ``offset`` and ``limit`` in the URL of the current request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from flask import request

from envweave_gym_server.tinker.api_errors import BadInput

Item = TypeVar("Item")


def page(items: Sequence[Item]) -> tuple[list[Item], dict[str, int]]:
    """Return the items of the page, and the SDK's description of it."""
    try:
        offset, limit = int(request.args.get("offset", 0)), int(request.args.get("limit", 100))
    except ValueError:
        raise BadInput("offset and limit are numbers") from None
    if offset < 0 or limit < 0:
        raise BadInput(f"offset {offset} and limit {limit} are numbers from 0 on")
    cursor = {"offset": offset, "limit": limit, "total_count": len(items)}
    return list(items[offset : offset + limit]), cursor
