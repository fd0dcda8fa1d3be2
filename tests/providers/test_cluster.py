"""What only a real cluster shows; ``make cluster-test`` starts one."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import psutil
import pytest
import requests
from absent import no_cluster
from kubernetes_api import SERVER
from kubernetes_clusters import Start, start
from kubernetes_real import RealCluster, real_cluster
from servers import until

import envweave_gym as ew
from envweave_gym.cli import main
from envweave_gym.core.faults import NotAvailable
from envweave_gym.providers.kubernetes.cluster_access import cluster
from envweave_gym.providers.kubernetes.manifests import PodTemplate
from envweave_gym.providers.kubernetes.pod import KubernetesReplica
from envweave_gym.providers.kubernetes.port_forward import PortForward, Tunnel

__all__ = ["start"]
COUNTER, LINE = "envweave/Counter-v0", "envweave/LineWorld-v0"


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealCluster]:
    """The cluster, without anything of ours before and after each test."""
    found = real_cluster()
    if found is None:
        no_cluster()
    until(lambda: not found.names("pods"))
    monkeypatch.setenv("KUBECONFIG", str(found.kubeconfig(tmp_path / "config")))
    yield found
    until(lambda: not found.names("pods") | found.names("secrets"))


def apply(real: RealCluster, kind: str, spec: dict[str, Any], namespace: str = "default") -> None:
    document = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "one"}, "spec": spec}
    real.kubectl("apply", "--namespace", namespace, "--filename", "-", given=json.dumps(document))


def test_a_quota_of_one_pod_is_enough_for_one_after_the_other(real: RealCluster) -> None:
    apply(real, "ResourceQuota", {"hard": {"pods": "1"}})
    try:
        for _ in range(2):
            env = gym.make(COUNTER, backend="kubernetes", image=SERVER)
            env.reset(seed=1)
            env.close()
        env = gym.make(COUNTER, backend="kubernetes", image=SERVER)
        with pytest.raises(NotAvailable, match="a ResourceQuota of the namespace default is used up"):
            KubernetesReplica(SERVER, PodTemplate(memory="1g"))
        env.close()
    finally:
        real.kubectl("delete", "resourcequota", "one")


def test_a_limit_range_and_a_namespace_that_ends_are_said(real: RealCluster) -> None:
    apply(real, "LimitRange", {"limits": [{"type": "Container", "max": {"memory": "100Mi"}}]}, "team")
    try:
        with pytest.raises(
            NotAvailable, match="a LimitRange of the namespace team does not allow this share"
        ):
            KubernetesReplica(SERVER, PodTemplate(memory="1g"), namespace="team")
    finally:
        real.kubectl("delete", "limitrange", "one", "--namespace", "team")
    with pytest.raises(NotAvailable, match=r"a right is missing .* if there is no such namespace"):
        KubernetesReplica(SERVER, namespace="nowhere")


def test_a_pod_that_is_deleted_is_reported_as_deleted(
    real: RealCluster, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    replica = start()
    env = gym.make(COUNTER, backend=replica.url, reset_deadline=60.0)
    env.reset(seed=1)
    real.kubectl("delete", "pods", "--all", "--wait=false")
    until(lambda: "fault" in env.step({"delta": 0})[4])
    assert "fault" not in env.reset(seed=1)[1]
    assert "is started again: somebody has deleted it" in caplog.text
    env.close()


# Python 3.11.7 does not close a socket that is reset before TLS begins (python/cpython#113280). urllib3 keeps
# the error in a cycle with it, so this test collects it before another test does.
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
def test_an_outage_of_the_api_server_costs_no_step_and_one_line(
    real: RealCluster, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    replica = start()
    here, there = gym.make(LINE, length=100), gym.make(LINE, length=100, backend=replica.url)
    assert here.reset(seed=1)[0].tolist() == there.reset(seed=1)[0].tolist()
    for step in range(40):
        if step in (10, 25):
            for process in psutil.process_iter(["name"]):
                if process.info["name"] == "kube-apiserver":
                    os.kill(process.pid, signal.SIGKILL)
        observation, _, is_over, _, info = there.step(step % 2)
        assert "fault" not in info
        assert observation.tolist() == here.step(step % 2)[0].tolist()
        if is_over:
            assert here.reset()[0].tolist() == there.reset()[0].tolist()
        assert replica._ended() is None
        time.sleep(0.1)
    lines = [one.name.rpartition(".")[2] for one in caplog.records if one.levelname == "WARNING"]
    assert 1 <= lines.count("cluster_access") <= 2  # of each outage one, and one of who waits for it
    assert set(lines) <= {"cluster_access", "session"}
    there.close()
    until(real.is_ready)
    gc.collect()


def test_a_fleet_that_is_applied_again_with_another_token_takes_it(
    real: RealCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = cluster()
    try:
        for token in ("token-number-1", "token-number-2"):
            monkeypatch.setenv("ENVWEAVE_TOKEN", token)
            assert main(["k8s", "manifest", COUNTER, "--replicas", "2", "--name", "many"]) == 0
            real.kubectl("apply", "--filename", "-", given=capsys.readouterr().out)
            real.kubectl("rollout", "status", "deployment/many", "--timeout", "100s")
            alive = [one for one in real.listed("pods") if "deletionTimestamp" not in one["metadata"]]
            assert len(alive) == 2
            for pod in alive:
                name = pod["metadata"]["name"]
                forward = PortForward(lambda name=name: Tunnel(where.forwarded(name, 8000)))
                forward.open()
                headers = {"Authorization": f"Bearer {token}"}
                url = f"http://127.0.0.1:{forward.port}/v1/envs"
                assert requests.get(url, headers=headers, timeout=10).status_code == 200
                forward.close()
    finally:
        real.kubectl("delete", "deployment,service,secret", "many", "--ignore-not-found")


def test_fleet_down_returns_when_the_pods_are_gone(
    real: RealCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    words = ["--backend=kubernetes", f"--image={SERVER}", "--replicas=2", "--memory=512m", "--detach"]
    assert main(["fleet", "up", *words]) == 0
    assert len(real.names("pods")) == 2
    assert main(["fleet", "down"]) == 0
    assert real.names("pods") == set()
    assert "still being deleted" not in capsys.readouterr().out


def test_rows_over_pods_play_as_they_do_here(real: RealCluster) -> None:
    here = ew.make(LINE, num_envs=64)
    options: dict[str, Any] = {"backend": "kubernetes", "image": SERVER, "memory": "512m", "replicas": 3}
    there = ew.make(LINE, num_envs=64, **options)
    assert here.reset(seed=3)[0].tolist() == there.reset(seed=3)[0].tolist()
    for _ in range(20):
        actions = here.action_space.sample()
        assert here.step(actions)[0].tolist() == there.step(actions)[0].tolist()
    there.close()
