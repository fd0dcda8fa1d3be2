"""The lock of a run's folder: two runs of one name, a killed run, a forked child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.training.run_lock import FILE, RunLock
from envweave_gym.training.run_metrics import RunMetrics

HOLDER = """
import sys, time
from envweave_gym.training.run_lock import RunLock
lock = RunLock(sys.argv[1])
print("locked", flush=True)
time.sleep(600)
"""


def test_the_second_run_of_a_name_is_refused_until_the_first_has_ended(tmp_path: Path):
    with (
        RunLock(tmp_path / "run"),
        pytest.raises(InvalidArgument, match=rf"another run \(process {os.getpid()}\) .*give another --run"),
    ):
        RunLock(tmp_path / "run")
    with RunLock(tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists()


def test_metrics_without_a_lock_of_their_caller_lock_their_folder(tmp_path: Path):
    with RunMetrics(tmp_path, ("reward",)) as log:
        with pytest.raises(InvalidArgument, match="another run"), RunMetrics(tmp_path, ("reward",)):
            pass
        log.write(reward=1.0)
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1
    with RunLock(tmp_path) as lock, RunMetrics(tmp_path, ("reward",), lock=lock):
        pass


def test_a_killed_run_holds_its_folder_no_more(tmp_path: Path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "locked\n"
        with pytest.raises(InvalidArgument, match=f"process {first.pid}"):
            RunLock(tmp_path)
        first.send_signal(signal.SIGKILL)
    assert (tmp_path / FILE).exists()
    with RunLock(tmp_path):
        assert (tmp_path / FILE).read_text() == f"{os.getpid()}\n"


def test_a_forked_child_that_lives_on_does_not_hold_the_lock(tmp_path: Path):
    lock = RunLock(tmp_path)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)  # until the test has ended
        os._exit(0)
    try:
        lock.close()
        with RunLock(tmp_path):
            pass
    finally:
        os.close(writer)
        os.waitpid(child, 0)
        os.close(reader)
