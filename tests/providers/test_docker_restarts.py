"""A container that dies is started again at its place, or says why it cannot be."""

from __future__ import annotations

import shutil
import socket
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import requests
from engines import CORE, Folders, client, folders, ours
from hungry_worlds import EAT, END, HUNGRY
from servers import until

import envweave_gym as ew
from envweave_gym.containers.container_options import ContainerOptions
from envweave_gym.core.faults import NotAvailable
from envweave_gym.providers.docker import DockerReplica
from envweave_gym.providers.replica import is_healthy

__all__ = ["client", "folders"]
COUNTER, LINE = "envweave/Counter-v0", "envweave/LineWorld-v0"


def test_a_container_that_dies_is_a_fault_and_comes_back(client: Any) -> None:
    replica = DockerReplica(CORE)
    env = gym.make(COUNTER, backend=replica.url, reset_deadline=20.0)
    env.reset(seed=1)
    observation = env.step({"delta": 0})[0]
    replica._container.kill()
    lost, reward, terminated, truncated, info = env.step({"delta": 1})
    assert (lost, reward, terminated, truncated) == (observation, 0.0, False, True)
    assert info["fault"].kind is ew.FaultKind.LOST
    assert f"{replica.url}: the server of this session has ended: exit code 137" in info["fault"].message
    assert "fault" not in env.reset(seed=1)[1]
    assert env.step({"delta": 0})[0] == observation
    env.close()
    replica.stop()


def test_an_environment_that_takes_too_much_memory_is_reported_so(
    client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    replica = DockerReplica(CORE, ContainerOptions(memory="128m"))
    env = gym.make(COUNTER, backend=replica.url)
    env.reset(seed=1)
    bomb = ["python", "-c", "x = [bytearray(1 << 20) for _ in range(1000)]"]
    replica._container.exec_run(bomb, user="1000")
    replica._container.kill()
    lost = env.step({"delta": 1})[4]["fault"]
    why = "it took more than its memory (128m); give it more with memory="
    assert (lost.kind, f"has ended: {why}" in lost.message) == (ew.FaultKind.LOST, True)
    assert f"is started again: {why}" in caplog.text
    env.close()
    replica.stop()


def test_an_environment_that_takes_too_much_memory_is_said_so_and_one_that_ends_after_it_is_not(
    client: Any, tmp_path: Path
) -> None:
    shutil.copy(Path(__file__).parents[1] / "support" / "hungry_worlds.py", tmp_path)
    box = ContainerOptions(memory="200m", mounts={str(tmp_path): "/srv"})
    tmp_path.chmod(0o755)
    replica = DockerReplica(CORE, box, ids=[HUNGRY])
    env = ew.make(HUNGRY, backend=replica.url, call_deadline=20.0, reset_deadline=20.0)
    reported: list[str] = []
    for action in (EAT, END):
        assert "fault" not in env.reset(seed=1)[1]
        reported.append(env.step(action)[4]["fault"].message)
    assert (
        "ended with the process of this server that had it: it took more memory than there is" in reported[0]
    )
    assert "the server of this session has ended: exit code 3, and it last said" in reported[1]
    env.close()
    replica.stop()


def hang(*_: Any, **__: Any) -> None:
    raise requests.ReadTimeout("the engine hangs")


def test_an_engine_that_hangs_is_a_loss_and_not_an_error_of_a_step(
    client: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    replica = DockerReplica(CORE)
    env = gym.make(COUNTER, backend=replica.url, reset_deadline=20.0, call_deadline=2.0)
    observation = env.reset(seed=1)[0]
    replica._container.kill()
    with monkeypatch.context() as patch:
        patch.setattr(replica._container, "reload", hang)
        replica.ensure()
        assert env.step({"delta": 1})[4]["fault"].kind in (ew.FaultKind.LOST, ew.FaultKind.TIMEOUT)
    assert "the engine cannot be asked for the container of envweave-core: the engine hangs" in caplog.text
    with monkeypatch.context() as patch:
        patch.setattr(replica, "_create", hang)
        with pytest.raises(NotAvailable, match="cannot be started: the container engine does not answer"):
            replica.ensure()
    assert env.reset(seed=1)[0] == observation
    env.close()
    replica.stop()


def test_a_container_that_could_not_be_removed_is_removed_later(
    client: Any, monkeypatch: pytest.MonkeyPatch, folders: Folders
) -> None:
    replica = DockerReplica(CORE, ContainerOptions(network="none"))
    container = replica._container
    monkeypatch.setattr(container, "stop", hang)
    with monkeypatch.context() as patch:
        patch.setattr(container, "remove", hang)
        with pytest.raises(NotAvailable, match=f"^the container {container.name} cannot be removed: "):
            replica.rest()
        with pytest.raises(NotAvailable, match="cannot be removed"):
            replica.stop()
    assert folders() == set()
    assert container.id in {one.id for one in ours(client)}
    replica.stop()
    assert container.id not in {one.id for one in ours(client)}


def test_a_restart_that_fails_leaves_nothing_and_is_tried_again(client: Any) -> None:
    replica = DockerReplica(CORE)
    before = {one.id for one in ours(client)} - {replica._container.id}
    replica._container.kill()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        until(lambda: taken.bind(("127.0.0.1", int(replica.url.rpartition(":")[2]))) is None)
        taken.listen()
        with pytest.raises(NotAvailable, match=r"something else listens at 127\.0\.0\.1:\d+ by now; end"):
            replica.ensure()
        started = time.monotonic()
        with pytest.raises(NotAvailable, match="something else listens"):
            replica.ensure()
        assert time.monotonic() - started < 0.1  # it is not tried again at once
    assert {one.id for one in ours(client)} == before
    replica._patience, replica._not_before = 0.0, 0.0
    with pytest.raises(NotAvailable, match="did not serve within 0 s"):
        replica.ensure()
    with pytest.raises(OSError, match="in use"), socket.socket() as other:
        other.bind(("127.0.0.1", int(replica.url.rpartition(":")[2])))
    assert {one.id for one in ours(client)} == before
    replica._patience, replica._not_before = 60.0, 0.0
    replica.ensure()
    assert replica.starts == 2
    replica.stop()


def test_a_folder_that_is_gone_at_a_restart_is_said_so(client: Any, tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    replica = DockerReplica(CORE, ContainerOptions(mounts={str(tmp_path / "given"): "/given"}))
    replica._container.kill()
    (tmp_path / "given").rmdir()
    with pytest.raises(NotAvailable, match=r"cannot be started again: mounts=.*: there is no such path here"):
        replica.ensure()
    replica.stop()


def test_the_port_of_a_resting_server_stays_reserved(client: Any) -> None:
    replica = DockerReplica(CORE)
    place = "127.0.0.1", int(replica.url.rpartition(":")[2])
    for _ in range(2):
        replica.rest()
        with pytest.raises(OSError, match="in use"), socket.socket() as other:
            other.bind(place)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(place, 5)
        replica.ensure()
        assert is_healthy(f"http://127.0.0.1:{place[1]}")
    assert replica.starts == 3
    replica.stop()
    until(lambda: is_free(place), 30)


def is_free(place: tuple[str, int]) -> bool:
    try:
        socket.create_server(place).close()
    except OSError:
        return False
    return True
