"""The server as a program: what its options mean, and the line that says where it is."""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from envweave_gym.cli import Parser
from envweave_gym.cli.serve import add_options
from envweave_gym.faults import InvalidArgument, shown
from envweave_gym_server.access import find_token
from envweave_gym_server.app import create_app
from envweave_gym_server.logs import write_logs
from envweave_gym_server.serve import Server
from envweave_gym_server.settings import Settings
from envweave_gym_server.state import ServerState

_POSITIVE = (
    *("max_sessions", "max_rows", "largest_frame", "idle_timeout", "drain"),
    *("worker_memory", "call_timeout"),
)


def run_server(
    *what: Any,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    token_file: str | None = None,
    token_fd: int | None = None,
    allow_anonymous: bool = False,
    allow_host: Sequence[str] = (),
    **settings: Any,
) -> None:
    """Serve ``what`` (IDs, environment classes, factories; all IDs of ours by default) until SIGTERM.

    It has a token always, unless ``allow_anonymous``: the one given, or one that is made up and printed.
    ``settings`` are fields of :class:`Settings`. ::

        from envweave_gym_server import run_server

        run_server(MyEnv, port=8000)
    """
    told = False
    if token is None:
        token, told = find_token(file=token_file, descriptor=token_fd, anonymous=allow_anonymous)
    hosts = (*Settings.hosts, host.strip("[]"), *allow_host)
    if _is_wildcard(host):
        hosts = ("*",)
    app = create_app(*what, token=token, hosts=hosts, **settings)
    listener = _listen(host, port)
    write_logs()
    _warn(host, token)
    Server(app, listener, _announcement(app, _url(host, listener), token if told else None)).run()


def main(words: Sequence[str]) -> int:
    """Serve as a command line says."""
    parser = Parser(prog="envweave serve")
    parser.add_argument("--debug", action="store_true", help=argparse.SUPPRESS)
    add_options(parser)
    options = {name: value for name, value in vars(parser.parse_args(words)).items() if value is not None}
    del options["debug"]
    for name in _POSITIVE:
        if not options.get(name, 1) > 0:
            raise InvalidArgument(f"--{name.replace('_', '-')} {options[name]} is not more than 0")
    run_server(*options.pop("ids"), **options)
    return 0


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port < 1 << 16:
        raise InvalidArgument(f"port {port} is no port; give one from 1 to 65535, or 0 for a free one")
    try:
        family, *_ = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((host.strip("[]"), port), family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error).rstrip(".")
        raise InvalidArgument(
            f"{shown(host)} port {port} cannot be listened on: {reason}; choose another, or port 0"
        ) from None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _is_wildcard(host: str) -> bool:
    address = _address(host)
    return host == "" or (address is not None and address.is_unspecified)


def _warn(host: str, token: str | None) -> None:
    """Say what it means to be reached from elsewhere."""
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return
    who = "anybody who reaches it may use it" if token is None else "whoever has the token may use it"
    line = f"{host or 'every address'} is open to the network: {who}, and nothing is encrypted"
    print(f"envweave: warning: {line}; put a proxy with TLS in front", file=sys.stderr)


def _url(host: str, listener: socket.socket) -> str:
    name = "127.0.0.1" if _is_wildcard(host) else host.strip("[]")
    return f"http://{f'[{name}]' if ':' in name else name}:{listener.getsockname()[1]}"


def _announcement(app: Any, url: str, token: str | None) -> Callable[[], None]:
    state: ServerState = app.extensions["envweave"]

    def announce() -> None:
        count = len(state.offers)
        noun = "environment" if count == 1 else "environments"
        link = f"{url}/?token={token}" if token else f"{url}/"
        with contextlib.suppress(OSError):  # nobody reads it
            print(f"envweave serves {count} {noun} at {link} (Ctrl-C ends it)", flush=True)

    return announce
