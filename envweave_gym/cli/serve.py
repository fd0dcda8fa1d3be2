"""``envweave serve``: starts the server, after checking that its extra is installed."""

from __future__ import annotations

import argparse
import os
import sys

from envweave_gym.core.faults import need

_EPILOG = (
    "The token comes from --token-fd, --token-file or the environment variable ENVWEAVE_TOKEN. Without any "
    "of them one is made up and printed in the URL; given a file that is not there yet, it is written there. "
    "SIGTERM lets calls under way finish; a second one ends the server at once."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the server to ``parser``."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "ids", metavar="ID", nargs="*", help="what to serve: IDs, or module:Class; without any, all of ours"
    )
    add = parser.add_argument
    add("--host", metavar="HOST", help="the address to listen on (127.0.0.1)")
    add("--port", metavar="N", type=int, help="the port; 0 takes a free one (8000)")
    add(
        "--replicas",
        metavar="N",
        type=int,
        help="number of servers, on consecutive ports (1)",
    )
    add("--uds", metavar="PATH", help="a Unix socket to listen on instead")
    add(
        "--allow-host",
        metavar="NAME",
        action="append",
        help="a Host header it accepts; '*' is any",
    )
    add(
        "--protocol",
        metavar="NAME",
        action="append",
        choices=("openenv", "mcp"),
        help="a protocol of others to serve too: openenv or mcp; may be given twice",
    )
    add(
        "--default",
        metavar="ID",
        help="the ID that OpenEnv's clients find at the root of a server with several",
    )
    add("--token-file", metavar="PATH", help="the file with the token")
    add("--token-fd", metavar="N", type=int, help="the open file whose first line is the token")
    add("--allow-anonymous", action="store_true", help="accept clients without a token")
    add(
        "--allow-kwargs",
        metavar="ID=NAMES",
        action="append",
        help="arguments and reset options that clients may give beside those of its card: ID=one,two",
    )
    add("--max-sessions", metavar="N", type=int, help="limit of open sessions (1024)")
    add("--max-rows", metavar="N", type=int, help="limit of rows of a vector (65536)")
    add("--max-environments", metavar="N", type=int, help="limit of rows of all sessions together (131072)")
    add("--largest-frame", metavar="SIZE", help="the largest frame or body, 64k to 1g (64m)")
    add("--idle-timeout", metavar="SECONDS", type=float, help="lease of a session without a connection (300)")
    add("--client-timeout", metavar="SECONDS", type=float, help="how long a send to a client may block (60)")
    add("--drain", metavar="SECONDS", type=float, help="how long calls under way may take after SIGTERM (30)")
    add("--isolation", choices=("thread", "process"), help="whether each session has a process of its own")
    add("--worker-memory", metavar="SIZE", help="memory of such a process, in bytes or like 512m (4g)")
    add(
        "--call-timeout",
        metavar="SECONDS",
        type=float,
        help="limit of a call, then its process is killed (none)",
    )


def run(args: argparse.Namespace) -> int:
    """Replace this process by the server program (``execv``)."""
    require()
    os.execv(sys.executable, [sys.executable, "-m", "envweave_gym_server", *_words(args)])


def require() -> None:
    """Raise ``MissingExtra`` if a package that the server needs is not installed."""
    for module in ("flask", "gunicorn", "prometheus_client"):
        need(module, "server", "envweave serve")


def _words(args: argparse.Namespace) -> list[str]:
    """Return the parsed options as command-line arguments, for the server program."""
    words: list[str] = []
    for name, value in vars(args).items():
        option = f"--{name.replace('_', '-')}"
        if name in ("ids", "module") or value is None or value is False:
            continue
        for one in value if isinstance(value, list) else [value]:
            words.append(option if one is True else f"{option}={one}")
    return [*words, "--", *args.ids]
