"""Reads the file that describes a whole run of the atlas: its suites, what they are made of, and which IDs to try.

Each suite is a table: ``[suites.minigrid]`` with ``requirements``, and perhaps ``python``, ``modules``, ``ids``,
``limit`` and ``note``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from envweave_gym.core.faults import InvalidArgument, nearest


class DescribedSuite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A suite of the file, before it is installed."""

    requirements: tuple[str, ...]
    """Requirements to install, as for pip; the IDs of all of these packages are listed."""
    python: str | None = None
    """Version of its Python, by default that of this process."""
    modules: tuple[str, ...] = ()
    """Further modules whose import registers IDs."""
    ids: tuple[str, ...] = ()
    """Patterns of IDs, by default all."""
    limit: int | None = None
    """Number of IDs to try, at equal distances in the list of all."""
    note: str = ""
    """A sentence for readers of the page."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    suites: dict[str, DescribedSuite]


def suites_in(path: Path, names: Sequence[str] = ()) -> dict[str, DescribedSuite]:
    """Return the suites of a file in its order, or those with these names."""
    try:
        found = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _File).suites
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InvalidArgument(
            f"{path} does not describe a run of the atlas: {error}; give a table such as [suites.minigrid] with "
            "requirements = ['minigrid==3.2.0']"
        ) from error
    for name in names:
        if name not in found:
            raise InvalidArgument(
                f"{path} has no suite {name!r}{nearest(name, found)}; it has {', '.join(found)}"
            )
    return {name: one for name, one in found.items() if not names or name in names}
