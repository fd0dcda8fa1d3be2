"""A server on a Unix socket: the same API over a file, for those who may open it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import websocket
from absent import needs_command
from servers import TOKEN, serving_at, until

import envweave_gym as ew
from envweave_gym.core.faults import InvalidArgument
from envweave_gym.remote.transports.websockets import WebSocketBlocked, WebSocketTransport
from envweave_gym.wire.messages import Create, Reset, Step, Stepped, encode, read_reply
from envweave_gym.wire.values import pack
from envweave_gym_server.__main__ import main
from envweave_gym_server.program.listening import listen_at

COUNTER = "envweave/Counter-v0"
pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="there are no Unix sockets")


def connect(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(10)
    try:
        client.connect(str(path))
    except OSError:
        client.close()
        raise
    return client


def ask(path: Path, method: str, where: str, body: Any = None) -> Any:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = connect(path)
    sent = None if body is None else json.dumps(body)
    connection.request(method, where, sent, {"Authorization": f"Bearer {TOKEN}"})
    response = connection.getresponse()
    reported = json.loads(response.read() or b"null")
    connection.close()
    return reported


def test_an_episode_is_played_over_http_and_over_a_websocket(tmp_path: Path):
    path = tmp_path / "server.sock"
    with serving_at(path) as (process, line):
        assert line.startswith("envweave serves 1 environment at http+unix://%2F")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        ask(path, "POST", "/v1/sessions", {"id": COUNTER, "session": "mine", "kwargs": {"target": 50}})
        began = ask(path, "POST", "/v1/sessions/mine/reset", {"seed": 1})
        stream = websocket.create_connection(
            "ws://localhost/v1/sessions/mine/stream",
            socket=connect(path),
            header=[f"Authorization: Bearer {TOKEN}"],
            suppress_origin=True,
        )
        stream.send_binary(encode(Step(2, pack({"delta": 1}))))
        stepped = read_reply(stream.recv())
        assert isinstance(stepped, Stepped)
        assert stepped.observation["count"] == began["observation"]["count"] + 1
        for message in (Create(COUNTER), Reset(1, 1)):
            stream.send_binary(encode(message))
            assert read_reply(stream.recv()).number >= 0  # refused: the session has come further
        stream.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert not path.exists()


@pytest.mark.filterwarnings("error")
def test_environments_and_vectors_are_played_through_the_socket_by_its_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ENVWEAVE_TOKEN", TOKEN)
    with serving_at(tmp_path / "a socket.sock") as (_, line):
        url = line.split("at ")[1].split("/?")[0].split(" ")[0].rstrip("/")
        with gym.make(COUNTER, backend=url, target=50) as env:
            assert_equal_episodes(env, gym.make(COUNTER, target=50))
        assert ew.make(f"{url}#{COUNTER}").reset(seed=3)[0] == gym.make(COUNTER).reset(seed=3)[0]
        rows = gym.make_vec(COUNTER, num_envs=3, backend=[url])
        assert rows.reset(seed=3)[0]["count"][0] == gym.make(COUNTER).reset(seed=3)[0]["count"]
        rows.close()
        monkeypatch.setattr(WebSocketTransport, "__init__", blocked)
        with gym.make(COUNTER, backend=url, target=50) as env:
            assert_equal_episodes(env, gym.make(COUNTER, target=50))


def blocked(self: WebSocketTransport, address: Any, session_id: str, deadline: float) -> None:
    raise WebSocketBlocked


def assert_equal_episodes(first: gym.Env[Any, Any], second: gym.Env[Any, Any]) -> None:
    assert first.reset(seed=1)[0] == second.reset(seed=1)[0]
    for delta in (1, 2, 3):
        assert first.step({"delta": delta})[0] == second.step({"delta": delta})[0]


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("http+unix://", "is not a URL|is unknown"),
        ("http+unix://%2Ftmp%2Fx/path", "is not a URL like"),
        ("http+unix://%2Fno%2Fsuch%2Fsocket", "does not answer: .*No such file"),
    ],
)
def test_an_invalid_socket_path_is_one_sentence(url: str, error: str):
    with pytest.raises((ew.InvalidArgument, ConnectionError), match=error):
        gym.make(COUNTER, backend=url, call_deadline=2)


def test_the_line_of_the_documentation_asks_through_the_socket(tmp_path: Path):
    needs_command("curl")
    path, page = tmp_path / "sock", (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    [line] = [line for line in page.splitlines() if line.startswith("curl --unix-socket ")]
    with serving_at(path):
        script = line.replace("/run/world/sock", str(path))
        environment = {**os.environ, "TOKEN": TOKEN}
        reported = subprocess.run(
            ["sh", "-c", script], capture_output=True, check=True, env=environment, timeout=60
        )
    assert [one["id"] for one in json.loads(reported.stdout)["environments"]] == [COUNTER]


def test_a_socket_that_a_killed_server_left_behind_is_replaced_and_one_in_use_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "server.sock"
    with serving_at(path) as (process, _):
        assert main([f"--uds={path}", COUNTER]) == 2
        assert "Address already in use" in capsys.readouterr().err
        process.kill()
        process.wait()
        until(lambda: _refuses(path))
    assert path.exists()
    with serving_at(path):
        assert ask(path, "GET", "/health") == {"status": "healthy"}


def test_a_server_that_has_no_time_to_answer_keeps_its_socket(tmp_path: Path):
    path = str(tmp_path / "server.sock")
    with socket.socket(socket.AF_UNIX) as busy, ExitStack() as waiting, ThreadPoolExecutor(1) as pool:
        busy.bind(path)
        busy.listen(0)
        with suppress(BlockingIOError):
            while True:
                client = waiting.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(path)
        listening = pool.submit(listen_at, path)
        try:
            with pytest.raises(InvalidArgument, match="Address already in use"):
                listening.result(20)
        finally:
            busy.close()  # who still waits is let go
    assert Path(path).is_socket()


def _refuses(path: Path) -> bool:
    try:
        connect(path).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize(
    ("path", "says"),
    [("x" * 150, "path too long"), ("/no/such/folder/x", "No such file"), ("kept", "already in use")],
)
def test_a_path_that_cannot_be_listened_on_is_one_line(
    path: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept").write_text("a file of somebody")
    assert main([f"--uds={path}", COUNTER]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert says in line
    assert (tmp_path / "kept").read_text() == "a file of somebody"


def test_a_socket_replaces_the_port(capsys: pytest.CaptureFixture[str]):
    assert main(["--uds=x", "--port=8000", COUNTER]) == 2
    assert "--uds takes the place of --host and --port" in capsys.readouterr().err
