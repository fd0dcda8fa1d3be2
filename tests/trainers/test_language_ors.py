"""Environments of a real server of the Open Reward Standard, made with its own SDK."""

from __future__ import annotations

import copy
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ors", reason="the SDK of the Open Reward Standard is not installed: run make trainers")

import gymnasium as gym

import envweave_gym as ew
from envweave_gym.core.faults import InvalidAction, InvalidArgument, NotAvailable

ID = "envweave/ORS-v0"
PROGRAM = Path(__file__).parents[1] / "support" / "ors_worlds.py"
pytestmark = pytest.mark.trainers


def start() -> tuple[Any, str]:
    """Start a server; return its process and its URL as soon as it answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, PROGRAM, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return process, url
        except OSError:
            assert process.poll() is None and time.monotonic() < deadline  # noqa: PT018
            time.sleep(0.05)


def stop(process: Any) -> None:
    process.kill()
    process.wait(30)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    process, where = start()
    yield where
    stop(process)


def call(name: str, **given: Any) -> dict[str, Any]:
    return {"name": name, "input": given}


def test_an_episode_has_the_rewards_of_the_tools(url: str):
    env = ew.make(ID, url=url)
    text, info = env.reset(seed=3, options={"index": 2})
    assert (text, info["index"], info["split"]) == ("What is 2 + 3?", 2, "train")
    assert [one["function"]["name"] for one in info["tools"]] == ["answer", "crash", "leave", "hint"]
    assert ew.messages_of(info) == [{"role": "user", "content": text}]
    text, reward, terminated, truncated, info = env.step(call("answer", value=4))
    assert (text, reward, terminated, truncated) == ("Wrong. " + "é" * 5000, 0.0, False, False)
    action = ew.parse_action(env, '<tool_call>{"name": "answer", "arguments": {"value": 5}}</tool_call>')
    assert env.step(action)[:3] == ("Right.", 1.0, True)
    assert env.reset(options={"index": 4})[0] == "What is 4 + 5?"
    env.close()


def test_seeds_choose_tasks_and_state_says_how_many_there_are(url: str):
    env = gym.make(ID, url=url, env="Sums", split="test")
    texts = [env.reset(seed=seed)[0] for seed in (1, 1, 2, 3, 4, 5)]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 2
    assert ew.state_of(env)["dataset"] == f"{url}/sums"
    assert ew.state_of(env)["tasks"] == 2
    env.close()


def test_an_image_is_a_part_of_the_message(url: str):
    env = ew.make(ID, url=url)
    env.reset(seed=0)
    text, reward, *_, info = env.step(call("hint"))
    assert (text, reward, info["metadata"]) == ("Look:\n[an image, image/png]", 0.0, {"cost": 1})
    [shown] = ew.messages_of(info)
    assert shown["content"][1]["image_url"]["url"].startswith("data:image/png;base64,")
    env.close()


def test_a_wrong_input_is_an_observation_and_a_wrong_tool_is_refused(url: str):
    env = ew.make(ID, url=url)
    env.reset(seed=0)
    text, reward, terminated, _, info = env.step(call("answer", value="many"))
    assert (reward, terminated, info["error"]) == (0.0, False, text)
    assert "Tool input validation error" in text
    for action in (call("guess"), {"name": "answer", "input": [1]}):
        with pytest.raises(InvalidAction, match="there are answer, crash"):
            env.step(action)
    for reply in ("hello", '{"name": "guess"}', "[1]", "null"):
        with pytest.raises(InvalidAction):
            ew.parse_action(env, reply)
    env.close()


def test_a_tool_that_raises_is_a_fault_and_no_reward(url: str):
    env = ew.make(ID, url=url, on_fault="truncate")
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step(call("crash"))
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["fault"].kind == "crash"
    assert "the tool is broken" in info["fault"].message
    assert env.reset(seed=0)[0].startswith("What is")
    env.close()


def test_a_server_that_dies_is_a_fault():
    process, where = start()
    env = ew.make(ID, url=where, on_fault="truncate", reset_deadline=0.0)
    env.reset(seed=0)
    *_, truncated, info = env.step(call("leave"))
    assert truncated
    assert info["fault"].kind == "lost"
    _, info = env.reset(seed=1)
    assert info["fault"].kind == "lost"
    env.close()
    stop(process)
    with pytest.raises(NotAvailable, match="is no ORS server that answers"):
        ew.make(ID, url=where)


def test_sessions_are_deleted(url: str):
    env = ew.make(ID, url=url)
    core = env.unwrapped
    env.reset(seed=0)
    session = core._client._session
    env.close()
    request = urllib.request.Request(f"{url}/ping", method="POST", headers={"X-Session-ID": session})
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(request, timeout=10)


def test_a_copy_has_a_session_of_its_own(url: str):
    env = ew.make(ID, url=url).unwrapped
    env.reset(seed=0)
    other = copy.deepcopy(env)
    other.reset(seed=0)
    assert other._client._session != env._client._session
    env.close()
    assert other.step(call("hint"))[0].startswith("Look")
    other.close()


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"env": "summs"}, "did you mean 'sums'"),
        ({"split": "tests"}, "there are 'train', 'test'"),
        ({"env": 3}, "env=3"),
        ({"env": "empty"}, "has no tasks"),
        ({"timeout": 0}, "timeout=0"),
        ({"token": "secret"}, "token is a reference"),
        ({"token": "env:NO_SUCH_VARIABLE"}, "leads to no secret"),
    ],
)
def test_a_wrong_argument_is_one_sentence(url: str, kwargs: dict[str, Any], words: str):
    with pytest.raises(InvalidArgument, match=words) as caught:
        ew.make(ID, url=url, **kwargs)
    assert "\n" not in str(caught.value)


def test_an_environment_that_cannot_be_set_up_says_why(url: str):
    env = ew.make(ID, url=url, env="unready", on_fault="truncate", reset_deadline=0.0)
    _, info = env.reset(seed=0)
    assert "no machine is free" in info["fault"].message
    env.close()


def test_rows_of_a_vector_have_sessions_of_their_own(url: str):
    env = ew.make(ID, num_envs=3, url=url)
    texts, _ = env.reset(seed=1)
    assert len(texts) == 3
    assert len({one.unwrapped._client._session for one in env.envs}) == 3
    env.close()


def test_the_example_of_the_docs_plays_an_episode(url: str, example: Any):
    after = example("ors_episode", url=url)
    assert after["reward"] == float("1 + 2" in after["prompt"])


def test_coming_from_the_sdk_of_ors(url: str, example: Any):
    before, after = example("ors_before", url=url), example("ors_after", url=url)
    assert after["prompt"] == "What is 1 + 2?"
    assert (
        (after["reward"], after["terminated"])
        == (before["output"].reward, before["output"].finished)
        == (1.0, True)
    )
