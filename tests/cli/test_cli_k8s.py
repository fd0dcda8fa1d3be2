"""``envweave k8s manifest``: documents that ``kubectl apply -f -`` takes."""

from __future__ import annotations

import json
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_api import VERSION

from envweave_gym.cli import main

COUNTER = "envweave/Counter-v0"


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert main(["k8s", "manifest", *words]) == 0
    out = capsys.readouterr().out
    found = json.loads(out)["items"] if "--json" in words else list(yaml.safe_load_all(out))
    for document in found:
        kubernetes_validate.validate(document, VERSION, strict=True)
    return found


def test_one_pod_and_its_token(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVWEAVE_TOKEN", "token-of-mine")
    secret, pod = printed(capsys, COUNTER)
    assert (secret["kind"], pod["kind"]) == ("Secret", "Pod")
    assert secret["stringData"] == {"token": "token-of-mine"}
    assert "token-of-mine" not in json.dumps(pod)
    (container,) = pod["spec"]["containers"]
    assert (container["image"], container["args"]) == ("envweave-core", [COUNTER])
    reference = container["env"][0]["valueFrom"]["secretKeyRef"]
    assert reference == {"name": secret["metadata"]["name"], "key": "token"}


def test_each_printing_makes_up_a_token_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ENVWEAVE_TOKEN", raising=False)
    tokens = {printed(capsys, COUNTER)[0]["stringData"]["token"] for _ in range(2)}
    assert len(tokens) == 2
    assert min(map(len, tokens)) > 30


def test_the_secret_of_a_single_pod_cannot_change_and_that_of_a_deployment_may(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert printed(capsys, COUNTER)[0]["immutable"] is True
    assert "immutable" not in printed(capsys, COUNTER, "--replicas", "2")[0]


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_replicas_are_a_deployment_with_a_service(
    form: tuple[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--replicas", "3", "--name", "line", "--namespace", "team", "--memory", "512m", "--cpus", "2"]
    secret, deployment, service = printed(capsys, "envweave/LineWorld-v0", *words, *form)
    assert {one["metadata"]["name"] for one in (secret, deployment, service)} == {"line"}
    assert {one["metadata"]["namespace"] for one in (secret, deployment, service)} == {"team"}
    assert deployment["spec"]["replicas"] == 3
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "envweave-lineworld"
    assert container["resources"]["limits"] == {"cpu": "2000m", "memory": str(512 << 20)}


def test_an_image_of_ones_own_serves_what_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--image", "registry.example/mine:1", "--pull-secret", "keys", "--lifetime", "60"]
    secret, pod = printed(capsys, "my/Env-v0", *words)
    assert secret["metadata"]["name"] == pod["metadata"]["name"] == "my-env-v0"
    assert pod["spec"]["containers"][0]["image"] == "registry.example/mine:1"
    assert pod["spec"]["imagePullSecrets"] == [{"name": "keys"}]
    assert pod["spec"]["activeDeadlineSeconds"] == 60


def test_names_begin_with_a_letter_where_a_service_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--image", "mine"]
    for more in ([], ["--replicas", "2"]):
        found = printed(capsys, "2048/Board-v0", *words, *more)
        assert {one["metadata"]["name"] for one in found} == {"env-2048-board-v0"}
    assert printed(capsys, COUNTER, "--name", "8up")[0]["metadata"]["name"] == "8up"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["my/Env-v0"], "my/Env-v0 is in no image that is known; name the one that has it with --image"),
        ([COUNTER, "--replicas", "0"], "--replicas 0 is no number of Pods from 1 to 10000"),
        ([COUNTER, "--memory", "much"], "memory='much' is no size"),
        ([COUNTER, "--image", "no image"], "image='no image' names no image; give one like 'envweave-core'"),
        ([COUNTER, "--cpus", "0"], "cpus=0.0 is no number of cores"),
        (
            [COUNTER, "--name", "8up", "--replicas", "2"],
            "--name='8up' is no name of a Service; begin it with a letter",
        ),
        ([COUNTER, "--name", "No"], "--name='No' is no name"),
        ([COUNTER, "--namespace", "a b"], "--namespace='a b' is no name"),
        ([], "ID"),
    ],
)
def test_wrong_usage_is_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["k8s", "manifest", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert says in err
