"""Containers hide their token, and end by themselves when their owner is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from cli_program import run
from engines import CORE, client
from servers import until

from envweave_gym.containers.container_options import ContainerOptions
from envweave_gym.containers.ownership import OWNER
from envweave_gym.containers.sweep import sweep
from envweave_gym.providers.docker import DockerReplica

__all__ = ["client"]
COUNTER = "envweave/Counter-v0"
TOLD = (
    "from envweave_gym.containers.ownership import OWNER, labels_of_owner\n"
    "print(labels_of_owner()[OWNER], flush=True)\n"
    "import time\n"
    "time.sleep(600)\n"
)
SECRETS = """
import glob, json
shown = []
for pattern in ("/proc/[0-9]*/environ", "/proc/[0-9]*/cmdline"):
    shown += [open(path, "rb").read().decode(errors="replace") for path in glob.glob(pattern)]
print(json.dumps(shown))
"""


@contextmanager
def owner(program: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """A process that has containers, and the label that they have."""
    with subprocess.Popen(
        [sys.executable, "-c", program + TOLD], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, f"{OWNER}={process.stdout.readline().strip()}"
        finally:
            process.kill()


def running(client: Any, label: str) -> list[Any]:
    filters = {"label": label, "status": "running"}
    return client.containers.list(filters=filters, ignore_removed=True)


@pytest.fixture(params=["ours", "a user's", "a script"])
def image(request: pytest.FixtureRequest, client: Any, tmp_path: Path) -> Iterator[str]:
    """An image of ours, and such as its users may have."""
    if request.param == "ours":
        yield CORE
        return
    lines = [f"FROM {CORE}", f'CMD ["{COUNTER}"]']
    if request.param == "a script":
        lines.append(f"ENTRYPOINT exec envweave serve --host 0.0.0.0 {COUNTER}")
    (tmp_path / "Dockerfile").write_text("\n".join(lines))
    tag = f"envweave-test-owner-{os.getpid()}"
    built, _ = client.images.build(path=str(tmp_path), tag=tag, rm=True)
    yield tag
    client.images.remove(built.id, force=True)


def test_neither_the_engine_nor_a_process_in_the_container_shows_the_token(client: Any, image: str) -> None:
    replica = DockerReplica(image)
    try:
        replica._container.reload()
        assert replica.token not in json.dumps(replica._container.attrs)
        code, found = replica._container.exec_run(["python", "-c", SECRETS])
        assert code == 0, found
        shown = json.loads(found)
        assert any("envweave\0serve" in one or "envweave_gym_server" in one for one in shown)
        assert not any(replica.token in one for one in shown)
        env = gym.make(COUNTER, backend=replica.url)
        env.reset(seed=1)
        env.close()
    finally:
        replica.stop()


PROGRAMS = {
    "no network": (
        f"import envweave_gym as ew\nenv = ew.make({COUNTER!r}, backend='docker', network='none')\n"
        "env.reset(seed=1)\n"
    ),
    "a warm pool": f"from envweave_gym.registry.make import warm_up\nwarm_up({COUNTER!r}, 1)\n",
    "a child that was forked": (
        f"import os, time, envweave_gym as ew\nenv = ew.make({COUNTER!r}, backend='docker')\n"
        "env.reset(seed=1)\n"
        "if os.fork() == 0:\n    os.close(1)\n    time.sleep(60)\n    os._exit(0)\n"
    ),
    "an evaluation": (
        "from envweave_gym.swebench.docker_evaluation import DockerWorkspace\n"
        "from envweave_gym.containers.engine import engine\n"
        "import os, time\n"
        f"place = DockerWorkspace(engine(), {CORE!r}, memory=1 << 28, pids=64, release=lambda: None)\n"
        "if os.fork() == 0:\n    os.close(1)\n    time.sleep(60)\n    os._exit(0)\n"
    ),
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_the_containers_of_a_killed_owner_end_by_themselves(what: str, client: Any) -> None:
    with owner(PROGRAMS[what]) as (process, label):
        assert len(running(client, label)) == 1
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        until(lambda: not running(client, label), 30)
    sweep(client)
    until(lambda: not client.containers.list(all=True, filters={"label": label}, ignore_removed=True))


def test_the_containers_of_a_fleet_end_with_the_process_that_keeps_it_up(client: Any, tmp_path: Path) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path)}
    options = ("--image", CORE, "--memory=128m", "--detach", "--name=owner")
    up = run("fleet", "up", COUNTER, *options, **state)
    assert up.returncode == 0, up.stderr
    known = json.loads((tmp_path / "envweave" / "fleets" / "owner.json").read_text())
    label = f"{OWNER}={known['pid']}-{known['began']}"
    assert len(running(client, label)) == 1
    status = json.loads(run("fleet", "status", "--name=owner", "--json", **state).stdout)
    assert status["fleets"][0]["replicas"][0]["state"] == "healthy"  # though who has typed 'up' is gone
    os.kill(known["pid"], signal.SIGKILL)
    until(lambda: not running(client, label), 30)
    run("fleet", "down", "--name=owner", **state)
    assert not client.containers.list(all=True, filters={"label": label}, ignore_removed=True)


def test_a_server_says_why_it_has_ended_and_a_heartbeat_does_it_no_harm(client: Any) -> None:
    replica = DockerReplica(CORE, ContainerOptions(memory="128m"))
    assert replica._stdin is not None
    replica.renew()
    assert replica._ended() is None
    replica._stdin.close()
    until(lambda: replica._ended() is not None, 30)
    assert "its owner is gone" in replica.logs()
    replica.stop()
