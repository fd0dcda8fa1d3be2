"""A server that is none, answers garbage or not at all gives one error, at make, or a fault, in an episode."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import envweave_gym as ew
from envweave_gym.core.faults import InvalidAction, InvalidArgument, NotAvailable

ID = "envweave/ORS-v0"
SESSION = b"event: task_id\ndata: s1\n\nevent: end\ndata: \n\n"
BLOCKS = [{"type": "text", "text": "Hello."}]


def events(*parts: tuple[str, str]) -> bytes:
    return b"".join(f"event: {name}\ndata: {data}\n\n".encode() for name, data in parts)


def reply(**output: Any) -> bytes:
    return events(("task_id", "1"), ("end", json.dumps({"ok": True, "output": output})))


GOOD: dict[str, Any] = {
    "/list_environments": ["world"],
    "/world/splits": [{"name": "train", "type": "train"}],
    "/world/num_tasks": {"num_tasks": 3},
    "/create_session": SESSION,
    "/create": {"sid": "s1"},
    "/world/prompt": BLOCKS,
    "/world/task_tools": {"tools": [{"name": "act", "description": "", "input_schema": None}]},
    "/world/call": reply(blocks=BLOCKS, reward=0.5, finished=True),
    "/delete": {},
    "/delete_session": {},
}


@contextmanager
def serving(answers: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """A server of these answers; an int is a status, bytes a body as it is, an event is waited for."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            seen.append(f"{self.command} {self.path} {self.headers.get('X-Session-ID', '')}")
            answer = answers.get(self.path, 404)
            if isinstance(answer, threading.Event):
                answer.wait(60)
                self.close_connection = True
                return
            status = answer if isinstance(answer, int) and not isinstance(answer, bool) else 200
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join(60)
        server.server_close()


def test_an_episode_and_the_end_of_its_session():
    with serving(GOOD) as (url, seen):
        env = ew.make(ID, url=f"{url}/")
        text, info = env.reset(seed=1)
        assert (text, ew.state_of(env)["dataset"]) == ("Hello.", f"{url}/world")
        assert info["tools"][0]["function"]["parameters"] == {"type": "object", "properties": {}}
        assert env.step({"name": "act", "input": {}})[:4] == ("Hello.", 0.5, True, False)
        env.close()
        assert [one for one in seen if "delete" in one] == ["POST /delete s1", "POST /delete_session s1"]


def test_a_forked_child_leaves_the_session_of_its_parent_alone():
    with serving(GOOD) as (url, seen):
        env = ew.make(ID, url=url)
        env.reset(seed=1)
        if (child := os.fork()) == 0:
            env.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert not [one for one in seen if "delete" in one]
        assert env.step({"name": "act", "input": {}})[1] == 0.5
        env.close()


def test_what_names_no_tool_is_refused_and_white_space_takes_linear_time():
    with serving(GOOD) as (url, _):
        env = ew.make(ID, url=url)
        env.reset(seed=1)
        for wrong in ('{"name": ["act"]}', '{"name": {}}', '{"name": 3}'):
            with pytest.raises(InvalidAction, match="is no tool"):
                ew.parse_action(env, wrong)
        with pytest.raises(InvalidAction):
            env.step({"name": ["act"], "input": {}})
        call = '\n<tool_call>\n{"name": "act"}\n</tool_call>\n'
        assert ew.parse_action(env, call) == {"name": "act", "input": {}}
        begin = time.process_time()
        with pytest.raises(InvalidAction):
            ew.parse_action(env, f"x{' ' * 60_000}x")
        assert time.process_time() - begin < 3.0
        env.close()


BAD_AT_MAKE: list[tuple[str, Any]] = [
    ("/list_environments", b"<html>"),
    ("/list_environments", b"[" * 100_000),
    ("/list_environments", [[1]]),
    ("/list_environments", {"a": 1}),
    ("/list_environments", 500),
    ("/list_environments", 308),
    ("/list_environments", []),
    ("/world/splits", [1]),
    ("/world/splits", [{"type": "train"}]),
    ("/world/splits", []),
    ("/world/num_tasks", {}),
    ("/world/num_tasks", {"num_tasks": -1}),
    ("/world/num_tasks", {"num_tasks": True}),
    ("/world/num_tasks", b"\xff\xfe"),
]


@pytest.mark.parametrize(("path", "answer"), BAD_AT_MAKE)
def test_garbage_at_make_is_one_sentence(path: str, answer: Any):
    with serving({**GOOD, path: answer}) as (url, _), pytest.raises(NotAvailable) as caught:
        ew.make(ID, url=url)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


BAD_AT_RESET: list[tuple[str, Any]] = [
    ("/create_session", b"event: end\ndata: \n\n"),
    ("/create_session", b"garbage"),
    ("/create_session", b"event: task_id\ndata: s1\ndata: s2\n\nevent: end\ndata: \n\n"),
    ("/create_session", "event: task_id\ndata: \u00e9\n\n".encode()),
    ("/create", b"7"),
    ("/create", 400),
    ("/world/prompt", ["Hello."]),
    ("/world/prompt", [{"type": "sound", "data": ""}]),
    ("/world/prompt", 404),
    ("/world/task_tools", {}),
    ("/world/task_tools", {"tools": ["act"]}),
]


@pytest.mark.parametrize(("path", "answer"), BAD_AT_RESET)
def test_garbage_at_reset_is_a_fault(path: str, answer: Any):
    with serving({**GOOD, path: answer}) as (url, _):
        env = ew.make(ID, url=url, on_fault="truncate", reset_deadline=0.0)
        assert env.reset(seed=0)[1]["fault"].kind == "lost"
        env.close()


BAD_AT_STEP: list[tuple[Any, str]] = [
    (b"", "lost"),
    (events(("task_id", "1")), "lost"),
    (events(("end", "")), "lost"),
    (events(("end", "7")), "lost"),
    (events(("end", '{"ok": true}')), "lost"),
    (events(("end", '{"ok": false}')), "lost"),
    (events(("end", '{"ok": "yes", "output": {"blocks": []}}')), "lost"),
    (events(("end", '{"ok": true, "output": {"blocks": [], "reward": NaN}}')), "lost"),
    (events(("end", '{"ok": true, "output": {"blocks": [], "reward": "1"}}')), "lost"),
    (events(("end", "[" * 100_000)), "lost"),
    (b"data: " + b"x" * (1 << 21), "lost"),
    (events(("error", "the tool is broken")), "crash"),
    (404, "lost"),
    (410, "lost"),
    (500, "lost"),
]


@pytest.mark.parametrize(("answer", "kind"), BAD_AT_STEP)
def test_garbage_at_a_step_is_a_fault_and_no_reward(answer: Any, kind: str):
    with serving({**GOOD, "/world/call": answer}) as (url, _):
        env = ew.make(ID, url=url, on_fault="truncate")
        env.reset(seed=0)
        _, reward, terminated, truncated, info = env.step({"name": "act", "input": {}})
        assert (reward, terminated, truncated, str(info["fault"].kind)) == (0.0, False, True, kind)
        env.close()


def test_a_server_that_does_not_answer_is_a_fault_after_the_timeout_and_is_not_called_twice():
    silent = threading.Event()
    with serving({**GOOD, "/world/call": silent}) as (url, seen):
        env = ew.make(ID, url=url, on_fault="truncate", timeout=0.5)
        env.reset(seed=0)
        *_, info = env.step({"name": "act", "input": {}})
        assert info["fault"].kind == "timeout"
        env.close()
        silent.set()
        assert [one for one in seen if "call" in one] == ["POST /world/call s1"]


BAD_URLS = ["", "host", "ftp://host", "http://", "http://[x", "http://h:x", "http://h:0", "http://h?a=b"]


@pytest.mark.parametrize("url", [*BAD_URLS, None, 3, "http://user:very-secret@h"])
def test_a_url_that_is_none_is_refused_without_its_secrets(url: Any):
    with pytest.raises(InvalidArgument, match="url=") as caught:
        ew.make(ID, url=url)
    assert "very-secret" not in str(caught.value)


def test_a_token_goes_to_this_machine_or_over_tls_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KEY_OF_ORS", "very-secret")
    with pytest.raises(InvalidArgument, match="over https:// only"):
        ew.make(ID, url="http://192.0.2.1:8080", token="env:KEY_OF_ORS")
    with serving({**GOOD, "/list_environments": 401}) as (url, _), pytest.raises(NotAvailable) as caught:
        ew.make(ID, url=url, token="env:KEY_OF_ORS")
    assert "very-secret" not in str(caught.value)
