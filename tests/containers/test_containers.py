"""What a container may do, and whose it is; no engine is needed for either."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from envweave_gym.containers import sweep
from envweave_gym.containers.container_options import ContainerOptions
from envweave_gym.containers.endpoints import SOCKET_FOLDERS
from envweave_gym.containers.engine import engine, engine_errors, is_ours
from envweave_gym.containers.ownership import BOOT, HOST, OWNER, UNTIL, is_left_behind, labels_of_owner
from envweave_gym.core.faults import InvalidArgument, NotAvailable
from envweave_gym.os_support import process_identity
from envweave_gym.os_support.owned_folders import remove_left_behind


def test_a_box_has_no_way_out_and_its_share_of_the_machine() -> None:
    given = ContainerOptions(memory="64m", cpus=0.5, pids=7).arguments("closed")
    assert (given["mem_limit"], given["memswap_limit"]) == (64 << 20, 64 << 20)
    assert (given["nano_cpus"], given["pids_limit"]) == (500_000_000, 7)
    assert given["network"] == "closed"
    assert given["read_only"] is True
    assert given["cap_drop"] == ["ALL"]
    assert given["security_opt"] == ["no-new-privileges:true"]
    assert given["volumes"] == {}


def test_ways_out_are_opened_one_by_one(tmp_path: Path) -> None:
    assert ContainerOptions(network=True).arguments("closed")["network"] == "bridge"
    mounts = {str(tmp_path): "/data", "/tmp": "/work:rw"}
    assert ContainerOptions(mounts=mounts).arguments("closed")["volumes"] == {
        str(tmp_path): {"bind": "/data", "mode": "ro"},
        "/tmp": {"bind": "/work", "mode": "rw"},
    }


@pytest.mark.parametrize("memory", [6 << 20, "6m", "6144k", "6291456", "6291456b", "6M"])
def test_memory_is_bytes_or_text_with_a_unit(memory: Any) -> None:
    assert ContainerOptions(memory=memory).arguments("closed")["mem_limit"] == 6 << 20


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"memory": "lots"}, "memory='lots' is no size; give bytes, or text like '512m' or '2g', from '6m'"),
        ({"memory": "1m"}, "memory='1m' is no size"),
        ({"memory": True}, "memory=True is no size"),
        ({"memory": -5}, "memory=-5 is no size"),
        ({"cpus": 0}, "cpus=0 is no number of cores"),
        ({"cpus": 0.001}, "cpus=0.001 is no number of cores; give one from 0.01, like 1.5"),
        ({"cpus": float("nan")}, "cpus=nan is no number of cores"),
        ({"pids": 0}, "pids=0 is no number of processes"),
        ({"network": "yes"}, "network='yes' is not True, False or 'none'"),
        ({"docker_sock": 1}, "docker_sock=1 is not True or False"),
        ({"mounts": ["/tmp"]}, r"mounts=\['/tmp'\] is not a dict"),
        ({"mounts": {"here": "/there"}}, "there is no such path here; give an absolute one"),
        ({"mounts": {"/no/such": "/there"}}, "there is no such path here"),
        ({"mounts": {"/tmp": "there"}}, "is no path in a container; give '/path' or '/path:rw'"),
        ({"mounts": {"/tmp": "/there:rx"}}, "is no path in a container"),
    ],
)
def test_invalid_limits_are_refused_in_one_sentence(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        ContainerOptions(**wrong)


def test_containers_of_this_process_are_not_left_behind() -> None:
    assert not is_left_behind(labels_of_owner())


def test_containers_of_a_dead_process_are_listed_as_leftovers() -> None:
    program = "import json, envweave_gym.containers.ownership as o; print(json.dumps(o.labels_of_owner()))"
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    labels = json.loads(run.stdout)
    assert labels[BOOT] == process_identity.processes_seen()
    assert is_left_behind(labels)


def test_a_process_that_has_the_number_of_a_dead_one_is_another() -> None:
    assert is_left_behind({**labels_of_owner(), OWNER: f"{os.getpid()}-1"})


def test_containers_from_before_a_reboot_are_left_behind() -> None:
    assert is_left_behind({**labels_of_owner(), BOOT: "another"})


def test_containers_of_another_machine_are_left_behind_when_their_lease_is_over() -> None:
    elsewhere = {**labels_of_owner(), BOOT: "another", HOST: "elsewhere"}
    assert not is_left_behind(elsewhere)
    assert is_left_behind({**elsewhere, UNTIL: str(int(time.time()) - 1)})


@pytest.mark.parametrize("host", ["unix:///no/such.sock", "unix:///etc/passwd/x", "tcp://127.0.0.1:9"])
def test_without_an_engine_one_sentence_says_what_to_do(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(
        NotAvailable, match=f"^no container engine answers at {host}; install one .* start it"
    ):
        engine()


def test_a_process_that_has_ended_is_gone_though_its_parent_has_not_looked() -> None:
    process = subprocess.Popen(["sleep", "60"])
    labels = labels_of_owner() | {OWNER: f"{process.pid}-{process_identity.began(process.pid)}"}
    assert not is_left_behind(labels)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_left_behind(labels)
    process.wait()


def test_an_owner_that_cannot_be_looked_at_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = labels_of_owner() | {OWNER: "999999999-5"}  # there is no such number
    assert is_left_behind(hidden)

    def refuse(pid: int, signal: int) -> None:
        raise PermissionError(pid, signal)

    monkeypatch.setattr(os, "kill", refuse)
    assert not is_left_behind(hidden)


def test_containers_of_a_process_in_a_container_are_left_behind_when_their_lease_is_over() -> None:
    elsewhere = labels_of_owner() | {OWNER: "999999999-5", BOOT: f"{process_identity.boot_id()}.1"}
    assert not is_left_behind(elsewhere)
    assert is_left_behind(elsewhere | {UNTIL: "1"})


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for what is made in the one for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path


def test_only_folders_of_owners_that_are_gone_are_removed_whatever_else_lies_there(scratch: Path) -> None:
    here, owner = process_identity.namespace(), labels_of_owner()[OWNER]
    gone = f"envweave-socket-999999999-5-{here}-abc"
    kept = {
        "envweave-socket-x",
        "envweave-socket-1",
        "envweave-socket-1-2-3",
        f"envweave-socket-{owner}-{here}-abc",
        "envweave-socket-999999999-5-1-abc",  # of another container
    }
    for name in (gone, *kept):
        (scratch / name).mkdir()
    remove_left_behind(SOCKET_FOLDERS)
    assert {folder.name for folder in scratch.iterdir()} == kept


def test_a_sweep_goes_on_over_what_it_cannot_remove(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from docker.errors import APIError

    def remove(status: int) -> None:
        if status:
            response = requests.Response()
            response.status_code = status
            raise APIError("no", response)

    def container(name: str, status: int) -> Any:
        return SimpleNamespace(name=name, labels={UNTIL: "1"}, remove=lambda **_: remove(status))

    found = [container("stuck", 500), container("gone", 404), container("left", 0)]
    client = SimpleNamespace(containers=SimpleNamespace(list=lambda **_: found))
    monkeypatch.setattr(sweep, "remove_unused", lambda client: None)
    assert sweep.sweep(client) == ["gone", "left"]
    assert "the container stuck of an owner that is gone stays" in caplog.text


def test_an_engine_that_does_not_answer_is_one_sentence() -> None:
    with (
        pytest.raises(NotAvailable, match=r"^it cannot be done: .* does not answer \(60 s\)"),
        engine_errors("it cannot be done"),
    ):
        raise requests.ReadTimeout("60 s")


def test_an_engine_of_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("tcp://10.0.0.1:2375", "ssh://me@there", "tcp://["):
        monkeypatch.setenv("DOCKER_HOST", host)
        with pytest.raises(NotAvailable, match="is on another machine, whose loopback is not reached"):
            engine()


def test_wrong_rights_of_the_socket_say_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    program = (
        "import docker, os\nfrom envweave_gym.containers.engine import engine\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "try: engine()\nexcept Exception as error: print(type(error).__name__, error)"
    )
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        path.chmod(0)
        environment = os.environ | {"DOCKER_HOST": f"unix://{path}"}
        command = [sys.executable, "-c", program]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    assert run.stdout.startswith(
        f"NotAvailable the container engine at unix://{path} may not be used by this user; run 'sudo usermod"
    )


@pytest.mark.parametrize(
    ("host", "sentence"),
    [
        ("tcp://127.0.0.1:9", "DOCKER_HOST=tcp://127.0.0.1:9 is no socket"),
        ("unix:///no/such.sock", "there is no socket at /no/such.sock"),
    ],
)
def test_an_engine_without_a_socket_cannot_be_used_inside(
    host: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(NotAvailable, match=f"^docker_sock=True: {sentence}.*; set it to"):
        ContainerOptions(docker_sock=True).arguments("closed")


def test_data_are_the_caches_of_the_hub_and_not_the_token_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ENVWEAVE_DATA", "HF_HUB_CACHE", "HF_DATASETS_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(NotAvailable, match=r"data=True: there is no folder '.*/hub'; say in ENVWEAVE_DATA"):
        ContainerOptions(data=True).arguments("closed")
    (tmp_path / "hub").mkdir()
    (tmp_path / "token").write_text("secret")
    given = ContainerOptions(data=True).arguments("closed")
    assert given["volumes"] == {str(tmp_path / "hub"): {"bind": "/data/hub", "mode": "ro"}}
    assert given["environment"] == {"HF_HUB_CACHE": "/data/hub", "HF_HUB_OFFLINE": "1"}
    (tmp_path / "datasets").mkdir()
    given = ContainerOptions(data=True).arguments("closed")
    assert sorted(given["volumes"]) == [str(tmp_path / "datasets"), str(tmp_path / "hub")]
    assert given["environment"]["HF_DATASETS_CACHE"] == "/data/datasets"


@pytest.mark.parametrize(
    ("image", "ours"),
    [
        ("envweave-core", True),
        ("envweave-core:1.0", True),
        ("python:3.11-slim", False),
        ("somebody/envweave-core", False),
        ("registry.example:5000/envweave-core", False),
    ],
)
def test_images_of_ours_are_those_without_a_registry(image: str, ours: bool) -> None:
    assert is_ours(image) is ours
