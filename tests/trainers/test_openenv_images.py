"""Each image tagged ``:openenv`` is started by OpenEnv's own client, which plays an episode in it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openenv", reason="OpenEnv is not installed: run make trainers")

from importlib.metadata import PackageNotFoundError, version

from openenv.core import GenericEnvClient

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("default"),  # those of other libraries are not ours to mend
]
MAKEFILE = Path(__file__).parents[2] / "Makefile"
MOST_STEPS = 200
Action = dict[str, Any]


def default_ids() -> dict[str, str]:
    """The ID at the root of each image, by the image's short name, as the Makefile builds them."""
    text = MAKEFILE.read_text().replace("\\\n", " ")
    found = re.search(r"^OPENENV := (.*)$", text, re.MULTILINE)
    assert found is not None
    return dict(pair.split("=") for pair in found[1].split())


ACTIONS: dict[str, tuple[Action, ...]] = {
    "envweave/Counter-v0": ({"action": {"delta": 5}},),
    "envweave/LineWorld-v0": ({"message": "right"},),
    "envweave/CodeFix-v0": ({"action": 1},),
    "envweave/Echo-v0": ({"message": "in a container"},),
    "envweave/CodeAct-v0": ({"action": "x = 20"}, {"action": "final_answer(x + 1)"}),
    "envweave/Coding-v0": ({"code": "x = 20"}, {"code": "print(x + 1)"}),
    "envweave/REPL-v0": ({"code": "x = 20"}, {"code": "print(f'FINAL({x + 1})')"}),
}
"""Actions of an episode of each ID; the last one is repeated until the episode is over."""
ENDLESS = ("envweave/Echo-v0", "envweave/Coding-v0")


def is_oldest() -> bool:
    try:
        return bool(version("openenv-core"))
    except PackageNotFoundError:
        return False


def has_image(name: str) -> bool:
    """Whether the engine has an image; with CI set it has to."""
    command = ["docker", "image", "inspect", name]
    there = (
        shutil.which("docker") and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )
    return bool(there or os.environ.get("CI"))


def containers_of(image: str) -> set[str]:
    command = ["docker", "ps", "--all", "--quiet", "--filter", f"ancestor={image}"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


@contextmanager
def removing_containers_of(image: str) -> Iterator[None]:
    """Remove new containers that OpenEnv leaves: it gives `docker stop` no more time than that gives a container."""
    before = containers_of(image)
    try:
        with suppress(subprocess.TimeoutExpired):
            yield
    finally:
        for container in containers_of(image) - before:
            subprocess.run(["docker", "rm", "--force", container], capture_output=True, check=True)


async def play(image: str, env_id: str, results: list[Any]) -> None:
    """Play an episode in a new container of an image, and append its results."""
    env = await GenericEnvClient.from_docker_image(image)
    try:
        results.append(await env.reset(seed=1))
        for action in ACTIONS[env_id]:
            results.append(await env.step(action))
        while env_id not in ENDLESS and not results[-1].done:
            assert len(results) < MOST_STEPS
            results.append(await env.step(ACTIONS[env_id][-1]))
    finally:
        await env.close()


@pytest.mark.skipif(
    is_oldest(), reason="one release starts all images; test_openenv_serving starts one by each"
)
@pytest.mark.parametrize(("name", "env_id"), default_ids().items())
def test_an_image_plays_an_episode(name: str, env_id: str) -> None:
    image = f"envweave-{name}:openenv"
    if not has_image(image):
        pytest.skip(f"there is no {image}: run make images")
    results: list[Any] = []
    with removing_containers_of(image):
        asyncio.run(play(image, env_id, results))
    seen = results[-1].observation
    match env_id:
        case "envweave/Echo-v0":
            assert seen["echoed_message"] == "in a container"
        case "envweave/Coding-v0":
            assert (seen["stdout"], seen["exit_code"]) == ("21\n", 0)
        case "envweave/REPL-v0":
            assert results[-1].reward == 1.0
            assert seen["metadata"]["final_answer"] == "21"
        case "envweave/Counter-v0":
            assert [one.reward for one in results[1:]] == [0.0, 1.0]
        case _:
            assert results[-1].done


def test_each_image_has_a_test() -> None:
    assert default_ids().keys() >= {"core", "echo", "coding", "repl"}
    assert set(default_ids().values()) <= ACTIONS.keys()
