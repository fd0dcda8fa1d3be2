"""API servers that are busy, restart or refuse are waited out, and Pods that are deleted slowly are too."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import pytest
from kubernetes_api import SERVER, KubernetesApi
from kubernetes_clusters import Start, api, here, start
from kubernetes_http import Refused
from servers import until

import envweave_gym as ew
from envweave_gym.core.faults import NotAvailable
from envweave_gym.providers.kubernetes import leftover_pods as kubernetes_sweep
from envweave_gym.providers.kubernetes.cluster_access import Cluster, cluster
from envweave_gym.providers.kubernetes.manifests import PodTemplate
from envweave_gym.providers.kubernetes.pod import KubernetesReplica
from envweave_gym.providers.kubernetes.pod_diagnosis import why_deleted, why_over

__all__ = ["api", "here", "start"]
COUNTER = "envweave/Counter-v0"
BUSY = Refused(429, "TooManyRequests", "the server has received too many requests", retry_after=0)
OUT = Refused(503, "ServiceUnavailable", "etcdserver: leader changed")


def name_of(replica: KubernetesReplica) -> str:
    assert replica._name is not None
    return replica._name


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


# Starting


def test_busy_answers_and_cut_watches_are_waited_out(api: KubernetesApi, start: Start) -> None:
    api.refuse("create", "pods", BUSY, Refused(429, "TooManyRequests", "wait", retry_after=1))
    account = 'error looking up service account default/default: serviceaccount "default" not found'
    api.refuse("create", "pods", Refused(403, "Forbidden", f'pods "x" is forbidden: {account}'))
    api.refuse("create", "secrets", OUT)
    api.refuse("watch", "pods", BUSY, OUT)
    api.refuse("list", "pods", BUSY)
    api.refuse("get", "pods/portforward", OUT)
    api.cuts = 2
    began = time.monotonic()
    env = gym.make(COUNTER, backend=start().url)
    assert time.monotonic() - began >= 1.0
    assert "fault" not in env.reset(seed=1)[1]
    assert api.cuts < 0
    env.close()


def test_a_cluster_that_stays_busy_is_one_sentence_when_patience_ends(api: KubernetesApi) -> None:
    api.refuse("create", "pods", *[BUSY] * 20)
    with pytest.raises(NotAvailable, match="takes no more requests for now"):
        KubernetesReplica(SERVER, patience=0.5)


def test_where_watches_end_in_errors_the_last_one_is_said(api: KubernetesApi) -> None:
    before = api.names("pods")
    api.refuse("watch", "pods", *[OUT] * 100)
    with pytest.raises(
        NotAvailable, match=r"not serve within 1 s.*has not answered at last .*leader changed"
    ):
        KubernetesReplica(SERVER, patience=1)
    until(lambda: api.names("pods") <= before)


# Quotas


def test_a_quota_that_a_pod_takes_until_it_is_gone_is_waited_for(api: KubernetesApi, start: Start) -> None:
    until(lambda: not api.names("pods"))
    api.quota, api.ends_in = 1, 1.0
    first = gym.make(COUNTER, backend="kubernetes", image=SERVER)
    first.close()
    assert api.names("pods")
    again = start()
    assert api.names("pods") == {name_of(again)}


def test_a_quota_that_others_use_is_said_at_once(api: KubernetesApi, start: Start) -> None:
    until(lambda: not api.names("pods"))
    start()
    api.quota = 1
    with pytest.raises(NotAvailable, match="a ResourceQuota of the namespace default is used up"):
        KubernetesReplica(SERVER)


# Deleting


def test_a_pod_that_cannot_be_deleted_now_is_deleted_later(
    api: KubernetesApi, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kubernetes_sweep, "_DELETE_WITHIN_S", 0.0)
    monkeypatch.setattr(kubernetes_sweep, "_FIRST_PAUSE_S", 0.1)
    replica = start()
    name = name_of(replica)
    api.refuse("delete", "pods", BUSY, Refused(403, "Forbidden", "not now"), OUT)
    replica.stop()
    assert [name in one for one in warnings_in(caplog)] == [True]
    assert name in api.names("pods")
    until(lambda: name not in api.names("pods"))


def test_an_ending_process_waits_a_little_for_a_busy_cluster(
    api: KubernetesApi, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    replica = start()
    name = name_of(replica)
    api.refuse("delete", "pods", BUSY, OUT)
    replica.stop()
    until(lambda: name not in api.names("pods"))
    assert warnings_in(caplog) == []


# What others do to a Pod


def test_a_pod_that_is_deleted_is_reported_as_deleted(
    api: KubernetesApi, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    api.ends_in = 5.0
    replica = start()
    env = gym.make(COUNTER, backend=replica.url, reset_deadline=30.0)
    env.reset(seed=1)
    api.delete("pods", "default", name_of(replica))
    until(lambda: "terminated" in str(api.object("pods", name_of(replica))["status"]))
    fault = env.step({"delta": 1})[4]["fault"]
    assert fault.kind is ew.FaultKind.LOST
    env.reset(seed=1)
    assert "is started again: somebody has deleted it" in caplog.text
    assert "exit code" not in caplog.text
    api.ends_in = 0.0
    env.close()


def test_why_a_cluster_has_deleted_a_pod_is_said() -> None:
    drained = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "x",
    }
    for condition, says in (
        (drained, r"EvictionByEvictionAPI: x"),
        (drained | {"type": "Ready"}, "somebody"),
    ):
        status = SimpleNamespace(reason=None, conditions=[SimpleNamespace(**condition)])
        pod = SimpleNamespace(metadata=SimpleNamespace(deletion_timestamp="now"), status=status)
        assert says in str(why_over(pod, PodTemplate(), str))
    assert why_deleted(["Pulled: x", "TaintManagerEviction: Marking for deletion", "Killing: y"]) == (
        "the cluster has deleted it (TaintManagerEviction: Marking for deletion)"
    )
    assert why_deleted([]) == "somebody has deleted it"


def test_the_log_is_that_of_the_server_where_others_are_injected(api: KubernetesApi, start: Start) -> None:
    api.has_sidecars = True
    assert "http://" in start().logs()


# Outages


def test_an_outage_is_one_line_and_replaces_nothing(
    api: KubernetesApi,
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    replicas, out = [start(), start()], dead(api, tmp_path, monkeypatch)
    for replica in replicas:
        monkeypatch.setattr(replica, "_cluster", out)
        assert [replica._ended() for _ in range(3)] == [None] * 3
    (line,) = warnings_in(caplog)
    assert "does not say what has become of the Pod" in line
    replicas[0]._forward.pause()
    assert replicas[0].answers(0.2)  # whether it does cannot be known now
    monkeypatch.undo()


def test_each_outage_is_logged_once(
    api: KubernetesApi, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    replica = start()
    for _ in range(2):
        caplog.clear()
        api.refuse("get", "pods", OUT, OUT, OUT)
        assert [replica._ended() for _ in range(4)] == [None] * 4
        assert len(warnings_in(caplog)) == 1


def dead(api: KubernetesApi, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster whose API server does not answer."""
    clusters = [{"name": "here", "cluster": {"server": "http://127.0.0.1:9"}}]
    with monkeypatch.context() as patch:
        patch.setenv("KUBECONFIG", str(api.kubeconfig(folder / "dead", clusters=clusters)))
        return cluster()
