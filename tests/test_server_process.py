"""The server as a program: how it starts, says where it is, drains, ends, and what it survives."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
import websocket
from cli_program import PROGRAM
from json_clients import JsonClient, sentence
from servers import RunningServer, running_server

from envweave_gym.wire.messages import Create, Reset, Step, encode, read_reply
from envweave_gym.wire.values import pack
from envweave_gym_server.__main__ import main

COUNTER, NAP = "envweave/Counter-v0", "served_envs:served/Nap-v0"


# Starting


@contextlib.contextmanager
def started(*words: str, **environ: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``envweave serve`` on a free port, and the line it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "ENVWEAVE_TOKEN"}
    with subprocess.Popen(
        [PROGRAM, "serve", "--port=0", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, **environ},
        pass_fds=[int(word.partition("=")[2]) for word in words if word.startswith("--token-fd=")],
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline()
        finally:
            process.terminate()
            process.communicate(timeout=30)


def url_in(line: str) -> str:
    return re.findall(r"http://\S+", line)[0]


def health(url: str) -> int:
    return requests.get(url.partition("?")[0] + "health", timeout=10).status_code


def listed(url: str, token: str | None = None) -> int:
    address, _, query = url.partition("?")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return requests.get(f"{address}v1/envs?{query}", headers=headers, timeout=10).status_code


def test_the_first_line_is_a_link_with_a_token_that_was_made_up():
    with started(COUNTER) as (_, first), started(COUNTER) as (_, second):
        assert first.startswith("envweave serves 1 environment at http://127.0.0.1:")
        assert url_in(first).partition("?token=")[2] != url_in(second).partition("?token=")[2]
        assert len(url_in(first).partition("?token=")[2]) >= 40
        assert listed(url_in(first)) == 200
        assert listed(url_in(first).partition("?")[0]) == 401


def test_a_token_file_is_written_for_its_owner_alone_and_read_the_next_time(tmp_path: Path):
    file = tmp_path / "token"
    with started(COUNTER, f"--token-file={file}") as (_, line):
        token = file.read_text().strip()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert token not in line
        assert listed(url_in(line), token) == 200
    with started(COUNTER, f"--token-file={file}") as (_, line):
        assert listed(url_in(line), token) == 200
        assert file.read_text().strip() == token


def test_a_token_comes_through_a_descriptor_whose_other_end_stays_open():
    reader, writer = os.pipe()
    os.write(writer, b"through-a-pipe\n")
    try:
        with started(COUNTER, f"--token-fd={reader}") as (_, line):
            assert "token" not in url_in(line)
            assert listed(url_in(line), "through-a-pipe") == 200
    finally:
        os.close(reader)
        os.close(writer)


def test_a_token_comes_from_the_environment_and_is_not_handed_on():
    with started(COUNTER, ENVWEAVE_TOKEN="from-the-environment") as (process, line):
        assert "from-the-environment" not in line
        assert listed(url_in(line), "from-the-environment") == 200
        assert "from-the-environment" not in str(psutil.Process(process.pid).cmdline())


def test_everybody_is_let_in_only_where_that_is_said():
    with started(COUNTER, "--allow-anonymous") as (_, line):
        assert listed(url_in(line)) == 200


def test_ipv6_has_brackets_in_its_url():
    with started(COUNTER, "--host=::1") as (_, line):
        assert url_in(line).startswith("http://[::1]:")
        assert health(url_in(line)) == 200


def test_an_open_network_is_warned_of():
    with started(COUNTER, "--host=0.0.0.0") as (process, line):
        assert health(url_in(line)) == 200
        process.terminate()
        _, told = process.communicate(timeout=30)
    assert "envweave: warning: 0.0.0.0 is open to the network: whoever has the token may use it" in told


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--port=x"], "--port"),
        (["--port=70000"], "port 70000 is no port"),
        (["--host=nohost.invalid"], "'nohost.invalid' port 8000 cannot be listened on"),
        (["nope"], "'nope' cannot be served"),
        (["no_module:Thing"], "No module named 'no_module'"),
        (["served_envs:Nothing"], "has no attribute 'Nothing'"),
        (["docker://image"], "'docker://image' cannot be served"),
        (["--token-fd=999"], "--token-fd 999 cannot be read: Bad file descriptor"),
        (["--token-file=/no/such/folder/token"], "No such file or directory"),
        (["--token-file=/dev/zero"], "--token-file /dev/zero holds no token"),
        (["--token-fd=0", "--token-file=x"], "give one of them"),
        (["--allow-anonymous", "--token-file=x"], "lets everybody in"),
        (["--max-sessions=0"], "--max-sessions 0 is not more than 0"),
        (["--idle-timeout=nan"], "--idle-timeout nan is not more than 0"),
        (["--isolation=container"], "'container'"),
        (["--unknown"], "--unknown"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(words: list[str], says: str, capsys: pytest.CaptureFixture[str]):
    assert main(words) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("envweave: ")
    assert says in line


def test_a_token_that_cannot_be_written_leaves_no_file_behind(tmp_path: Path):
    command = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", PROGRAM, "serve", f"--token-file={tmp_path / 't'}"]
    unmeasured = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=unmeasured)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"envweave: --token-file {tmp_path / 't'} cannot be used: File too large\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("token", ["", "  ", "with space", "wörd", "a\tb"])
def test_what_is_no_token_is_refused(
    token: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("ENVWEAVE_TOKEN", token)
    assert main([COUNTER]) == 2
    assert "ENVWEAVE_TOKEN holds no token" in capsys.readouterr().err


def test_a_port_in_use_is_one_line(capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main([COUNTER, f"--port={taken.getsockname()[1]}"]) == 2
    assert "Address already in use" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["flask", "gunicorn", "wsproto", "prometheus_client"])
def test_what_is_not_installed_is_one_line(module: str):
    blocked = f"import sys; sys.modules[{module!r}] = None; sys.argv[1:] = ['serve']\n"
    for run in (
        "from envweave_gym.cli import main",
        "from envweave_gym_server.__main__ import main",
        "from envweave_gym_server import create_app as main",
    ):
        script = f"{blocked}{run}\nsys.exit(main())"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        wanted = f"needs {module}, which is not installed: pip install 'envweave-gym[server]'"
        assert wanted in done.stderr.splitlines()[-1]
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1 or "create_app" in run


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_episode_of_the_documentation_is_played_by_curl(tmp_path: Path):
    page = (Path(__file__).parent.parent / "docs" / "server.md").read_text()
    [script] = [block for block in re.findall(r"^```bash\n(.*?)^```", page, re.M | re.S) if "curl" in block]
    with running_server(COUNTER) as server:
        environment = {**os.environ, "URL": server.url, "TOKEN": server.token or ""}
        done = subprocess.run(
            ["sh", "-e", "-c", script], capture_output=True, text=True, env=environment, timeout=60
        )
    assert (done.returncode, done.stderr) == (0, "")
    told = done.stdout.splitlines()
    assert json.loads(told[2]) == {"session": "mine", "id": COUNTER, "api": "gym", "call": 0}
    began, stepped, stands = (json.loads(line) for line in told[3:6])
    assert stepped["observation"]["count"] == began["observation"]["count"] + 1
    assert (stands["call"], stands["state"]["step_count"]) == (2, 1)
    assert "event: step" in told


# Ending


@contextlib.contextmanager
def under_way(server: RunningServer, seconds: float) -> Iterator[Future[Any]]:
    """A step that takes so long, once it has begun."""
    session = "/v1/sessions/" + server.post("/v1/sessions", {"id": "served/Nap-v0"})["session"]
    server.post(f"{session}/reset")
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(server.ask, "POST", f"{session}/step", json={"action": seconds})
        until(lambda: server.get(session)["busy"])
        yield step


def until(what: Callable[[], Any], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def test_sigterm_lets_calls_under_way_finish_and_refuses_new_ones():
    with running_server(NAP) as server, under_way(server, 1.0) as step:
        began = time.monotonic()
        server.process.terminate()
        until(lambda: server.ask("GET", "/health").status_code == 503)
        for method, path, body in (
            ("POST", "/v1/sessions", {"id": "served/Nap-v0"}),
            ("GET", "/v1/sessions/x", None),
            ("POST", "/v1/sessions/x/step", {"action": 1}),
        ):
            refused = server.ask(method, path, json=body)
            assert (refused.status_code, refused.json()["error"]) == (503, "AtCapacity")
            assert "stopping" in refused.json()["message"]
        assert time.monotonic() - began < 0.9
        assert step.result().json()["call"] == 2
        assert server.process.wait(10) == 0
        assert time.monotonic() - began < 2.5
        until(lambda: is_free(server.port), 2)


def test_sigterm_lets_the_steps_of_websockets_finish_and_closes_them():
    with running_server(NAP) as server:
        sockets = [_nap_socket(server, name) for name in ("busy", "idle")]
        sockets[0].send_binary(encode(Step(2, pack(0.5))))
        until(lambda: server.get("/v1/sessions/busy")["busy"])
        server.process.terminate()
        assert sockets[1].recv_data()[0] == websocket.ABNF.OPCODE_CLOSE
        assert read_reply(sockets[0].recv()).call == 2
        opcode, data = sockets[0].recv_data()
        assert (opcode, data[:2]) == (websocket.ABNF.OPCODE_CLOSE, (1001).to_bytes(2, "big"))
        assert server.process.wait(10) == 0
        for connection in sockets:
            connection.shutdown()


def _nap_socket(server: RunningServer, name: str) -> websocket.WebSocket:
    connection = websocket.create_connection(
        f"ws://127.0.0.1:{server.port}/v1/sessions/{name}/stream",
        header=[f"Authorization: Bearer {server.token}"],
        suppress_origin=True,
        timeout=10,
    )
    for message in (Create("served/Nap-v0"), Reset(1, 1)):
        connection.send_binary(encode(message))
        connection.recv()
    return connection


@pytest.mark.parametrize("how", ["twice", "deadline", "parent"])
def test_a_step_without_end_does_not_keep_the_server(how: str):
    with running_server(NAP, drain=1.0 if how != "twice" else 30) as server, under_way(server, 30) as step:
        processes = [server.process.pid, *(p.pid for p in psutil.Process(server.process.pid).children(True))]
        assert len(processes) == 2
        if how == "parent":
            server.process.kill()
        else:
            server.process.terminate()
        if how == "twice":
            time.sleep(0.7)
            server.process.terminate()
        until(lambda: not any(_runs(pid) for pid in processes[1:]), 6)
        assert isinstance(step.exception(), requests.ConnectionError)
        assert server.process.wait(5) == (-signal.SIGKILL if how == "parent" else 0)
        until(lambda: is_free(server.port), 2)


def _runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_ctrl_c_and_a_closed_terminal_end_the_whole_group(number: signal.Signals):
    with running_server(COUNTER) as server:
        for process in (psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children()):
            process.send_signal(number)
        assert server.process.wait(10) == 0
        assert "Traceback" not in server.log()


def test_there_is_never_a_second_worker_and_nohup_keeps_the_server():
    with running_server(COUNTER, under=("nohup",)) as server:
        session = server.post("/v1/sessions", {"id": COUNTER})["session"]
        workers = psutil.Process(server.process.pid).children()
        for number in (signal.SIGHUP, signal.SIGTTIN, signal.SIGUSR2):
            server.process.send_signal(number)
        time.sleep(0.5)
        assert psutil.Process(server.process.pid).children() == workers
        assert server.get(f"/v1/sessions/{session}")["call"] == 0


def test_a_worker_that_dies_is_replaced_and_its_sessions_are_known_to_be_lost():
    with running_server("served_envs:served/Awkward-v0") as server:
        session = server.post("/v1/sessions", {"id": "served/Awkward-v0", "kwargs": {}})["session"]
        [worker] = psutil.Process(server.process.pid).children()
        worker.kill()
        until(lambda: _is_there(f"{server.url}/health"))
        assert server.ask("GET", f"/v1/sessions/{session}").status_code == 404
        assert "all sessions are lost" in server.log()


def _is_there(url: str) -> bool:
    try:
        return requests.get(url, timeout=10).status_code == 200
    except requests.ConnectionError:
        return False


# What it survives


FEW_FILES = ("sh", "-c", 'ulimit -n 64; exec "$@"', "sh")


@pytest.mark.parametrize("known", [True, False])
def test_without_files_left_clients_are_told_and_the_server_goes_on(known: bool):
    with running_server(COUNTER, under=FEW_FILES if known else ()) as server, contextlib.ExitStack() as kept:
        [worker] = psutil.Process(server.process.pid).children()
        if not known:  # the server finds out when it happens
            worker.rlimit(resource.RLIMIT_NOFILE, (64, 64))
        statuses: list[int] = []
        for _ in range(80):
            session = kept.enter_context(requests.Session())
            statuses.append(session.get(f"{server.url}/health", timeout=10).status_code)
        assert set(statuses) == {200, 503}
        assert statuses.index(503) > 8
        kept.close()
        until(lambda: server.ask("GET", "/health").status_code == 200)
        assert worker.is_running()
        assert "rror" not in server.log()


def test_a_machine_that_is_used_up_is_no_room_for_a_session():
    for error in (
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.ENOSPC, "No space left on device"),
    ):
        client = JsonClient(_failing(error))
        told = client.post("/v1/sessions", {"id": "make"}, 503)
        assert told["error"] == "AtCapacity"
        assert error.strerror in sentence(told)
        assert client.get("/health")


def _failing(error: Exception) -> Callable[..., Any]:
    def make() -> Any:
        raise error

    return make


def test_a_server_whose_line_nobody_reads_serves():
    environment = {**os.environ, "ENVWEAVE_TOKEN": "x"}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [PROGRAM, "serve", COUNTER, f"--port={port}"]
    reader, writer = os.pipe()
    os.close(reader)
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE, env=environment) as process:
        os.close(writer)
        until(lambda: _is_there(f"http://127.0.0.1:{port}/health"))
        assert listed(f"http://127.0.0.1:{port}/", "x") == 200
        process.terminate()
        _, told = process.communicate(timeout=30)
    assert b"Traceback" not in told
