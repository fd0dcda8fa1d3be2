"""A server in a container tries patches: of its data with the engine, synthetic ones in its sandbox."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gymnasium as gym
import msgspec
import pytest
from absent import IMAGES_COMMAND, absent
from engines import client, ours
from servers import until
from swebench_rows import NUMBERS, TEXT, TOY
from toy_images import images

from envweave_gym.containers.ownership import BOOT, OWNER
from envweave_gym.containers.sweep import sweep
from envweave_gym.os_support.process_identity import processes_seen
from envweave_gym.swebench.evaluation_semaphore import slot

__all__ = ["client", "images"]
ID, IMAGE = "envweave/SWEBenchLitePatch-v0", "envweave-swebench-patch"


@pytest.fixture(autouse=True)
def served(client: Any, images: None) -> None:
    try:
        client.images.get(IMAGE)
    except Exception:  # noqa: BLE001 - the engine says in many ways that it has no image
        absent(f"{IMAGE} is missing", IMAGES_COMMAND)


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


@pytest.fixture
def own_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slots of a test are nobody else's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)


@pytest.mark.usefixtures("own_slots")
def test_a_server_in_a_container_waits_for_evaluations_of_its_machine(client: Any) -> None:
    env = gym.make(ID, backend="docker", dataset="synthetic")
    env.reset(options={"index": 1})
    with ThreadPoolExecutor(1) as pool:
        with ExitStack() as stack:
            for _ in range(os.cpu_count() or 1):  # which is what a server allows
                stack.enter_context(slot())
            stepped = pool.submit(env.step, f"```diff\n{NUMBERS.patch}```")
            with pytest.raises(TimeoutError):
                stepped.result(3)
        _, reward, *_, info = stepped.result(60)
    assert reward == 1.0, info
    assert info["timings"]["wait"] > 1
    env.close()


CLIENT = f"""
import gymnasium as gym
from envweave_gym.containers.ownership import OWNER, labels_of_owner
from swebench_rows import TEXT, at_import
env = gym.make({ID!r}, backend="docker", data=True, docker_sock=True)
env.reset(options={{"index": 0}})
print(labels_of_owner()[OWNER], flush=True)
env.step(at_import("import time\\ntime.sleep(300)"))
"""


@pytest.mark.usefixtures("rows")
def test_a_server_and_its_evaluations_end_with_a_killed_client(client: Any) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    command = [sys.executable, "-c", CLIENT]

    def running(label: str) -> list[Any]:
        filters = {"label": label, "status": "running"}
        return client.containers.list(filters=filters, ignore_removed=True)

    def evaluating() -> set[str]:
        """The containers of the toy instance that a server in a container has started."""
        filters = {"ancestor": TEXT.image, "label": BOOT, "status": "running"}
        found = client.containers.list(filters=filters, ignore_removed=True)
        return {one.id for one in found if one.labels[BOOT] != processes_seen()}

    before = evaluating()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as player:
        assert player.stdout is not None
        label = f"{OWNER}={player.stdout.readline().strip()}"
        assert len(running(label)) == 1
        until(lambda: evaluating() - before, 60)
        mine = evaluating() - before
        player.kill()
        until(lambda: not running(label) and not evaluating() & mine, 30)
    sweep(client)
    left = {"all": True, "filters": {"label": label}, "ignore_removed": True}
    until(lambda: not client.containers.list(**left))
