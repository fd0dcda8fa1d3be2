"""A package with environments is installed into an image of ours, and served from there."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines import CORE, client

import envweave_gym as ew

__all__ = ["client"]
WHEEL = "demo_counts-1.0-py3-none-any.whl"
MODULE = """
from envweave_gym.envs.toy.counter import CounterEnv

class Counts(CounterEnv):
    pass

CARDS = [{"id": "demo/Counts-v0", "doc": "A counter of somebody else's.", "gym": "demo_counts:Counts"}]
"""


def wheel(path: Path) -> None:
    """A package that declares an ID, and needs nothing that an image of ours lacks."""
    about = "demo_counts-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("demo_counts.py", MODULE)
        file.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: demo-counts\nVersion: 1.0\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/entry_points.txt", "[envweave_gym.envs]\ndemo = demo_counts:CARDS\n")
        file.writestr(f"{about}/RECORD", "")


@pytest.fixture
def image(client: Any, tmp_path: Path) -> Iterator[str]:
    """An image that was made as docs/containers.md says."""
    wheel(tmp_path / WHEEL)
    lines = [
        f"FROM {CORE}",
        f"COPY {WHEEL} /tmp/",
        "USER root",
        f"RUN pip install --no-cache-dir --no-index /tmp/{WHEEL}",
        "USER envweave",
        'CMD ["demo/Counts-v0"]',
    ]
    (tmp_path / "Dockerfile").write_text("\n".join(lines))
    tag = f"envweave-test-package-{os.getpid()}"
    built, _ = client.images.build(path=str(tmp_path), tag=tag, rm=True)
    yield tag
    client.images.remove(built.id, force=True)


def test_a_package_is_installed_with_pip_and_its_ids_are_served(image: str) -> None:
    env = ew.make(f"docker://{image}#demo/Counts-v0")
    started = env.reset(seed=1)[0]["count"]
    assert env.step({"delta": 2})[0]["count"] == started + 2
    env.close()
