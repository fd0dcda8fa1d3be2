"""Servers of OpenEnv's own package in one process, run in a venv that has it: ``python openenv_peer.py FD``.

``/counter`` adds up; ``/echo``, ``/tools``, ``/coding`` and ``/repl`` have the models of the environments of those
names. Each takes ten sessions, pings every two seconds and hangs up eight seconds later.
"""

from __future__ import annotations

import sys
from typing import Any
from uuid import uuid4

import uvicorn
from fastapi import FastAPI
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from openenv_models import (
    CodeAction,
    CodeBlockResult,
    CodeObservation,
    CodeState,
    EchoAction,
    EchoObservation,
    REPLAction,
    REPLObservation,
    REPLState,
)
from pydantic import Field


class Plain(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **given: Any) -> Any:
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        return self.first(seed, **given)

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        self._state.step_count += 1
        return self.act(action)

    @property
    def state(self) -> State:
        return self._state


class Add(Action):
    delta: int = Field(ge=0, le=9)


class Sum(Observation):
    count: int
    text: str


class Counter(Plain):
    def first(self, seed: int | None, start: int = 0, **_: Any) -> Sum:
        self.count, self.seed = start, seed
        return self.seen(None)

    def act(self, action: Add) -> Sum:
        if action.delta == 9:
            raise RuntimeError("nine is too much")
        if action.delta == 8:
            Sum(text="a wrong object of its own")  # pyright: ignore[reportCallIssue]
        self.count += action.delta
        return self.seen(float(action.delta))

    def seen(self, reward: float | None) -> Sum:
        about = {"seed": self.seed, "note": "☃"}
        return Sum(
            count=self.count, text="☃" * self.count, reward=reward, done=self.count >= 5, metadata=about
        )


class Echo(Plain):
    def first(self, seed: int | None, **_: Any) -> EchoObservation:
        return EchoObservation(echoed_message="Echo environment ready!", message_length=0, reward=0.0)

    def act(self, action: EchoAction) -> EchoObservation:
        size = len(action.message)
        return EchoObservation(echoed_message=action.message, message_length=size, reward=size * 0.1)


class Tools(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        from fastmcp import FastMCP

        server = FastMCP("echo_env")

        @server.tool
        def echo_message(message: str) -> str:
            """Echo back the message."""
            if message == "fail":
                raise ValueError("it cannot be echoed")
            return message

        super().__init__(server)
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Observation:
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        return Observation(metadata={"message": "Echo environment ready!"})

    def _step_impl(self, action: Any, timeout_s: float | None = None, **_: Any) -> Observation:
        return Observation(metadata={"error": "unknown action"})

    @property
    def state(self) -> State:
        return self._state


class Coding(Plain):
    def first(self, seed: int | None, **_: Any) -> CodeObservation:
        self._state = CodeState(episode_id=self._state.episode_id)
        return CodeObservation()

    def act(self, action: CodeAction) -> CodeObservation:
        failed = action.code == "1/0"
        self._state.last_exit_code = int(failed)
        return CodeObservation(
            stdout="" if failed else "2\n",
            stderr="division" if failed else "",
            exit_code=int(failed),
            reward=0.1,
        )


class REPL(Plain):
    def first(
        self,
        seed: int | None,
        context: str = "",
        task_prompt: str = "",
        hf_token: str | None = None,
        **_: Any,
    ) -> REPLObservation:
        self._state = REPLState(episode_id=self._state.episode_id, context=context, task_prompt=task_prompt)
        return REPLObservation(
            result=result(""),
            context_preview=context,
            context_length=len(context),
            metadata={"has_token": bool(hf_token)},
        )

    def act(self, action: REPLAction) -> REPLObservation:
        self._state.iteration += 1
        is_over = action.is_final or action.code.startswith("FINAL(")
        if is_over:
            self._state.final_answer = action.final_answer if action.is_final else action.code[6:-1]
        return REPLObservation(
            result=result(f"ran {action.code}"),
            available_variables=["context"],
            iteration=self._state.iteration,
            done=is_over,
            reward=1.0 if is_over else 0.0,
            metadata={"final_answer": self._state.final_answer},
        )


def result(stdout: str) -> CodeBlockResult:
    """The result of a program that has printed this."""
    return CodeBlockResult(stdout=stdout, stderr="", execution_time=0.0, success=True)


KINDS: dict[str, tuple[Any, Any, Any]] = {
    "counter": (Counter, Add, Sum),
    "echo": (Echo, EchoAction, EchoObservation),
    "tools": (Tools, CallToolAction, CallToolObservation),
    "coding": (Coding, CodeAction, CodeObservation),
    "repl": (REPL, REPLAction, REPLObservation),
}


def main(listener: int) -> None:
    app = FastAPI()
    for kind, models in KINDS.items():
        app.mount(f"/{kind}", create_fastapi_app(*models, max_concurrent_envs=10))
    uvicorn.run(app, fd=listener, log_level="error", ws_ping_interval=2.0, ws_ping_timeout=8.0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
