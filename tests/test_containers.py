"""What a container may do, and whose it is; no engine is needed for either."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from envweave_gym.containers import ownership
from envweave_gym.containers.box import Box
from envweave_gym.containers.engine import engine
from envweave_gym.containers.ownership import BOOT, HOST, OWNER, UNTIL, is_left_behind, labels_of_owner
from envweave_gym.faults import InvalidArgument, NotAvailable


def test_a_box_has_no_way_out_and_its_share_of_the_machine() -> None:
    given = Box(memory="64m", cpus=0.5, pids=7).arguments("closed")
    assert (given["mem_limit"], given["memswap_limit"]) == (64 << 20, 64 << 20)
    assert (given["nano_cpus"], given["pids_limit"]) == (500_000_000, 7)
    assert given["network"] == "closed"
    assert given["read_only"] is True
    assert given["cap_drop"] == ["ALL"]
    assert given["security_opt"] == ["no-new-privileges:true"]
    assert given["volumes"] == {}


def test_ways_out_are_opened_one_by_one(tmp_path: Path) -> None:
    assert Box(network=True).arguments("closed")["network"] == "bridge"
    mounts = {str(tmp_path): "/data", "/tmp": "/work:rw"}
    assert Box(mounts=mounts).arguments("closed")["volumes"] == {
        str(tmp_path): {"bind": "/data", "mode": "ro"},
        "/tmp": {"bind": "/work", "mode": "rw"},
    }


@pytest.mark.parametrize("memory", [6 << 20, "6m", "6144k", "6291456", "6291456b", "6M"])
def test_memory_is_bytes_or_text_with_a_unit(memory: Any) -> None:
    assert Box(memory=memory).arguments("closed")["mem_limit"] == 6 << 20


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"memory": "lots"}, "memory='lots' is no size; give bytes, or text like '512m' or '2g', from '6m'"),
        ({"memory": "1m"}, "memory='1m' is no size"),
        ({"memory": True}, "memory=True is no size"),
        ({"memory": -5}, "memory=-5 is no size"),
        ({"cpus": 0}, "cpus=0 is no number of cores"),
        ({"cpus": float("nan")}, "cpus=nan is no number of cores"),
        ({"pids": 0}, "pids=0 is no number of processes"),
        ({"network": "yes"}, "network='yes' is not True, False or 'none'"),
        ({"docker_sock": 1}, "docker_sock=1 is not True or False"),
        ({"mounts": ["/tmp"]}, r"mounts=\['/tmp'\] is not a dict"),
        ({"mounts": {"here": "/there"}}, "there is no such path here; give an absolute one"),
        ({"mounts": {"/no/such": "/there"}}, "there is no such path here"),
        ({"mounts": {"/tmp": "there"}}, "is no place in a container; give '/path' or '/path:rw'"),
        ({"mounts": {"/tmp": "/there:rx"}}, "is no place in a container"),
    ],
)
def test_what_is_no_limit_is_refused_in_one_sentence(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        Box(**wrong)


def test_what_this_process_owns_is_not_left_behind() -> None:
    assert not is_left_behind(labels_of_owner())


def test_what_a_dead_process_owned_is_left_behind() -> None:
    program = "import json, envweave_gym.containers.ownership as o; print(json.dumps(o.labels_of_owner()))"
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    labels = json.loads(run.stdout)
    assert labels[BOOT] == ownership.boot_id()
    assert is_left_behind(labels)


def test_a_process_that_has_the_number_of_a_dead_one_is_another() -> None:
    assert is_left_behind({**labels_of_owner(), OWNER: f"{os.getpid()}-1"})


def test_what_was_started_before_this_machine_was_is_left_behind() -> None:
    assert is_left_behind({**labels_of_owner(), BOOT: "another"})


def test_what_another_machine_owns_is_left_behind_when_its_lease_is_over() -> None:
    elsewhere = {**labels_of_owner(), BOOT: "another", HOST: "elsewhere"}
    assert not is_left_behind(elsewhere)
    assert is_left_behind({**elsewhere, UNTIL: str(int(time.time()) - 1)})


@pytest.mark.parametrize("host", ["unix:///no/such.sock", "tcp://127.0.0.1:9"])
def test_without_an_engine_one_sentence_says_what_to_do(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(
        NotAvailable, match=f"^no container engine answers at {host}; install one .* start it"
    ):
        engine()


def test_a_process_that_has_ended_is_gone_though_its_parent_has_not_looked() -> None:
    process = subprocess.Popen(["sleep", "60"])
    labels = labels_of_owner() | {OWNER: f"{process.pid}-{ownership.began(process.pid)}"}
    assert not is_left_behind(labels)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_left_behind(labels)
    process.wait()
