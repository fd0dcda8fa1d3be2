"""Pods: they play as others do, come back, say what is wrong, and leave nothing behind.

The client library of Kubernetes is the real one; the API server is ``kubernetes_api.py``.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from kubernetes_api import (
    CLUSTER_TOKEN,
    SERVER,
    KubernetesApi,
)
from kubernetes_clusters import Start, api, here, start
from servers import until
from tls_servers import self_signed

import envweave_gym as ew
from envweave_gym.providers.kubernetes import cluster_access as kubernetes_access
from envweave_gym.providers.kubernetes.cluster_access import cluster
from envweave_gym.providers.kubernetes.leftover_pods import sweep
from envweave_gym.providers.kubernetes.manifests import PodTemplate
from envweave_gym.providers.kubernetes.pod import KubernetesReplica

__all__ = ["api", "here", "start"]
COUNTER, LINE = "envweave/Counter-v0", "envweave/LineWorld-v0"


@pytest.fixture(scope="module")
def replica(here: KubernetesApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesReplica]:
    """One Pod that most tests share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(here.kubeconfig(tmp_path_factory.mktemp("kube") / "config")))
        replica = KubernetesReplica(SERVER, PodTemplate(memory="512m", cpus=1.5))
    yield replica
    replica.stop()


def name_of(replica: KubernetesReplica) -> str:
    assert replica._name is not None
    return replica._name


# Playing there


def test_an_episode_there_is_the_one_here(replica: KubernetesReplica) -> None:
    here, there = gym.make(LINE, length=7), gym.make(LINE, length=7, backend=replica.url)
    for env in (here, there):
        env.reset(seed=3)
    for action in (1, 1, 0, 1, 1, 1):
        one, other = here.step(action), there.step(action)
        assert one[0].tolist() == other[0].tolist()
        assert one[1:4] == other[1:4]
        assert one[4]["stream"] == other[4]["stream"]
    there.close()


def test_large_frames_come_through_whole(replica: KubernetesReplica) -> None:
    count = 20_000
    here, there = (gym.make_vec(LINE, count), gym.make_vec(LINE, count, backend=replica.url))
    for env in (here, there):
        env.reset(seed=3)
    for _ in range(3):
        one, other = (env.step(np.ones(count, np.int64)) for env in (here, there))
        assert all(np.array_equal(first, second) for first, second in zip(one[:4], other[:4], strict=True))
    there.close()


def test_many_connections_are_carried_at_once(replica: KubernetesReplica) -> None:
    envs = [gym.make(COUNTER, backend=replica.url) for _ in range(40)]
    begun = [env.reset(seed=seed)[0] for seed, env in enumerate(envs)]
    assert len(replica._forward._connections) >= 40
    assert begun == [gym.make(COUNTER).reset(seed=seed)[0] for seed in range(40)]
    assert not any(env.step({"delta": 0})[3] for env in envs)
    for env in envs:
        env.close()
    until(lambda: not replica._forward._connections)


def test_a_client_without_the_token_is_refused(replica: KubernetesReplica) -> None:
    import requests

    assert requests.get(f"{replica.url}/v1/envs", timeout=10).status_code == 401


def test_the_token_is_in_a_secret_that_its_pod_owns(api: KubernetesApi, replica: KubernetesReplica) -> None:
    name = name_of(replica)
    pod, secret = api.object("pods", name), api.object("secrets", name)
    (owner,) = secret["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", name, pod["metadata"]["uid"])
    assert replica.token not in json.dumps(pod)
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "1500m", "memory": str(512 << 20)}


def test_the_log_of_a_pod_can_be_read(replica: KubernetesReplica) -> None:
    assert "Serving" in replica.logs() or "http://" in replica.logs()


def test_a_process_that_was_forked_plays_through_the_port_of_its_owner(replica: KubernetesReplica) -> None:
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=play, args=(replica.url, theirs))
    child.start()
    assert ours.poll(30)
    assert ours.recv() == int(gym.make(COUNTER).reset(seed=7)[0]["count"])
    child.join(10)
    assert child.exitcode == 0


def play(url: str, reported: Any) -> None:
    env = gym.make(COUNTER, backend=url)
    reported.send(int(env.reset(seed=7)[0]["count"]))
    env.close()


# Coming back


def test_a_pod_that_dies_is_a_fault_and_another_takes_its_place(api: KubernetesApi, start: Start) -> None:
    replica = start()
    env = gym.make(COUNTER, backend=replica.url, reset_deadline=30.0)
    env.reset(seed=1)
    observation, first, url = env.step({"delta": 0})[0], name_of(replica), replica.url
    api.kill(first)
    lost, reward, terminated, truncated, info = env.step({"delta": 1})
    assert (lost, reward, terminated, truncated) == (observation, 0.0, False, True)
    assert info["fault"].kind is ew.FaultKind.LOST
    assert "fault" not in env.reset(seed=1)[1]
    assert env.step({"delta": 0})[0] == observation
    assert (replica.url, replica.starts) == (url, 2)
    assert name_of(replica) != first
    env.close()


def test_a_pod_that_is_said_to_run_after_its_end_is_replaced_when_it_is_not(
    api: KubernetesApi, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = start()
    env = gym.make(COUNTER, backend=replica.url, reset_deadline=30.0)
    begun = env.reset(seed=1)[0]
    monkeypatch.setattr(api, "lag", 1.0)
    api.kill(name_of(replica))
    assert env.step({"delta": 1})[4]["fault"].kind is ew.FaultKind.LOST
    again, info = env.reset(seed=1)
    assert (again, "fault" in info, replica.starts) == (begun, False, 2)
    env.close()


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("Evicted", r"its node has Evicted it \(why\); give it what it needs with memory="),
        ("DeadlineExceeded", "its lifetime of 86400 s is over; give it more with lifetime="),
        ("NodeLost", "the cluster has ended it: NodeLost why"),
    ],
)
def test_why_a_pod_is_started_again_is_said(
    reason: str, says: str, api: KubernetesApi, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    replica = start()
    api.end(name_of(replica), reason, "why")
    replica.ensure()
    assert replica.starts == 2
    assert [record for record in caplog.records if "is started again: " in record.message]
    assert re.search(says, caplog.text)


def test_a_cluster_that_does_not_say_how_a_pod_is_costs_nothing(
    api: KubernetesApi, replica: KubernetesReplica
) -> None:
    api.forbidden.add(("get", "pods"))
    env, before = gym.make(COUNTER, backend=replica.url), replica.starts
    assert "fault" not in env.reset(seed=1)[1]
    assert replica.starts == before
    env.close()


def test_one_that_is_woken_starts_in_the_cluster_that_is_named_by_then(
    api: KubernetesApi, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as ends:
        other = ends.enter_context(contextlib.closing(KubernetesApi()))
        replica = start()
        ends.callback(replica.stop)
        env = gym.make(COUNTER, backend=replica.url, reset_deadline=30.0)
        begun, first = env.reset(seed=1)[0], name_of(replica)
        replica.rest()
        until(lambda: first not in api.names("pods"))
        monkeypatch.setenv("KUBECONFIG", str(other.kubeconfig(tmp_path / "other")))
        assert env.reset(seed=1)[0] == begun
        assert other.names("pods") == {name_of(replica)}
        env.close()
        replica.stop()
        until(lambda: not other.names("pods") | other.names("secrets"))


# Leaving nothing behind


def test_stopping_leaves_nothing_behind(api: KubernetesApi, start: Start) -> None:
    replica = start()
    name, port = name_of(replica), replica._forward.port
    env = gym.make(COUNTER, backend=replica.url)
    env.reset(seed=1)
    replica.stop()
    replica.stop()
    until(lambda: name not in api.names("pods") | api.names("secrets"))
    assert [one.name for one in threading.enumerate() if str(port) in one.name] == []
    env.close()


def test_leftovers_of_a_killed_owner_are_swept(api: KubernetesApi) -> None:
    program = (
        "import time\nfrom envweave_gym.providers.kubernetes.pod import KubernetesReplica\n"
        f"print(KubernetesReplica({SERVER!r})._name, flush=True)\ntime.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    name = owner.stdout.readline().strip()
    assert name not in sweep(cluster())
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait(10)
    owner.stdout.close()
    assert sweep(cluster()) == [name]
    until(lambda: name not in api.names("pods") | api.names("secrets"))


def test_a_process_that_ends_takes_its_pods_along(api: KubernetesApi) -> None:
    program = (
        "import gymnasium as gym, envweave_gym\n"
        f"env = gym.make({COUNTER!r}, backend='kubernetes')\nprint(env.reset(seed=1)[0])"
    )
    before = api.names("pods")
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60)
    until(lambda: api.names("pods") <= before)


# backend="kubernetes"


def test_environments_share_pods_until_all_are_closed(api: KubernetesApi) -> None:
    before = api.names("pods")
    there = gym.make_vec(LINE, num_envs=6, backend="kubernetes", image=SERVER, replicas=2)
    assert len(api.names("pods") - before) == 2
    here = gym.make_vec(LINE, num_envs=6)
    for env in (here, there):
        env.reset(seed=3)
    assert np.array_equal(here.step(np.ones(6, np.int64))[0], there.step(np.ones(6, np.int64))[0])
    packed = pickle.dumps(gym.make(LINE, backend="kubernetes", image=SERVER))
    assert b"127.0.0.1" not in packed
    assert len(api.names("pods") - before) == 2
    there.close()
    until(lambda: api.names("pods") <= before)
    assert [one.name for one in threading.enumerate() if "forwarded connection" in one.name] == []


# TLS, and inside the cluster


@pytest.fixture
def safe(tmp_path: Path) -> Iterator[KubernetesApi]:
    """A cluster with TLS, and what a Pod finds of it, in a folder."""
    certificate = self_signed(tmp_path, "keyUsage=digitalSignature,keyCertSign")
    certificate.file.rename(tmp_path / "ca.crt")
    context = certificate._replace(file=tmp_path / "ca.crt").context()
    (tmp_path / "token").write_text(CLUSTER_TOKEN)
    (tmp_path / "namespace").write_text("default")
    api = KubernetesApi(tls=context)
    yield api
    api.close()
    assert not api.names("pods") | api.names("secrets")


def test_connections_are_carried_through_tls(
    safe: KubernetesApi, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters = [{"name": "here", "cluster": {"server": safe.url, "certificate-authority": "ca.crt"}}]
    monkeypatch.setenv("KUBECONFIG", str(safe.kubeconfig(tmp_path / "config", clusters=clusters)))
    replica = start()
    here, there = (gym.make_vec(LINE, 5000), gym.make_vec(LINE, 5000, backend=replica.url))
    for env in (here, there):
        env.reset(seed=3)
    for _ in range(5):
        one, other = (env.step(np.ones(5000, np.int64)) for env in (here, there))
        assert np.array_equal(one[0], other[0])
    there.close()


def test_a_process_inside_the_cluster_dials_the_pod_and_owns_it(
    safe: KubernetesApi, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kubernetes.config import incluster_config

    host, _, port = safe.url.removeprefix("https://").partition(":")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setattr(kubernetes_access, "ACCOUNT", tmp_path)
    monkeypatch.setattr("envweave_gym.providers.kubernetes.leftover_pods.ACCOUNT", tmp_path)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    first = start()
    monkeypatch.setenv("POD_NAME", name_of(first))  # as if that were the Pod that this process runs in
    replica = start()
    pod = safe.object("pods", name_of(replica))
    assert replica.direct_address() == (pod["status"]["podIP"], 8000)
    (owner,) = pod["metadata"]["ownerReferences"]
    assert owner["uid"] == safe.object("pods", name_of(first))["metadata"]["uid"]
    env = gym.make(COUNTER, backend=replica.url)
    assert "fault" not in env.reset(seed=1)[1]
    assert ("get", "pods/portforward") not in safe.asked
    env.close()
