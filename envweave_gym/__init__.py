"""Any agentic environment is one ``gymnasium.make`` or ``pettingzoo.make`` away.

Importing this package registers its IDs, and those of every installed plug-in, with Gymnasium and PettingZoo. Its
names are imported when they are first used. They stand once, in the stub ``__init__.pyi``, which type checkers read as
it is and this module reads as its table of lazy imports; all other names are imported from their subpackages.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Any

from envweave_gym.core.module_aliases import alias_modules, hint_at_moved_names
from envweave_gym.core.version import __version__ as __version__
from envweave_gym.registry.catalog import register_all

_STUB = (pkgutil.get_data(__name__, "__init__.pyi") or b"").decode()
_HOMES = {name: home for home, name in re.findall(r"(?m)^from (\S+) import (\w+) as \w+$", _STUB)}
__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_hint(name)}")
    home = importlib.import_module(_HOMES[name])
    is_module = hasattr(home, "__path__")  # the stub imports only modules from packages
    value = importlib.import_module(f"{home.__name__}.{name}") if is_module else getattr(home, name)
    # The next access finds the name without __getattr__.
    globals()[name] = value
    return value


def _hint(name: str) -> str:
    """Return where a former name of this module is, or an empty text."""
    from envweave_gym.core.moved_names import hint

    return hint(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# Modules under the names that older documents give them
alias_modules({f"{__name__}.{old}": f"{__name__}.compat.{old}" for old in ("clients", "envtorch", "repl")})
hint_at_moved_names(__name__, _hint)
register_all()
