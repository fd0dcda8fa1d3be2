"""The server of envweave-gym environments. ::

    from envweave_gym_server import run_server

    run_server(MyEnv)

or, for a WSGI server of your own, ``app = create_app(MyEnv, token="…")``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from envweave_gym.cli.serve import require

if TYPE_CHECKING:
    from envweave_gym_server.app.app import create_app as create_app
    from envweave_gym_server.core.settings import Settings as Settings
    from envweave_gym_server.offers.offers import offer_of_factory as offer_of_factory
    from envweave_gym_server.program.program import run_server as run_server

_MODULES = {
    "create_app": "app.app",
    "offer_of_factory": "offers.offers",
    "run_server": "program.program",
    "Settings": "core.settings",
}
__all__ = ["Settings", "create_app", "offer_of_factory", "run_server"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require()
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
