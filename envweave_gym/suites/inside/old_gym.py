"""Adapter that gives environments of gym 0.21 to 0.26 the calls of Gymnasium: five results, and seeds at resets."""

from __future__ import annotations

import inspect
import sys
from typing import Any


class OldGym:
    """An environment of gym, whatever it returns from ``reset`` and ``step``, with the calls of Gymnasium."""

    def __init__(self, env: Any, render_mode: Any, *, takes_render_mode: bool) -> None:
        """``takes_render_mode`` says that ``gym.make`` got the render mode; otherwise ``render`` gets it."""
        self.env, self.render_mode, self._takes_render_mode = env, render_mode, takes_render_mode
        self._takes_seed, self._takes_options = (takes(env, name) for name in ("seed", "options"))

    @property
    def observation_space(self) -> Any:
        """Space of observations."""
        return self.env.observation_space

    @property
    def action_space(self) -> Any:
        """Space of actions."""
        return self.env.action_space

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata with the keys of Gymnasium (``render_modes`` for ``render.modes``)."""
        return {key.replace(".", "_"): value for key, value in dict(self.env.metadata or {}).items()}

    @property
    def unwrapped(self) -> Any:
        """The environment without wrappers."""
        return self.env.unwrapped

    @property
    def spec(self) -> Any:
        """The spec that it was made from."""
        return self.env.spec

    def reset(self, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Seed the environment in the way that it knows, and reset it."""
        arguments = {}
        if self._takes_seed:
            arguments["seed"] = seed
        elif seed is not None:
            _seed(self.env, seed)
        if options is not None:
            if not self._takes_options:
                raise ValueError("an environment of old gym takes no reset options; leave options out")
            arguments["options"] = options
        result = self.env.reset(**arguments)
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
            return result
        return result, {}

    def step(self, action: Any) -> Any:
        """Step, and split ``done`` of four results by the mark of gym's time limit."""
        result = self.env.step(action)
        if not isinstance(result, tuple) or len(result) != 4:
            return result
        observation, reward, done, info = result
        truncated = bool(done) and isinstance(info, dict) and bool(info.get("TimeLimit.truncated"))
        return observation, reward, bool(done) and not truncated, truncated, info

    def render(self) -> Any:
        """Return the rendering in the render mode."""
        if self._takes_render_mode or self.render_mode is None:
            return self.env.render()
        return self.env.render(mode=self.render_mode)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def takes(env: Any, argument: str) -> bool:
    """Return whether ``reset`` of the environment below all wrappers, which pass arguments on, has this argument."""
    try:
        return all(
            argument in known or any(one.kind is one.VAR_KEYWORD for one in known.values())
            for known in (inspect.signature(layer.reset).parameters for layer in _layers(env))
        )
    except (TypeError, ValueError):
        return False


def _layers(env: Any) -> Any:
    while True:
        yield env
        inner = getattr(env, "env", None)
        if inner is None or inner is env:
            return
        env = inner


def _seed(env: Any, seed: int) -> None:
    """Call the environment's ``seed`` method; without one, or with one without arguments, it plays unseeded."""
    try:
        env.seed(seed)
    except (AttributeError, TypeError):
        print(f"{env} takes no seed, so its episodes do not repeat", file=sys.stderr, flush=True)


def make_with_gym(gym: Any, env_id: str, kwargs: dict[str, Any]) -> OldGym:
    """Make a registered environment of old gym."""
    version = tuple(int(part) for part in gym.__version__.split(".")[:2])
    mode = kwargs.get("render_mode")
    if version >= (0, 25):
        return OldGym(gym.make(env_id, disable_env_checker=True, **kwargs), mode, takes_render_mode=True)
    own = {key: value for key, value in kwargs.items() if key != "render_mode"}
    return OldGym(gym.make(env_id, **own), mode, takes_render_mode=False)


def ids_of(gym: Any) -> Any:
    """Return the registered IDs of old gym; the registry is a dict in newer versions alone."""
    registry = gym.envs.registration.registry
    return getattr(registry, "env_specs", registry)
