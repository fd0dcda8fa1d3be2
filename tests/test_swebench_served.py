"""A server in a container tries patches: of its data with the engine, synthetic ones in its sandbox."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import msgspec
import pytest
from absent import absent
from engines import client, ours
from swebench_rows import NUMBERS, TOY
from toy_places import images

from envweave_gym.containers.ownership import BOOT, processes_seen

__all__ = ["client", "images"]
ID, IMAGE = "envweave/SWEBenchLitePatch-v0", "envweave-swebench-patch"


@pytest.fixture(autouse=True)
def served(client: Any, images: None) -> None:
    try:
        client.images.get(IMAGE)
    except Exception:  # noqa: BLE001 - the engine says in many ways that it has no image
        absent(f"{IMAGE} is missing: make images")


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The toy rows are the data of this machine."""
    with tempfile.TemporaryDirectory(prefix="envweave-test-data-") as folder:
        Path(folder).chmod(0o755)
        Path(folder, "swebench_lite_test.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, TOY)))
        monkeypatch.setenv("ENVWEAVE_DATA", folder)
        yield


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize(
    "where",
    [{"data": True, "docker_sock": True}, {"data": False, "dataset": "synthetic"}],
    ids=["engine", "sandbox"],
)
def test_a_server_in_a_container_tries_patches(where: dict[str, Any], client: Any) -> None:
    env = gym.make(ID, backend="docker", turns=2, **where)
    env.reset(options={"index": 1})
    assert "toolbox/" in env.step("ls")[0]
    _, reward, terminated, truncated, info = env.step(f"```diff\n{NUMBERS.patch}```")
    assert "fault" not in info
    assert (reward, terminated, truncated) == (1.0, True, False)
    env.close()
    assert ours(client) == []
    toys = client.containers.list(all=True, filters={"ancestor": NUMBERS.image}, ignore_removed=True)
    assert [one.name for one in toys if one.labels.get(BOOT) != processes_seen()] == []


@pytest.mark.usefixtures("rows")
def test_without_the_socket_an_evaluation_there_is_a_fault(client: Any) -> None:
    env = gym.make(ID, backend="docker", data=True)
    env.reset(options={"index": 1})
    _, reward, terminated, truncated, info = env.step(f"```diff\n{NUMBERS.patch}```")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert "no container engine answers" in info["fault"].message
    env.close()
