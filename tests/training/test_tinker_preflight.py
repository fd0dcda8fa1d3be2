"""Pre-flight without the SDK: servers that hang, that are of another kind, that refuse; keys in files."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from absent import needs_module

from envweave_gym.core.faults import EnvweaveError, InvalidArgument, NotAvailable
from envweave_gym.training.tinker import connection, preflight
from envweave_gym.training.tinker.connection import Connection
from envweave_gym.training.tinker.preflight import checked_url

KEY = "tml-key-of-the-tests"
MODELS = {"supported_models": [{"model_name": "a/b", "max_context_length": 64}, {"model_name": "c"}, 5]}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("TINKER_BASE_URL", "TINKER_CREDENTIAL_CMD"):
        monkeypatch.delenv(name, raising=False)


def refusal(base_url: str = "", within: float = 3.0, **settings: Any) -> EnvweaveError:
    """Return the error of a connection, which must come in time, and be one sentence."""
    started = time.monotonic()
    with pytest.raises(EnvweaveError) as caught:
        Connection(base_url, **settings)
    assert time.monotonic() - started < within
    assert "\n" not in str(caught.value)
    assert KEY not in str(caught.value)
    return caught.value


@contextlib.contextmanager
def answering(answer: Callable[[BaseHTTPRequestHandler], tuple[int, Any] | None]) -> Iterator[str]:
    """Serve what ``answer`` returns for each request: a status, and JSON or text; ``None`` for no answer at all."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = answer(self)
            if given is None:
                over.wait(30)
                return
            status, value = given
            body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            over.set()
            server.shutdown()
            thread.join()


def healthy(then: Callable[[BaseHTTPRequestHandler], tuple[int, Any] | None]) -> Any:
    return lambda one: (200, {"status": "ok"}) if one.path.endswith("healthz") else then(one)


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_server_that_takes_connections_and_never_answers_is_named_in_three_seconds(silent: str):
    found = refusal(silent)
    assert isinstance(found, NotAvailable)
    assert f"{silent} takes connections but does not answer" in str(found)


def test_a_server_that_sends_a_byte_now_and_then_is_silent_too(monkeypatch: pytest.MonkeyPatch):
    over = threading.Event()

    def drip() -> None:
        with suppressed_socket(listener) as there:
            while not over.wait(0.02):
                there.sendall(b"H")

    monkeypatch.setattr(preflight, "HEALTH_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert "does not answer" in str(refusal(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        finally:
            over.set()
            thread.join()


@contextlib.contextmanager
def suppressed_socket(listener: socket.socket) -> Iterator[socket.socket]:
    accepted, _ = listener.accept()
    with accepted, contextlib.suppress(OSError):
        yield accepted


def test_nobody_at_the_url_is_named_with_the_ways_to_a_server():
    found = refusal("http://127.0.0.1:9")
    assert "no Tinker server answers at http://127.0.0.1:9; start one with: envweave tinker serve" in str(
        found
    )


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda one: (404, "no such page"), "is no Tinker server (GET /api/v1/healthz gives status 404)"),
        (lambda one: (200, "<html>hello</html>"), "is no Tinker server"),
        (lambda one: (200, "[" * 100_000), "is no Tinker server"),
        (lambda one: (502, "bad gateway"), "no Tinker server answers at"),
        (healthy(lambda one: (404, {"detail": "Not Found"})), "is no Tinker server (GET /api/v1/get_server"),
        (healthy(lambda one: (200, {"models": []})), "is no Tinker server"),
        (healthy(lambda one: (401, {"detail": "who are you"})), "refuses the key: who are you"),
        (healthy(lambda one: (403, {"detail": "not this host"})), "refuses this client: not this host"),
        (healthy(lambda one: (400, {"detail": "tinker 9 is not served"})), "tinker 9 is not served"),
    ],
)
def test_another_server_or_one_that_refuses_is_told_apart(answer: Any, words: str):
    with answering(answer) as url:
        found = refusal(url)
    assert words in str(found)
    assert isinstance(found, InvalidArgument) == ("refuses the key" in words)


def test_a_server_that_does_not_name_its_models_is_waited_for_with_a_line_and_given_up(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(preflight, "MODELS_S", 2.0)
    lines: list[str] = []
    with answering(healthy(lambda one: None)) as url:
        found = refusal(url, 10, report=lines.append)
    assert "does not name its models within 2 s" in str(found)
    assert lines == [f"waiting for the Tinker server at {url}: the names of its models (1 s so far)"]


def test_a_server_that_is_busy_at_first_is_asked_again(monkeypatch: pytest.MonkeyPatch):
    needs_module("tinker", "tinker")
    monkeypatch.setattr(preflight, "RETRY_S", 0.01)
    answers = [(429, {"detail": "busy"}), (503, "starting"), (200, MODELS)]
    keys: list[Any] = []

    def models(one: BaseHTTPRequestHandler) -> tuple[int, Any]:
        keys.append(one.headers["X-API-Key"])
        return answers.pop(0)

    monkeypatch.setattr(Connection, "_new_service", lambda self: None)
    with answering(healthy(models)) as url:
        found = Connection(f"{url}/")
    assert keys == [KEY] * 3
    assert found.base_url == url
    assert (list(found.models), found.context_of("a/b"), found.context_of("c")) == (["a/b", "c"], 64, None)


@pytest.mark.parametrize(
    "url", ["nonsense", "ftp://x", "http://", "http://[x", "http://x:port", "http://a b", "http://x\n", "//x"]
)
def test_what_is_no_url_is_refused(url: str, monkeypatch: pytest.MonkeyPatch):
    assert "--base-url" in str(refusal(url))
    monkeypatch.setenv("TINKER_BASE_URL", url)
    assert "TINKER_BASE_URL" in str(refusal())
    assert "give http://HOST:PORT" in str(refusal())


def test_a_url_may_have_a_path_and_a_slash_at_its_end():
    assert checked_url("https://host/services/tinker/", "x") == "https://host/services/tinker"


def test_the_key_may_be_in_a_file_with_a_line_break(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "key").write_text(f"  {KEY}\n\n")
    for reference in (f"file:{tmp_path / 'key'}", "env:THE_KEY", f"{KEY}\n"):
        monkeypatch.setenv("THE_KEY", KEY)
        monkeypatch.setenv("TINKER_API_KEY", reference)
        assert connection._key() == KEY


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("file:{}/none", "which cannot be read (No such file or directory)"),
        ("file:{}", "which cannot be read (Is a directory)"),
        ("file:{}/bytes", "which cannot be read (it is no text)"),
        ("file:{}/empty", "which is empty"),
        ("file:{}/other", "begins with tml-"),
        ("file:{}/lines", "spaces or line breaks"),
        ("env:NO_SUCH_KEY", "that variable is not set"),
        ("tml-a\nb", "spaces or line breaks"),
        ("sk-123", "begins with tml-"),
        ("", "set TINKER_API_KEY"),
    ],
)
def test_a_key_that_cannot_be_is_refused_before_anything_is_sent(
    reference: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xfd")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "other").write_text("sk-123")
    (tmp_path / "lines").write_text(f"{KEY}\n{KEY}")
    monkeypatch.setenv("TINKER_API_KEY", reference.format(tmp_path))
    found = refusal("http://127.0.0.1:9")
    assert isinstance(found, InvalidArgument)
    assert words in str(found)
    assert "sk-123" not in str(found)
