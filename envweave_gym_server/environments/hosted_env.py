"""``HostedEnv``: executes the messages of a session on its environment, and encodes the replies."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from pettingzoo import AECEnv, ParallelEnv

from envweave_gym.core.faults import (
    HARMLESS,
    EnvironmentCrashed,
    Fault,
    FaultKind,
    FaultStorm,
    NotAvailable,
    fault_of,
)
from envweave_gym.core.protocols import name_of
from envweave_gym.episode.record import EpisodeRecord
from envweave_gym.episode.stream import RequestKind, Stream
from envweave_gym.wire.messages import (
    Answer,
    Ask,
    Began,
    Refused,
    Reply,
    Reset,
    Step,
    Stepped,
    encode,
    read_reply,
)
from envweave_gym.wire.packed_streams import holds_results
from envweave_gym.wire.values import NotEncodable, exact, pack
from envweave_gym_server.environments.description import describe
from envweave_gym_server.environments.own_thread import OwnThread
from envweave_gym_server.environments.questions import answer_to
from envweave_gym_server.environments.reset_options import ResetOptions
from envweave_gym_server.environments.vector_resets import as_rows, reset_rows

_RESULTS = ("rewards", "terminations", "truncations")
"""Attributes of a turn-based game that are sent as reward, terminated and truncated of a step."""


class HostedEnv:
    """Environment, vector or game in this process, which executes one message after the other."""

    may_be_killed = False

    def __init__(
        self,
        env: Any,
        options: ResetOptions | None = None,
        *,
        truncates: bool = False,
        readable: bool = True,
        thread: OwnThread | None = None,
    ) -> None:
        """Wrap ``env``.

        ``options`` are the reset options that clients may give; ``None`` allows any. ``truncates`` says that
        the environment was made with ``on_fault="truncate"``, ``readable`` that clients may read its public
        attributes. ``thread`` is the thread that made it, and in which all its methods run.
        """
        self._readable = readable
        self.env = env = as_rows(env)
        self._options, self._truncates = options, truncates
        self._last: bytes | None = None
        metadata: dict[str, Any] = getattr(env, "metadata", None) or {}
        if thread is None and metadata.get("thread_affine"):
            thread = OwnThread("of its own")
        self._thread = thread
        self._is_aec, self._is_parallel = isinstance(env, AECEnv), isinstance(env, ParallelEnv)

    def do(self, message: Reset | Step, frame: bytes) -> tuple[bytes, bool]:
        """Execute a reset or step; return the reply frame, and false if the call was refused.

        ``frame`` is the encoded message.
        """
        work: Any = self._step if type(message) is Step else self._reset
        try:
            reply = work(message) if self._thread is None else self._thread.run(work, message)
        except HARMLESS as error:
            return encode(Refused(message.call, type(error).__name__, str(error), message.call - 1)), False
        except BaseException as error:  # noqa: BLE001 - Ctrl-C does not come here, but to the main thread
            reply = self._crashed(message, error)
        self._last = packed = encode(reply)
        return packed, True

    def answer(self, message: Ask, frame: bytes) -> bytes:
        """Return the reply frame to a question, which changes nothing."""
        try:
            answer = self._run(answer_to, self.env, message, self._options, self._readable)
            return encode(Answer(message.number, answer))
        except HARMLESS as error:
            return encode(Refused(message.number, type(error).__name__, str(error)))
        except BaseException as error:  # noqa: BLE001 - the episode goes on
            if message.question == "parse_action" and isinstance(error, ValueError):
                return encode(Refused(message.number, "ValueError", str(error)))
            problem = f"{message.question}: {fault_of(error).message}"
            return encode(Refused(message.number, "NotAvailable", problem))

    def describe(self) -> dict[str, Any]:
        """Return the description of the environment: spaces, metadata and API."""
        return self._run(describe, self.env, self._options)

    def kill(self) -> None:
        """Do nothing: the call runs in a thread of this process, which cannot be ended from outside."""

    def close(self) -> None:
        """Close the environment."""
        try:
            self._run(self.env.close)
        finally:
            if self._thread is not None:
                self._thread.close()

    def _run(self, work: Any, *arguments: Any) -> Any:
        return work(*arguments) if self._thread is None else self._thread.run(work, *arguments)

    def _crashed(self, message: Reset | Step, error: BaseException) -> Reply:
        """Return the reply to a call that raised: an error reply, or the last step of a lost episode.

        The wrappers of the environment have already ended the episode.
        """
        if self._truncates and isinstance(message, Step) and not isinstance(error, (Exception, SystemExit)):
            lost = lost_step(message, self._last, error)
            if lost is not None:
                return lost
        kind = "FaultStorm" if isinstance(error, FaultStorm) else "EnvironmentCrashed"
        return Refused(message.call, kind, fault_of(error).message, message.call)

    def _reset(self, message: Reset) -> Reply:
        if self._options is not None:
            self._options.check(message.options)
        if isinstance(message.seed, dict) and isinstance(self.env, VectorEnv):
            result = reset_rows(self.env, message.seed, message.options)
        else:
            result = self.env.reset(seed=message.seed, options=message.options)
        if self._is_aec:
            return Began(message.call, *self._turn())
        observation, info = result
        try:
            return Began(message.call, exact("observation", observation), pack(self._with_agents(info)))
        except NotEncodable as error:  # it would be none at the next attempt either
            raise NotAvailable(f"{name_of(self.env)}: {error}") from None

    def _step(self, message: Step) -> Reply:
        if self._is_aec:
            self.env.step(message.action)
            observation, game = self._turn()
            rewards, terminated, truncated = (game.pop(name) for name in _RESULTS)
            return Stepped(message.call, observation, rewards, terminated, truncated, game)
        observation, reward, terminated, truncated, info = self.env.step(message.action)
        seen = exact("observation", observation)
        if isinstance(reward, np.ndarray) and holds_results(info, reward, terminated, truncated):
            return Stepped(message.call, seen, None, None, None, pack(info))
        if type(reward) is not float:
            reward = exact("reward", reward)
        if type(terminated) is not bool or type(truncated) is not bool:
            terminated, truncated = exact("terminated", terminated), exact("truncated", truncated)
        if self._is_parallel:
            info = self._with_agents(info)
        return Stepped(message.call, seen, reward, terminated, truncated, pack(info))

    def _with_agents(self, info: Any) -> Any:
        return {"infos": info, "agents": list(self.env.agents)} if self._is_parallel else info

    def _turn(self) -> tuple[Any, dict[str, Any]]:
        """Return the observation of the agent whose turn it is, and the state of a turn-based game.

        The game has already changed when this is called. So an error here is raised as ``RuntimeError``, which
        does not mean that the call was not executed.
        """
        env = self.env
        try:
            agents = list(env.agents)
            game = {name: exact(name, getattr(env, name)) for name in _RESULTS}
            game |= {"agents": pack(agents), "earned": exact("rewards", env._cumulative_rewards)}
            game |= {"infos": pack(env.infos), "selection": env.agent_selection if agents else None}
            return exact("observation", env.observe(env.agent_selection)) if agents else None, game
        except HARMLESS as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error


def lost_step(message: Step, last: bytes | None, error: BaseException) -> Stepped | None:
    """Return the step that ends an episode with ``on_fault="truncate"``, for errors that wrappers do not catch.

    Such errors are the death of a worker process, and exceptions that are not subclasses of ``Exception``.
    ``last`` is the previous reply, with the last observation and the open request. Return ``None`` for vectors
    and games, and if no episode was running.
    """
    before = None if last is None else read_reply(last)
    if not isinstance(before, Began | Stepped) or not isinstance(before.info, dict):
        return None
    stream = before.info.get("stream")
    if not isinstance(stream, Stream) or not stream.requests:
        return None
    request = stream.requests[0]
    if request.kind != RequestKind.ACT:
        return None
    crash = Fault(FaultKind.CRASH, str(error), retryable=True)
    fault = crash if isinstance(error, EnvironmentCrashed) else fault_of(error)
    info = EpisodeRecord(seq=request.seq, turn=request.turn).lost(fault, message.action)
    return Stepped(message.call, pack(before.observation), 0.0, False, True, pack(info))
