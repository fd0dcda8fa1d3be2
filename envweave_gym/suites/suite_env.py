"""``SuiteEnv``: a Gymnasium environment that runs in a suite's process, and the stream wrapper around it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from envweave_gym.suites.suite_session import Launch, SharedProcess, SuiteSession, check_sendable
from envweave_gym.wrappers.gym_stream import LaunchedStream

_RESULTS = 5


class SuiteEnv(gym.Env[Any, Any]):
    """Environment in a suite's process, with the spaces, results and errors that it has there.

    If the process dies or does not answer in time, the call raises, and the next reset makes the environment in
    another process. Pickles and copies hold what is needed to make it, not the running environment.
    """

    def __init__(self, session: SuiteSession, spec: EnvSpec | None = None) -> None:
        self.session, self.spec = session, spec
        self.fallback_seed: int | None = None
        """Seed for a reset without one that must make the environment again, which has no generator to go on with."""
        self._begun: tuple[Any, int] | None = None
        self._observation_space: Any = None
        self._action_space: Any = None

    # The suite's description

    def _described(self, which: str, index: int) -> Any:
        known = getattr(self, f"_{which}")
        if known is None:
            known = self.session.space(self.session.description["spaces"][index], which)
            setattr(self, f"_{which}", known)
        return known

    @property
    def observation_space(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Space of observations."""
        return self._observation_space or self._described("observation_space", 0)

    @property
    def action_space(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Space of actions."""
        return self._action_space or self._described("action_space", 1)

    @property
    def metadata(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Metadata of the environment, such as its render modes."""
        return self.session.description["metadata"]

    @property
    def render_mode(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Render mode that the environment was made with."""
        return self.session.description["render_mode"]

    @property
    def goes_on(self) -> bool:
        """Whether the environment exists, so that a reset without a seed continues its random generator."""
        return self.session.is_open

    # The interface of Gymnasium

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environment; make it first if its process has ended."""
        self._forget_begun()
        if seed is not None:
            super().reset(
                seed=seed
            )  # the generator of this object, which checkers look at; nothing here draws
        if not self.session.is_open:
            self.session.open()
            self._observation_space = self._action_space = None
            seed = self.fallback_seed if seed is None else seed
        result = self.session.call("reset", [seed, options])
        if type(result) is not list:
            return result
        if len(result) != 3:
            return result[0]
        observation, info, changed = result
        if changed is not None:
            self.session.description["spaces"] = changed
            self._observation_space = self._action_space = None
        return observation, info

    def begin_step(self, action: Any) -> None:
        """Send a step, so that the environments of a vector step at the same time; :meth:`step` has to follow."""
        self._begun = action, self.session.send("step", action)

    def step(self, action: Any) -> Any:
        """Step the environment, or wait for the end of a step that :meth:`begin_step` has sent."""
        begun, self._begun = self._begun, None
        if begun is None:
            result = self.session.call("step", action)
        else:
            result = self.session.result(begun[1], "step")
            if begun[0] is not action:
                raise RuntimeError(
                    f"{self.session.launch.name}: a vector has sent another action for this step"
                )
        if type(result) is not list:
            return result
        return tuple(result) if len(result) == _RESULTS else result[0]

    def _forget_begun(self) -> None:
        """Wait for the end of a step that was sent and that nobody has waited for, as another row has raised."""
        begun, self._begun = self._begun, None
        if begun is not None and self.session.is_open:
            try:
                self.session.result(begun[1], "step")
            except Exception:  # noqa: BLE001 - the reset that follows meets it again if it lasts
                return

    def render(self) -> Any:
        """Return the environment's rendering."""
        return self.session.call("render", [])

    def get_wrapper_attr(self, name: str) -> Any:
        """Return an attribute of this object, or else a public attribute of the environment in the suite."""
        if hasattr(self, name):
            return getattr(self, name)
        return self.session.attribute(name)

    def has_wrapper_attr(self, name: str) -> bool:
        """Return whether :meth:`get_wrapper_attr` finds the attribute."""
        try:
            self.get_wrapper_attr(name)
        except AttributeError:
            return False
        return True

    def close(self) -> None:
        """Close the environment; a later reset makes it again."""
        self._begun = None
        self.session.close()

    def __str__(self) -> str:
        return f"<SuiteEnv<{self.session.launch.name}>>"

    __repr__ = __str__

    def __reduce__(self) -> Any:
        return SuiteEnv, (self.session, self.spec)


class SuiteStream(LaunchedStream):
    """Stream wrapper of a :class:`SuiteEnv`: a loss is a fault, after which the next reset sends a seed."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode; the first one in another process begins with a seed."""
        check_sendable(self.name, "reset(options=…)", options)
        inner: Any = self.unwrapped
        if not inner.goes_on:
            self._keeps_generator = False
        if seed is None and self._keeps_generator:
            inner.fallback_seed = self._seeds.next(None)
        return super().reset(seed=seed, options=options)

    def __reduce__(self) -> Any:
        return _stream_of, (self.unwrapped, self._saved_kwargs)


def _stream_of(env: SuiteEnv, arguments: dict[str, Any]) -> SuiteStream:
    return SuiteStream(env, **arguments)


def suite_env(
    launch: Launch, stack: dict[str, Any], spec_of: Any = None, shared: SharedProcess | None = None
) -> SuiteStream:
    """Make an environment in its suite, with the stream around it.

    ``stack`` are arguments of the stream wrapper. ``spec_of`` is a function that returns the spec from the suite's
    description.
    """
    session = SuiteSession(launch, shared)
    session.open()
    return streamed(session, stack, spec_of)


def streamed(session: SuiteSession, stack: dict[str, Any], spec_of: Any) -> SuiteStream:
    """Put the stream around the environment of an open session."""
    env = SuiteEnv(session)
    try:
        described = session.description
        env.spec = None if spec_of is None else spec_of(described)
        limit = None if described["limited"] or session.launch.limit in (None, -1) else session.launch.limit
        return SuiteStream(env, name=session.launch.name, max_steps=limit, **stack)
    except BaseException:
        env.close()
        raise
