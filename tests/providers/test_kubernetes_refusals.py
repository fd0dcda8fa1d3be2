"""Whatever is wrong with a cluster, a Pod or an option is one sentence, and leaves nothing running."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import gymnasium as gym
import pytest
from kubernetes_api import (
    CRASHING,
    HUNGRY,
    MISSING,
    SERVER,
    SILENT,
    KubernetesApi,
)
from kubernetes_clusters import Start, api, here, stand_in, start
from kubernetes_http import Handler, Refused
from servers import UNTIL_S, until

from envweave_gym.core.faults import InvalidArgument, MissingExtra, NotAvailable
from envweave_gym.providers.kubernetes import cluster_access as kubernetes_access
from envweave_gym.providers.kubernetes.cluster_access import cluster
from envweave_gym.providers.kubernetes.manifests import PodTemplate
from envweave_gym.providers.kubernetes.pod import KubernetesReplica

__all__ = ["api", "here", "stand_in", "start"]
COUNTER = "envweave/Counter-v0"
FORBIDDEN = 'pods "envweave-1" is forbidden: '


@contextmanager
def served(app: Any) -> Iterator[str]:
    """A web server of one page."""
    server = make_server("127.0.0.1", 0, app, handler_class=Quiet)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


class Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base class has it
        """Nobody reads it."""


@pytest.mark.parametrize(
    ("image", "given", "says"),
    [
        (
            MISSING,
            {},
            "ImagePullBackOff, its image cannot be pulled; push it .*(pull access denied for no|dial tcp)",
        ),
        (
            CRASHING,
            {},
            "ended before it served: exit code 3, and it last said: no server; its image has",
        ),
        (HUNGRY, {"memory": "64m"}, r"it took more than its memory \(64m\); give it more with memory=$"),
        (
            SERVER,
            {"memory": "100g"},
            r"within \d+ s: Unschedulable, no node takes it; ask for less .*Insufficient",
        ),
        (
            SILENT,
            {},
            r"did not serve within \d+ s: its server is not ready; is 'envweave serve' what it runs",
        ),
    ],
)
def test_a_pod_that_does_not_start_says_why(
    image: str, given: dict[str, Any], says: str, api: KubernetesApi
) -> None:
    before = api.names("pods")
    patience = api.starts_within if image in (SERVER, SILENT) else 60
    with pytest.raises(NotAvailable, match=says) as caught:
        KubernetesReplica(image, PodTemplate(**given), patience=patience)
    assert "\n" not in str(caught.value)
    # A real kubelet ends a Pod whose image it is pulling only when that has failed.
    until(lambda: api.names("pods") <= before, 240 if api.is_real else UNTIL_S)


@pytest.mark.parametrize("what", ["pods", "secrets", "pods/portforward"])
def test_rights_that_are_missing_are_named(what: str, api: KubernetesApi) -> None:
    before = api.names("pods")
    api.forbidden.add(("get" if "/" in what else "create", what))
    with pytest.raises(NotAvailable, match=rf"the cluster forbids it.*{what}.*ask for a Role in .* default"):
        KubernetesReplica(SERVER)
    until(lambda: api.names("pods") <= before)


@pytest.mark.parametrize(
    ("code", "says", "means", "do"),
    [
        (403, FORBIDDEN + "exceeded quota: q, requested: pods=1, used: pods=2", "ResourceQuota", "close"),
        (403, FORBIDDEN + "failed quota: q: must specify limits.cpu", "ResourceQuota", "give .*cpus="),
        (
            403,
            FORBIDDEN + "maximum memory usage per Container is 100Mi, but limit is 2Gi",
            "LimitRange",
            "memory=",
        ),
        (
            403,
            FORBIDDEN + "unable to validate against any pod security policy: []",
            "admission policy",
            "ask",
        ),
        (403, FORBIDDEN + 'violates PodSecurity "restricted:latest": seccomp', "admission policy", "ask"),
        (400, 'admission webhook "images.example" denied the request: no', "admission policy", "ask"),
        (
            403,
            FORBIDDEN + "unable to create new content in namespace default because it is being terminated",
            "is being deleted",
            "namespace=",
        ),
        (403, 'pods is forbidden: User "me" cannot create resource "pods"', "a right is missing", "Role"),
        (403, FORBIDDEN + "something new", r"something new", "ask who runs it"),
    ],
)
def test_a_refusal_says_what_it_is(code: int, says: str, means: str, do: str, api: KubernetesApi) -> None:
    api.refuse("create", "pods", Refused(code, "Forbidden", says))
    with pytest.raises(NotAvailable, match=rf"{means}.*{do}") as caught:
        KubernetesReplica(SERVER)
    assert "\n" not in str(caught.value)
    assert ("ask for a Role" in str(caught.value)) is ("cannot create" in says)


def test_a_namespace_that_ends_or_is_forbidden_is_an_error_that_names_it(api: KubernetesApi) -> None:
    api.terminating.add("default")
    with pytest.raises(NotAvailable, match="the namespace default is being deleted"):
        KubernetesReplica(SERVER)
    api.is_for_roles_only = True
    with pytest.raises(NotAvailable, match=r"namespace nowhere .* if there is no such namespace"):
        KubernetesReplica(SERVER, namespace="nowhere")


def test_a_port_that_the_cluster_does_not_forward_is_one_sentence_in_time(
    stand_in: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, over = stand_in, threading.Event()
    before = api.names("pods")
    monkeypatch.setattr(Handler, "_forward", lambda *_: over.wait(60))
    monkeypatch.setattr(kubernetes_access, "_HANDSHAKE_TIMEOUT_S", 0.5)
    try:
        with pytest.raises(
            NotAvailable, match=r"reached .* has not forwarded its port within 0.5 s; see whet"
        ):
            KubernetesReplica(SERVER)
    finally:
        over.set()
    until(lambda: api.names("pods") <= before)


def test_a_cluster_that_accepts_and_says_nothing_is_given_up(
    here: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_access, "_HANDSHAKE_TIMEOUT_S", 0.3)
    for scheme in ("http", "https"):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}"
            clusters = [{"name": "here", "cluster": {"server": url, "insecure-skip-tls-verify": True}}]
            monkeypatch.setenv("KUBECONFIG", str(here.kubeconfig(tmp_path / scheme, clusters=clusters)))
            began = time.monotonic()
            with pytest.raises(TimeoutError, match=r"has not forwarded its port within 0.3 s"):
                cluster().forwarded("pod", 8000)
            assert time.monotonic() - began < 5


@pytest.mark.parametrize("code", [500, 504])
def test_a_pod_that_was_created_although_the_answer_is_an_error_is_deleted(
    code: int, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, create, made = api.names("pods"), api.create, []

    def refuse(resource: str, namespace: str, body: dict[str, Any]) -> Any:
        made.append(create(resource, namespace, body))
        raise Refused(code, "Timeout", "the request timed out")

    monkeypatch.setattr(api, "create", refuse)
    with pytest.raises(NotAvailable, match="says: the request timed out"):
        KubernetesReplica(SERVER)
    assert [one["kind"] for one in made] == ["Pod"]
    until(lambda: api.names("pods") <= before)


def test_a_namespace_that_is_not_there_is_named(stand_in: KubernetesApi) -> None:
    with pytest.raises(NotAvailable, match="has no namespace nowhere; create it with 'kubectl create namesp"):
        KubernetesReplica(SERVER, namespace="nowhere")


def test_a_context_has_its_namespace_and_another_is_refused(api: KubernetesApi) -> None:
    assert [cluster(**one).namespace for one in ({}, {"context": "team"}, {"namespace": "own"})] == [
        *("default", "team", "own")
    ]
    with pytest.raises(
        InvalidArgument, match=r"context='tam' is not in .*\(did you mean 'team'\?\); there are"
    ):
        KubernetesReplica(SERVER, context="tam")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1, 2]",
        "just words",
        "contexts: 3",
        '{"current-context": "x", "contexts": [], "clusters": []}',
    ],
)
def test_a_kubeconfig_that_is_none_is_one_sentence(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(NotAvailable, match=r"^the kubeconfig /.*/config cannot be used: .* shows it$"):
        KubernetesReplica(SERVER)


def test_without_a_kubeconfig_no_cluster_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(NotAvailable, match=r"^no cluster is known: there is no kubeconfig at .*/none"):
        KubernetesReplica(SERVER)


def test_a_server_that_is_no_url_is_one_sentence(
    here: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters = [{"name": "here", "cluster": {"server": "somewhere:6443"}}]
    monkeypatch.setenv("KUBECONFIG", str(here.kubeconfig(tmp_path / "config", clusters=clusters)))
    with pytest.raises(NotAvailable, match="cannot be used: its server is 'somewhere:6443', which is no URL"):
        KubernetesReplica(SERVER)


def test_a_server_that_is_no_cluster_is_an_error_that_says_so(
    here: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(environ: Any, begin: Any) -> list[bytes]:
        begin("200 OK", [("Content-Type", "text/html")])
        return [b"<html>a page</html>"]

    with served(answer) as url:
        clusters = [{"name": "here", "cluster": {"server": url}}]
        monkeypatch.setenv("KUBECONFIG", str(here.kubeconfig(tmp_path / "config", clusters=clusters)))
        with pytest.raises(NotAvailable, match=f"what answers at {url} is no Kubernetes.*KUBECONFIG"):
            KubernetesReplica(SERVER)


def test_a_cluster_that_ends_every_watch_at_once_is_not_asked_without_a_pause(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "watched", lambda *_: iter(()))
    before = api.asked.count(("watch", "pods"))
    with pytest.raises(NotAvailable, match="cluster reports no state"):
        KubernetesReplica(SERVER, patience=3.0)
    assert 2 <= api.asked.count(("watch", "pods")) - before <= 31


def test_a_pod_that_is_waited_for_in_vain_may_be_stopped_by_another_thread(
    api: KubernetesApi, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = start()
    replica.rest()
    monkeypatch.setattr(api, "watched", lambda *_: iter(()))
    before = api.asked.count(("watch", "pods"))
    with ThreadPoolExecutor() as threads:
        started = threads.submit(replica.ensure)
        until(lambda: api.asked.count(("watch", "pods")) > before)
        replica.stop()
        with pytest.raises(NotAvailable, match="ended before it served: it was stopped meanwhile"):
            started.result(10)


def test_a_cluster_that_is_not_there_is_one_sentence(
    here: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters = [{"name": "here", "cluster": {"server": "http://127.0.0.1:9"}}]
    monkeypatch.setenv("KUBECONFIG", str(here.kubeconfig(tmp_path / "config", clusters=clusters)))
    with pytest.raises(NotAvailable, match=r"no cluster answers at http://127.0.0.1:9; see whether 'kubectl"):
        KubernetesReplica(SERVER)


def test_the_error_without_credentials_says_to_log_in(
    here: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = [{"name": "me", "user": {"token": "old"}}]
    monkeypatch.setenv("KUBECONFIG", str(here.kubeconfig(tmp_path / "config", users=users)))
    with pytest.raises(NotAvailable, match="log in"):
        KubernetesReplica(SERVER)


def test_without_the_client_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(MissingExtra, match=r"^backend='kubernetes' needs kubernetes, .*envweave-gym\[kuber"):
        KubernetesReplica(SERVER)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"replicas": 0}, f"{COUNTER}: replicas=0 is no number"),
        ({"memory": "much"}, f"{COUNTER}: memory='much' is no size"),
        ({"namespace": "No"}, f"{COUNTER}: namespace='No' is no name"),
        ({"context": 3}, f"{COUNTER}: context=3 is not the name of a context"),
        ({"patience": 0}, f"{COUNTER}: patience=0 is no number of seconds above 0"),
        ({"image": 3}, f"{COUNTER} has image=3; name the image whose server has it"),
    ],
)
def test_options_that_are_none_are_refused(given: dict[str, Any], sentence: str, api: KubernetesApi) -> None:
    before = api.names("pods")
    with pytest.raises(InvalidArgument, match=sentence):
        gym.make(COUNTER, backend="kubernetes", **given)
    assert api.names("pods") <= before
