"""Episodes over SWE-bench are about the instance that a reset names."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
from swebench_rows import NUMBERS, TOY

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.episode.message import messages_of

IDS = ("envweave/SWEBenchLitePatch-v0", "envweave/SWEBenchLiteLocMCQ-v0")


@pytest.mark.parametrize("env_id", IDS)
def test_a_reset_may_name_its_instance(env_id: str) -> None:
    env = gym.make(env_id, dataset="synthetic")
    for one in TOY:
        _, info = env.reset(options={"instance_id": one.instance_id})
        assert info["instance_id"] == one.instance_id
    _, named = env.reset(seed=1, options={"instance_id": NUMBERS.instance_id})
    _, numbered = env.reset(seed=1, options={"index": named["index"]})
    assert messages_of(named) == messages_of(numbered)
    env.close()


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"instance_id": f"{NUMBERS.instance_id}0"}, ("none of the 'test' split", repr(NUMBERS.instance_id))),
        ({"instance_id": 3}, ("instance_id", "none of the 'test' split")),
        ({"instance_id": NUMBERS.instance_id, "index": 1}, ("instance_id=", "index=", "one of them")),
    ],
)
def test_a_name_that_is_none_is_refused(env_id: str, options: dict[str, Any], words: tuple[str, ...]) -> None:
    env = gym.make(env_id, dataset="synthetic")
    with pytest.raises(InvalidArgument) as refused:
        env.reset(options=options)
    assert all(word in str(refused.value) for word in words)
    env.close()


def test_clients_of_a_server_may_name_it_too() -> None:
    env = gym.make(IDS[0], dataset="synthetic", backend="subprocess")
    assert env.reset(options={"instance_id": NUMBERS.instance_id})[1]["instance_id"] == NUMBERS.instance_id
    env.close()
