"""``envweave list``: the table of IDs, read without importing any environment."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from typing import Any

from envweave_gym.cli.tables import print_json, screen_width, table
from envweave_gym.registry.catalog import EnvCard, cards


def run(args: argparse.Namespace) -> int:
    """Print a table (or JSON) of the IDs of this package and of every installed plug-in."""
    known = [card for _, card in sorted(cards().items())]
    if args.json:
        print_json([_document(card) for card in known])
    elif args.ids:
        print("\n".join(card.id for card in known))
    else:
        rows = [(card.id, _kind(card), _extra(card), card.doc) for card in known]
        print(table([("ID", "KIND", "EXTRA", "WHAT IT IS"), *rows], screen_width()))
    return 0


def _document(card: EnvCard) -> dict[str, Any]:
    return {
        "id": card.id,
        "kinds": list(card.kinds),
        "native_vector": card.vector is not None,
        "extra": card.extra,
        "missing": _missing(card),
        "doc": card.doc,
    }


def _kind(card: EnvCard) -> str:
    return ", ".join((*card.kinds, "vector") if card.vector else card.kinds)


def _extra(card: EnvCard) -> str:
    if card.extra is None:
        return "-"
    return f"{card.extra} (missing)" if _missing(card) else card.extra


def _missing(card: EnvCard) -> list[str]:
    """Return the modules that an ID needs and that are not installed."""
    return [module for module in card.requires if find_spec(module.partition(".")[0]) is None]
