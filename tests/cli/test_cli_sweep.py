"""What killed owners left behind is removed wherever it can be looked for, and what cannot be is said."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest
from kubernetes_api import SERVER, KubernetesApi
from kubernetes_clusters import api, here, stand_in
from kubernetes_http import Refused
from servers import until

from envweave_gym.cli import fleet as fleets
from envweave_gym.cli import main
from envweave_gym.cli.fleet_files import FleetFile, find_all
from envweave_gym.containers.ownership import OWNER, labels_of_owner
from envweave_gym.providers import docker
from envweave_gym.providers.kubernetes import manifests
from envweave_gym.providers.kubernetes.cluster_access import cluster
from envweave_gym.providers.kubernetes.manifests import PodTemplate

__all__ = ["api", "here", "stand_in"]
NO_ENGINE = (
    "envweave: containers could not be looked for: no container engine answers at unix:///nowhere.sock"
)


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine, no cluster that a test does not bring along, and no fleets but those of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    monkeypatch.setenv("KUBECONFIG", "/nowhere")


def orphan(namespace: str = "default") -> str:
    """A Pod of a process that is not there any more."""
    name = f"envweave-orphan-{secrets.token_hex(4)}"
    marks = {**labels_of_owner(600), OWNER: "1-0"}
    cluster(namespace=namespace).create_pod(
        manifests.pod(name, SERVER, PodTemplate(), labels=marks, annotations=marks)
    )
    return name


def dead(name: str, **more: Any) -> None:
    """The file of a fleet whose keeper was killed."""
    FleetFile(name=name, token_file="/x", began="1", **more).claim()


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int) -> tuple[str, list[str]]:
    assert main(list(words)) == code
    out, err = capsys.readouterr()
    return out, err.splitlines()


def test_without_an_engine_dead_fleets_are_forgotten_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    dead("old", backend="docker")
    out, (line,) = said(capsys, "doctor", "--sweep", code=1)
    assert out == "removed fleet old\n"
    assert line.startswith(NO_ENGINE)
    out, (line,) = said(capsys, "doctor", "--sweep", code=1)
    assert out == ""
    assert find_all() == ([], [])


def test_pods_of_killed_owners_are_swept_where_a_cluster_is_known(
    capsys: pytest.CaptureFixture[str], api: KubernetesApi
) -> None:
    name = orphan()
    out, (line,) = said(capsys, "doctor", "--sweep", code=1)
    assert out == f"removed pod {name}\n"
    assert line.startswith(NO_ENGINE)
    until(lambda: name not in api.names("pods"))


def test_a_pod_that_cannot_be_removed_is_said_and_the_others_are_removed(
    capsys: pytest.CaptureFixture[str], stand_in: KubernetesApi
) -> None:
    api = stand_in
    names = {orphan() for _ in range(3)}
    api.refuse("delete", "pods", Refused(403, "Forbidden", "pods is forbidden: not this one"))
    out, (_, line) = said(capsys, "doctor", "--sweep", code=1)
    removed = {word for word in out.split() if word in names}
    (kept,) = names - removed
    assert f"the Pod {kept} cannot be deleted: " in line
    assert "not this one" in line
    assert said(capsys, "doctor", "--sweep", code=1)[0] == f"removed pod {kept}\n"
    until(lambda: not names & api.names("pods"))


@pytest.mark.parametrize("words", [("status",), ("down", "--name=old")])
def test_pods_of_a_keeper_that_was_killed_are_deleted_where_they_are(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], api: KubernetesApi
) -> None:
    name = orphan("team")
    dead("old", backend="kubernetes", cluster={"namespace": "team"})
    out, err = said(capsys, "fleet", *words, "--json", code=1 if words[0] == "status" else 0)
    reported = json.loads(out)
    known = reported["fleets"][0] if words[0] == "status" else reported
    assert (known["removed"], known["unseen"], err) == ([name], [], [])
    until(lambda: name not in api.names("pods", "team"))
    assert find_all() == ([], [])


def test_containers_of_a_keeper_that_was_killed_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker, "engine", object)
    monkeypatch.setattr(docker, "names_of_ours", lambda engine: ["envweave"])
    monkeypatch.setattr(docker, "remove_unused", lambda engine: None)
    monkeypatch.setattr(docker, "sweep", lambda engine: ["one", "two"])
    dead("old", backend="docker")
    (known,) = json.loads(said(capsys, "fleet", "status", "--json", code=1)[0])["fleets"]
    assert (known["state"], known["removed"], known["unseen"]) == ("gone", ["one", "two"], [])
    assert find_all() == ([], [])


def test_a_failed_search_does_not_report_that_nothing_was_left(capsys: pytest.CaptureFixture[str]) -> None:
    dead("boxes", backend="docker")
    dead("pods", backend="kubernetes")
    for name, why in (("boxes", "no container engine answers"), ("pods", "no cluster is known")):
        out, err = said(capsys, "fleet", "down", f"--name={name}", code=0)
        assert why in out
        assert ("nothing was left behind" in out, err) == (False, [])
    assert find_all() == ([], [])


def test_a_cluster_that_is_not_there_is_said(
    capsys: pytest.CaptureFixture[str], api: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters = [{"name": "here", "cluster": {"server": "http://127.0.0.1:9"}}]
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "away", clusters=clusters)))
    _, (_, line) = said(capsys, "doctor", "--sweep", code=1)
    assert line.startswith(
        "envweave: Pods could not be looked for: the namespace default: no cluster answers at http://127.0.0.1:9"
    )


@pytest.mark.parametrize(("patience", "ends_in"), [(30.0, 1.0), (0.0, 4.0)])
def test_down_waits_for_pods_that_end_slowly_or_says_that_they_do(
    patience: float,
    ends_in: float,
    capsys: pytest.CaptureFixture[str],
    stand_in: KubernetesApi,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = stand_in
    monkeypatch.setattr(fleets, "_PODS_END_WITHIN_S", patience)
    said(capsys, "fleet", "up", "--backend=kubernetes", f"--image={SERVER}", "--detach", code=0)
    (name,) = api.names("pods")
    api.ends_in = ends_in
    out, _ = said(capsys, "fleet", "down", code=0)
    assert (name in api.names("pods")) is (name in out) is (patience == 0.0)
    until(lambda: not api.names("pods"))
