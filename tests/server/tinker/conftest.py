from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import tinker
import torch
from random_models import random_transformer
from tinker_server import Server, connected, serving, write_random_base

from envweave_gym_server.tinker.models.llama import Transformer

os.environ["TINKER_TELEMETRY"] = "0"


@pytest.fixture(autouse=True)
def _exact_arithmetic() -> Generator[None]:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)


@pytest.fixture(scope="session")
def transformer() -> Transformer:
    return random_transformer()


@pytest.fixture(scope="session")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_base(tmp_path_factory.mktemp("random-base"))


@pytest.fixture(scope="module")
def server(base_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(base_folder, tmp_path_factory.mktemp("checkpoints"), threads=1) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[tinker.ServiceClient]:
    with connected(server) as made:
        yield made
