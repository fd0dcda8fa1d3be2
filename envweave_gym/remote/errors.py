"""What a server refuses, as the exception that it would be in this process."""

from __future__ import annotations

from typing import NoReturn

from envweave_gym import faults
from envweave_gym.wire.messages import Refused

_SAME = (
    "AtCapacity",
    "EnvironmentCrashed",
    "FaultStorm",
    "InvalidAction",
    "InvalidArgument",
    "NotAvailable",
    "ResetNeeded",
    "SessionLost",
    "UnknownEnvironment",
)
_KINDS: dict[str, type[Exception]] = {
    **{name: getattr(faults, name) for name in _SAME},
    "MissingExtra": faults.NotAvailable,
    "NoSession": faults.SessionLost,
    "ValueError": faults.InvalidAction,
    "Unauthorized": faults.NotAvailable,
    "Forbidden": faults.NotAvailable,
}


def raise_refused(refused: Refused, url: str) -> NoReturn:
    """Raise what the server says; what only servers know of is an error of the server."""
    kind = _KINDS.get(refused.kind)
    if kind is None:
        raise faults.SessionLost(f"{url}: {refused.kind}: {refused.message}")
    at = f"{url}: " if refused.kind in ("Unauthorized", "Forbidden", "NoSession") else ""
    raise kind(at + refused.message)
