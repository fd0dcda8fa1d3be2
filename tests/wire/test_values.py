"""What a reset or a step returns is a value: reading it sends nothing, on whichever backend it was played."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from engines import CORE, client
from kubernetes_api import SERVER, KubernetesApi
from kubernetes_clusters import here
from offset_vector import Offset
from remote_worlds import kill, mortal, url
from servers import running_server
from values_returned import SUBJECTS, expect_all_values, expect_values

import envweave_gym as ew
from envweave_gym.providers.subprocess import PrivateServer
from envweave_gym.remote.address import remember_token
from envweave_gym.remote.vector import RemoteVectorEnv
from envweave_gym.wire.messages import Reset, Step, read_reply
from envweave_gym.wire.values import RECORD, loads
from envweave_gym_server.environments.hosted_env import HostedEnv

__all__ = ["client", "here", "mortal", "url"]
FIX = "envweave/CodeFix-v0"
each_subject = pytest.mark.parametrize("subject", SUBJECTS)


@each_subject
def test_of_this_process(subject: str) -> None:
    expect_values("inproc", subject)


@each_subject
def test_of_a_server_of_this_process(subject: str) -> None:
    expect_values("subprocess", subject)


@each_subject
def test_of_several_servers(subject: str, url: str) -> None:
    expect_values([url, url] if "rows" in subject else url, subject)


@each_subject
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_of_a_server_somewhere(subject: str, isolation: str, servers: dict[str, str]) -> None:
    expect_values(servers[isolation], subject)


@pytest.fixture(scope="module")
def servers() -> Any:
    """A server of each isolation."""
    with running_server(isolation="thread") as one, running_server(isolation="process") as other:
        for server in (one, other):
            remember_token(server.url, server.token or "")
        yield {"thread": one.url, "process": other.url}


def test_of_a_container(client: Any) -> None:
    expect_all_values("docker", image=CORE)


def test_of_a_pod(here: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(here.kubeconfig(tmp_path / "config")))
    expect_all_values("kubernetes", image=SERVER)


def test_opening_events_of_a_vector_of_ones_own_come_with_its_replies() -> None:
    served = HostedEnv(Offset(3, autoreset_mode="SameStep"))
    messages = (Reset(1, 5), Step(2, np.array([1, 10, 1])))
    frames = [served.do(message, b"")[0] for message in messages]
    began, stepped = (read_reply(frame).info["stream"] for frame in frames)
    assert [one.events[2].data["content"] for one in began] == ["5", "6", "7"]
    assert [len(one.events) for one in stepped] == [2, 3, 2]
    assert stepped[1].events[2].data["content"] == str(stepped[1].events[0].data["seed"])


def test_a_server_that_died_is_not_started_to_read_its_infos(mortal: PrivateServer) -> None:
    env = RemoteVectorEnv(FIX, mortal.url, num_envs=3)
    infos = env.reset(seed=1)[1]
    kill(mortal)
    assert len(ew.messages_of(infos)) == 3
    env.close()
    assert mortal.pid is None


def test_reading_infos_leaves_a_step_of_another_thread_alone(url: str) -> None:
    env = RemoteVectorEnv(FIX, url, num_envs=16)
    infos, until = [env.reset(seed=1)[1]], time.monotonic() + 0.3

    def look() -> None:
        while time.monotonic() < until:
            assert infos[-1]["stream"][0].events[0].seq == 0

    reader = threading.Thread(target=look)
    reader.start()
    while reader.is_alive():
        *_, reported = env.step(np.zeros(16, np.int64))
        assert "fault" not in reported
        infos.append(env.reset()[1])
    reader.join()
    env.close()


def test_a_value_of_flags_that_has_none_of_them_stays_an_int() -> None:
    record = msgspec.msgpack.encode(["enum", "re", "RegexFlag", [None], [1 << 40]])
    assert loads(msgspec.msgpack.encode(msgspec.msgpack.Ext(RECORD, record))) == 1 << 40
    assert 1 << 40 not in re.RegexFlag._value2member_map_
