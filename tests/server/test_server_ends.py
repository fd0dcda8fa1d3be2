"""How a server ends: it drains, leaves nothing behind, and goes on where only a part of it ended."""

from __future__ import annotations

import contextlib
import errno
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
import websocket
from json_clients import JsonClient, sentence
from servers import RunningServer, is_there, running_server, until

from envweave_gym.wire.messages import Create, Reset, Step, encode, read_reply
from envweave_gym.wire.values import pack

COUNTER, NAP = "envweave/Counter-v0", "served_envs:served/Nap-v0"


@contextlib.contextmanager
def under_way(server: RunningServer, seconds: float) -> Iterator[Future[Any]]:
    """A step that takes so long, once it has begun."""
    session = "/v1/sessions/" + server.post("/v1/sessions", {"id": "served/Nap-v0"})["session"]
    server.post(f"{session}/reset")
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(server.ask, "POST", f"{session}/step", json={"action": seconds})
        until(lambda: server.get(session)["busy"])
        yield step


def is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def test_sigterm_lets_calls_under_way_finish_and_refuses_new_ones(tmp_path: Path):
    wake = tmp_path / "wake"
    with running_server(NAP, env={"WAKE": str(wake)}) as server, under_way(server, 60) as step:
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
        assert not step.done()
        wake.touch()
        assert step.result().json()["call"] == 2
        assert server.process.wait(20) == 0
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
    with running_server(NAP, drain=1.0 if how != "twice" else 60) as server, under_way(server, 60) as step:
        processes = [server.process.pid, *(p.pid for p in psutil.Process(server.process.pid).children(True))]
        assert len(processes) == 2
        end = server.process.kill if how == "parent" else server.process.terminate
        end()
        if how == "twice":
            until(lambda: server.ask("GET", "/health").status_code == 503)
            until(lambda: end() or step.done(), 20)  # signals that come together are one
        until(lambda: not any(_runs(pid) for pid in processes[1:]), 20)
        assert isinstance(step.exception(), requests.ConnectionError)
        assert server.process.wait(20) == (-signal.SIGKILL if how == "parent" else 0)
        until(lambda: is_free(server.port), 2)


def _runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.usefixtures("hears_hanging_up")
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
        until(lambda: is_there(f"{server.url}/health"))
        assert server.ask("GET", f"/v1/sessions/{session}").status_code == 404
        assert "all sessions are lost" in server.log()


# What it survives


FEW_FILES = ("sh", "-c", 'ulimit -n 64; exec "$@"', "sh")


@pytest.mark.parametrize("known", [True, False])
def test_without_free_descriptors_clients_are_refused_and_the_server_goes_on(known: bool):
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
        reported = client.post("/v1/sessions", {"id": "make"}, 503)
        assert reported["error"] == "AtCapacity"
        assert error.strerror in sentence(reported)
        assert client.get("/health")


def _failing(error: Exception) -> Callable[..., Any]:
    def make() -> Any:
        raise error

    return make
