"""An environment behind messages: what a call does to it, and what the reply says."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv, VectorEnv
from pettingzoo import AECEnv, ParallelEnv

from envweave_gym.core.faults import (
    HARMLESS,
    FaultStorm,
    InvalidArgument,
    NotAvailable,
    fault_of,
    shown,
)
from envweave_gym.core.protocols import layers, name_of, parse_action, state_of
from envweave_gym.episode.stream import Stream
from envweave_gym.vector.native import NativeVectorEnv
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
from envweave_gym.wire.spaces import parts_of, space_to_data
from envweave_gym.wire.values import NoForm, exact, pack
from envweave_gym_server.environments.attributes import attribute
from envweave_gym_server.environments.lost_episode import lost_step
from envweave_gym_server.environments.own_thread import OwnThread
from envweave_gym_server.environments.reset_options import ResetOptions
from envweave_gym_server.environments.rows import as_rows, goes_on, reset_rows

_RESULTS = ("rewards", "terminations", "truncations")
"""What a turn-based game has where another environment has a reward and its two ends."""


DESCRIBE = "describe"
"""The question that :func:`describe` answers."""


class HostedEnv:
    """One environment, vector or game in this process, which does one call after the other."""

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
        """``options`` are those of its resets that clients may give; ``None`` lets them give any.

        ``truncates`` tells that it was made with ``on_fault="truncate"``, ``readable`` that clients may read
        its public attributes. ``thread`` is the one that made it, and makes all its calls.
        """
        self._readable = readable
        self.env = env = as_rows(env)
        self._options, self._truncates = options, truncates
        self._last: bytes | None = None
        metadata: dict[str, Any] = getattr(env, "metadata", None) or {}
        if thread is None and metadata.get("thread_affine"):
            thread = OwnThread("of its own")
        self._thread = thread
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
                self._thread.close()

    def _guarded(self, work: Callable[[Any], Reply], message: Any) -> tuple[Reply, bool]:
        number = number_of(message)
        try:
            return self._run(work, message), True
        except HARMLESS as error:
            committed = -1 if isinstance(message, Ask) else number - 1  # a question may have any number
            return Refused(number, type(error).__name__, str(error), committed), False
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
        return self._thread.run(work, *arguments)

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
        try:
            return Began(message.call, exact("observation", observation), self._with_agents(info))
        except NoForm as error:  # it would be none at the next attempt either
            raise NotAvailable(f"{name_of(self.env)}: {error}") from None

    def _step(self, message: Step) -> Reply:
        env, call = self.env, message.call
        if self._turn_by_turn:
            env.step(message.action)
            seen, table = self._look()
            rewards, terminated, truncated = (table.pop(name) for name in _RESULTS)
            return Stepped(call, seen, rewards, terminated, truncated, table)
        observation, reward, terminated, truncated, info = env.step(message.action)
        seen = exact("observation", observation)
        if type(reward) is not float:
            reward = exact("reward", reward)
        if type(terminated) is not bool or type(truncated) is not bool:
            terminated, truncated = exact("terminated", terminated), exact("truncated", truncated)
        return Stepped(call, seen, reward, terminated, truncated, self._with_agents(info))

    def _with_agents(self, info: Any) -> Any:
        return pack({"infos": info, "agents": list(self.env.agents)} if self._game else info)

    def _look(self) -> tuple[Any, dict[str, Any]]:
        """What the agent whose turn it is sees, and how a turn-based game stands.

        The call is done by now: what is raised here is no refusal of it, whatever it is called.
        """
        env = self.env
        try:
            agents = list(env.agents)
            table = {name: exact(name, getattr(env, name)) for name in _RESULTS}
            table |= {"agents": pack(agents), "earned": exact("rewards", env._cumulative_rewards)}
            table |= {"infos": pack(env.infos), "selection": env.agent_selection if agents else None}
            return exact("observation", env.observe(env.agent_selection)) if agents else None, table
        except HARMLESS as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    def _answer(self, message: Ask) -> Reply:
        if message.question == DESCRIBE:
            return Answer(message.number, pack(describe(self.env, self._options)))
        answer = _ANSWERS.get(message.question)
        if answer is None:
            known = ", ".join((*_ANSWERS, DESCRIBE))
            raise InvalidArgument(f"there is no question {shown(message.question)}; there are {known}")
        if answer is attribute and not self._readable:
            raise InvalidArgument(
                f"{name_of(self.env)}: clients may not read its attributes here, as another package "
                "registers it; the operator can serve a factory of it instead"
            )
        return Answer(message.number, pack(answer(self.env, message.argument)))


def _unanswered(message: Ask, error: BaseException) -> Refused:
    """The reply to a question that raised: its episode goes on. Junk that was to be an action is junk."""
    if message.question == "parse_action" and isinstance(error, ValueError):
        return Refused(message.number, "ValueError", str(error))
    return Refused(message.number, "NotAvailable", f"{message.question}: {fault_of(error).message}")


def _parsed(env: Any, argument: Any) -> Any:
    text, agent = argument
    return parse_action(env, text, agent)


def _of_space(env: Any, asked: Any) -> Any:
    """Answer ``contains`` or ``sample`` of a space, for clients that do not have its class."""
    which, agent, path, question, argument = asked
    if which not in ("observation_space", "action_space") or question not in ("contains", "sample"):
        raise InvalidArgument(f"there is no {shown(question)} of {shown(which)}")
    name = f"single_{which}" if isinstance(env, VectorEnv) else which
    space = getattr(env, name) if agent is None else getattr(env, name)(agent)
    for index in path:
        space = parts_of(space)[index]
    if question == "contains":
        return bool(space.contains(argument))
    drawn = copy.deepcopy(space) if parts_of(space) else copy.copy(space)  # a question changes nothing
    drawn.seed(argument)
    return drawn.sample()


def _entrust(env: Any, secrets: Any) -> None:
    """Hand over what no event, log or state may show; an environment that wants secrets has the method."""
    env.unwrapped.entrust(**secrets)


_ANSWERS: dict[str, Callable[[Any, Any], Any]] = {
    "state": lambda env, _: state_of(env),
    "global_state": lambda env, _: env.state(),
    "render": lambda env, _: env.render(),
    "parse_action": _parsed,
    "observe": lambda env, agent: env.observe(agent),
    "record": lambda env, _: [env.record.turn, Stream((), tuple(env.record.events))],
    "space": _of_space,
    "entrust": _entrust,
    "attribute": attribute,
}


def describe(env: Any, options: ResetOptions | None = None) -> dict[str, Any]:
    """What a client has to know of an environment before it makes one.

    Of its reset options it is told those that it may give, so that it refuses others itself, at no cost.
    """
    described: dict[str, Any] = {
        "metadata": _plain_metadata(env) if options is None else _public_metadata(env, options),
        "render_mode": getattr(env, "render_mode", None),
        "spec": _spec_fields(env),
        "parses": any(hasattr(type(layer), "parse_action") for layer in layers(env)),
        "goes_on": goes_on(env),
    }
    if isinstance(env, VectorEnv):
        single = (env.single_observation_space, env.single_action_space)
        native = isinstance(env.unwrapped, NativeVectorEnv)
        return described | _spaces(*single) | {"native": native, "api": "vector"}
    if isinstance(env, gym.Env):
        return described | _spaces(env.observation_space, env.action_space) | {"api": "gym"}
    possible = getattr(env, "possible_agents", None)
    if possible is None:
        raise NotAvailable(f"{shown(env)} cannot be served: give it possible_agents, which clients ask for")
    agents = {agent: _spaces(env.observation_space(agent), env.action_space(agent)) for agent in possible}
    described["has_state"] = type(env.unwrapped).state not in (AECEnv.state, ParallelEnv.state)
    return described | {"agents": agents, "api": "aec" if isinstance(env, AECEnv) else "parallel"}


def _spec_fields(env: Any) -> dict[str, Any]:
    """The scalar fields of an environment's ``EnvSpec``, which clients copy into theirs."""
    core = env.envs[0] if isinstance(env, SyncVectorEnv) else env
    spec = getattr(core, "spec", None)
    return {
        name: getattr(spec, name, None)
        for name in ("reward_threshold", "nondeterministic", "max_episode_steps")
    }


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
