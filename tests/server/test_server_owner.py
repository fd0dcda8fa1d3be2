"""A server that is given a connection of its owner takes its token from it, and ends when it closes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import resource
import select
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import requests
from cli_program import PROGRAM
from servers import TESTS, TOKEN, runs, until

from envweave_gym.core.faults import InvalidArgument
from envweave_gym_server import run_server
from envweave_gym_server.core.owner_pipe import is_gone, taken_over

COUNTER = "envweave/Counter-v0"


@contextlib.contextmanager
def owned(
    *words: str, lines: int = 1, **environ: str
) -> Generator[tuple[subprocess.Popen[str], str, list[psutil.Process]]]:
    """A server that this process owns, its URL and its processes."""
    inherited = {name: value for name, value in os.environ.items() if name != "ENVWEAVE_TOKEN"}
    paths = {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    environment = {**inherited, **paths, "ENVWEAVE_OWNER_FD": "0", **environ}
    command = [sys.executable, "-m", "envweave_gym_server", "--port=0", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{TOKEN}\n")
            process.stdin.flush()
            urls = [re.findall(r"http://[^/]+", process.stdout.readline()) for _ in range(lines)]
            began = psutil.Process(process.pid)
            yield process, urls[0][0], [began, *began.children(recursive=True)]
        finally:
            process.kill()


def status_of(url: str, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    return requests.get(f"{url}/v1/envs", headers=headers, timeout=10).status_code


@pytest.mark.parametrize("options", [(), ("--isolation=process",), ("--replicas=2",)])
def test_all_of_it_ends_when_the_connection_does(options: tuple[str, ...]) -> None:
    with owned(COUNTER, *options, lines=1 + ("--replicas=2" in options)) as (process, url, family):
        assert process.stdin is not None
        process.stdin.write("\n\n")  # what else comes means nothing
        process.stdin.flush()
        assert (status_of(url, TOKEN), status_of(url, "another-token")) == (200, 401)
        process.stdin.close()
        until(lambda: not any(map(runs, family)), 30)


FREEZES = """
import ctypes
from envweave_gym.envs.toy.counter import CounterEnv

class Freezes(CounterEnv):
    def reset(self, *, seed=None, options=None):
        ctypes.PyDLL(None).sleep(600)  # which keeps the GIL
"""


def test_it_ends_though_an_environment_keeps_the_interpreter_to_itself(tmp_path: Path) -> None:
    (tmp_path / "freezing.py").write_text(FREEZES)
    with owned("freezing:Freezes", PYTHONPATH=str(tmp_path)) as (process, url, family):
        headers = {"Authorization": f"Bearer {TOKEN}"}
        (listed,) = requests.get(f"{url}/v1/envs", headers=headers, timeout=10).json()["environments"]
        wanted = {"id": listed["id"]}
        opened = requests.post(f"{url}/v1/sessions", json=wanted, headers=headers, timeout=10).json()
        session = f"{url}/v1/sessions/{opened['session']}"
        with pytest.raises(requests.Timeout):
            requests.post(f"{session}/reset", json={"call": 1}, headers=headers, timeout=1)
        assert process.stdin is not None
        process.stdin.close()
        until(lambda: not any(map(runs, family)), 30)


def test_an_option_names_another_token() -> None:
    with owned(COUNTER, "--allow-anonymous") as (_, url, _):
        assert requests.get(f"{url}/v1/envs", timeout=10).status_code == 200


def test_programs_that_it_starts_do_not_inherit_the_connection() -> None:
    reader, writer = os.pipe()
    moved = taken_over(reader)
    assert not os.get_inheritable(moved)
    assert not is_gone(moved)
    os.write(writer, b"\n")
    assert not is_gone(moved)
    os.close(writer)
    assert is_gone(moved)
    os.close(moved)


def test_a_reply_that_another_replica_has_read_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    moved = taken_over(reader)
    always = SimpleNamespace(register=lambda *_: None, poll=lambda _: [(moved, select.POLLIN)])
    with monkeypatch.context() as patch:
        patch.setattr(select, "poll", lambda: always)
        assert not is_gone(moved)
    os.close(writer)
    assert is_gone(moved)
    os.close(moved)


def test_its_end_is_seen_on_a_descriptor_beyond_1023() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip("this machine allows fewer than 2,000 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    reader, writer = os.pipe()
    moved = fcntl.fcntl(reader, fcntl.F_DUPFD_CLOEXEC, 1500)
    try:
        assert not is_gone(moved)
        os.close(writer)
        assert is_gone(moved)
    finally:
        os.close(moved)
        os.close(reader)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_variable_that_names_no_open_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = {"stdin": "ENVWEAVE_OWNER_FD='stdin' is no number", "931": "cannot be read"}
    for given, sentence in refusals.items():
        monkeypatch.setenv("ENVWEAVE_OWNER_FD", given)
        with pytest.raises(InvalidArgument, match=sentence):
            run_server(COUNTER, port=0)
        assert "ENVWEAVE_OWNER_FD" not in os.environ


def test_no_process_of_a_server_shows_the_token_of_its_environment() -> None:
    secret = "a-token-in-the-environment"
    environment = {**os.environ, "ENVWEAVE_TOKEN": secret, "ENVWEAVE_BEFORE": "shown"}
    for program in ([sys.executable, "-m", "envweave_gym_server"], [str(PROGRAM), "serve"]):
        command = [*program, "--port=0", COUNTER]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            url = re.findall(r"http://[^/]+", process.stdout.readline())[0]
            assert status_of(url, secret) == 200
            began = psutil.Process(process.pid)
            for one in (began, *began.children(recursive=True)):
                shown = Path(f"/proc/{one.pid}/environ").read_bytes()
                assert b"ENVWEAVE_BEFORE=shown" in shown
                assert secret.encode() not in shown
            process.terminate()
