"""What the tests of the REPL share: the IDs, and an endpoint that stands for a model."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

import envweave_gym as ew
from envweave_gym.registry.catalog import cards, register_card

REPL, TEAM = "envweave/REPL-v0", "envweave/REPLTeam-v0"
ASKING = "tests/REPL-v0"
"""On servers of the tests: the REPL whose sub-calls ask the endpoint that :data:`ENDPOINT` names."""
ENDPOINT = "REPL_TEST_ENDPOINT"
"""An environment variable."""
Reply = tuple[int, Any]


class ChatEndpoint:
    """Answers ``/v1/chat/completions`` with what a function says, and keeps what was asked."""

    def __init__(self, answer: Callable[[str], str | Reply]) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.asked.append({**body, "path": self.path})
                endpoint.keys.append(self.headers["Authorization"])
                said = answer(body["messages"][-1]["content"])
                status, reported = said if isinstance(said, tuple) else (200, choice(said))
                data = reported.encode() if isinstance(reported, str) else json.dumps(reported).encode()
                self.send_response(status)
                if status == 307:
                    self.send_header("Location", reported + "/chat/completions")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"


def choice(text: Any) -> dict[str, Any]:
    """What an endpoint says."""
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


@contextmanager
def chat_endpoint(answer: Callable[[str], str | Reply]) -> Iterator[ChatEndpoint]:
    """An endpoint for a block."""
    endpoint = ChatEndpoint(answer)
    thread = threading.Thread(target=endpoint.server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield endpoint
    finally:
        endpoint.server.shutdown()
        endpoint.server.server_close()
        thread.join()


class Episode:
    """Plays programs one after the other."""

    def __init__(self, *, options: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.env = ew.make(REPL, **kwargs)
        self.observation, self.info = self.env.reset(seed=1, options=options)
        self.reward, self.ended = 0.0, False

    def run(self, code: str) -> dict[str, Any]:
        """Run a program."""
        self.observation, self.reward, self.ended, truncated, self.info = self.env.step(code)
        assert not truncated
        return self.observation

    @property
    def answer(self) -> str | None:
        """The last answer."""
        return self.info.get("final_answer")


@contextmanager
def episode(**arguments: Any) -> Iterator[Episode]:
    """An episode for a block."""
    played = Episode(**arguments)
    try:
        yield played
    finally:
        played.env.close()


if url := os.environ.get(ENDPOINT):
    card = msgspec.structs.replace(cards()[REPL], id=ASKING, kwargs={"hf_url": url})
    register_card(card)
