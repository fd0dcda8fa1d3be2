"""The text environments of GEM (package ``gem-llm``) with the API of Gymnasium."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

import gymnasium as gym

from envweave_gym.core.arguments import call
from envweave_gym.core.config import configured
from envweave_gym.core.faults import InvalidArgument, MissingExtra, NotAvailable, nearest, shown
from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.seeding import Seeds
from envweave_gym.core.spaces import Unicode
from envweave_gym.envs.language.gem_config import GEMConfig
from envweave_gym.envs.language.own_generators import SEEDS_END, OwnGenerators
from envweave_gym.episode.emitter import Emitter
from envweave_gym.episode.message import message

_NAME = "envweave/GEM-v0"
MAX_TEXT = 1 << 20  # characters
# No extra: gem-llm 0.1.0 pins msgspec 0.19.0, whose extensions of msgpack are read beyond their ends.
_INSTALL = "pip install --no-deps gem-llm==0.1.0; pip install reasoning-gym==0.1.23 nltk math-verify"


class GEMEnv(Emitter, gym.Env[str, str]):
    """An environment of GEM: texts in both directions, and GEM's own rewards.

    Each episode is played by a new environment of GEM, as some remember draws or data of earlier ones; only one over a
    downloaded data set is kept, which would be loaded again.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1, "reset_options": ()}
    name = _NAME

    @configured(GEMConfig)
    def __init__(self, config: GEMConfig) -> None:
        self._config, self.render_mode = config, config.render_mode
        self.observation_space = self.action_space = Unicode(MAX_TEXT)
        self._generators, self._seeds = OwnGenerators(_NAME), Seeds(_NAME)
        self._text = ""
        with self._generators.in_place():
            self._env: Any = _env_of(config)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode, all of whose random draws the seed decides."""
        super().reset(seed=seed)
        chosen = self._seeds.next(seed)
        self._generators.seed(chosen)
        with self._generators.in_place():
            if not hasattr(self._env, "dataset"):
                _close(self._env)
                self._env = _env_of(self._config)
            text, info = self._env.reset(seed=chosen % SEEDS_END)
        return self._shown(text, info)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Hand the reply to the environment of GEM."""
        with self._generators.in_place():
            text, reward, terminated, truncated, info = self._env.step(action)
        observation, info = self._shown(text, info)
        return observation, float(reward), bool(terminated), bool(truncated), info

    def _shown(self, text: Any, info: Any) -> tuple[str, dict[str, Any]]:
        """Return observation and info; GEM puts the request for the next action into ``info["suffix"]``."""
        self._text, known = str(text), jsonable(info)
        suffix = known.get("suffix")
        self.emit(message("user", f"{self._text}\n{suffix}" if suffix else self._text))
        return self._text, known

    def render(self) -> Any:
        """Return the last observation."""
        return self._text if self.render_mode == "ansi" else None

    def episode_state(self) -> dict[str, Any]:
        """Return the name of the environment in GEM."""
        return {"gem_id": self._config.gem_id}

    def close(self) -> None:
        """End the processes and containers of the environment."""
        env, self._env = self._env, None
        _close(env)


def _close(env: Any) -> None:
    if hasattr(env, "close"):
        env.close()
    if hasattr(env, "mp_pool"):  # close() lets the workers of a pool go on until they notice
        env.mp_pool.terminate()
        env.mp_pool.join()


def _env_of(config: GEMConfig) -> Any:
    registration = _gem()
    if config.gem_id not in registration.ENV_REGISTRY:
        hint = nearest(config.gem_id, registration.ENV_REGISTRY)
        raise InvalidArgument(
            f"gem_id={shown(config.gem_id)} is none of GEM's {len(registration.ENV_REGISTRY)} environments{hint}; "
            "gem.print_envs() lists them"
        )
    try:
        return call(_NAME, lambda: registration.make(config.gem_id, **(config.options or {})), {})
    except ImportError as error:
        missing = error.__context__ or error
        raise NotAvailable(f"{config.gem_id} needs a package that is not installed: {missing}") from error
    except OSError as error:
        raise NotAvailable(f"{config.gem_id} cannot load its data: {error}") from error


def _gem() -> Any:
    """Import GEM's registry; the first import adds a handler to the root logger, which is removed again."""
    if "gem.envs.registration" in sys.modules:
        return sys.modules["gem.envs.registration"]
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        return importlib.import_module("gem.envs.registration")
    except ModuleNotFoundError as error:
        missing = "GEM" if error.name == "gem" else f"the module {error.name} for GEM"
        raise MissingExtra(f"{_NAME} needs {missing}, which is not installed: {_INSTALL}") from None
    finally:
        root.handlers[:] = before
        root.setLevel(level)
