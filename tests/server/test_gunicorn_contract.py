"""The internals of gunicorn that envweave_gym_server/gunicorn relies on, as the pinned version has them."""

from __future__ import annotations

import inspect
import os
import queue
import selectors
import signal
import socket
import tomllib
from collections import deque
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.arbiter import Arbiter
from gunicorn.config import Config
from gunicorn.glogging import Logger
from gunicorn.http.unreader import SocketUnreader
from gunicorn.workers import gthread
from gunicorn.workers.gthread import TConn, ThreadWorker

from envweave_gym_server import create_app
from envweave_gym_server.gunicorn.server import GunicornServer

REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


class Log:
    """Takes down what a worker logs."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __getattr__(self, level: str) -> Any:
        return lambda message, *arguments, **_: self.lines.append(f"{level}: {message}")


@pytest.fixture
def worker() -> Iterator[Any]:
    """A worker that has not been started, and answers in the thread of the test."""
    worker = ThreadWorker.__new__(ThreadWorker)
    worker.cfg, worker.log, worker.alive = Config(), Log(), True
    worker.nr, worker.max_requests, worker.nr_conns, worker.max_keepalived = 0, 100, 1, 10
    worker.keepalived_conns, worker.pending_conns = deque(), deque()
    worker.method_queue, worker.poller = queue.Queue(), selectors.DefaultSelector()
    yield worker
    worker.poller.close()


@pytest.fixture
def ends() -> Iterator[tuple[Any, socket.socket]]:
    """A connection as gunicorn holds it, and the client's end."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(5)
    conn = TConn(Config(), ours, ("127.0.0.1", 1), ("127.0.0.1", 2))
    yield conn, theirs
    ours.close()
    theirs.close()


def test_the_pin_is_the_version_that_is_installed_here_and_in_the_constraints():
    pins = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]["server"]
    pin = f"gunicorn=={version('gunicorn')}"
    assert pin in pins
    assert pin in PYPROJECT.with_name("constraints.txt").read_text().splitlines()


def test_every_option_that_the_server_sets_is_known():
    listener = socket.create_server(("127.0.0.1", 0))
    server = GunicornServer(create_app("envweave/Counter-v0"), listener)
    assert (server.cfg.forwarder_headers, server.cfg.control_socket_disable) == ([], True)
    assert (server.cfg.workers, server.cfg.timeout) == (1, 0)
    os.close(server._descriptor)


def test_a_connection_whose_handling_is_deferred_waits_in_the_loop(worker: Any, ends: Any):
    conn, _ = ends
    result = SimpleNamespace(result=lambda: gthread._DEFER, cancelled=lambda: False)
    worker.finish_request(conn, result)
    assert list(worker.pending_conns) == [conn]
    assert (worker.nr_conns, conn.timeout > 0) == (1, True)


def test_a_request_is_read_with_the_unreader_that_was_put_in_place(worker: Any, ends: Any):
    class Counting(SocketUnreader):
        chunks = 0

        def chunk(self, size_hint: int | None = None) -> bytes:
            Counting.chunks += 1
            return super().chunk(size_hint)

    conn, client = ends
    client.sendall(REQUEST)
    conn.data_ready = True
    assert not conn.initialized
    conn.init()
    assert conn.initialized
    conn.parser.unreader = Counting(conn.sock)
    worker.handle_request = lambda req, conn: False
    worker.handle(conn)
    assert Counting.chunks == 1


def test_the_environ_has_the_socket_and_a_stop_iteration_leaves_it_alone(worker: Any, ends: Any):
    environs: list[dict[str, Any]] = []

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        environs.append(environ)
        start_response("200 OK", [])
        raise StopIteration

    conn, client = ends
    worker.wsgi = app
    client.sendall(REQUEST)
    conn.data_ready = True
    assert worker.handle(conn) is False
    assert environs[0]["gunicorn.socket"] is conn.sock
    conn.close()
    assert client.recv(100) == b"", "nothing was sent"


def test_an_error_of_a_socket_is_logged_in_the_words_that_the_logger_knows(worker: Any, ends: Any):
    conn, client = ends
    client.sendall(REQUEST)
    conn.data_ready = True

    def fails(environ: dict[str, Any], start_response: Any) -> Any:
        raise TimeoutError(11, "it takes too long")

    worker.wsgi = fails
    worker.handle(conn)
    assert "exception: Socket error processing request." in worker.log.lines


def test_connections_that_end_are_closed_once_and_counted_once(worker: Any, ends: Any):
    conn, _ = ends
    closed: list[bool] = []
    conn.close = lambda graceful=False: closed.append(graceful)
    result = SimpleNamespace(result=lambda: False, cancelled=lambda: False)
    worker.finish_request(conn, result)
    assert (worker.nr_conns, closed) == (0, [True])


@pytest.mark.parametrize("kind", ["keepalived", "pending"])
def test_connections_whose_timeout_is_over_are_closed(worker: Any, ends: Any, kind: str):
    conn, client = ends
    conn.timeout = 0.0
    getattr(worker, f"{kind}_conns").append(conn)
    getattr(worker, f"murder_{kind}")()
    assert (worker.nr_conns, client.recv(1)) == (0, b"")


def test_the_worker_has_what_is_overridden_and_calls_it():
    loop, accepting = inspect.getsource(ThreadWorker.run), inspect.getsource(ThreadWorker.set_accept_enabled)
    for called in ("self.is_parent_alive()", "self.murder_keepalived()", "self.murder_pending()"):
        assert called in loop
    assert "self.accept" in accepting
    assert "self.handle," in inspect.getsource(ThreadWorker.enqueue_req)
    assert {"handle_exit", "init_process", "handle_request"} <= vars(ThreadWorker).keys()


def test_the_arbiter_looks_after_its_workers_each_second_and_queues_signals(monkeypatch: pytest.MonkeyPatch):
    assert "self.murder_workers()" in inspect.getsource(Arbiter.run)
    arbiter = Arbiter.__new__(Arbiter)
    arbiter.SIG_QUEUE = queue.SimpleQueue()
    arbiter.signal(signal.SIGTERM, None)
    assert arbiter.SIG_QUEUE.get_nowait() == signal.SIGTERM
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(Arbiter, "kill_worker", lambda self, pid, sig: killed.append((pid, sig)))
    monkeypatch.setattr(Arbiter, "WORKERS", {7: None})
    arbiter.kill_workers(signal.SIGKILL)
    assert killed == [(7, signal.SIGKILL)]


def test_the_logger_has_the_methods_that_are_overridden():
    assert {"setup", "exception"} <= vars(Logger).keys()
    assert "self.error_log" in inspect.getsource(Logger)
