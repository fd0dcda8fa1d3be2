"""The wrapper that gives a Gymnasium environment its stream, its order of calls and its honesty about faults."""

from __future__ import annotations

import time
from typing import Any, Literal

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs

from envweave_gym.actions import REFUSED, admission
from envweave_gym.faults import (
    FAULTS_IN_A_ROW,
    EnvweaveError,
    Fault,
    FaultStorm,
    InvalidAction,
    InvalidArgument,
    ResetNeeded,
    fault_of,
)
from envweave_gym.protocols import own_state
from envweave_gym.seeding import Seeds
from envweave_gym.spaces import placeholder
from envweave_gym.stream import (
    AGENT,
    Emitter,
    Event,
    EventKind,
    Request,
    RequestKind,
    Stream,
    jsonable,
    number,
)

OnFault = Literal["raise", "truncate"]

_ACT, _REWARD, _END = EventKind.ACT, EventKind.REWARD, EventKind.EPISODE_END
_ASK_ACT, _ASK_RESET = RequestKind.ACT, RequestKind.RESET
_NO_LIMIT = 2**63


class RequestStream(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Puts the stream into ``info``, gives every reset a seed, and refuses misuse in one sentence.

    - A reset without a seed gets one drawn from the last given seed, so the episode is reproducible anywhere.
    - An action outside the action space raises :class:`InvalidAction` and the episode goes on; ``step`` before
      ``reset`` or after the end raises :class:`ResetNeeded`.
    - After ``max_steps`` steps the episode is truncated, here rather than in a ``TimeLimit`` of its own: an outer
      one would truncate while the stream still says ``act``, an inner one costs a call at every step.
    - An exception of the environment is raised (``on_fault="raise"``) or ends the episode as a fault
      (``"truncate"``): last observation, reward 0, ``truncated``, ``info["fault"]``. A reset that fails is tried
      again until ``reset_deadline`` seconds are over. Ten faults in a row raise :class:`FaultStorm`.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        name: str | None = None,
        max_steps: int | None = None,
        on_fault: OnFault = "raise",
        reset_deadline: float = 10.0,
    ) -> None:
        """``name`` is what errors call the environment: its ID, where it has one."""
        RecordConstructorArgs.__init__(
            self, name=name, max_steps=max_steps, on_fault=on_fault, reset_deadline=reset_deadline
        )
        gym.Wrapper.__init__(self, env)
        self.name = name or (env.spec.id if env.spec else type(env.unwrapped).__name__)
        if on_fault not in ("raise", "truncate"):
            raise InvalidArgument(f"{self.name}: on_fault={on_fault!r} is not 'raise' or 'truncate'")
        self._on_fault, self._reset_deadline = on_fault, reset_deadline
        self._limit = _NO_LIMIT if max_steps is None else max_steps
        self._seeds = Seeds(self.name)
        self._live = False
        self._episode, self._turn, self._seq = -1, 0, -1
        self._last: Any = None
        self._broken: Fault | None = None
        self._faults_in_a_row = 0
        self._prepare()

    def _prepare(self) -> None:
        core = self.env.unwrapped
        self._admit = admission(self.env.action_space)
        self._take = core.take_events if isinstance(core, Emitter) else None
        if self._take is not None:
            self._take()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; its seed is in the ``episode_start`` event."""
        chosen = self._seeds.next(seed)
        self._live = False
        observation, info = self._reset_env(chosen, options)
        self._live, self._last = True, observation
        self._episode, self._turn = self._episode + 1, 0
        start: dict[str, Any] = {"seed": chosen}
        if options:
            start["options"] = jsonable(options)
        events = (Event(0, EventKind.EPISODE_START, None, None, start), *self._own_events(1))
        if self._broken is not None:
            events += (_fault_event(len(events), self._broken),)
        self._seq = len(events) - 1
        stream = Stream((Request(self._seq, _ASK_ACT, AGENT, 0),), events)
        info["stream"], info["seq"] = stream, self._seq
        return observation, info

    def _reset_env(self, seed: int, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        self._broken = None
        deadline, pause = time.monotonic() + self._reset_deadline, 0.02
        while True:
            try:
                return self.env.reset(seed=seed, options=options)
            except EnvweaveError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever an environment raises is a fault
                if self._on_fault == "raise":
                    raise
                if time.monotonic() + pause > deadline:
                    self._broken = self._count(fault_of(error))
                    return placeholder(self.observation_space), {"fault": self._broken}
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Act once."""
        if not self._live:
            raise ResetNeeded(self._why_not_live())
        admitted = self._admit(action)
        if admitted is REFUSED:
            raise InvalidAction(f"{self.name}: action {_short(action)} is not in {self.action_space}")
        if self._broken is not None:
            return self._lost(self._broken)
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except EnvweaveError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever an environment raises ends its episode
            return self._crash(error)
        self._last = observation
        self._turn = turn = self._turn + 1
        seq = self._seq + 1
        acted = Event(seq, _ACT, AGENT, None, {"action": admitted})
        if self._take is None:
            events = (acted,)
        else:
            events = (acted, *number(self._take(), seq + 1))
            seq = self._seq + len(events)
        if reward:
            seq += 1
            events = (*events, Event(seq, _REWARD, AGENT, None, {"reward": float(reward)}))
        if turn >= self._limit:
            truncated = True
        if terminated or truncated:
            seq += 1
            events += (Event(seq, _END, None, None, {"terminated": bool(terminated), "truncated": bool(truncated)}),)
            self._live, self._faults_in_a_row = False, 0
            info["stream"] = Stream((Request(seq, _ASK_RESET, None, turn),), events)
        else:
            info["stream"] = Stream((Request(seq, _ASK_ACT, AGENT, turn),), events)
        self._seq = info["seq"] = seq
        return observation, reward, terminated, truncated, info

    def _crash(self, error: Exception) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._live = False
        if self._on_fault == "raise":
            raise error
        return self._lost(self._count(fault_of(error)))

    def _own_events(self, first: int) -> tuple[Event, ...]:
        return number(self._take(), first) if self._take is not None else ()

    def _lost(self, fault: Fault) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """End the episode as a fault: it was lost, and nothing in it may look like a reward."""
        self._live, self._broken = False, None
        own = self._own_events(self._seq + 1)
        seq = self._seq + len(own) + 2
        end = Event(seq, _END, None, None, {"terminated": False, "truncated": True})
        events = (*own, _fault_event(seq - 1, fault), end)
        self._seq = seq
        stream = Stream((Request(seq, _ASK_RESET, None, self._turn),), events)
        return self._last, 0.0, False, True, {"fault": fault, "stream": stream, "seq": seq}

    def _count(self, fault: Fault) -> Fault:
        self._faults_in_a_row += 1
        if self._faults_in_a_row >= FAULTS_IN_A_ROW:
            raise FaultStorm(f"{self.name}: {FAULTS_IN_A_ROW} faults in a row, the last: {fault.message}")
        return fault

    def _why_not_live(self) -> str:
        if self._episode < 0:
            return f"{self.name}: step() was called before reset(); call reset() first"
        return f"{self.name}: step() was called after the episode ended; call reset()"

    def stream_state(self) -> dict[str, Any]:
        """What :func:`envweave_gym.state_of` gives."""
        return {"episode": self._episode, "step_count": self._turn, **own_state(self.unwrapped)}

    state = stream_state

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["_admit"], state["_take"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()


class LaunchedStream(RequestStream):
    """The stream of an environment made by ID: the ID builds the whole stack, so its spec names no wrappers."""

    @property
    def spec(self) -> Any:
        """The spec of the ID."""
        return self.unwrapped.spec


def _fault_event(seq: int, fault: Fault) -> Event:
    data = {"kind": str(fault.kind), "message": fault.message, "retryable": fault.retryable}
    return Event(seq, EventKind.FAULT, None, None, data)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
