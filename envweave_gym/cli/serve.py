"""``envweave serve``: environments for other programs and other machines."""

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
    """Tell a parser what the server takes."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "ids", metavar="ID", nargs="*", help="what to serve: IDs, or module:Class; without any, all of ours"
    )
    add = parser.add_argument
    add("--host", metavar="HOST", help="the address to listen on (127.0.0.1)")
    add("--port", metavar="N", type=int, help="the port; 0 takes a free one (8000)")
    add("--replicas", metavar="N", type=int, help="so many servers, on ports in a row or on free ones (1)")
    add("--uds", metavar="PATH", help="a Unix socket to listen on instead")
    add("--allow-host", metavar="NAME", action="append", help="a name it is asked by; '*' are all")
    add("--token-file", metavar="PATH", help="the file with the token")
    add("--token-fd", metavar="N", type=int, help="the open file whose first line is the token")
    add("--allow-anonymous", action="store_true", help="let everybody in")
    add(
        "--allow-kwargs",
        metavar="ID=NAMES",
        action="append",
        help="arguments and reset options that clients may give beside those of its card: ID=one,two",
    )
    add("--max-sessions", metavar="N", type=int, help="so many sessions may be open (1024)")
    add("--max-rows", metavar="N", type=int, help="so many environments may be in a vector (65536)")
    add("--max-environments", metavar="N", type=int, help="environments in all sessions together (131072)")
    add("--largest-frame", metavar="SIZE", help="the largest frame or body, in bytes or like 512m (64m)")
    add("--idle-timeout", metavar="SECONDS", type=float, help="so long an unused session is kept (300)")
    add("--client-timeout", metavar="SECONDS", type=float, help="so long a client may be stuck (60)")
    add("--drain", metavar="SECONDS", type=float, help="so long calls may take when it is told to stop (30)")
    add("--isolation", choices=("thread", "process"), help="whether each session has a process of its own")
    add("--worker-memory", metavar="SIZE", help="memory of such a process, in bytes or like 512m (4g)")
    add("--call-timeout", metavar="SECONDS", type=float, help="so long it may take for an answer (no limit)")


def run(args: argparse.Namespace) -> int:
    """Become the server: it is another program, and takes the place of this one."""
    require()
    os.execv(sys.executable, [sys.executable, "-m", "envweave_gym_server", *_words(args)])


def require() -> None:
    """Say in one line what is not installed that the server needs."""
    for module in ("flask", "gunicorn", "wsproto", "prometheus_client"):
        need(module, "server", "envweave serve")


def _words(args: argparse.Namespace) -> list[str]:
    """The options, as they are written on a command line."""
    words: list[str] = []
    for name, value in vars(args).items():
        option = f"--{name.replace('_', '-')}"
        if name in ("ids", "module") or value is None or value is False:
            continue
        for one in value if isinstance(value, list) else [value]:
            words.append(option if one is True else f"{option}={one}")
    return [*words, "--", *args.ids]
