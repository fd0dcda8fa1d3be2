"""Provider ``venv``: starts no servers; IDs of other packages run in processes of their suites (``suites/``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.providers.base import Provider

if TYPE_CHECKING:
    from envweave_gym.providers.replica import Start


class VenvProvider(Provider):
    """Provider whose environments are made by ``maker``; it has no servers for our IDs, for fleets or to keep warm."""

    name = "venv"
    noun = "virtual environments"
    maker = "envweave_gym.registry.in_suites:make_in_suite"

    def start(self, name: str, image: str | None, options: dict[str, Any]) -> Start:
        """Raise ``InvalidArgument``."""
        raise not_for_ours(name)

    def urls(self, name: str, image: str | None, options: dict[str, Any]) -> list[str]:
        """Raise ``InvalidArgument``."""
        raise not_for_ours(name)


def not_for_ours(name: str) -> InvalidArgument:
    """Return the error for what has no suite: IDs of this package, fleets and servers to keep ready."""
    return InvalidArgument(
        f"{name}: backend='venv' makes environments of other packages and starts no servers; give "
        "backend='subprocess', or leave it out"
    )
