"""The server as a program: its options, and the line that prints its URL."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from envweave_gym.cli import Parser
from envweave_gym.cli.serve import add_options
from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym_server.app.app import create_app
from envweave_gym_server.core.logs import write_logs
from envweave_gym_server.core.owner_pipe import owner_descriptor, taken_over
from envweave_gym_server.core.settings import NEEDS_PROCESSES, check_setting
from envweave_gym_server.gunicorn.replicas import Replicas
from envweave_gym_server.gunicorn.server import GunicornServer
from envweave_gym_server.program.listening import hosts_of, listen, listen_at, url_of, warn
from envweave_gym_server.program.token import find_token
from envweave_gym_server.protocols.current_app import service_of

UDS = "ENVWEAVE_UDS"
"""Environment variable with the path of a Unix socket, which replaces host and port whatever an image says."""
OPTIONS = "ENVWEAVE_SERVE"
"""Environment variable with further options of the command line, for images of which only that differs."""
PORT, MOST_REPLICAS = 8000, 256
_LIMITS = (
    *("max_sessions", "max_rows", "max_environments", "largest_frame", "idle_timeout", "client_timeout"),
    *("drain", "worker_memory", "call_timeout"),
)


def run_server(
    *what: Any,
    host: str | None = None,
    port: int | None = None,
    uds: str | None = None,
    token: str | None = None,
    token_file: str | None = None,
    token_fd: int | None = None,
    allow_anonymous: bool = False,
    allow_host: Sequence[str] = (),
    protocol: Sequence[str] = (),
    replicas: int = 1,
    wire_kwargs: Mapping[str, Iterable[str]] | None = None,
    **settings: Any,
) -> None:
    """Serve ``what`` (IDs, environment classes, factories; all IDs of ours by default) until SIGTERM.

    It listens on ``host`` (127.0.0.1) and ``port`` (8000), or on a Unix socket at the path ``uds``. It has a
    token always, unless ``allow_anonymous``: the one given, or one that is made up and printed. With
    ``replicas`` several equal servers run, on ports in a row or on free ones, each in a process of its own;
    all have the same token, and all end with this process.
    ``protocol`` has the protocols of others that are served too, ``"openenv"`` and ``"mcp"``.
    ``wire_kwargs`` is what :func:`create_app` takes, and ``settings`` are fields of :class:`Settings`. ::

        from envweave_gym_server import run_server

        run_server(MyEnv, port=8000)
    """
    owner = owner_descriptor()
    if token is None and token_file is None and token_fd is None and not allow_anonymous:
        token_fd = owner
    token, is_made_up = find_token(token, file=token_file, descriptor=token_fd, anonymous=allow_anonymous)
    connection = None if owner is None else taken_over(owner)
    hosts = hosts_of(host, allow_host)
    protocols = tuple(dict.fromkeys(protocol))
    app = create_app(
        *what, token=token, hosts=hosts, protocols=protocols, wire_kwargs=wire_kwargs, **settings
    )
    listeners = _listeners(host, port, uds, replicas)
    write_logs()
    warn(host, token)
    shown_token = token if is_made_up else None
    announce = [_announcement(app, url_of(host, listener), shown_token) for listener in listeners]
    if replicas == 1:
        GunicornServer(app, listeners[0], announce[0], connection).run()
    else:
        sys.exit(Replicas(app, listeners, announce, connection).run())


def _listeners(host: str | None, port: int | None, uds: str | None, replicas: int) -> list[socket.socket]:
    """Return the listening sockets: one at a path, or one on a port for each replica."""
    if type(replicas) is not int or not 1 <= replicas <= MOST_REPLICAS:
        raise InvalidArgument(
            f"--replicas {shown(replicas)} is no number of servers; give 1 to {MOST_REPLICAS}"
        )
    if uds is not None:
        if host is not None or port is not None:
            raise InvalidArgument("--uds takes the place of --host and --port; leave them out")
        if replicas > 1:
            raise InvalidArgument("--uds is one socket, for one server; leave --replicas out")
        return [listen_at(uds)]
    first = PORT if port is None else port
    listeners: list[socket.socket] = []
    try:
        for place in range(replicas):
            listeners.append(listen(host, first and first + place))
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def main(words: Sequence[str]) -> int:
    """Serve as a command line says, and return the exit code."""
    parser = Parser(prog="envweave serve")
    parser.add_argument("--debug", action="store_true", help=argparse.SUPPRESS)
    add_options(parser)
    options: dict[str, Any]
    words = [*shlex.split(os.environ.get(OPTIONS, "")), *words]
    options = {name: value for name, value in vars(parser.parse_args(words)).items() if value is not None}
    del options["debug"]
    if there := os.environ.pop(UDS, None):
        options.update(uds=there, host=None, port=None)
    for name in options.keys() & set(_LIMITS):
        check_setting(name, options[name], f"--{name.replace('_', '-')} {options[name]}")
    for name in ("worker_memory", "call_timeout"):
        if name in options and options.get("isolation") != "process":
            flag = f"--{name.replace('_', '-')} {options[name]}"
            raise InvalidArgument(f"{flag} {NEEDS_PROCESSES} add --isolation process")
    if "default" in options and "openenv" not in options.get("protocol", ()):
        raise InvalidArgument(
            f"--default {options['default']} is what OpenEnv's clients find at the root; add --protocol openenv"
        )
    wire_kwargs = _names_by_id(options.pop("allow_kwargs", ()))
    run_server(*options.pop("ids"), wire_kwargs=wire_kwargs, **options)
    return 0


def _names_by_id(words: Iterable[str]) -> dict[str, list[str]]:
    names_by_id: dict[str, list[str]] = {}
    for word in words:
        env_id, _, names = word.partition("=")
        if not names:
            raise InvalidArgument(f"--allow-kwargs {shown(word)} is not of the form ID=name,name")
        names_by_id.setdefault(env_id, []).extend(names.split(","))
    return names_by_id


def _announcement(app: Any, url: str, token: str | None) -> Callable[[], None]:
    offers = service_of(app).offers

    def announce() -> None:
        count = len(offers)
        noun = "environment" if count == 1 else "environments"
        link = f"{url}/?token={token}" if token else f"{url}/"
        with contextlib.suppress(OSError):  # nobody reads it
            # one write: print() of an unbuffered stdout makes two, between which another replica's may come
            sys.stdout.write(f"envweave serves {count} {noun} at {link} (Ctrl-C ends it)\n")
            sys.stdout.flush()

    return announce
