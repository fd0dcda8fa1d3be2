"""Containers of OpenEnv images: one for each environment, which ends with it and with the process."""

from __future__ import annotations

import importlib
import io
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from absent import ENGINE_COMMAND, absent
from engines import CORE, ours

import envweave_gym as ew
from envweave_gym.compat.clients import TypedClient
from envweave_gym.containers.engine import engine
from envweave_gym.containers.ownership import OWNER
from envweave_gym.core.faults import NotAvailable

SERVER = Path(__file__).parents[1] / "support" / "openenv_in_image.py"
IMAGE, BROKEN = "openenv-of-the-tests:latest", "openenv-broken-of-the-tests:latest"
BASES = (CORE, "python:3.11-slim")
SAY = {"message": "x"}


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A client of the engine, which has an image with a server of OpenEnv."""
    try:
        found, errors = engine(), importlib.import_module("docker.errors")
        known = {tag.removesuffix(":latest") for image in found.images.list() for tag in image.tags}
        base = next(one for one in BASES if one in known)
    except (NotAvailable, StopIteration) as error:
        absent(str(error) or f"{CORE} is missing", ENGINE_COMMAND)
    files = {"Dockerfile": f'FROM {base}\nCOPY s.py /s.py\nENTRYPOINT ["python3"]\nCMD ["/s.py"]\n'.encode()}
    files["s.py"] = SERVER.read_bytes()
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
    context.seek(0)
    found.images.build(fileobj=context, custom_context=True, tag=IMAGE, rm=True)
    yield found
    for image in (BROKEN, IMAGE):
        with suppress(errors.NotFound):
            found.images.remove(image, force=True)


def test_an_episode_in_a_container_that_is_gone_when_it_is_closed(client: Any) -> None:
    before = {one.id for one in ours(client)}
    with ew.make(f"openenv://docker/{IMAGE}", memory="256m", env={"SIZE": "large"}) as env:
        (container,) = [one for one in ours(client) if one.id not in before]
        assert container.attrs["HostConfig"]["Memory"] == 256 << 20
        assert container.attrs["HostConfig"]["CapDrop"] == ["ALL"]
        seen, _ = env.reset(seed=1)
        assert (seen["steps"].tolist(), seen["size"]) == ([0], "large")
        assert env.step(SAY)[0]["steps"].tolist() == [1]
    assert {one.id for one in ours(client)} == before


def test_a_container_that_dies_is_a_fault_and_the_next_reset_has_another(client: Any) -> None:
    with ew.make(f"openenv://docker/{IMAGE}", reset_deadline=60) as env:
        env.reset(seed=1)
        env.step(SAY)
        assert env.step({"message": "crash"})[4]["fault"].kind == "lost"
        env.reset(seed=1)
        assert env.step(SAY)[0]["steps"].tolist() == [1]


def test_clients_notice_the_image(client: Any) -> None:
    with TypedClient[Any, Any].from_docker_image(IMAGE) as env:
        env.reset()
        assert env.step(SAY).observation["steps"] == 1


def test_a_container_ends_with_its_killed_owner(client: Any) -> None:
    code = (
        "import envweave_gym as ew, os, sys\n"
        "env = ew.make(sys.argv[1])\n"
        "env.reset(seed=1)\n"
        "print(os.getpid(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, f"openenv://docker/{IMAGE}"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    owner = process.stdout.readline().strip()

    def containers() -> list[Any]:
        found = client.containers.list(filters={"label": OWNER}, ignore_removed=True)
        return [one for one in found if one.labels[OWNER].startswith(f"{owner}-")]

    assert len(containers()) == 1
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 60
    while containers():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_what_is_wrong_is_said(client: Any) -> None:
    with pytest.raises(NotAvailable, match="docker pull no-such-image-of-openenv"):
        ew.make("openenv://docker/no-such-image-of-openenv")
    with pytest.raises(NotAvailable, match=r"docker pull registry\.hf\.space/owner-name:v2"):
        ew.make("openenv://hf/Owner/Name", tag="v2")
    for wrong, why in [
        ({"memroy": "1g"}, "memroy.*did you mean 'memory'"),
        ({"network": "none"}, "cuts its server off"),
        ({"env": {"A": 1}}, "env is a dict"),
        ({"env": {"A": "env:NOT_SET"}}, "leads nowhere"),
        ({"memory": "x"}, "OpenEnv-v0.*memory"),
    ]:
        with pytest.raises(ew.InvalidArgument, match=why):
            ew.make(f"openenv://docker/{IMAGE}", **wrong)
    with pytest.raises(NotAvailable, match=r"ended before its server answered.*nothing\.py.*port 8000"):
        ew.make(_broken(client))


def _broken(client: Any) -> str:
    """The name of an image whose program does not exist."""
    context = io.BytesIO()
    data = f'FROM {IMAGE}\nCMD ["/nothing.py"]\n'.encode()
    with tarfile.open(fileobj=context, mode="w") as tar:
        entry = tarfile.TarInfo("Dockerfile")
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
    context.seek(0)
    client.images.build(fileobj=context, custom_context=True, tag=BROKEN, rm=True)
    return f"openenv://docker/{BROKEN}"
