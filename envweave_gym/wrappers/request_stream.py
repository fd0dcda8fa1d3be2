"""The wrapper that gives a Gymnasium environment its stream, its order of calls and its honest faults."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Literal

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs
from gymnasium.wrappers import PassiveEnvChecker

from envweave_gym.core.actions import REFUSED, admission
from envweave_gym.core.arguments import check_faults, check_options, check_reproducible
from envweave_gym.core.arrays import adapt_converters
from envweave_gym.core.faults import (
    REFUSALS,
    RESET_DEADLINE,
    Fault,
    InvalidAction,
    InvalidArgument,
    ResetNeeded,
    fault_of,
    shown,
)
from envweave_gym.core.protocols import layers, own_state
from envweave_gym.core.seeding import Seeds
from envweave_gym.core.spaces import placeholder
from envweave_gym.episode.emitter import Emitter, drain
from envweave_gym.episode.losses import FaultCount, fault_event, lost_info
from envweave_gym.episode.stream import EventKind, RequestKind, Stream, jsonable, unbuilt
from envweave_gym.wrappers.late_streams import began, ended, stepped
from envweave_gym.wrappers.scalar_rewards import as_number, scalar_reward

OnFault = Literal["raise", "truncate"]

_ACT = EventKind.ACT
_ASK_ACT, _ASK_RESET = RequestKind.ACT, RequestKind.RESET
_FAULTS = (Exception, SystemExit)


class RequestStream(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Puts the stream into ``info``, gives every reset a seed, and refuses misuse in one sentence.

    - A reset without a seed gets one drawn from the last given seed, so the episode is reproducible
      anywhere. With ``reproducible=False`` only the first does: later ones reach the environment without a
      seed, and the ``episode_start`` event says ``"seed": null``. Seeding anew can cost more than a reset.
    - An action outside the action space raises :class:`InvalidAction` and the episode goes on; ``step``
      before ``reset`` or after the end raises :class:`ResetNeeded`.
    - After ``max_steps`` steps the episode is truncated, here rather than in a ``TimeLimit`` of its own: an
      outer one would truncate while the stream still says ``act``, an inner one costs a call at every step.
    - An exception of the environment is raised (``on_fault="raise"``) or ends the episode as a fault
      (``"truncate"``): last observation, reward 0, ``truncated``, ``info["fault"]``. So does an info that is
      no dict, a reward that is no number, and ``sys.exit``, which must not end a trainer.
      ``KeyboardInterrupt`` always passes; so does a refusal of the environment's own (``InvalidAction``,
      ``InvalidArgument``), after which the episode goes on.
    - A reset that fails is tried again until ``reset_deadline`` seconds are over, if trying can help; then it
      gives a placeholder with ``info["fault"]``, and the next step truncates. Ten faults in a row raise
      :class:`FaultStorm`.

    Infos are copies: the environment's own dict stays as it is. The keys ``stream`` and ``seq`` are the
    stream's. An environment that knows itself lost may truncate with a ``Fault`` of its own in
    ``info["fault"]``.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        name: str | None = None,
        max_steps: int | None = None,
        on_fault: OnFault = "raise",
        reset_deadline: float = RESET_DEADLINE,
        reproducible: bool = True,
        reward: Callable[[Any], Any] | str | None = None,
    ) -> None:
        """``name`` is what errors call the environment: its ID, where it has one.

        ``reward`` makes one number of rewards that are lists, arrays or dicts: ``"sum"``, ``"first"``, or a
        function of what the environment pays.
        """
        RecordConstructorArgs.__init__(
            self,
            name=name,
            max_steps=max_steps,
            on_fault=on_fault,
            reset_deadline=reset_deadline,
            reproducible=reproducible,
            reward=reward,
        )
        gym.Wrapper.__init__(self, env)
        self.name = name or (env.spec.id if env.spec else type(env.unwrapped).__name__)
        self._check_arguments(max_steps, on_fault, reset_deadline)
        check_reproducible(self.name, reproducible)
        self.reproducible, self._goes_on = reproducible, False
        self._reward = reward
        self._truncates, self._reset_deadline = on_fault == "truncate", reset_deadline
        self._limit = sys.maxsize if max_steps is None else max_steps
        self._seeds = Seeds(self.name)
        self._inner = env
        self._live = False
        self._episode, self._turn, self._seq = -1, 0, -1
        self._last: Any = None
        self._broken: Fault | None = None
        self._faults = FaultCount(self.name)
        self._emitter = (self.unwrapped if isinstance(self.unwrapped, Emitter) else Emitter()).listen()
        self._compile()

    def _check_arguments(self, max_steps: Any, on_fault: Any, reset_deadline: Any) -> None:
        if has_stream(self.env):
            raise InvalidArgument(f"{self.name} has its stream already; leave this RequestStream out")
        if max_steps is not None and (type(max_steps) is not int or max_steps < 1):
            raise InvalidArgument(
                f"{self.name}: max_steps={shown(max_steps)} is no limit; give an int >= 1 or None"
            )
        check_faults(self.name, on_fault, reset_deadline)

    def _compile(self) -> None:
        """Make what the step loop calls; a closure, so pickles leave it out."""
        self._space = self.env.action_space
        self._admit = admission(self._space)
        self._scalar = scalar_reward(self.name, self._reward)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; its seed is in the ``episode_start`` event."""
        adapt_converters()
        if options is not None:
            check_options(self.name, options, self.metadata)
        chosen = None if seed is None and self._goes_on else self._seeds.next(seed)
        self._inner = _past_checker(self.env, has_begun=self._live or self._turn > 0)
        self._live, self._broken = False, None
        observation, info = self._reset_env(chosen, options)
        if self._inner.action_space is not self._space:
            self._compile()  # each episode may have a space of its own
        self._live, self._last = self._broken is None, observation
        self._goes_on = self._live and not self.reproducible
        self._episode, self._turn = self._episode + 1, 0
        told = drain(self._emitter)
        if self._broken is not None:
            told = [*told, fault_event(self._broken)]
        info["stream"] = stream = unbuilt(Stream)
        stream.late = began, chosen, options and jsonable(options), told
        self._seq = info["seq"] = len(told)
        return observation, info

    def _reset_env(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, again and again where it fails, and copy its info."""
        deadline, pause = self._truncates and time.monotonic() + self._reset_deadline, 0.02
        while True:
            drain(self._emitter)  # what a failed try has told is not of this episode
            try:
                observation, info = self.env.reset(seed=seed, options=options)
                info = info.copy()
                info["stream"] = None
                return observation, info
            except REFUSALS:
                raise
            except _FAULTS as error:
                if not self._truncates:
                    raise
                fault = fault_of(error)
                if not fault.retryable or time.monotonic() + pause > deadline:
                    self._broken = self._faults.add(fault)
                    return placeholder(self.observation_space), {"fault": self._broken}
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Act once."""
        if not self._live:
            return self._step_nowhere(action)
        admit = self._admit  # an attribute that is called in place is looked for as a method first
        admitted = admit(action)
        if admitted is REFUSED:
            raise self._refusal(action)
        try:
            observation, reward, terminated, truncated, info = self._inner.step(action)
            info = info.copy()
            info["stream"] = stream = unbuilt(Stream)
            if self._scalar is not None:
                reward = self._scalar(reward)
            earned: Any = reward if type(reward) is float else as_number(self.name, reward)
            over = terminated or truncated
        except REFUSALS:
            drain(self._emitter)  # what was told of it goes with the step that is not done
            raise
        except BaseException as error:
            self._live = False  # what the step has done is unknown, so the episode cannot go on
            if not self._truncates or not isinstance(error, _FAULTS):
                raise
            return self._lose(self._faults.add(fault_of(error)), _ACT, admitted)
        if self._truncates:
            self._last = observation
        before, told = self._seq, self._emitter._emitted
        seq = before + 1
        if told:
            self._emitter._emitted = ()
            seq += len(told)
        if earned:
            seq += 1
        self._seq = info["seq"] = seq
        self._turn = turn = self._turn + 1
        stream.late = stepped, before, admitted, told, earned, turn
        if turn >= self._limit:
            over = truncated = True
        if over:
            self._end(info, stream, bool(terminated), bool(truncated))
        return observation, reward, terminated, truncated, info

    def _end(self, info: dict[str, Any], stream: Stream, terminated: bool, truncated: bool) -> None:
        """Write down the end of an episode: a good one unless the environment itself calls it lost."""
        self._live = False
        fault = info.get("fault")
        if isinstance(fault, Fault):
            self._faults.add(fault)
            self._seq += 1
        else:
            self._faults.clear()
            fault = None
        self._seq = info["seq"] = self._seq + 1
        stream.late = ended, *stream.late[1:], terminated, truncated, fault

    def _step_nowhere(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """A step without an episode: the one after a lost reset truncates, any other is refused."""
        if self._broken is None:
            when = "before reset()" if self._episode < 0 else "after the episode ended"
            raise ResetNeeded(f"{self.name}: step() was called {when}; call reset()")
        admitted = self._admit(action)
        if admitted is REFUSED:
            raise self._refusal(action)
        return self._lose(self._broken, EventKind.IGNORED, admitted)

    def _refusal(self, action: Any) -> InvalidAction:
        return InvalidAction(f"{self.name}: action {shown(action)} is not in {self.action_space}")

    def _lose(
        self, fault: Fault, kind: EventKind, admitted: Any
    ) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """End the episode as a fault: it was lost, and nothing in it may look like a reward."""
        self._live, self._broken = False, None
        self._turn += 1
        own = drain(self._emitter)
        info = lost_info(fault, kind, admitted, seq=self._seq, turn=self._turn, own=own)
        self._seq = info["seq"]
        return self._last, 0.0, False, True, info

    def stream_state(self) -> dict[str, Any]:
        """What :func:`envweave_gym.state_of` gives."""
        counters = {"episode": self._episode, "step_count": self._turn}
        return {**counters, **own_state(self.unwrapped), **counters}

    state = stream_state

    def __getstate__(self) -> dict[str, Any]:
        made = ("_admit", "_scalar")
        return {name: value for name, value in self.__dict__.items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._compile()


def _past_checker(env: Any, *, has_begun: bool) -> Any:
    """What to step: the checker of ``gymnasium.make`` looks at the first step only, then it is a detour.

    It looks at the first reset too, and would take one that failed for that; so it looks at the next as well.
    """
    if type(env) is not PassiveEnvChecker:
        return env
    if env.checked_step:
        return env.env
    env.checked_reset &= has_begun
    return env


def has_stream(env: Any) -> bool:
    """Whether some layer of ``env``, an environment or a game, gives it its stream."""
    return any(hasattr(type(layer), "stream_state") for layer in layers(env))


class LaunchedStream(RequestStream):
    """The stream of an environment made by ID, which builds the whole stack: its spec names no wrappers."""

    @property
    def spec(self) -> Any:
        """The spec of the ID."""
        return self.unwrapped.spec
