"""Tinker servers for tests, on a small base model with random weights, in this process or in one of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tinker
from flask import Flask
from random_models import CONTEXT, VOCABULARY, reference_model
from tinker import types
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from envweave_gym_server.tinker.http_server import HttpServer
from envweave_gym_server.tinker.models.base_model import load_base
from envweave_gym_server.tinker.tinker_app import create_tinker_app
from envweave_gym_server.tinker.tinker_service import ServiceOptions, TinkerService

KEY, BASE = "tml-key-of-the-tests", "envweave/random"
__all__ = ["BASE", "CONTEXT", "KEY", "VOCABULARY"]


def write_random_base(folder: Path) -> Path:
    """Write a base model of a few thousand random weights as Hugging Face files."""
    reference_model().save_pretrained(folder)
    words = {f"w{number}": number for number in range(VOCABULARY)}
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return folder


@dataclass
class Server:
    """A running server."""

    url: str
    service: TinkerService
    app: Flask

    def client(self, key: str = KEY) -> tinker.ServiceClient:
        return tinker.ServiceClient(base_url=self.url, api_key=key)

    def rest(self) -> tinker.RestClient:
        return tinker.RestClient(base_url=self.url, api_key=KEY)


@contextlib.contextmanager
def serving(base: Path, checkpoints: Path, **options: Any) -> Iterator[Server]:
    """Serve in threads of this process."""
    service = TinkerService([load_base(BASE, base)], checkpoints, ServiceOptions(**options))
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        app = create_tinker_app(service, KEY, ["127.0.0.1"])
        server = HttpServer(app, listener)
        service.start()
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield Server(f"http://127.0.0.1:{listener.getsockname()[1]}", service, app)
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
            service.close()


@dataclass
class ServerProcess:
    """A server in a process of its own."""

    url: str
    process: subprocess.Popen[str]

    def kill(self) -> None:
        """End it as a crash would."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def server_process(base: Path, checkpoints: Path, *words: str, port: int = 0) -> Iterator[ServerProcess]:
    """Run ``python -m envweave_gym_server.tinker`` until the block ends."""
    command = [sys.executable, "-m", "envweave_gym_server.tinker", f"--model={BASE}={base}", f"--port={port}"]
    command += [f"--key={KEY}", f"--checkpoints={checkpoints}", "--threads=1", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("export TINKER_BASE_URL="), line
            yield ServerProcess(line.strip().partition("=")[2], process)
        finally:
            process.kill()


@contextlib.contextmanager
def connected(server: Server | ServerProcess) -> Iterator[tinker.ServiceClient]:
    """A client of the real SDK, closed with the block."""
    client = tinker.ServiceClient(base_url=server.url, api_key=KEY)
    try:
        yield client
    finally:
        if isinstance(server, ServerProcess) and server.process.poll() is not None:
            # To close a session the SDK would look for its server for five minutes.
            client.holder.close()
        else:
            client.close("success").result(timeout=10)


def row(tokens: list[int], **inputs: Any) -> types.Datum:
    """A training row that predicts each next token; without other inputs for cross entropy."""
    targets = {"target_tokens": tokens[1:]}
    inputs = inputs or {"weights": [1.0] * len(targets["target_tokens"])}
    return types.Datum(model_input=prompt(tokens[:-1]), loss_fn_inputs={**targets, **inputs})


def prompt(tokens: list[int]) -> types.ModelInput:
    return types.ModelInput.from_ints(tokens)


def params(**options: Any) -> types.SamplingParams:
    return types.SamplingParams(**{"max_tokens": 4, "seed": 1, **options})
