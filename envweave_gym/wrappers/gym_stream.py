"""The wrapper ``RequestStream``, which adds streams, seeds, checks and faults to a Gymnasium environment."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Literal

import gymnasium as gym
from gymnasium.spaces import Space
from gymnasium.utils import RecordConstructorArgs
from gymnasium.wrappers import PassiveEnvChecker

from envweave_gym.core.actions import REFUSED, admission
from envweave_gym.core.arguments import check_faults, check_int, check_options, check_reproducible
from envweave_gym.core.array_conversion import adapt_converters
from envweave_gym.core.call_results import NOT_UNPACKED, no_finite_reward, with_name, wrong_result
from envweave_gym.core.faults import (
    REFUSALS,
    RESET_DEADLINE_S,
    Fault,
    InvalidAction,
    InvalidArgument,
    fault_of,
    shown,
)
from envweave_gym.core.observation_form import stackable, wrong_observation
from envweave_gym.core.protocols import layers, own_state
from envweave_gym.core.seeding import Seeds
from envweave_gym.core.spaces import placeholder
from envweave_gym.episode.emitter import Emitter, drain
from envweave_gym.episode.record import EpisodeRecord
from envweave_gym.wrappers.scalar_rewards import as_number, scalar_reward

OnFault = Literal["raise", "truncate"]

_FAULTS = (Exception, SystemExit)  # SystemExit is one too: an environment's sys.exit must not end a trainer
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0
"""Pauses between tries of a failing reset: the first, and the limit up to which they double."""


class RequestStream(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Wrapper that puts events and requests into ``info["stream"]``, seeds every reset, and refuses wrong calls.

    - A reset without a seed gets one drawn from the last given seed, so the episode is reproducible
      anywhere. With ``reproducible=False`` only the first does: later ones reach the environment without a
      seed, and the ``episode_start`` event has ``"seed": null``. Seeding can cost more than a reset.
    - An action outside the action space raises :class:`InvalidAction` and the episode goes on; ``step``
      before ``reset`` or after the end raises :class:`ResetNeeded`.
    - After ``max_steps`` steps the episode is truncated. A ``TimeLimit`` outside of this wrapper would
      truncate while the stream still says ``act``; one inside costs a call at every step.
    - An exception of the environment is raised (``on_fault="raise"``) or ends the episode as a fault
      (``"truncate"``): last observation, reward 0, ``truncated``, ``info["fault"]``. The same holds for a
      result that is not five values, an info that is no dict, a reward that is no finite number,
      ``sys.exit``, which must not end a trainer, and in a row of a vector an observation whose shape or dtype
      does not fit the space.
      ``KeyboardInterrupt`` always passes, and so does a refusal of the environment (``InvalidAction``,
      ``InvalidArgument``), after which the episode goes on.
    - With ``"truncate"`` a failing reset is tried again for ``reset_deadline`` seconds, if its fault is
      retryable. Then it returns a placeholder with ``info["fault"]``, and the next step truncates. Ten faults
      in a row raise :class:`FaultStorm`.

    Infos are copies: the environment's own dict is not changed. The keys ``stream`` and ``seq`` are
    overwritten. An environment may truncate with a ``Fault`` of its own in ``info["fault"]``.
    """

    _stacked: Space[Any] | None = None
    _fits: Callable[[Any], bool] | None = None

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        name: str | None = None,
        max_steps: int | None = None,
        on_fault: OnFault = "raise",
        reset_deadline: float = RESET_DEADLINE_S,
        reproducible: bool = True,
        reward: Callable[[Any], Any] | str | None = None,
    ) -> None:
        """Wrap ``env``; ``name`` is the name in errors, by default the ID.

        ``reward`` converts rewards that are lists, arrays or dicts to one number: ``"sum"``, ``"first"``, or
        a function of the reward.
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
        self.reproducible, self._keeps_generator = reproducible, False
        self._reward = reward
        self._truncates, self._reset_deadline = on_fault == "truncate", reset_deadline
        self._limit = sys.maxsize if max_steps is None else max_steps
        self._seeds = Seeds(self.name)
        self._inner = env
        self._last: Any = None
        self.record = EpisodeRecord(self.name)
        self._emitter = (self.unwrapped if isinstance(self.unwrapped, Emitter) else Emitter()).listen()
        self._compile()

    def _check_arguments(self, max_steps: Any, on_fault: Any, reset_deadline: Any) -> None:
        if has_stream(self.env):
            raise InvalidArgument(f"{self.name} has its stream already; leave this RequestStream out")
        check_int(f"{self.name}: max_steps", max_steps, "no limit", 1, or_none=True)
        check_faults(self.name, on_fault, reset_deadline)

    def _compile(self) -> None:
        """Build the closures that :meth:`step` calls, for speed; pickles leave them out."""
        self._space = self.env.action_space
        self._admit = admission(self._space)
        self._scalar = scalar_reward(self.name, self._reward)
        self._fits = None if self._stacked is None else stackable(self._stacked)

    def check_observations(self, space: Space[Any]) -> None:
        """Treat an observation as an error of the environment unless a vector can stack it as a member of ``space``."""
        self._stacked, self._fits = space, stackable(space)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; its seed is in the ``episode_start`` event."""
        adapt_converters()
        if options is not None:
            check_options(self.name, options, self.metadata)
        chosen = None if seed is None and self._keeps_generator else self._seeds.next(seed)
        record = self.record
        self._inner = _past_checker(self.env, has_begun=record.live or record.turn > 0)
        record.abandon()
        observation, info, fault = self._reset_env(chosen, options)
        if self._inner.action_space is not self._space:
            self._compile()  # each episode may have a space of its own
        self._last, emitted = observation, drain(self._emitter)
        if fault is not None:
            info = record.lost_reset(fault, chosen, options, emitted)
        else:
            info["stream"] = record.began(chosen, options, emitted)
            info["seq"] = record.seq
        self._keeps_generator = record.live and not self.reproducible
        return observation, info

    def _reset_env(
        self, seed: int | None, options: dict[str, Any] | None
    ) -> tuple[Any, dict[str, Any], Fault | None]:
        """Reset the environment, repeatedly if it fails; return its observation, its info and the last fault.

        The info is a copy. The fault is ``None`` if a try succeeded; else the observation is all zeros.
        """
        deadline, pause = self._truncates and time.monotonic() + self._reset_deadline, _FIRST_PAUSE_S
        while True:
            drain(self._emitter)  # events of a failed try are not part of this episode
            try:
                result = self._inner.reset(seed=seed, options=options)
                try:
                    observation, info = result
                    info = info.copy()
                    info["stream"] = None
                except NOT_UNPACKED as error:
                    raise wrong_result(self.name, "reset", result) from error
                if self._fits is not None and not self._fits(observation):
                    raise self._wrong_observation("reset", observation)
                return observation, info, None
            except REFUSALS:
                raise
            except _FAULTS as raised:
                error = with_name(self.name, "reset", raised)
                if not self._truncates:
                    raise error  # noqa: B904 - with_name() has set the cause
                fault = fault_of(error)
                if not fault.retryable or time.monotonic() + pause > deadline:
                    return placeholder(self.observation_space), {}, fault
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, record the step, and return its result with the stream as ``info["stream"]``."""
        record, emitter = self.record, self._emitter
        if not record.live:
            return self._step_without_episode(action)
        admit = self._admit  # a local: Python looks up an attribute that is called as a method first
        admitted = admit(action)
        if admitted is REFUSED:
            raise self._refusal(action)
        try:
            result = self._inner.step(action)
            try:
                observation, reward, terminated, truncated, info = result
                info = info.copy()
                info["stream"] = None  # an info that is no dict fails here, before the step is recorded
            except NOT_UNPACKED as error:
                raise wrong_result(self.name, "step", result) from error
            if self._fits is not None and not self._fits(observation):
                raise self._wrong_observation("step", observation)
            if self._scalar is not None:
                reward = self._scalar(reward)
            earned: Any = reward if type(reward) is float else as_number(self.name, reward)
            if earned - earned:  # nan, for NaN and infinities alone; isfinite() takes longer
                raise no_finite_reward(self.name, reward)
            over = terminated or truncated
        except REFUSALS:
            drain(emitter)  # events of a step that was refused go with it
            raise
        except BaseException as error:  # noqa: BLE001 - it is raised again, or becomes a fault
            return self._step_failed(admitted, error)
        if self._truncates:
            self._last = observation
        emitted = emitter._emitted or ()  # drain() inlined, as every step comes here
        if emitted:
            emitter._emitted = ()
        if record.turn + 1 >= self._limit:
            over = truncated = True
        if over:
            fault = info.get("fault")
            if fault is not None and not isinstance(fault, Fault):
                fault = None  # a value of the environment's own
            info["stream"] = record.ended(admitted, earned, emitted, terminated, truncated, fault)
        else:
            info["stream"] = record.acted(admitted, earned, emitted)
        info["seq"] = record.seq
        return observation, reward, terminated, truncated, info

    def _step_failed(
        self, admitted: Any, error: BaseException
    ) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """End the episode as a fault, or raise the exception; how far the step came is unknown."""
        self.record.abandon()
        error = with_name(self.name, "step", error)
        if not self._truncates or not isinstance(error, _FAULTS):
            raise error
        info = self.record.lost(fault_of(error), admitted, drain(self._emitter))
        return self._last, 0.0, False, True, info

    def _step_without_episode(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Report the fault of a failed reset as a truncated step; raise ``ResetNeeded`` if there is none."""
        record = self.record
        if record.pending_fault is None:
            raise record.refusal()
        admitted = self._admit(action)
        if admitted is REFUSED:
            raise self._refusal(action)
        return self._last, 0.0, False, True, record.report_loss(admitted)

    def _refusal(self, action: Any) -> InvalidAction:
        return InvalidAction(f"{self.name}: action {shown(action)} is not in {self.action_space}")

    def _wrong_observation(self, call: str, observation: Any) -> TypeError:
        assert self._stacked is not None
        return wrong_observation(self.name, call, observation, self._stacked)

    def stream_state(self) -> dict[str, Any]:
        """Return the state that :func:`envweave_gym.state_of` shows."""
        counters = self.record.counters()
        return {**counters, **own_state(self.unwrapped), **counters}

    state = stream_state

    def __getstate__(self) -> dict[str, Any]:
        closures = ("_admit", "_scalar", "_fits")
        return {name: value for name, value in self.__dict__.items() if name not in closures}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._compile()


def _past_checker(env: Any, *, has_begun: bool) -> Any:
    """Return the environment to call, without the ``PassiveEnvChecker`` of ``gymnasium.make`` if possible.

    The checker checks only the first step and reset. After the first step it is skipped, to save time. Until
    a reset has succeeded (``has_begun``), the next one is checked again.
    """
    if type(env) is not PassiveEnvChecker:
        return env
    if env.checked_step:
        return env.env
    env.checked_reset &= has_begun
    return env


def has_stream(env: Any) -> bool:
    """Return whether ``env``, an environment or a game, or anything that it wraps adds the stream."""
    return any(hasattr(type(layer), "stream_state") for layer in layers(env))


class LaunchedStream(RequestStream):
    """Stream wrapper of an environment made by ID; its spec is that of the ID."""

    @property
    def spec(self) -> Any:
        """The spec that the ID is registered with, which lists no wrappers."""
        return self.unwrapped.spec
