"""One environment on a server, as a ``gymnasium.Env``."""

from __future__ import annotations

import time
from typing import Any

from gymnasium.spaces import Space

from envweave_gym.arguments import check_faults, check_options
from envweave_gym.faults import (
    RESET_DEADLINE,
    AtCapacity,
    Fault,
    InvalidAction,
    ResetNeeded,
    SessionLost,
    fault_of,
    shown,
)
from envweave_gym.losses import FaultCount, lost_info, lost_reset_info
from envweave_gym.protocols import read_action
from envweave_gym.remote.address import Address, describe
from envweave_gym.remote.session import RemoteSession
from envweave_gym.seeding import HashedRandomness, Seeds
from envweave_gym.spaces import placeholder
from envweave_gym.stream import EventKind, Stream, jsonable
from envweave_gym.wire.messages import Create
from envweave_gym.wire.spaces import space_from_data
from envweave_gym.wire.values import pack

CALL_DEADLINE = 60.0
"""So many seconds an answer is waited for, unless ``call_deadline`` says otherwise."""

LOSSES = (SessionLost, AtCapacity, ConnectionError, TimeoutError)
"""What a call raises that did not reach its environment, or whose answer did not come back."""

_Step = tuple[Any, Any, bool, bool, dict[str, Any]]


class RemoteEnv(HashedRandomness[Any, Any]):
    """Plays an environment of a server: the same spaces, episodes, streams and errors as in this process.

    - Nothing is asked of the server before the spaces are, and no session is opened before the first reset.
    - A call whose answer is lost is asked for again, over a new connection where need be, and is done once.
    - When the session is gone, or no answer comes before ``call_deadline``, the episode is lost:
      ``on_fault="truncate"`` ends it with the last observation, reward 0 and ``info["fault"]``, and the next
      reset opens another session; ``"raise"`` raises. A reset is tried until ``reset_deadline`` is over.
    - Pickles and copies hold the address, not the session, which belongs to the process that opened it.
    """

    def __init__(
        self,
        env_id: str,
        url: str,
        *,
        token: str | None = None,
        on_fault: str = "truncate",
        reset_deadline: float = RESET_DEADLINE,
        call_deadline: float = CALL_DEADLINE,
        **kwargs: Any,
    ) -> None:
        """``kwargs`` go to the environment; ``token`` is a reference, ``env:NAME`` or ``file:PATH``."""
        self.name = env_id or url
        check_faults(self.name, on_fault, reset_deadline)
        self._arguments = {"on_fault": on_fault, "reset_deadline": reset_deadline, **kwargs}
        self._truncates, self._reset_deadline = on_fault == "truncate", reset_deadline
        self._address, self._call_deadline = Address.of(self.name, url, token), call_deadline
        self._create = Create(env_id, "gym", self._arguments)
        self._described: dict[str, Any] | None = None
        self._session: RemoteSession | None = None
        self._seeds, self._faults = Seeds(self.name), FaultCount(self.name)
        self._live, self._began = False, False
        self._broken: Fault | None = None
        self._last: Any = None
        self._stream = Stream()

    # What the server says of it

    @property
    def description(self) -> dict[str, Any]:
        """What the server says of the environment."""
        if self._described is None:
            self._described = describe(self._address, self._create, self._call_deadline)
        return self._described

    @property
    def observation_space(self) -> Space[Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The space of observations."""
        return self._space("observation_space")

    @property
    def action_space(self) -> Space[Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The space of actions."""
        return self._space("action_space")

    def _space(self, which: str) -> Space[Any]:
        known = self.__dict__.get(f"_{which}")
        if known is None:
            known = self.__dict__[f"_{which}"] = space_from_data(self.description[which])
        return known

    @property
    def metadata(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The metadata of the environment."""
        return self.description["metadata"]

    @property
    def render_mode(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The render mode it was made with."""
        return self._arguments.get("render_mode")

    # What users call

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; its seed is in the ``episode_start`` event."""
        if options is not None:
            check_options(self.name, options, self.metadata)
        chosen = self._seeds.next(seed)
        self.episode_key(chosen)
        self._live, self._broken, self._began = False, None, True
        try:
            reply = self._begin(chosen, options)
        except LOSSES as error:
            if not self._truncates:
                raise
            return self._lost_reset(chosen, options, fault_of(error))
        observation, info = reply.observation, reply.info
        self._live, self._broken = True, info.get("fault")
        self._last, self._stream = observation, info["stream"]
        return observation, info

    def _begin(self, seed: int, options: Any) -> Any:
        """Reset in the session there is, or in another where that is lost, until the deadline."""
        deadline, pause = time.monotonic() + self._reset_deadline, 0.02
        while True:
            session = self._open_session()
            try:
                return session.reset(seed, options, patience=self._reset_deadline)
            except LOSSES:
                self._leave()
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def _lost_reset(self, seed: int, options: Any, fault: Fault) -> tuple[Any, dict[str, Any]]:
        self._broken = self._faults.add(fault)
        start = {"seed": seed, "options": jsonable(options)} if options else {"seed": seed}
        info = lost_reset_info(fault, start)
        self._stream, self._last = info["stream"], placeholder(self.observation_space)
        return self._last, info

    def step(self, action: Any) -> _Step:
        """Act once."""
        if not self._live:
            return self._step_nowhere(action)
        try:
            reply = self._open_session().step(self._packed(action))
        except InvalidAction:
            if not self.action_space.contains(action):
                raise self._refusal(action) from None
            raise
        except LOSSES as error:
            self._leave()
            if not self._truncates:
                self._live = False
                raise
            return self._lose(fault_of(error), EventKind.ACT, action)
        self._last, info = reply.observation, reply.info
        self._stream = info["stream"]
        if reply.terminated or reply.truncated:
            self._over(info)
        return reply.observation, reply.reward, reply.terminated, reply.truncated, info

    def _packed(self, action: Any) -> Any:
        """The action as it travels; what cannot is no action."""
        packed = pack(action)
        if isinstance(packed, str) and not isinstance(action, str):
            raise self._refusal(action)
        return packed

    def _over(self, info: dict[str, Any]) -> None:
        self._live = False
        if "fault" in info:
            self._faults.add(info["fault"])
        else:
            self._faults.clear()

    def _step_nowhere(self, action: Any) -> _Step:
        """A step without an episode: the one after a lost reset truncates, any other is refused."""
        if self._broken is None:
            when = "after the episode ended" if self._began else "before reset()"
            raise ResetNeeded(f"{self.name}: step() was called {when}; call reset()")
        if not self.action_space.contains(action):
            raise self._refusal(action)
        return self._lose(self._broken, EventKind.IGNORED, action)

    def _refusal(self, action: Any) -> InvalidAction:
        return InvalidAction(f"{self.name}: action {shown(action)} is not in {self.action_space}")

    def _lose(self, fault: Fault, kind: EventKind, action: Any) -> _Step:
        """End the episode as a fault: it was lost, and nothing in it may look like a reward."""
        if self._broken is None:
            self._faults.add(fault)
        self._live, self._broken = False, None
        request = self._stream.requests[0]
        info = lost_info(fault, kind, jsonable(action), seq=request.seq, turn=request.turn + 1)
        self._stream = info["stream"]
        return self._last, 0.0, False, True, info

    def render(self) -> Any:
        """What the environment draws."""
        return self._asked("render")

    def stream_state(self) -> dict[str, Any]:
        """What :func:`envweave_gym.state_of` gives."""
        return self._asked("state")

    state = stream_state

    def parse_action(self, text: str, agent: str | None = None) -> Any:
        """The action that ``text`` means."""
        if not self.description["parses"]:
            return read_action(self.action_space, text)
        return self._asked("parse_action", [text, agent])

    def _asked(self, question: str, argument: Any = None) -> Any:
        return self._open_session().ask(question, argument)

    def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            self._session.close()
        self._session, self._live = None, False

    # Inside

    def _open_session(self) -> RemoteSession:
        if self._session is None:
            self._session = RemoteSession(self._address, self._create, self._call_deadline)
        return self._session

    def _leave(self) -> None:
        """Leave a session that is lost; the next reset opens another."""
        if self._session is not None:
            self._session.abandon()
        self._session = None

    def __reduce__(self) -> Any:
        return _again, (self._create.env_id, self._address, self._call_deadline, self._arguments, self.spec)

    def __str__(self) -> str:
        return f"<RemoteEnv<{self.name} at {self._address.url}>>"


def _again(env_id: str, address: Address, call_deadline: float, arguments: dict[str, Any], spec: Any) -> Any:
    env = RemoteEnv(env_id, address.url, token=address.token, call_deadline=call_deadline, **arguments)
    env.spec = spec
    return env
