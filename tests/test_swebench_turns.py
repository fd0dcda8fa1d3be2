"""How many evaluations run at once, and which images stay."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from absent import needs_module

from envweave_gym.faults import AtCapacity, InvalidArgument, NotAvailable
from envweave_gym.swebench.images import Images
from envweave_gym.swebench.slots import check_at_once, turn


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns of these tests are nobody else's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)


def test_no_more_run_at_once_than_may() -> None:
    running, most, lock = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal running, most
        with turn(2):
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


def test_whoever_waits_too_long_is_told_so() -> None:
    with turn(1), pytest.raises(AtCapacity, match=r"1 evaluations have been running for 0.05 s"):
        turn(1, patience=0.05).__enter__()
    with turn(1, patience=0.05):
        pass


def test_a_killed_process_gives_its_turn_back() -> None:
    program = (
        "import sys, tempfile\ntempfile.tempdir = sys.argv[1]\n"
        "from envweave_gym.swebench.slots import turn\n"
        "held = turn(1)\nheld.__enter__()\nprint('mine', flush=True)\nsys.stdin.read()"
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
            turn(1, patience=0.05).__enter__()
        holder.kill()
    with turn(1, patience=5):
        pass


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "two", 10_000])
def test_what_is_no_limit_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidArgument, match="is no number of evaluations"):
        check_at_once(wrong)


class Engine:
    """An engine that has some images, and can fetch others unless it is told not to."""

    def __init__(self, *here: str) -> None:
        self.here, self.refuses = set(here), False
        self.images = SimpleNamespace(get=self.get, pull=self.pull, remove=self.here.discard)

    def get(self, name: str) -> None:
        from docker.errors import ImageNotFound

        if name not in self.here:
            raise ImageNotFound(name)

    def pull(self, name: str) -> None:
        from docker.errors import APIError

        if self.refuses:
            raise APIError("no route to a registry")
        self.here.add(name)


def images(engine: Any) -> Images:
    needs_module("docker", "docker")
    return Images(engine)


def test_a_missing_image_is_fetched_and_of_those_the_last_used_stay() -> None:
    engine = Engine("mine")
    found = images(engine)
    for name in ("mine", "one", "two", "one", "three", "mine"):
        assert found.require(name, keep=2) == name
    assert engine.here == {"mine", "one", "three"}
    found.require("four")
    assert engine.here == {"mine", "one", "three", "four"}


def test_an_image_that_cannot_be_fetched_is_one_sentence_that_says_how_to() -> None:
    engine = Engine()
    engine.refuses = True
    with pytest.raises(NotAvailable, match=r"the image a/b cannot be fetched, .* docker pull a/b$"):
        images(engine).require("a/b")
    with pytest.raises(NotAvailable, match=r"is not on this machine, and pull=False; .* docker pull a/b$"):
        images(engine).require("a/b", pull=False)


@pytest.mark.parametrize("keep", [0, -1, "all", True])
def test_what_is_no_number_of_images_is_refused(keep: Any) -> None:
    with pytest.raises(InvalidArgument, match="is no number of images"):
        images(Engine("a")).require("a", keep=keep)
