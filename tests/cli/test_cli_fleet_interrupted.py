"""``envweave fleet up`` in the foreground, and those who tell it to end: while it starts, runs and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from cli_program import PROGRAM
from servers import runs, until

pytestmark = pytest.mark.usefixtures("hears_hanging_up")


def files(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "envweave" / "fleets").iterdir())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_server_in_the_foreground_ends_cleanly_on_a_signal(how: signal.Signals, tmp_path: Path):
    command = [PROGRAM, "fleet", "up", "--backend=subprocess", "--replicas=2"]
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environ, text=True, **pipes) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(6)]
        assert lines[-1] == "Ctrl-C or 'envweave fleet down --name default' ends it\n"
        servers = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(how)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")
    assert files(tmp_path) == []
    until(lambda: not any(map(runs, servers)), 30)


@pytest.mark.parametrize("words", [[], ["--detach"]], ids=["foreground", "background"])
def test_an_interrupt_during_a_start_leaves_nothing(words: list[str], tmp_path: Path):
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    command = [PROGRAM, "fleet", "up", "--backend=subprocess", "--replicas=2", *words]
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    state = tmp_path / "envweave" / "fleets" / "default.json"
    until(state.exists, 30)
    until(lambda: psutil.Process(process.pid).children(), 30)
    servers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[1] == b""
    assert process.returncode == 130
    assert files(tmp_path) == []
    until(lambda: not any(map(runs, servers)), 30)


SLOW_TO_END = """
import sys, time
from envweave_gym.cli import main
from envweave_gym.providers.replica_fleet import Fleet
close = Fleet.close

def slowly(fleet):
    print("it ends", flush=True)
    time.sleep({seconds})
    close(fleet)

Fleet.close = slowly
sys.exit(main(["fleet", "up", "--backend=subprocess"]))
"""


@pytest.mark.parametrize(("times", "seconds", "code"), [(2, 0.5, 0), (3, 60, -signal.SIGINT)])
def test_a_second_interruption_does_not_cut_its_end_short_and_a_third_does(
    times: int, seconds: float, code: int, tmp_path: Path
):
    command = [sys.executable, "-c", SLOW_TO_END.format(seconds=seconds)]
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0}
    with subprocess.Popen(command, env=environ, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while not process.stdout.readline().startswith(b"Ctrl-C"):
            pass
        servers = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"it ends\n"
        process.send_signal(signal.SIGINT)
        reported = process.stderr.readline().decode()
        assert reported.startswith("envweave: the fleet is ending; once more ends this command at once")
        if times == 3:
            process.send_signal(signal.SIGINT)
        assert process.wait(20) == code
    assert (files(tmp_path) == []) is (times == 2)
    until(lambda: not any(map(runs, servers)), 30)
