"""``envweave hub``: search, show, install, list and remove environments of the Prime Environments Hub."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from envweave_gym.cli.tables import print_json, screen_width, table

if TYPE_CHECKING:
    from envweave_gym.hubs.prime.hub_lock import HubPackage

_EPILOG = (
    "PRIME_API_BASE_URL and PRIME_API_KEY are those of the command prime. An installed environment is made with "
    "envweave_gym.make('prime://owner/name')."
)

_REMOVED = (
    "Its virtual environment is removed when it was not used for 30 days, or now by: "
    "envweave suites sweep --days 0"
)


def add_options(parser: argparse.ArgumentParser, add: Callable[..., Any]) -> None:
    """Add the subcommands to ``parser``; ``add`` creates one."""
    parser.epilog = _EPILOG
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, action: Callable[[argparse.Namespace], Any], text: str) -> argparse.ArgumentParser:
        added = add(commands, name, text)
        added.set_defaults(action=action)
        return added

    search = command("search", _search, "List environments of the hub.")
    search.add_argument("text", metavar="TEXT", nargs="?", default="", help="a part of their names")
    search.add_argument("--limit", metavar="N", type=int, default=50, help="rows at most (50)")
    _id_of(command("info", _info, "Show one environment of the hub, and its versions."))
    install = command("install", _install, "Install an environment into a virtual environment of its own.")
    _id_of(install)
    install.add_argument("--python", metavar="VERSION", help="the Python to install it for (this one)")
    listing = command("list", _list, "List the installed environments.")
    remove = command("remove", _remove, "Remove an environment from the lock file.")
    _id_of(remove)
    remove.epilog = _REMOVED
    for one in (install, listing, remove):
        one.add_argument(
            "--project",
            action="store_true",
            default=None,
            help="use envweave-hub.json in this folder, which is used anyway where it exists",
        )


def _id_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="owner/name or owner/name@version")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand, and print its result as a table or as JSON."""
    document = args.action(args)
    if args.json:
        print_json(document)
    else:
        rows = [[_printable(cell) for cell in row] for row in _rows(document)]
        print(table(rows, screen_width()))
    return 0


def _search(args: argparse.Namespace) -> list[dict[str, str]]:
    from envweave_gym.hubs.prime.prime_api import PrimeApi

    found, total = PrimeApi().search(args.text, args.limit)
    rows = [
        {
            "id": f"{one.owner.name}/{one.name}",
            "version": one.latest_version or "",
            "about": one.description or "",
        }
        for one in found
    ]
    more = total - len(rows)
    return [
        *rows,
        *([{"id": f"and {more} more", "version": "", "about": "--limit N shows more"}] if more > 0 else []),
    ]


def _info(args: argparse.Namespace) -> dict[str, str]:
    from envweave_gym.hubs.prime.hub_id import hub_id_of
    from envweave_gym.hubs.prime.hub_lock import lock_of
    from envweave_gym.hubs.prime.prime_api import PrimeApi

    api, hub_id = PrimeApi(), hub_id_of(args.id)
    details = api.details(hub_id)
    installed = lock_of().find(hub_id)
    return {
        "id": f"{details.owner.name}/{details.name}",
        "version": details.version or "",
        "about": (details.metadata.description if details.metadata else None) or "",
        "versions": ", ".join(api.versions(hub_id)),
        "installed": installed.version if installed else "no",
    }


def _install(args: argparse.Namespace) -> dict[str, str]:
    from envweave_gym.hubs.prime import hub_packages

    return _shown(hub_packages.install(args.id, python=args.python, project=args.project))


def _list(args: argparse.Namespace) -> list[dict[str, str]]:
    from envweave_gym.hubs.prime.hub_lock import lock_of

    return [_shown(one) for one in lock_of(args.project).packages()]


def _remove(args: argparse.Namespace) -> list[dict[str, str]]:
    from envweave_gym.hubs.prime import hub_packages

    return [_shown(one) for one in hub_packages.remove(args.id, project=args.project)]


def _shown(package: HubPackage) -> dict[str, str]:
    return {
        "id": f"prime://{package.hub_id}",
        "generation": package.generation,
        "python": package.python or "",
        "sha256": package.sha256,
    }


def _rows(document: Any) -> list[list[str]]:
    if isinstance(document, dict):
        return [[f"{name}:", text] for name, text in document.items()]
    heads = [[name.upper() for name in document[0]]] if document else [["nothing"]]
    return [*heads, *([str(value) for value in row.values()] for row in document)]


def _printable(text: str) -> str:
    """Replace control characters: names and descriptions are other people's texts, and terminals obey them."""
    return "".join(one if one.isprintable() else " " for one in text)
