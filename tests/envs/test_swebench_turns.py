"""How many evaluations run at once, and which images stay."""

from __future__ import annotations

import errno
import multiprocessing.process
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from absent import needs_module
from servers import runs, until

from envweave_gym.containers import host_slots
from envweave_gym.core.faults import AtCapacity, InvalidArgument, NotAvailable
from envweave_gym.os_support import parent_process
from envweave_gym.swebench import evaluation_semaphore, image_cache
from envweave_gym.swebench.docker_evaluation import Options
from envweave_gym.swebench.evaluation_semaphore import check_at_once, slot
from envweave_gym.swebench.image_cache import Images


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns of these tests are nobody else's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)


def test_no_more_run_at_once_than_may() -> None:
    running, most, lock = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal running, most
        with slot(2):
            with lock:
                running += 1
                most = max(most, running)
            time.sleep(0.02)
            with lock:
                running -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (running, most) == (0, 2)


def test_a_wait_that_is_too_long_is_an_error() -> None:
    with slot(1), pytest.raises(AtCapacity, match=r"1 evaluations have been running for 0.05 s"):
        slot(1, timeout=0.05).__enter__()
    with slot(1, timeout=0.05):
        pass


def test_looks_wait_for_looks_and_not_for_evaluations() -> None:
    with slot(1), slot(1, 0.05, of="look"), pytest.raises(AtCapacity, match="1 looks have been running"):
        slot(1, 0.05, of="look").__enter__()


def test_a_killed_process_gives_its_turn_back() -> None:
    program = (
        "import sys, tempfile\ntempfile.tempdir = sys.argv[1]\n"
        "from envweave_gym.swebench.evaluation_semaphore import slot\n"
        "held = slot(1)\nheld.__enter__()\nprint('mine', flush=True)\nsys.stdin.read()"
    )
    environment = {name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"}
    holder = subprocess.Popen(
        [sys.executable, "-c", program, tempfile.gettempdir()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "mine\n"
        with pytest.raises(AtCapacity):
            slot(1, timeout=0.05).__enter__()
        holder.kill()
    with slot(1, timeout=5):
        pass


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_rows_whose_owner_is_killed_end_while_they_evaluate_and_while_they_wait(
    method: str, tmp_path: Path
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"}
    command = [sys.executable, str(Path(__file__).parents[1] / "support" / "waiting_rows.py"), method]
    own = {**environment, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=own, text=True) as owner:
        assert owner.stdout is not None
        folder, *pids = owner.stdout.readline().split()
        rows = [psutil.Process(int(pid)) for pid in pids]
        assert (folder, len(rows)) == (str(tmp_path), 2)
        assert owner.stdout.readline() == "begun\n"
        with pytest.raises(AtCapacity):
            slot(1, timeout=0.05).__enter__()
        owner.kill()
        until(lambda: not any(map(runs, rows)), 30)
        assert owner.stdout.read() == ""  # the other has begun nothing
    with slot(1, timeout=5):
        pass


def test_rows_that_wait_for_a_server_end_with_their_killed_owner() -> None:
    command = [
        sys.executable,
        str(Path(__file__).parents[1] / "support" / "waiting_rows.py"),
        "fork",
        "remote",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        rows = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()[1:]]
        assert all(owner.stdout.readline().startswith("begun") for _ in rows)
        owner.kill()
        until(lambda: not any(map(runs, rows)), 30)


def test_a_container_that_sees_the_slots_of_its_machine_waits_for_those_who_have_them_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = host_slots.shared_folder()
    assert stat.S_IMODE(shared.parent.stat().st_mode) == 0o700
    own = tmp_path / "container"
    own.mkdir()
    with slot(2), slot(2):
        monkeypatch.setattr(tempfile, "tempdir", str(own))
        monkeypatch.setenv("ENVWEAVE_SLOTS", str(tmp_path / "not-mounted"))
        with slot(2, timeout=0.05):  # it has slots of its own where it is shown none
            pass
        monkeypatch.setenv("ENVWEAVE_SLOTS", str(shared))
        with pytest.raises(AtCapacity):
            slot(2, timeout=0.05).__enter__()
    with slot(2, timeout=0.05):
        pass


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "two", 10_000])
def test_an_invalid_limit_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidArgument, match="is no number of evaluations"):
        check_at_once(wrong)


class Engine:
    """An engine that has some images, and can fetch others unless it is told not to."""

    def __init__(self, *here: str) -> None:
        self.here, self.refuses = set(here), False
        self.images = SimpleNamespace(get=self.get, remove=self.here.discard)
        self.api = SimpleNamespace(pull=self.pull)
        self.events: list[dict[str, Any]] = [{"status": "Downloading"}]

    def get(self, name: str) -> None:
        from docker.errors import ImageNotFound

        if name not in self.here:
            raise ImageNotFound(name)

    def pull(self, name: str, *, tag: str, stream: bool, decode: bool) -> Iterator[dict[str, Any]]:
        from docker.errors import APIError

        assert (stream, decode) == (True, True)
        if self.refuses:
            raise APIError("no route to a registry")
        yield from self.events
        self.here.add(name if tag == "latest" else f"{name}:{tag}")


def images(engine: Any) -> Images:
    needs_module("docker", "docker")
    return Images(engine)


def test_a_missing_image_is_fetched_and_of_those_the_last_used_stay() -> None:
    engine = Engine("mine")
    found = images(engine)
    for name in ("mine", "one:1", "two", "one:1", "three", "mine"):
        assert found.require(name, keep=2) == name
        found.release(name, keep=2)
    assert engine.here == {"mine", "one:1", "three"}
    found.require("four")
    assert engine.here == {"mine", "one:1", "three", "four"}


def test_an_image_that_is_used_stays_and_goes_when_it_is_too_many_and_used_no_more() -> None:
    engine = Engine()
    found = images(engine)
    for name in ("one", "one", "two", "three"):
        found.require(name, keep=1)
    assert engine.here == {"one", "two", "three"}
    for name, left in (
        ("three", {"one", "two"}),
        ("one", {"one", "two"}),
        ("one", {"two"}),
        ("two", {"two"}),
    ):
        found.release(name, keep=1)
        assert engine.here == left
    engine.refuses = True
    with pytest.raises(NotAvailable):
        found.require("four", keep=1)
    engine.refuses = False
    for _ in range(2):
        found.require("four", keep=1)
        found.release("four", keep=1)
    assert engine.here == {"four"}


def test_evaluations_at_once_never_lose_the_image_that_they_use() -> None:
    engine = Engine()
    found = images(engine)

    def work(number: int) -> None:
        for turn_ in range(50):
            name = f"image{(number + turn_) % 5}"
            found.require(name, keep=1)
            assert name in engine.here
            found.release(name, keep=1)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(engine.here) == 1


def test_an_image_that_cannot_be_fetched_is_one_sentence_that_says_how_to() -> None:
    engine = Engine()
    engine.refuses = True
    with pytest.raises(NotAvailable, match=r"the image a/b cannot be fetched, .* docker pull a/b$"):
        images(engine).require("a/b")
    with pytest.raises(NotAvailable, match=r"is not on this machine, and pull=False; .* docker pull a/b$"):
        images(engine).require("a/b", pull=False)
    engine.refuses, engine.events = False, [{"error": "unauthorized"}]
    with pytest.raises(NotAvailable, match=r"engine says: unauthorized; .* docker pull a/b$"):
        images(engine).require("a/b")


def test_an_image_that_does_not_come_to_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    engine.events *= 3
    monkeypatch.setattr(image_cache, "PULL_TIMEOUT_S", -1.0)
    with pytest.raises(NotAvailable, match=r"the image a/b was not here after -1 s; .* docker pull a/b$"):
        images(engine).require("a/b")
    assert engine.here == set()


@pytest.mark.parametrize("keep", [0, -1, "all", True])
def test_an_invalid_number_of_images_is_refused(keep: Any) -> None:
    with pytest.raises(InvalidArgument, match="is no number of images"):
        Options(keep_images=keep)


def test_without_pidfds_the_pipe_of_multiprocessing_tells_that_the_owner_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(_: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    reader, writer = os.pipe()
    parent = SimpleNamespace(pid=1, sentinel=reader)
    ended = threading.Event()
    monkeypatch.setattr(os, "pidfd_open", refused, raising=False)
    monkeypatch.setattr(multiprocessing.process, "parent_process", lambda: parent)
    monkeypatch.setattr(multiprocessing.process, "current_process", lambda: SimpleNamespace(daemon=True))
    monkeypatch.setattr(parent_process, "_end", ended.set)
    monkeypatch.setattr(parent_process._parents, "value", list[int]())
    parent_process.end_with_parent()
    assert not ended.is_set()
    os.close(writer)
    assert ended.wait(10)
    os.close(reader)


def test_a_waiting_evaluation_looks_for_the_slots_folder_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Path] = []

    def counted(name: str) -> Path:
        found.append(host_slots.folder_of_slots(name))
        return found[-1]

    with slot(1):
        monkeypatch.setattr(evaluation_semaphore, "folder_of_slots", counted)
        with pytest.raises(AtCapacity), slot(1, timeout=0.1):
            pass
    assert len(found) == 1
