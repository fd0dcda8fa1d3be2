"""An environment behind messages: what a call does to it, and what the reply says."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv
from pettingzoo import AECEnv, ParallelEnv

from envweave_gym.faults import (
    HARMLESS,
    FaultStorm,
    InvalidArgument,
    NotAvailable,
    fault_of,
    shown,
)
from envweave_gym.protocols import layers, parse_action, state_of
from envweave_gym.stream import Stream
from envweave_gym.vector import NativeVectorEnv
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
    number_of,
)
from envweave_gym.wire.spaces import space_to_data
from envweave_gym.wire.values import pack
from envweave_gym_server.losses import lost_step
from envweave_gym_server.reset_options import ResetOptions
from envweave_gym_server.rows import as_rows, reset_rows

_RESULTS = ("rewards", "terminations", "truncations")
"""What a turn-based game has where another environment has a reward and its two ends."""


DESCRIBE = "describe"
"""The question that :func:`describe` answers."""


class Served:
    """One environment, vector or game in this process, which does one call after the other."""

    may_be_killed = False

    def __init__(self, env: Any, options: ResetOptions | None = None, *, truncates: bool = False) -> None:
        """``options`` are those of its resets that clients may give; ``None`` lets them give any.

        ``truncates`` tells that it was made with ``on_fault="truncate"``.
        """
        self.env = env = as_rows(env)
        self._options, self._truncates = options, truncates
        self._last: bytes | None = None
        metadata: dict[str, Any] = getattr(env, "metadata", None) or {}
        self._thread = ThreadPoolExecutor(1) if metadata.get("thread_affine") else None
        self._turn_by_turn = isinstance(env, AECEnv)
        self._game = isinstance(env, ParallelEnv)

    def do(self, message: Reset | Step, frame: bytes) -> tuple[bytes, bool]:
        """Reset or step; the frame of the reply, and whether the call was done."""
        reply, done = self._guarded(self._reset if type(message) is Reset else self._step, message)
        told = encode(reply)
        if done:
            self._last = told
        return told, done

    def answer(self, message: Ask, frame: bytes) -> bytes:
        """The frame that answers a question."""
        return encode(self._guarded(self._answer, message)[0])

    def describe(self) -> dict[str, Any]:
        """What a client has to know of it before it makes one."""
        return self._run(describe, self.env, self._options)

    def kill(self) -> None:
        """Nothing: a thread cannot be ended from outside."""

    def close(self) -> None:
        """Close the environment."""
        try:
            self._run(self.env.close)
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=False)

    def _guarded(self, work: Callable[[Any], Reply], message: Any) -> tuple[Reply, bool]:
        number = number_of(message)
        try:
            return self._run(work, message), True
        except HARMLESS as error:
            return Refused(number, type(error).__name__, str(error), number - 1), False
        except BaseException as error:  # noqa: BLE001 - and here no Ctrl-C comes, which the main thread gets
            if isinstance(message, Ask):
                return _unanswered(message, error), False
            return self._crashed(message, error), True

    def _crashed(self, message: Reset | Step, error: BaseException) -> Reply:
        """The reply to a call that raised; its stack has ended the episode."""
        if self._truncates and isinstance(message, Step) and not isinstance(error, (Exception, SystemExit)):
            lost = lost_step(message, self._last, error)
            if lost is not None:
                return lost
        kind = "FaultStorm" if isinstance(error, FaultStorm) else "EnvironmentCrashed"
        return Refused(message.call, kind, fault_of(error).message, message.call)

    def _run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        if self._thread is None:
            return work(*arguments)
        return self._thread.submit(work, *arguments).result()

    def _reset(self, message: Reset) -> Reply:
        if self._options is not None:
            self._options.check(message.options)
        if isinstance(message.seed, dict) and isinstance(self.env, VectorEnv):
            result = reset_rows(self.env, message.seed, message.options)
        else:
            result = self.env.reset(seed=message.seed, options=message.options)
        if self._turn_by_turn:
            seen, table = self._look()
            return Began(message.call, seen, table)
        observation, info = result
        return Began(message.call, pack(observation), self._with_agents(info))

    def _step(self, message: Step) -> Reply:
        env, call = self.env, message.call
        if self._turn_by_turn:
            env.step(message.action)
            seen, table = self._look()
            rewards, terminated, truncated = (table.pop(name) for name in _RESULTS)
            return Stepped(call, seen, rewards, terminated, truncated, table)
        observation, reward, terminated, truncated, info = env.step(message.action)
        if type(reward) is not float:
            reward = pack(reward)
        if type(terminated) is not bool or type(truncated) is not bool:
            terminated, truncated = pack(terminated), pack(truncated)
        return Stepped(call, pack(observation), reward, terminated, truncated, self._with_agents(info))

    def _with_agents(self, info: Any) -> Any:
        return pack({"infos": info, "agents": list(self.env.agents)} if self._game else info)

    def _look(self) -> tuple[Any, dict[str, Any]]:
        """What the agent whose turn it is sees, and how a turn-based game stands.

        The call is done by now: what is raised here is no refusal of it, whatever it is called.
        """
        env = self.env
        try:
            agents = list(env.agents)
            table = {name: getattr(env, name) for name in ("infos", *_RESULTS)}
            table |= {"agents": agents, "earned": env._cumulative_rewards}
            table["selection"] = env.agent_selection if agents else None
            return pack(env.observe(env.agent_selection)) if agents else None, pack(table)
        except HARMLESS as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    def _answer(self, message: Ask) -> Reply:
        if message.question == DESCRIBE:
            return Answer(message.number, pack(describe(self.env, self._options)))
        answer = _ANSWERS.get(message.question)
        if answer is None:
            known = ", ".join((*_ANSWERS, DESCRIBE))
            raise InvalidArgument(f"there is no question {shown(message.question)}; there are {known}")
        return Answer(message.number, pack(answer(self.env, message.argument)))


def _unanswered(message: Ask, error: BaseException) -> Refused:
    """The reply to a question that raised: its episode goes on. Junk that was to be an action is junk."""
    if message.question == "parse_action" and isinstance(error, ValueError):
        return Refused(message.number, "ValueError", str(error))
    return Refused(message.number, "NotAvailable", f"{message.question}: {fault_of(error).message}")


def _parsed(env: Any, argument: Any) -> Any:
    text, agent = argument
    return parse_action(env, text, agent)


def _opening(env: Any, seed: Any) -> Any:
    return [[event.kind, event.agent, event.to, event.data] for event in env.unwrapped.opening(seed)]


def _openings(env: Any, seeds: Any) -> Any:
    return [_opening(env, seed) for seed in seeds]


def _entrust(env: Any, secrets: Any) -> None:
    """Hand over what no event, log or state may show; an environment that wants secrets has the method."""
    env.unwrapped.entrust(**secrets)


_ANSWERS: dict[str, Callable[[Any, Any], Any]] = {
    "state": lambda env, _: state_of(env),
    "global_state": lambda env, _: env.state(),
    "render": lambda env, _: env.render(),
    "parse_action": _parsed,
    "observe": lambda env, agent: env.observe(agent),
    "ledger": lambda env, _: [env.ledger.turn, Stream((), tuple(env.ledger.events))],
    "opening": _opening,
    "openings": _openings,
    "entrust": _entrust,
}


def describe(env: Any, options: ResetOptions | None = None) -> dict[str, Any]:
    """What a client has to know of an environment before it makes one.

    Of its reset options it is told those that it may give, so that it refuses others itself, at no cost.
    """
    described: dict[str, Any] = {
        "metadata": _plain_metadata(env) if options is None else _public_metadata(env, options),
        "render_mode": getattr(env, "render_mode", None),
        "parses": any(hasattr(type(layer), "parse_action") for layer in layers(env)),
    }
    if isinstance(env, VectorEnv):
        single = (env.single_observation_space, env.single_action_space)
        core = env.unwrapped
        native = isinstance(core, NativeVectorEnv)
        described["openings"] = core.opening_events if native else 0
        return described | _spaces(*single) | {"native": native, "api": "vector"}
    if isinstance(env, gym.Env):
        return described | _spaces(env.observation_space, env.action_space) | {"api": "gym"}
    possible = getattr(env, "possible_agents", None)
    if possible is None:
        raise NotAvailable(f"{shown(env)} cannot be served: give it possible_agents, which clients ask for")
    agents = {agent: _spaces(env.observation_space(agent), env.action_space(agent)) for agent in possible}
    described["has_state"] = type(env.unwrapped).state not in (AECEnv.state, ParallelEnv.state)
    return described | {"agents": agents, "api": "aec" if isinstance(env, AECEnv) else "parallel"}


def _spaces(observation: Any, action: Any) -> dict[str, Any]:
    return {"observation_space": space_to_data(observation), "action_space": space_to_data(action)}


def _public_metadata(env: Any, options: ResetOptions) -> dict[str, Any]:
    """What clients may ask for: no window on this machine, which ``"human"`` means."""
    metadata = _plain_metadata(env) | {"reset_options": options.let}
    modes = metadata.get("render_modes")
    if isinstance(modes, list | tuple):
        metadata["render_modes"] = [mode for mode in modes if mode != "human"]
    return metadata


def _plain_metadata(env: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = getattr(env, "metadata", None) or {}
    return {key: value for key, value in metadata.items() if key != "autoreset_mode"}
