"""Waiting for the server: a request that failed, a gateway that answers for a dead server."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from absent import needs_module

from envweave_gym.core.faults import NotAvailable
from envweave_gym.training.tinker import connection as connections
from envweave_gym.training.tinker.connection import Connection, RequestRefused, ServerLost
from envweave_gym.training.tinker.waiting import Waits

needs_module("tinker", "tinker")


class Unopened(Connection):
    """A connection without a session, for what needs none."""

    def __init__(self, base_url: str) -> None:
        import tinker

        self._sdk, self.base_url = tinker, base_url
        self._health_lock = threading.Lock()
        self._last_answer = self._last_check = 0.0
        self._answer_s = 1800.0
        self.reported: list[str] = []
        self.waits = Waits(self.reported.append, f"the Tinker server at {base_url}")


class Wrapped:
    """A future of the SDK's own kind."""

    def __init__(self, inner: Future[Any]) -> None:
        self._inner = inner

    def result(self, timeout: float | None = None) -> Any:
        return self._inner.result(timeout)

    def future(self) -> Future[Any]:
        return self._inner


@pytest.mark.parametrize("kind", [lambda future: future, Wrapped])
def test_a_request_that_failed_with_a_timeout_is_a_lost_server_and_not_waited_for_again(kind: Any):
    failed: Future[Any] = Future()
    failed.set_exception(TimeoutError("the SDK gave up"))
    caught: list[Exception] = []

    def wait() -> None:
        try:
            Unopened("http://127.0.0.1:9").result(kind(failed))
        except ServerLost as error:
            caught.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(10)
    assert "the SDK gave up" in str(caught[0])


class SampleFuture(Future[Any]):
    """A future of the SDK's samples: the methods of a standard future warn, those of its own do not."""

    def __init__(self, inner: Future[Any]) -> None:
        super().__init__()
        self._inner = inner

    def result(self, timeout: float | None = None) -> Any:
        return self._inner.result(timeout)

    def future(self) -> Future[Any]:
        return self._inner

    def done(self) -> bool:
        warnings.warn("call .future()", FutureWarning, stacklevel=2)
        return False


def test_a_sample_that_takes_longer_than_a_poll_is_waited_for_without_a_warning(
    monkeypatch: pytest.MonkeyPatch,
):
    late: Future[Any] = Future()
    connection = Unopened("http://127.0.0.1:9")

    def is_alive() -> bool:
        late.set_result("text")
        return True

    monkeypatch.setattr("envweave_gym.training.tinker.connection.POLL_S", 0.01)
    monkeypatch.setattr(connection, "_is_alive", is_alive)
    assert connection.result(SampleFuture(late)) == "text"


def test_a_result_that_never_comes_from_a_server_that_is_up_ends_with_the_name_of_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
):
    connection = Unopened("http://127.0.0.1:9")
    monkeypatch.setattr(connection, "_is_alive", lambda: True)
    with pytest.raises(NotAvailable, match=r"has not finished a checkpoint within 0\.05 s.*--answer-timeout"):
        connection.result(Future(), "a checkpoint", 0.05)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, RequestRefused), (404, ServerLost), (410, ServerLost), (429, ServerLost), (502, ServerLost)],
)
def test_statuses_that_a_restart_mends_are_a_lost_server(status: int, kind: type[Exception]):
    import httpx
    import tinker

    response = httpx.Response(status, request=httpx.Request("GET", "http://x"))
    failed: Future[Any] = Future()
    failed.set_exception(tinker.APIStatusError("no", response=response, body={"detail": "so it is"}))
    with pytest.raises(kind, match="so it is"):
        Unopened("http://127.0.0.1:9").result(failed)


@pytest.mark.parametrize(("url", "checks"), [("http://127.0.0.1:9", 6), ("https://tinker.example", 2)])
def test_a_server_elsewhere_is_asked_for_its_health_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, url: str, checks: int
):
    connection, asked, clock = Unopened(url), list[float](), Clock()
    monkeypatch.setattr(
        "envweave_gym.training.tinker.connection.time", SimpleNamespace(monotonic=lambda: clock.now)
    )
    monkeypatch.setattr(connection, "_answers", lambda: not asked.append(clock.now))
    for second in (100.0, 102.0, 104.0, 106.0, 108.0, 110.0):
        clock.now = second
        assert connection._is_alive()
    assert len(asked) == checks


def test_a_local_server_that_hangs_is_started_again(monkeypatch: pytest.MonkeyPatch):
    class Local:
        restarts = 0

        def restart(self) -> None:
            self.restarts += 1

    connection, local = Unopened("http://127.0.0.1:9"), Local()
    connection.local = local  # pyright: ignore[reportAttributeAccessIssue]
    connection.service = None
    sessions: list[Any] = [ServerLost("gone again"), "a session"]

    def opened(*_: Any) -> Any:
        if isinstance(found := sessions.pop(0), Exception):
            raise found
        return found

    monkeypatch.setattr("envweave_gym.training.tinker.connection.POLL_S", 0.01)
    monkeypatch.setattr(connection, "_answers", lambda: local.restarts > 0)
    monkeypatch.setattr(connection, "_new_service", opened)
    connection.reconnect(20.0, print)
    assert (local.restarts, connection.service) == (1, "a session")


def test_the_filter_of_the_sdks_log_stays_until_the_last_connection_closes(monkeypatch: pytest.MonkeyPatch):
    log, ends = logging.getLogger("tinker.lib.retry_handler"), [ExitStack(), ExitStack()]
    monkeypatch.setattr(log, "filters", [])  # connections of other tests may have theirs
    record = log.makeRecord(log.name, logging.ERROR, "", 0, "failed with non-retryable error", (), None)
    for end in ends:
        connections._filter_log(end)
    ends[0].close()
    assert not log.filter(record)
    ends[1].close()
    assert log.filter(record)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_silence_that_is_longer_than_those_before_it_is_reported_once_whoever_waits():
    lines, clock = list[str](), Clock()
    waits = Waits(lines.append, "the server", clock)
    with waits.waiting("samples", expected=3.0) as first, waits.waiting("samples") as second:
        clock.now = 3.9
        assert (first(), second(), lines) == (3.9, 3.9, [])
        clock.now = 4.1
        assert (first(), second()) == (4.1, 4.1)
        assert lines == ["waiting for the server: samples (4 s so far)"]
    with waits.waiting("samples") as look:  # which took 4.1 s before
        clock.now = 9.1
        look()
        assert len(lines) == 1
        clock.now = 9.3
        look()
        assert len(lines) == 2
    with waits.waiting("a checkpoint", expected=0.0) as look:
        clock.now = 10.5
        look()
        assert lines[2:] == ["waiting for the server: a checkpoint (1 s so far)"]


class Gateway(BaseHTTPRequestHandler):
    """Answers every request with one status."""

    status: ClassVar[int] = 502

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def gateway() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Gateway) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("status", "answers"), [(502, False), (200, True), (401, True)])
def test_a_gateway_that_reports_an_error_is_no_answer_of_the_server(
    status: int, answers: bool, gateway: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Gateway, "status", status)
    assert Unopened(gateway)._answers() is answers


def test_a_proxy_does_not_answer_for_a_server_of_this_machine(gateway: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Gateway, "status", 200)
    monkeypatch.setenv("HTTP_PROXY", gateway)
    monkeypatch.setenv("http_proxy", gateway)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert Unopened("http://127.0.0.1:9")._answers() is False
