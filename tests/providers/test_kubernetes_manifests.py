"""What a cluster is told: legal by the schemas of Kubernetes, with no more rights than it needs."""

from __future__ import annotations

import json
from typing import Any

import kubernetes_validate
import pytest
from kubernetes_api import VERSION

from envweave_gym.containers.ownership import BOOT, OWNER, UNTIL, labels_of_owner
from envweave_gym.core.faults import InvalidArgument
from envweave_gym.providers.kubernetes import manifests
from envweave_gym.providers.kubernetes.leftover_pods import processes_seen, was_left_behind
from envweave_gym.providers.kubernetes.manifests import PodTemplate, label_value

FULL = PodTemplate(
    memory="2Gi",
    cpus=1.5,
    lifetime=600,
    pull_policy="Always",
    pull_secret="registry",
    node_selector={"kubernetes.io/arch": "amd64"},
)
OWNERS = [manifests.owned_by("Pod", "me", "3c0e6a5c-0000-0000-0000-000000000000")]


def documents(template: PodTemplate) -> list[dict[str, Any]]:
    marks = labels_of_owner(600)
    more: dict[str, Any] = {"labels": marks, "annotations": marks, "owners": OWNERS}
    return [
        manifests.pod("one", "image:1", template, args=["my/Env-v0"], **more),
        manifests.pod("one", "image:1", template),
        manifests.secret("one", "a-token", **more),
        manifests.deployment("many", "image:1", template, 3, token="a-token", args=["my/Env-v0"]),
        manifests.service("many"),
    ]


@pytest.mark.parametrize("version", ["1.25", VERSION])
@pytest.mark.parametrize("template", [PodTemplate(), FULL], ids=["plain", "full"])
def test_all_documents_are_legal(template: PodTemplate, version: str) -> None:
    for document in documents(template):
        assert kubernetes_validate.validate(document, version, strict=True) == version


def test_illegal_moves_are_found() -> None:
    pod = manifests.pod("one", "image:1", PodTemplate())
    pod["spec"]["containers"][0]["securityContext"]["readOnlyRoot"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, VERSION, strict=True)


def test_processes_inside_have_no_rights_but_to_serve() -> None:
    for document in documents(FULL)[0], documents(FULL)[3]["spec"]["template"]:
        spec = document["spec"]
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert spec["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
        assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/tmp"]
        assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": 8000}


def test_the_share_is_what_was_asked_for_and_no_more() -> None:
    share = {"cpu": "1500m", "memory": str(2 << 30)}
    (full,) = manifests.pod("one", "image:1", FULL)["spec"]["containers"]
    assert full["resources"] == {"requests": share, "limits": share}
    (plain,) = manifests.pod("one", "image:1", PodTemplate(memory="512m"))["spec"]["containers"]
    assert plain["resources"]["limits"] == {"memory": str(512 << 20)}
    assert plain["resources"]["requests"] == {"cpu": "100m", "memory": str(512 << 20)}


def test_a_pod_of_ones_own_ends_and_one_of_many_stays() -> None:
    own, many = documents(FULL)[0]["spec"], documents(FULL)[3]["spec"]["template"]["spec"]
    assert (own["restartPolicy"], own["activeDeadlineSeconds"]) == ("Never", 600)
    assert "restartPolicy" not in many
    assert "activeDeadlineSeconds" not in many


def test_the_token_is_in_the_secret_alone() -> None:
    for document in documents(FULL):
        assert ("a-token" in json.dumps(document)) is (document["kind"] == "Secret")


def test_another_token_is_another_template_so_that_pods_are_replaced() -> None:
    one, same, other = (
        manifests.deployment("many", "image:1", FULL, 3, token=token)["spec"]["template"]
        for token in ("a-token", "a-token", "b-token")
    )
    assert one == same
    assert one["metadata"]["annotations"] != other["metadata"]["annotations"]
    assert one["spec"] == other["spec"]


def test_a_server_of_many_that_hangs_is_restarted() -> None:
    own, many = documents(FULL)[0]["spec"], documents(FULL)[3]["spec"]["template"]["spec"]
    assert many["containers"][0]["livenessProbe"]["httpGet"] == {"path": "/health", "port": 8000}
    assert "livenessProbe" not in own["containers"][0]  # its owner looks after it


def test_the_service_leads_to_the_pods_of_its_deployment_and_each_client_to_the_same() -> None:
    *_, deployment, service = documents(FULL)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert service["spec"]["sessionAffinity"] == "ClientIP"


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("plain-1.0_x", "plain-1.0_x"),
        ("", ""),
        ("Mia's machine.local.", "Mia-s-machine.local-"),
        ("x" * 80, "x" * 50 + "-"),
        ("…", ""),
    ],
)
def test_characters_that_labels_cannot_have_are_cut(given: str, value: str) -> None:
    legal = label_value(given)
    assert legal.startswith(value)
    assert len(legal) <= 63
    assert (legal == given) is (value == given)
    pod = manifests.pod("one", "image:1", PodTemplate(), labels={"envweave.host": given})
    kubernetes_validate.validate(pod, VERSION, strict=True)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"memory": "lots"}, "memory='lots' is no size"),
        ({"memory": "512Ti"}, "memory='512Ti' is no size"),
        ({"cpus": 0}, "cpus=0 is no number of cores"),
        ({"cpus": float("nan")}, "cpus=nan is no number of cores"),
        ({"lifetime": 0}, "lifetime=0 is no number of seconds"),
        ({"lifetime": float("inf")}, "lifetime=inf is no number of seconds"),
        (
            {"pull_policy": "always"},
            "pull_policy='always' is unknown; there are 'IfNotPresent', 'Always' and 'Never'",
        ),
        ({"pull_secret": "My Secret"}, "pull_secret='My Secret' is no name"),
        ({"node_selector": ["gpu"]}, r"node_selector=\['gpu'\] is not a dict of labels"),
        ({"node_selector": {"gpu": True}}, "node_selector={'gpu': True} is no label and its value"),
    ],
)
def test_an_invalid_option_is_refused_in_one_sentence(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        PodTemplate(**wrong)


# Whose a Pod is


def test_containers_of_this_process_are_no_leftovers() -> None:
    assert not was_left_behind(labels_of_owner(600))


def test_a_visible_dead_process_leaves_its_containers_to_be_swept() -> None:
    dead = {**labels_of_owner(600), OWNER: "1-0"}
    assert was_left_behind(dead)
    assert not was_left_behind({**dead, BOOT: f"{processes_seen()}0"})  # another container of this machine


def test_containers_of_an_invisible_owner_are_swept_after_their_lease() -> None:
    elsewhere = {**labels_of_owner(), BOOT: "another"}
    assert not was_left_behind(elsewhere)
    assert was_left_behind({**elsewhere, UNTIL: "1"})
    assert not was_left_behind({})
