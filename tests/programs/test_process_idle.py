"""The CPU times of all threads of a program distinguish an idle one from a busy one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from envweave_gym.programs.process_idle import SAMPLE_S, IdleCheck, cpu_times

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which Linux has")


@pytest.fixture
def busy_child() -> Iterator[subprocess.Popen[str]]:
    """A process whose child computes until a line comes."""
    code = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print("runs", flush=True)
sys.stdin.readline()
child.kill()  # and stays a zombie
print("ended", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def becomes_idle(process: int, seconds: float) -> bool:
    check, deadline = IdleCheck(process), time.monotonic() + seconds
    while time.monotonic() < deadline:
        if check.sample():
            return True
        time.sleep(SAMPLE_S)
    return False


def test_a_program_is_idle_when_all_its_processes_wait_zombies_too(busy_child: subprocess.Popen[str]):
    assert busy_child.stdin is not None
    assert busy_child.stdout is not None
    assert busy_child.stdout.readline() == "runs\n"
    assert not becomes_idle(busy_child.pid, 0.3)
    busy_child.stdin.write("\n")
    busy_child.stdin.flush()
    assert busy_child.stdout.readline() == "ended\n"
    assert becomes_idle(busy_child.pid, 20)


def test_a_process_that_does_not_exist_is_never_idle():
    assert cpu_times(2**22 + 1) is None
    assert not becomes_idle(2**22 + 1, 0.05)
