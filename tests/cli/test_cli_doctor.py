"""``envweave doctor``: what works here, and what to install."""

from __future__ import annotations

import contextlib
import gc
import json
import socket
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_program import installed_plug_ins, run
from engines import client

from envweave_gym.cli import doctor, main
from envweave_gym.cli.doctor import Check, Requirement, container_engine, read_requirement, within
from envweave_gym.cli.fleet_files import FleetFile
from envweave_gym.containers.ownership import OWNER as LABEL
from envweave_gym.containers.ownership import labels_of_owner
from envweave_gym.providers import docker
from envweave_gym.registry.catalog import CARDS
from envweave_gym.sandbox import levels

__all__ = ["client"]
GONE = {"Labels": {**labels_of_owner(), LABEL: "1-never"}}
"""A container of a process that is not there any more."""
OWNER = """
import time
from envweave_gym.providers.docker import DockerReplica
print(DockerReplica("envweave-core")._container.name, flush=True)
time.sleep(600)
"""


def test_doctor_says_what_works_and_what_to_install():
    done = run("doctor", DOCKER_HOST="unix:///nowhere.sock", PATH="/nowhere")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert {line.split()[0] for line in lines} <= {"ok", "missing", "broken"}
    for package in ("python", "gymnasium", "pettingzoo", "numpy", "msgspec"):
        assert any(line.split()[:2] == ["ok", package] for line in lines), package
    assert any(line.startswith("missing  docker engine") and "set DOCKER_HOST" in line for line in lines)
    assert any(line.startswith("missing  chromium") for line in lines)


def test_doctor_as_json_covers_every_extra_and_the_machine(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    named = {(check["part"], check["name"]): check for check in report["checks"]}
    assert report["ok"] is True
    for extra in (
        "demo",
        "server",
        "train",
        "docker",
        "kubernetes",
        "ray",
        "swebench",
        "tinker",
        "tinker-server",
        "notebook",
    ):
        check = named["extra", extra]
        assert check["next_step"] == (
            "" if check["status"] == "ok" else f"pip install 'envweave-gym[{extra}]'"
        )
    assert ("extra", "all") not in named
    assert named["base", "numpy"]["detail"] == np.__version__
    assert "cores" in named["machine", "resources"]["detail"]
    assert "spawn" in named["machine", "start methods"]["detail"]
    assert named["plug-in", "envweave"]["status"] == "ok"


def test_doctor_tells_of_schemes_and_backends_of_plug_ins(
    install_plug_in: Any, capsys: pytest.CaptureFixture[str]
):
    module = "def make(call):\n    pass\n"
    schemes = {"fine": "make", "local": "make", "broken": "missing"}
    install_plug_in("envweave_gym.schemes", "schemes_for_doctor", module, schemes)
    install_plug_in("envweave_gym.providers", "backends_for_doctor", module, {"moon": "make"})
    assert main(["doctor", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    found = {one["name"]: one for one in report["checks"] if one["part"] == "plug-in"}
    assert found["fine://"]["status"] == "ok"
    for name, why in (
        ("local://", "has no effect"),
        ("broken://", "attribute 'missing'"),
        ("backend='moon'", "is no envweave_gym.providers.base.Provider"),
    ):
        assert found[name]["status"] == "broken"
        assert why in found[name]["detail"]
        assert "uninstall" in found[name]["next_step"]


def checks(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The checks of the machine, by name."""
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    return {check["name"]: check for check in report["checks"] if check["part"] == "machine"}


def test_doctor_tells_the_levels_of_the_sandbox(monkeypatch: Any, capsys: pytest.CaptureFixture[str]):
    why = {"namespace": "bubblewrap is not installed"}
    monkeypatch.setattr(levels, "why_missing", lambda level: why.get(level, ""))
    check = checks(capsys)["sandbox"]
    assert check["status"] == "ok"
    assert check["detail"].startswith("levels process, landlock (default)")
    assert "not namespace, as bubblewrap is not installed" in check["detail"]
    why["landlock"] = "the kernel has no Landlock"
    check = checks(capsys)["sandbox"]
    assert (check["status"], "isolation=" in check["next_step"]) == ("missing", True)


def test_doctor_tells_which_data_are_there(
    tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("ENVWEAVE_DATA", raising=False)
    check = checks(capsys)["data"]
    assert (check["status"], "synthetic" in check["next_step"]) == ("missing", True)
    names = ["gsm8k_train", "gsm8k_test", "swebench_lite_dev", "swebench_lite_test"]
    monkeypatch.setenv("ENVWEAVE_DATA", str(tmp_path))
    for name in names[:2]:
        (tmp_path / f"{name}.jsonl").touch()
    has, _, lacks = checks(capsys)["data"]["detail"].partition("; without ")
    assert [name in has for name in names] == [True, True, False, False]
    assert [name in lacks for name in names] == [False, False, True, True]
    for name in names[2:]:
        (tmp_path / f"{name}.jsonl").touch()
    assert checks(capsys)["data"]["status"] == "ok"


def test_doctor_tells_which_tokens_are_set_and_shows_none(monkeypatch: Any, capsys: Any):
    monkeypatch.setenv("ENVWEAVE_TOKEN", "very-secret")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    found = checks(capsys)
    assert "very-secret" not in str(found)
    assert [found[name]["status"] for name in ("ENVWEAVE_TOKEN", "HF_TOKEN")] == ["ok", "missing"]
    assert "REPL" in found["HF_TOKEN"]["next_step"]


@pytest.mark.parametrize("is_complete", [True, False])
def test_doctor_tells_which_images_the_engine_has(
    is_complete: bool, tmp_path: Path, monkeypatch: Any, capsys: Any
):
    path = str(tmp_path / "docker.sock")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    names = {card.image for card in CARDS if card.image} - (set() if is_complete else {"envweave-core"})
    images = [{"RepoTags": [f"{name}:latest"]} for name in names] + [{"RepoTags": None}]
    reply = b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps(images).encode()
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(path)
        engine.listen()
        answering = threading.Thread(target=_answer, args=(engine, reply, []))
        answering.start()
        check = checks(capsys)["images"]
        engine.shutdown(socket.SHUT_RDWR)
        answering.join()
    assert check["status"] == ("ok" if is_complete else "missing")
    assert ("envweave-core" in check["detail"]) is not is_complete
    assert ("make images" in check["next_step"]) is not is_complete


def test_doctor_imports_nothing_heavy():
    heavy = ("torch", "matplotlib", "pandas", "docker", "ray", "flask", "requests")
    code = (
        "import sys; from envweave_gym.cli import main; code = main(['doctor']);"
        f"sys.exit(code or sorted(set({heavy!r}) & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("reply", "status"), [("HTTP/1.1 200 OK\r\n\r\nOK", "ok"), ("SSH-2.0\r\n", "missing")]
)
def test_doctor_asks_the_engine(
    reply: str, status: str, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
):
    path, asked = str(tmp_path / "docker.sock"), list[bytes]()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(path)
        engine.listen()
        answering = threading.Thread(target=_answer, args=(engine, reply.encode(), asked))
        answering.start()
        assert main(["doctor", "--json"]) == 0
        engine.shutdown(socket.SHUT_RDWR)
        answering.join()
    [check] = [c for c in json.loads(capsys.readouterr().out)["checks"] if c["name"] == "docker engine"]
    assert check["status"] == status
    assert path in check["detail"]
    assert asked[0].startswith(b"GET /_ping HTTP/1.")


def _answer(engine: socket.socket, reply: bytes, asked: list[bytes]) -> None:
    """Answer whatever is asked, until the engine is shut down."""
    with contextlib.suppress(OSError):
        while True:
            connection, _ = engine.accept()
            with connection:
                asked.append(connection.recv(1000))
                connection.sendall(reply)


@pytest.mark.parametrize(
    ("containers", "says", "todo"),
    [
        ([], "no containers of owners that are gone", ""),
        ([{"Labels": labels_of_owner()}, {"Labels": None}], "no containers of owners that are gone", ""),
        ([GONE], "1 container of owners that are gone", "remove with 'envweave doctor --sweep'"),
        ([GONE, GONE], "2 containers of owners that are gone", "remove with 'envweave doctor --sweep'"),
    ],
)
def test_doctor_counts_leftovers_of_killed_owners(
    containers: Any, says: str, todo: str, tmp_path: Path, monkeypatch: Any, capsys: Any
):
    path = str(tmp_path / "docker.sock")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    reply = b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps(containers).encode()
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(path)
        engine.listen()
        asked: list[bytes] = []
        answering = threading.Thread(target=_answer, args=(engine, reply, asked))
        answering.start()
        assert main(["doctor", "--json"]) == 0
        engine.shutdown(socket.SHUT_RDWR)
        answering.join()
    [check] = [c for c in json.loads(capsys.readouterr().out)["checks"] if c["name"] == "left behind"]
    assert (check["status"], check["detail"], check["next_step"]) == ("ok", says, todo)
    assert b"%22label%22" in asked[1]


def test_sweeping_removes_leftovers_of_killed_owners(client: Any):
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    name = owner.stdout.readline().strip()
    assert f"removed container {name}\n" not in run("doctor", "--sweep").stdout
    owner.kill()
    owner.communicate()
    done = run("doctor", "--sweep")
    assert (done.returncode, done.stderr) == (0, "")
    assert name not in {one.name for one in client.containers.list(all=True, ignore_removed=True)}
    assert name not in run("doctor", "--sweep").stdout


class Engine:
    """An engine with a network that goes when it is swept."""

    def __init__(self) -> None:
        self.networks = self
        self.there = [types.SimpleNamespace(name="envweave")]

    def list(self, names: Any) -> Any:
        return self.there


@pytest.mark.parametrize("as_json", [False, True])
def test_sweeping_lists_the_removed_containers(
    as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    FleetFile(name="old", backend="docker", token_file="/x", began="1").claim()
    fake = Engine()
    monkeypatch.setattr(docker, "engine", lambda: fake)
    monkeypatch.setattr(docker, "sweep", lambda engine: [] if not fake.there else ["one", "two"])
    monkeypatch.setattr(docker, "remove_unused", lambda engine: setattr(fake, "there", []))
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    words = ["doctor", "--sweep", *(["--json"] if as_json else [])]
    assert main(words) == 0
    first = capsys.readouterr().out
    assert main(words) == 0
    second = capsys.readouterr().out
    if as_json:
        removed = {"containers": ["one", "two"], "networks": ["envweave"], "pods": [], "fleets": ["old"]}
        assert json.loads(first) == {"removed": removed, "unseen": []}
        assert json.loads(second) == {"removed": {kind: [] for kind in removed}, "unseen": []}
    else:
        reported = [
            f"removed {what}" for what in ("container one", "container two", "network envweave", "fleet old")
        ]
        assert first.splitlines() == reported
        assert second == "nothing was left behind\n"


def test_requirements_are_read_from_the_metadata():
    assert read_requirement("numpy>=1.26") == Requirement("numpy", (), ">=1.26", None)
    assert read_requirement('x-y [a,b] <2,>=1 ; extra == "z"') == Requirement(
        "x-y", ("a", "b"), "<2,>=1", "z"
    )


@pytest.mark.parametrize(
    ("found", "bounds", "fits"),
    [
        ("2.13.0+cpu", ">=2.2", True),
        ("1.1", "<2,>=1.1", True),
        ("1.1.0rc1", "<2,>=1.1", True),
        ("2.0", "<2,>=1.1", False),
        ("1.0.9", ">=1.1", False),
        ("3", ">=3.0", True),
        ("anything", "", True),
    ],
)
def test_versions_are_held_against_their_bounds(found: str, bounds: str, fits: bool):
    assert within(found, bounds) is fits


def test_a_broken_plug_in_is_named_and_a_failure(tmp_path: Path):
    done = run("doctor", "--json", PYTHONPATH=installed_plug_ins(tmp_path))
    report = json.loads(done.stdout)
    found = {c["name"]: c for c in report["checks"] if c["part"] == "plug-in"}
    assert (done.returncode, report["ok"]) == (1, False)
    assert {name: check["status"] for name, check in found.items()} == {
        "bad": "broken",
        "envweave": "ok",
        "good": "ok",
    }
    assert "RuntimeError: no luck" in found["bad"]["detail"]
    assert found["bad"]["next_step"] == "repair or uninstall bad-plug 1.0"


@pytest.mark.parametrize(
    ("part", "status", "code"),
    [
        ("base", "missing", 1),
        ("base", "broken", 1),
        ("extra", "broken", 1),
        ("extra", "missing", 0),
        ("plug-in", "broken", 1),
        ("machine", "missing", 0),
    ],
)
def test_a_broken_part_is_a_failure_and_an_optional_one_may_be_missing(
    part: Any, status: Any, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    checks = [
        Check(part="base", name="numpy", status="ok", detail="2"),
        Check(part=part, name="thing", status=status, detail="1"),
    ]
    monkeypatch.setattr(doctor, "_checks", lambda: iter(checks))
    assert main(["doctor", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["ok"] is (code == 0)


def test_the_help_says_what_the_exit_code_means(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Exit code 1 if something installed is broken, 0 if at most optional things are missing." in shown


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("tcp://h:abc", "Port could not be cast to integer value as 'abc'"),
        ("tcp://h:99999", "Port out of range 0-65535"),
        ("tcp://[", "Invalid IPv6 URL"),
        ("ssh://h", "only unix:// and tcp:// addresses are supported"),
    ],
)
def test_an_address_that_is_none_is_a_line_of_the_report(
    host: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("DOCKER_HOST", host)
    assert main(["doctor", "--json"]) == 0
    [check] = [c for c in json.loads(capsys.readouterr().out)["checks"] if c["name"] == "docker engine"]
    assert (check["status"], check["detail"]) == ("missing", f"{host}: {says}")


def test_an_engine_of_another_machine_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("DOCKER_HOST", "tcp://engines.example:2375")
    monkeypatch.setattr(container_engine, "_get", lambda address, path: b"OK")
    assert main(["doctor", "--json"]) == 0
    [check] = [c for c in json.loads(capsys.readouterr().out)["checks"] if c["name"] == "docker engine"]
    assert check["status"] == "missing"
    assert check["detail"].startswith("tcp://engines.example:2375 is on another machine")


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_socket_without_a_server_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    assert main(["doctor", "--json"]) == 0
    gc.collect()
    [check] = [c for c in json.loads(capsys.readouterr().out)["checks"] if c["name"] == "docker engine"]
    assert check["detail"] == f"unix://{path}: Connection refused"


@pytest.mark.parametrize(
    ("needs", "status"),
    [
        ([Requirement("numpy", (), ">=9999", "x"), Requirement("no-such-package", (), "", "x")], "missing"),
        ([Requirement("numpy", (), ">=9999", "x"), Requirement("msgspec", (), "", "x")], "broken"),
        ([Requirement("numpy", (), ">=1", "x"), Requirement("msgspec", (), "", "x")], "ok"),
    ],
)
def test_an_extra_that_is_not_all_there_is_missing_whatever_version_a_part_of_it_has(
    needs: list[Requirement], status: str
):
    assert doctor._extra("x", needs).status == status
