"""``RemoteEnv``: a ``gymnasium.Env`` that runs on a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gymnasium.spaces import Space

from envweave_gym.core.arguments import check_options
from envweave_gym.core.faults import (
    HARMLESS,
    Fault,
    InvalidAction,
    InvalidArgument,
    shown,
)
from envweave_gym.core.reply_parsing import read_action
from envweave_gym.core.secret_reference import check_encrypted
from envweave_gym.core.seeding import HashedRandomness
from envweave_gym.core.spaces import placeholder
from envweave_gym.episode.record import EpisodeRecord
from envweave_gym.remote.base import Remote
from envweave_gym.remote.served_environment import FAULTS, LOSSES
from envweave_gym.wire.messages import Step
from envweave_gym.wire.values import pack, packer_of

_Step = tuple[Any, Any, bool, bool, dict[str, Any]]


class RemoteEnv(Remote, HashedRandomness[Any, Any]):  # pyright: ignore[reportIncompatibleVariableOverride]
    """An environment on a server, with the same spaces, episodes, streams and errors as in this process.

    - The first access to the spaces fetches the description; the first reset opens a session.
    - A call whose reply is lost is sent again, if necessary over a new connection, and executed once.
    - If the session is gone, or no reply comes before ``call_deadline``, the episode is lost:
      ``on_fault="truncate"`` ends it with the last observation, reward 0 and ``info["fault"]``, and the next
      reset opens another session; ``"raise"`` raises. A reset is tried until ``reset_deadline``.
    - Pickles and copies hold the address, not the session, which belongs to the process that opened it.
    """

    _api, _sends_faults = "gym", True

    def _prepare(self, render_mode: Any) -> None:
        self._render_mode = render_mode
        self.record, self._lost = EpisodeRecord(self.name), False
        self._last: Any = None
        self._packer: Callable[[Any], Any] | None = None
        """Function that packs actions for the wire; ``None`` until the action space is known."""

    # The server's description

    @property
    def observation_space(self) -> Space[Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Space of observations, from the server's description."""
        return self._spaces.of(self.description, "observation_space")

    @property
    def action_space(self) -> Space[Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Space of actions, from the server's description."""
        return self._spaces.of(self.description, "action_space")

    @property
    def render_mode(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The ``render_mode`` argument."""
        return self._render_mode

    # The interface of Gymnasium

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode on the server; its seed is in the ``episode_start`` event of ``info["stream"]``."""
        if options is not None:
            check_options(self.name, options, self.metadata)
        chosen, self._served.is_drawn = self._seeds.next(seed), seed is None
        record, self._lost = self.record, False
        record.abandon()
        outcome = self._served.reset(chosen, options)
        sent = self._served.sent_seed
        self.seed_late(sent)
        if isinstance(outcome, Fault):
            self._last = placeholder(self.observation_space)
            return self._last, record.lost_reset(outcome, sent, options)
        self._last = outcome.observation
        record.adopt_reset(outcome.info)
        return self._last, outcome.info

    def step(self, action: Any) -> _Step:
        """Send ``action`` to the server, and return its results; a lost session truncates the episode."""
        # The path of every step: the session is called directly, as each layer between costs a call.
        record, session = self.record, self._served.current
        if session is None or not record.live:
            return self._step_without_episode(action)
        packed = (self._packer or self._choose_packer())(action)
        if type(packed) is str and not isinstance(action, str):  # the JSON of a value without a form
            raise self._refusal(action)
        try:
            reply: Any = session.call(Step(0, packed))
        except FAULTS as error:
            record.abandon()  # ``lost`` may raise
            return self._last, 0.0, False, True, record.lost(self._served.lost(error), action)
        except InvalidAction:
            if not self.action_space.contains(action):
                raise self._refusal(action) from None
            raise
        except HARMLESS:
            raise
        except BaseException as error:
            record.abandon()
            self._served.stop(error)
            raise
        self._last, info = reply.observation, reply.info
        is_over = bool(reply.terminated or reply.truncated)
        self._lost = is_over and "fault" in info
        record.adopt_step(info, is_over)
        return reply.observation, reply.reward, reply.terminated, reply.truncated, info

    def _choose_packer(self) -> Callable[[Any], Any]:
        if not self._served.is_described:  # a step sends no request for a description
            return pack
        self._packer = packer_of(self.action_space)
        return self._packer

    def _step_without_episode(self, action: Any) -> _Step:
        """Return the truncated step of an episode whose reset was lost; raise ``ResetNeeded`` in other cases."""
        self._served.check_whole()
        if self.record.pending_fault is None:
            raise self.record.refusal()
        if not self.action_space.contains(action):
            raise self._refusal(action)
        return self._last, 0.0, False, True, self.record.report_loss(action)

    def _refusal(self, action: Any) -> InvalidAction:
        return InvalidAction(f"{self.name}: action {shown(action)} is not in {self.action_space}")

    def render(self) -> Any:
        """Return the environment's rendering; for a lost episode, the last one that was fetched."""
        return self._served.picture(lost=self._lost)

    def stream_state(self) -> dict[str, Any]:
        """Return the environment's state for :func:`envweave_gym.state_of`; for a lost episode, only the counters."""
        known = self.record.counters()
        return {**self._served.recall("state", known), **known}

    state = stream_state

    def parse_action(self, text: str, agent: str | None = None) -> Any:
        """Parse a model's text reply into an action, on the server.

        For a lost episode any action is returned; the next step reports the loss.
        """
        if not self.description["parses"]:
            return read_action(self.action_space, text)
        if self.record.pending_fault is None:
            try:
                return self._served.ask("parse_action", [text, agent])
            except LOSSES as error:
                if not self.record.live:
                    raise
                self.record.abandon()  # ``lost`` may raise
                self.record.lost_between_steps(self._served.lost(error))
        return placeholder(self.action_space)

    def get_wrapper_attr(self, name: str) -> Any:
        """Return an attribute of this object, or else a public attribute of the environment on the server."""
        if hasattr(self, name) or not name.isidentifier() or name.startswith("_"):
            return super().get_wrapper_attr(name)
        try:
            return self._served.ask("attribute", name)
        except InvalidArgument as error:
            raise AttributeError(str(error)) from None

    def has_wrapper_attr(self, name: str) -> bool:
        """Return whether :meth:`get_wrapper_attr` finds the attribute, here or on the server."""
        try:
            self.get_wrapper_attr(name)
        except AttributeError:
            return False
        return True

    def entrust(self, **secrets: str) -> None:
        """Send secrets to the environment on the server, which never appear in events, logs or states.

        They are refused if they would go to another machine unencrypted.
        """
        check_encrypted(f"{self.name}: backend", self._served.address.url)
        self._served.ask("entrust", secrets)

    def close(self) -> None:
        """Close the session; a later reset opens another one."""
        self.record.abandon()
        self._lost = False
        self._served.close()

    def _spec_arguments(self) -> dict[str, Any]:
        """Return the constructor arguments, for the spec."""
        return dict(zip(("env_id", "url"), self._make_again.args, strict=True)) | self._make_again.keywords

    def __reduce__(self) -> Any:
        return _again, (self._make_again, self.spec)


def _again(make: Callable[[], RemoteEnv], spec: Any) -> RemoteEnv:
    env = make()
    env.spec = spec
    return env
