"""The typed client and an image, with the real engine."""

from __future__ import annotations

from typing import Any

import pytest
from absent import IMAGES_COMMAND, absent
from engines import client, ours

from envweave_gym.compat.repl import REPLEnv

__all__ = ["client"]
IMAGE = "envweave-repl"


@pytest.fixture
def image(client: Any) -> str:
    try:
        client.images.get(IMAGE)
    except Exception:  # noqa: BLE001 - whatever it is, it cannot be played
        absent(f"{IMAGE} is missing", IMAGES_COMMAND)
    return IMAGE


def test_an_image_is_played_and_removed(client: Any, image: str):
    before = len(ours(client))
    with REPLEnv.from_docker_image(image) as env:
        env.reset(context="Hello World", task_prompt="Count chars")
        assert len(ours(client)) == before + 1
        result = env.execute("import os\ncount = len(context)\nprint(f'FINAL({count})', os.getuid())")
        assert (result.done, result.reward, env.state().final_answer) == (True, 1.0, "11")
    assert len(ours(client)) == before
