"""Environments of OpenEnv's own servers, of openenv-core 0.3 and of openenv 0.10: this file runs in both venvs."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openenv", reason="OpenEnv is not installed: run make trainers")

from tls_servers import self_signed, tls_in_front_of

import envweave_gym as ew
from envweave_gym.compat.clients import (
    CodeAction,
    CodeObservation,
    CodingEnv,
    EchoAction,
    EchoEnv,
    EchoObservation,
)
from envweave_gym.compat.repl import REPLEnv
from envweave_gym.core.faults import ToolError
from envweave_gym.providers.replica import is_healthy

pytestmark = pytest.mark.trainers
PEER = Path(__file__).parents[1] / "support" / "openenv_peer.py"
START_TIMEOUT_S = 200.0


def sends_metadata() -> bool:
    """Whether its servers send metadata, which they do from 0.4 on."""
    try:
        return tuple(map(int, version("openenv").split(".")[:2])) >= (0, 4)
    except PackageNotFoundError:
        return False


@dataclass
class Peer:
    """The process of OpenEnv's servers."""

    process: subprocess.Popen[bytes]
    url: str

    def name(self, kind: str) -> str:
        """The name of one of its environments."""
        return f"{self.url.replace('http', 'openenv')}/{kind}"


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    """One process, as it takes long to start."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, str(PEER), str(listener.fileno())]
        process = subprocess.Popen(command, pass_fds=[listener.fileno()])
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_healthy(f"{url}/counter"):
            assert process.poll() is None
            assert time.monotonic() < deadline
        yield Peer(process, url)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def counter(peer: Peer) -> str:
    return peer.name("counter")


def delta(number: int) -> dict[str, Any]:
    return {"delta": np.int64(number)}


def test_an_episode(counter: str) -> None:
    with ew.make(counter) as env:
        seen, info = env.reset(seed=5, options={"start": 2})
        assert (seen["count"].tolist(), seen["text"]) == ([2], "☃☃")
        assert (info.get("seed"), info.get("note")) == ((5, "☃") if sends_metadata() else (None, None))
        seen, reward, terminated, truncated, info = env.step(delta(1))
        assert (seen["count"].tolist(), reward, terminated, truncated) == ([3], 1.0, False, False)
        state = ew.state_of(env)
        assert (state["step_count"], len(state["episode_id"])) == (1, 36)
        assert env.step(delta(3))[1:4] == (3.0, True, False)
        env.reset(seed=5)
        assert env.step(delta(1))[0]["text"] == "☃"


def test_an_episode_behind_tls(peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = self_signed(tmp_path)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate.file))
    with (
        tls_in_front_of(int(peer.url.rpartition(":")[2]), certificate) as port,
        ew.make(f"openenv+https://127.0.0.1:{port}/counter") as env,
    ):
        assert env.reset(seed=5)[0]["text"] == ""
        assert env.step(delta(5))[1:4] == (5.0, True, False)


def test_spaces(counter: str) -> None:
    with ew.make(counter) as env:
        assert repr(env.action_space) == "Dict('delta': Discrete(10))"
        assert sorted(env.observation_space) == ["count", "text"]
        env.action_space.seed(1)
        env.reset(seed=1)
        assert env.step({"delta": 0})[0] in env.observation_space


def test_crashes_and_refusals(counter: str) -> None:
    with ew.make(counter) as env:
        env.reset(seed=1)
        fault = env.step(delta(9))[4]["fault"]
        assert (fault.kind, "nine is too much" in fault.message) == ("crash", True)
        env.reset(seed=1)
        assert env.step(delta(8))[4]["fault"].kind == "crash"  # although the server calls it a wrong message
    with ew.make(counter, spaces="json") as env:
        env.reset(seed=1)
        for wrong in ({"delta": -1}, {"delta": 1, "more": 1}, {}):
            with pytest.raises(ew.InvalidAction, match="refuses the action"):
                env.step(wrong)
        assert env.step({"delta": 1})[0]["count"] == 1


def test_rows(counter: str) -> None:
    rows = ew.make(counter, num_envs=4)
    rows.reset(seed=1)
    _, rewards, terminated, _, _ = rows.step({"delta": np.array([0, 1, 4, 5])})
    assert (rewards.tolist(), terminated.tolist()) == ([0.0, 1.0, 4.0, 5.0], [False, False, False, True])
    rows.close()


def test_a_full_server_has_room_again_as_soon_as_one_is_closed(counter: str) -> None:
    envs = [ew.make(counter, reset_deadline=0) for _ in range(11)]
    assert [env.reset(seed=1)[1].get("fault") for env in envs[:10]] == [None] * 10
    assert envs[10].reset(seed=1)[1]["fault"].kind == "capacity"
    envs[0].close()
    assert "fault" not in envs[10].reset(seed=1)[1]
    for env in envs:
        env.close()


def test_an_idle_session_outlives_the_pings_of_its_server(counter: str) -> None:
    with ew.make(counter) as env:
        env.reset(seed=1)
        time.sleep(11.0)  # the server would have hung up; there is no event for what does not happen
        assert env.step(delta(1))[0]["text"] == "☃"


# Typed clients


def test_echo(peer: Peer) -> None:
    with EchoEnv(f"{peer.url}/echo") as env:
        assert env.reset(seed=1).observation == EchoObservation("Echo environment ready!", 0)
        result = env.step(EchoAction("hello"))
        assert (result.observation, result.reward, result.done) == (EchoObservation("hello", 5), 0.5, False)
        assert (env.state().step_count, len(env.state().episode_id or "")) == (1, 36)


def test_echo_with_tools(peer: Peer) -> None:
    with EchoEnv(f"{peer.url}/tools") as env:
        ready = "Echo environment ready!" if sends_metadata() else ""
        assert env.reset().observation == EchoObservation(ready, 0)
        result = env.step(EchoAction("hello"))
        assert (result.observation, result.reward) == (EchoObservation("hello", 5), None)
        with pytest.raises(ToolError, match="echo_message"):
            env.step(EchoAction("fail"))


def test_coding(peer: Peer) -> None:
    with CodingEnv(f"{peer.url}/coding") as env:
        assert env.reset().observation == CodeObservation("", "", 0)
        assert env.step(CodeAction("1 + 1")).observation == CodeObservation("2\n", "", 0)
        result = env.step(CodeAction("1/0"))
        assert (result.observation.exit_code, result.reward) == (1, 0.1)
        assert (env.state().step_count, env.state().last_exit_code) == (2, 1)


def test_the_repl(peer: Peer) -> None:
    with REPLEnv(base_url=f"{peer.url}/repl") as env:
        result = env.reset(context="Hello World", task_prompt="Count chars", hf_token="hf_s3cret")
        assert (result.observation.context_length, result.observation.context_preview) == (11, "Hello World")
        assert result.info.get("has_token") == (True if sends_metadata() else None)
        assert env.execute("count = 11").observation.result.stdout == "ran count = 11"
        assert env.list_variables() == ["context"]
        result = env.execute("FINAL(11)")
        assert (result.done, result.reward, env.state().final_answer) == (True, 1.0, "11")
        env.reset(context="")
        assert env.submit_final_answer("42").done
        assert env.state().final_answer == "42"


def test_coming_from_openenv(peer: Peer, example: Any) -> None:
    url = f"{peer.url}/counter"
    before, after = example("openenv_before", url=url), example("openenv_after", url=url)
    result = before["result"]
    assert after["observation"]["count"].tolist() == [result.observation["count"]] == [1]
    assert (after["reward"], after["terminated"]) == (result.reward, result.done) == (1.0, False)


def test_a_server_that_dies(peer: Peer, counter: str) -> None:
    """The last test, as it kills the server of all."""
    with ew.make(counter, reset_deadline=0) as env:
        env.reset(seed=1)
        env.step(delta(1))
        peer.process.kill()
        peer.process.wait()
        seen, reward, _, truncated, info = env.step(delta(1))
        assert (seen["text"], reward, truncated, info["fault"].kind) == ("☃", 0.0, True, "lost")
        assert env.reset(seed=1)[1]["fault"].kind == "lost"
