"""A cluster and its Pods, for the tests that need one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes_api import (
    SERVER,
    KubernetesApi,
)
from kubernetes_real import real_cluster
from servers import until

from envweave_gym.providers.kubernetes.pod import KubernetesReplica

Start = Callable[..., KubernetesReplica]


@pytest.fixture(scope="module")
def here() -> Iterator[KubernetesApi]:
    """A cluster, which is empty in the end: the stand-in, or the real one that ``ENVWEAVE_CLUSTER`` names."""
    api: Any = real_cluster() or KubernetesApi()
    yield api
    try:
        until(lambda: not api.names("pods") | api.names("secrets") | set(map(str, api.processes())))
    finally:
        api.close()
    assert [one.name for one in threading.enumerate() if "door" in one.name] == []


@pytest.fixture
def api(here: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KubernetesApi:
    """The cluster that a kubeconfig leads to."""
    monkeypatch.setenv("KUBECONFIG", str(here.kubeconfig(tmp_path / "config")))
    here.behave()
    return here


@pytest.fixture
def stand_in(api: KubernetesApi) -> KubernetesApi:
    """The cluster, for tests that change the code of the stand-in."""
    if api.is_real:
        pytest.skip("the stand-in is changed; this is a real cluster")
    return api


@pytest.fixture
def start() -> Iterator[Callable[..., KubernetesReplica]]:
    """Starts Pods, which are stopped whichever way the test ends."""
    started: list[KubernetesReplica] = []

    def start_one(*what: Any) -> KubernetesReplica:
        started.append(KubernetesReplica(SERVER, *what))
        return started[-1]

    yield start_one
    for one in started:
        one.stop()
