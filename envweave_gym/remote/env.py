"""One environment on a server, as a ``gymnasium.Env``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gymnasium.spaces import Space

from envweave_gym.core.arguments import check_options, check_reproducible
from envweave_gym.core.faults import (
    HARMLESS,
    RESET_DEADLINE,
    Fault,
    InvalidAction,
    InvalidArgument,
    ResetNeeded,
    shown,
)
from envweave_gym.core.protocols import read_action
from envweave_gym.core.seeding import HashedRandomness, Seeds
from envweave_gym.core.spaces import placeholder
from envweave_gym.episode.losses import lost_info, lost_reset_info
from envweave_gym.episode.stream import EventKind, Stream, jsonable
from envweave_gym.remote.served import CALL_DEADLINE, LOSSES, ServedEnvironment, Spaces
from envweave_gym.wire.values import pack

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
        reproducible: bool = False,
        **kwargs: Any,
    ) -> None:
        """``kwargs`` go to the environment; ``token`` is a reference, ``env:NAME`` or ``file:PATH``.

        ``reproducible=True`` gives a seed to resets that the environment would else be given without one.
        """
        given = {"on_fault": on_fault, "reset_deadline": reset_deadline, **kwargs}
        client = {"token": token, "call_deadline": call_deadline, "reproducible": reproducible}
        self._made = partial(RemoteEnv, env_id, url, **client, **given)
        self._served = ServedEnvironment(
            env_id,
            url,
            api="gym",
            token=token,
            on_fault=on_fault,
            reset_deadline=reset_deadline,
            call_deadline=call_deadline,
            kwargs=given,
        )
        self.name = self._served.name
        check_reproducible(self.name, reproducible)
        self._served.reproducible = reproducible
        self._render_mode = kwargs.get("render_mode")
        self._spaces, self._seeds = Spaces(self._served), Seeds(self.name)
        self._live, self._lost, self._episode = False, False, -1
        self._broken: Fault | None = None
        self._last: Any = None
        self._stream = Stream()

    # What the server says of it

    @property
    def description(self) -> dict[str, Any]:
        """What the server says of the environment."""
        return self._served.description

    @property
    def observation_space(self) -> Space[Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The space of observations."""
        return self._spaces.of(self.description, "observation_space")

    @property
    def action_space(self) -> Space[Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The space of actions."""
        return self._spaces.of(self.description, "action_space")

    @property
    def metadata(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The metadata of the environment."""
        return self.description["metadata"]

    @property
    def render_mode(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The render mode it was made with."""
        return self._render_mode

    # What users call

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; its seed is in the ``episode_start`` event."""
        if options is not None:
            check_options(self.name, options, self.metadata)
        chosen, self._served.is_drawn = self._seeds.next(seed), seed is None
        self._live, self._lost, self._broken = False, False, None
        outcome = self._served.reset(chosen, options)
        self.seed_late(self._served.sent_seed)
        self._episode += 1
        if isinstance(outcome, Fault):
            return self._lost_reset(self._served.sent_seed, options, outcome)
        self._last, info = outcome.observation, outcome.info
        self._live, self._broken, self._stream = True, info.get("fault"), info["stream"]
        return self._last, info

    def _lost_reset(self, seed: int | None, options: Any, fault: Fault) -> tuple[Any, dict[str, Any]]:
        self._broken = fault
        start = {"seed": seed, "options": jsonable(options)} if options else {"seed": seed}
        info = lost_reset_info(fault, start)
        self._stream, self._last = info["stream"], placeholder(self.observation_space)
        return self._last, info

    def step(self, action: Any) -> _Step:
        """Act once."""
        if not self._live:
            return self._step_nowhere(action)
        packed = self._packed(action)
        try:
            outcome = self._served.step(packed)
        except InvalidAction:
            if not self.action_space.contains(action):
                raise self._refusal(action) from None
            raise
        except HARMLESS:
            raise
        except BaseException:
            self._live = False
            raise
        if isinstance(outcome, Fault):
            return self._lose(outcome, EventKind.ACT, action)
        self._last, info = outcome.observation, outcome.info
        self._stream = info["stream"]
        if outcome.terminated or outcome.truncated:
            self._over(info)
        return outcome.observation, outcome.reward, outcome.terminated, outcome.truncated, info

    def _packed(self, action: Any) -> Any:
        """The action as it travels; what cannot is no action."""
        packed = pack(action)
        if isinstance(packed, str) and not isinstance(action, str):
            raise self._refusal(action)
        return packed

    def _over(self, info: dict[str, Any]) -> None:
        self._live = False
        if "fault" in info:
            self._lost = True
            self._served.faults.add(info["fault"])
        else:
            self._served.faults.clear()

    def _step_nowhere(self, action: Any) -> _Step:
        """A step without an episode: the one after a lost reset truncates, any other is refused."""
        self._served.check_whole()
        if self._broken is None:
            when = "before reset()" if self._episode < 0 else "after the episode ended"
            raise ResetNeeded(f"{self.name}: step() was called {when}; call reset()")
        if not self.action_space.contains(action):
            raise self._refusal(action)
        return self._lose(self._broken, EventKind.IGNORED, action)

    def _refusal(self, action: Any) -> InvalidAction:
        return InvalidAction(f"{self.name}: action {shown(action)} is not in {self.action_space}")

    def _lose(self, fault: Fault, kind: EventKind, action: Any) -> _Step:
        """End the episode as a fault: it was lost, and nothing in it may look like a reward."""
        self._live, self._broken = False, None
        request = self._stream.requests[0]
        info = lost_info(fault, kind, jsonable(action), seq=request.seq, turn=request.turn + 1)
        self._stream = info["stream"]
        return self._last, 0.0, False, True, info

    def render(self) -> Any:
        """What the environment draws; of a lost episode what it drew last."""
        return self._served.picture(lost=self._lost)

    def stream_state(self) -> dict[str, Any]:
        """What :func:`envweave_gym.state_of` gives; of a lost episode only the counters are left."""
        turn = self._stream.requests[0].turn if self._stream.requests else 0
        known = {"episode": self._episode, "step_count": turn}
        return {**self._served.recall("state", known), **known}

    state = stream_state

    def parse_action(self, text: str, agent: str | None = None) -> Any:
        """The action that ``text`` means; where the episode is lost, any one, for the step that says so."""
        if not self.description["parses"]:
            return read_action(self.action_space, text)
        if self._live or self._broken is None:
            try:
                return self._served.ask("parse_action", [text, agent])
            except LOSSES as error:
                if not self._live:
                    raise
                self._live = False
                self._broken = self._served.lost(error)
        return placeholder(self.action_space)

    def get_wrapper_attr(self, name: str) -> Any:
        """An attribute of this object, or else the public one that the environment has on its server."""
        if hasattr(self, name) or not name.isidentifier() or name.startswith("_"):
            return super().get_wrapper_attr(name)
        try:
            return self._served.ask("attribute", name)
        except InvalidArgument as error:
            raise AttributeError(str(error)) from None

    def has_wrapper_attr(self, name: str) -> bool:
        """Whether :meth:`get_wrapper_attr` gives this attribute; that asks the server."""
        try:
            self.get_wrapper_attr(name)
        except AttributeError:
            return False
        return True

    def entrust(self, **secrets: str) -> None:
        """Hand over what no event, log or state may show."""
        self._served.ask("entrust", secrets)

    def close(self) -> None:
        """Close the session."""
        self._served.close()
        self._live, self._lost, self._broken = False, False, None

    def _spec_arguments(self) -> dict[str, Any]:
        """The arguments that make it again."""
        return dict(zip(("env_id", "url"), self._made.args, strict=True)) | self._made.keywords

    def __reduce__(self) -> Any:
        return _again, (self._made, self.spec)

    def __str__(self) -> str:
        return f"<RemoteEnv<{self.name} at {self._served.address.url}>>"


def _again(make: Callable[[], RemoteEnv], spec: Any) -> RemoteEnv:
    env = make()
    env.spec = spec
    return env
