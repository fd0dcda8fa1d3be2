"""``envweave serve --replicas N``: servers that are the same, and end with who has started them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import psutil
import pytest
import requests
from servers import PATIENCE, is_there, runs, until

import envweave_gym as ew
from envweave_gym_server import create_app, run_server
from envweave_gym_server.__main__ import main
from envweave_gym_server.gunicorn.replicas import _Replica

COUNTER = "envweave/Counter-v0"


@contextlib.contextmanager
def started(count: int, *words: str, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """So many servers, and the lines they print; ended with the block."""
    environ = {name: value for name, value in os.environ.items() if name != "ENVWEAVE_TOKEN"}
    command = [sys.executable, "-m", "envweave_gym_server", f"--replicas={count}", f"--port={port}", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, COUNTER], env=environ, text=True, **pipes) as process:
        assert process.stdout is not None
        try:
            lines = [process.stdout.readline() for _ in range(count)]
            assert all(lines), process.communicate(timeout=PATIENCE)[1]
            yield process, lines
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)


def urls_in(lines: list[str]) -> list[str]:
    return [re.findall(r"http://[^/]+", line)[0] for line in lines]


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def free_ports(count: int) -> int:
    """The first of so many ports in a row on which nobody listens."""
    for first in range(20000, 30000, count):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise AssertionError("no ports")


def test_each_has_a_port_and_all_have_the_same_token(tmp_path: Path):
    file = tmp_path / "token"
    with started(3, f"--token-file={file}") as (process, lines):
        urls = urls_in(lines)
        assert len(set(urls)) == 3
        assert all(line.startswith("envweave serves 1 environment at http://") for line in lines)
        envs = [gym.make(COUNTER, backend=urls, token=f"file:{file}") for _ in range(3)]
        assert {env.unwrapped._served.address.url for env in envs} == set(urls)
        for env in envs:
            env.reset(seed=1)
            env.close()
        process.terminate()
        assert process.wait(PATIENCE) == 0
        assert not any(is_there(f"{url}/health") for url in urls)


def test_the_ports_are_in_a_row():
    first = free_ports(2)
    with started(2, port=first) as (_, lines):
        assert sorted(urls_in(lines)) == [f"http://127.0.0.1:{first + place}" for place in range(2)]
        (token,) = {line.partition("?token=")[2].split()[0] for line in lines}
        for url in urls_in(lines):
            assert requests.get(f"{url}/v1/envs?token={token}", timeout=10).status_code == 200
            assert requests.get(f"{url}/v1/envs", timeout=10).status_code == 401


@pytest.mark.parametrize("how", ["interrupted", "told to end", "told twice", "killed"])
def test_all_end_with_the_process_that_is(how: str):
    with started(2) as (process, _):
        servers = family(process)
        assert len(servers) == 4
        if how == "interrupted":  # as a terminal does: all hear it
            for one in [*servers, process]:
                one.send_signal(signal.SIGINT)
        elif how == "killed":
            process.kill()
        else:
            process.terminate()
        if how == "told twice":
            process.terminate()
        process.wait(PATIENCE)
        until(lambda: not any(one.is_running() for one in servers), 30)


@pytest.mark.parametrize("is_there", [True, False])
def test_only_the_server_itself_is_ended_and_not_who_takes_in_its_orphans(
    is_there: bool, monkeypatch: pytest.MonkeyPatch
):
    read, write = os.pipe()
    app = create_app(COUNTER)
    server = _Replica(app, socket.create_server(("127.0.0.1", 0)), None, None, life=read)
    os.close(write)
    reported: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *whom: reported.append(whom))
    if is_there:
        monkeypatch.setattr(os, "getppid", os.getpid)
    server._end_with_all()
    assert reported == ([(os.getpid(), signal.SIGTERM)] if is_there else [])
    os.close(read)
    os.close(server._descriptor)


def test_one_whose_worker_dies_comes_back_at_its_port():
    with started(2, "--allow-anonymous") as (process, lines):
        urls = urls_in(lines)
        for server in psutil.Process(process.pid).children():
            for worker in server.children():
                worker.kill()
        for url in urls:
            until(lambda url=url: is_there(f"{url}/health"), 30)
        env = gym.make(COUNTER, backend=urls[1])
        assert env.reset(seed=1)[0].keys() == {"count"}
        env.close()
        assert process.poll() is None


PROGRAM = """
import os, sys
import envweave_gym_server.gunicorn.replicas as replicas
{change}
from envweave_gym_server.__main__ import main
sys.exit(main())
"""


@contextlib.contextmanager
def changed(change: str) -> Iterator[subprocess.Popen[str]]:
    """Two servers of a program in which something is different; killed at the end, where they still run."""
    command = [sys.executable, "-c", PROGRAM.format(change=change), "--replicas=2", "--port=0", COUNTER]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, "--allow-anonymous"], text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def restarts_in(errors: str) -> list[str]:
    return [json.loads(line)["why"] for line in errors.splitlines() if '"server restarted"' in line]


def test_the_line_of_each_is_one_write():
    read, write = os.pipe2(os.O_DIRECT)  # of which a read returns what one write wrote
    command = [sys.executable, "-u", "-m", "envweave_gym_server", "--port=0", "--allow-anonymous", COUNTER]
    with subprocess.Popen(command, stdout=write, stderr=subprocess.DEVNULL) as process:
        os.close(write)
        assert os.read(read, 4096).endswith(b"(Ctrl-C ends it)\n")
        process.terminate()
    os.close(read)


def test_where_one_ends_before_it_has_begun_all_do():
    with changed("replicas._Replica.run = lambda self: os._exit(3)") as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 3
    assert "server never began" in errors
    assert "its process ended with 3" in errors
    assert restarts_in(errors) == []


def next_in(process: subprocess.Popen[str], known: set[psutil.Process]) -> psutil.Process:
    """A server that was started since, which is known then."""
    until(lambda: set(psutil.Process(process.pid).children()) - known, 30)
    (new,) = set(psutil.Process(process.pid).children()) - known
    known.add(new)
    return new


def test_one_that_has_begun_is_started_again_later_each_time_that_it_ends_soon():
    with changed("replicas._PAUSE_S = 0.1") as process:
        assert process.stdout is not None
        urls = urls_in([process.stdout.readline() for _ in range(2)])
        steady, mortal = psutil.Process(process.pid).children()
        known = {steady, mortal}
        for _ in range(3):
            mortal.kill()
            mortal = next_in(process, known)
        for url in urls:
            until(lambda url=url: is_there(f"{url}/health"), 30)
        assert steady.is_running()
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    soon = "its process had ended with -9 after a short time, so it is started in"
    assert restarts_in(errors) == [f"{soon} 0.1 s", f"{soon} 0.2 s", f"{soon} 0.4 s"]


def test_one_that_was_up_for_long_is_started_again_at_once():
    with changed("replicas._SHORT_S = 0.2") as process:
        assert process.stdout is not None
        assert len([process.stdout.readline() for _ in range(2)]) == 2
        known = set(psutil.Process(process.pid).children())
        time.sleep(0.2)
        next(iter(known)).kill()
        next_in(process, known)
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert restarts_in(errors) == ["its process had ended with -9"]


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
def test_one_that_waits_for_its_start_ends_with_the_others(signal_number: int):
    with changed("replicas._PAUSE_S = 30.0") as process:
        assert process.stdout is not None
        assert len([process.stdout.readline() for _ in range(2)]) == 2
        known = set(psutil.Process(process.pid).children())
        next(iter(known)).kill()
        waiting = next_in(process, known)
        process.send_signal(signal_number)
        process.wait(PATIENCE)
        until(lambda: not runs(waiting), 10)


def test_each_has_processes_of_its_own_for_its_sessions():
    with started(2, "--allow-anonymous", "--isolation=process") as (process, lines):
        envs = [gym.make(COUNTER, backend=url) for url in urls_in(lines)]
        for env in envs:
            assert env.reset(seed=1)[0] == envs[0].reset(seed=1)[0]
        assert len(family(process)) >= 8
        for env in envs:
            env.close()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--replicas=0"], "--replicas 0 is no number of servers; give 1 to 256"),
        (["--replicas=300"], "--replicas 300 is no number of servers"),
        (["--replicas=x"], "argument --replicas: invalid int value: 'x'"),
        (["--replicas=2", "--uds=/tmp/x"], "--uds is one socket, for one server; leave --replicas out"),
        (["--replicas=2", "--port=65535"], "port 65536 is no port"),
        (["--replicas=2", "nope/None-v0"], "nope/None-v0"),
    ],
)
def test_an_invalid_number_of_servers_is_refused(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["--allow-anonymous", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_port_that_is_taken_is_named_and_none_is_left():
    first = free_ports(2)
    with socket.create_server(("127.0.0.1", first + 1)):
        command = [sys.executable, "-m", "envweave_gym_server", "--replicas=2", f"--port={first}", COUNTER]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"port {first + 1} cannot be listened on: Address already in use" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_function_refuses_what_is_no_number_too():
    with pytest.raises(ew.InvalidArgument, match="--replicas True is no number of servers"):
        run_server(COUNTER, replicas=True, allow_anonymous=True)
