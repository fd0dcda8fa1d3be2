from __future__ import annotations

from collections.abc import Generator

import pytest
import torch
from random_models import random_transformer

from envweave_gym_server.tinker.models.llama import Transformer


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
