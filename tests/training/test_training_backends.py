"""The demos train wherever their environments run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from engines import client, ours

from envweave_gym.training import codefix, kuhn, lineworld

__all__ = ["client"]


@pytest.mark.parametrize("backend", ["subprocess", "ray"])
def test_lineworld_learns_the_same_policy_in_another_process(tmp_path: Path, backend: str) -> None:
    assert _metrics(tmp_path, backend=backend) == _metrics(tmp_path)


def test_lineworld_learns_the_same_policy_in_a_container_of_the_image_named(
    tmp_path: Path, client: Any
) -> None:
    there = _metrics(tmp_path, backend="docker_http", docker_image="envweave-lineworld")
    assert there == _metrics(tmp_path)
    assert ours(client) == []


def test_codefix_and_kuhn_poker_are_played_in_containers(tmp_path: Path, client: Any) -> None:
    kuhn.train(kuhn.Options(updates=2, hands=5, backend="docker", out=str(tmp_path)))
    codefix.train(codefix.Options(num_envs=4, episodes=64, evaluation=8, backend="docker", out=str(tmp_path)))
    assert ours(client) == []


def _metrics(folder: Path, **where: Any) -> list[dict[str, Any]]:
    """What every update of a short run came to, but for the time it took."""
    lineworld.train(lineworld.Options(seed=7, episodes=50, out=str(folder), run="run", **where))
    rows = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [{**json.loads(row), "seconds": 0} for row in rows]
