"""The entry point of every ID: picks the place an environment runs in and stacks the wrappers, once.

The registries of Gymnasium and PettingZoo hold strings like ``"envweave_gym.launch:env(envweave/Echo-v0)"``;
looking such an attribute up gives a :class:`Launch`, which knows the card of the ID. So a spec stays plain JSON,
its kwargs are the user's own, and a spawned process finds its way from the string alone.

The stack is ``PassiveEnvChecker < RequestStream(max_steps) < Autoreset``. The step limit is the stream's own
because an outer ``TimeLimit`` would truncate while the stream still says ``act``.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import PassiveEnvChecker
from pettingzoo import AECEnv, ParallelEnv

from envweave_gym.catalog import EnvCard, card_of
from envweave_gym.faults import InvalidArgument, NotAvailable, need
from envweave_gym.wrappers.autoreset import Autoreset, LaunchedAutoreset
from envweave_gym.wrappers.games import AECStream, ParallelStream
from envweave_gym.wrappers.request_stream import LaunchedStream, OnFault, RequestStream

_ATTRIBUTE = re.compile(r"(env|vector|aec|parallel)\((.+)\)")
_LATER_BACKENDS = ("subprocess", "docker", "kubernetes", "ray", "http://host:port")
_STACK_KWARGS = ("max_steps", "autoreset", "backend", "on_fault")


def __getattr__(name: str) -> Launch:
    match = _ATTRIBUTE.fullmatch(name)
    if match is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return Launch(match[1], card_of(match[2]))


class Launch:
    """Makes one kind of environment of one card; what the registries call."""

    def __init__(self, kind: str, card: EnvCard) -> None:
        self.kind, self.card = kind, card

    def __call__(self, **kwargs: Any) -> Any:
        """Make the environment."""
        return _LAUNCHERS[self.kind](self.card, **kwargs)

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the environment class, which ``gymnasium.make`` reads for its render modes."""
        path = self.card.vector if self.kind == "vector" else self.card.gym
        metadata = getattr(_constructor(self.card, path), "metadata", None)
        if not isinstance(metadata, dict):
            raise AttributeError("metadata")
        return metadata


def launch_env(
    card: EnvCard,
    *,
    max_steps: int | None = None,
    autoreset: bool = False,
    backend: Any = None,
    on_fault: OnFault = "raise",
    **kwargs: Any,
) -> gym.Env[Any, Any]:
    """A single Gymnasium environment with its whole stack."""
    check_backend(card.id, backend)
    core = _construct(card, card.gym, kwargs)
    if not isinstance(core, gym.Env):
        raise InvalidArgument(f"{card.id}: {card.gym} gave a {type(core).__name__}, not a gymnasium.Env")
    limit = step_limit(card.id, card.max_steps if max_steps is None else max_steps)
    env = LaunchedStream(PassiveEnvChecker(core), name=card.id, max_steps=limit, on_fault=on_fault)
    return LaunchedAutoreset(env) if autoreset else env


def launch_vector(
    card: EnvCard,
    *,
    num_envs: int = 1,
    autoreset_mode: str | AutoresetMode = "NextStep",
    max_steps: int | None = None,
    max_episode_steps: int | None = None,
    backend: Any = None,
    **kwargs: Any,
) -> VectorEnv[Any, Any, Any]:
    """A vector of environments: the native one where the card has it, else single ones stepped in turn."""
    check_backend(card.id, backend)
    if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
        raise InvalidArgument(f"{card.id}: num_envs={num_envs!r} is not a number of environments; give an int >= 1")
    mode = autoreset_mode_of(card.id, autoreset_mode)
    limit = max_steps if max_episode_steps is None else max_episode_steps
    if card.vector is None:
        make = partial(gym.make, card.id, max_steps=limit, **kwargs)
        return SyncVectorEnv([make] * num_envs, autoreset_mode=mode)
    chosen = step_limit(card.id, card.max_steps if limit is None else limit)
    fixed = {"num_envs": num_envs, "autoreset_mode": mode, "max_steps": chosen}
    return _construct(card, card.vector, kwargs, fixed)


def launch_aec(card: EnvCard, *, backend: Any = None, **kwargs: Any) -> AECEnv[str, Any, Any]:
    """A game whose agents act one at a time."""
    check_backend(card.id, backend)
    if card.aec is not None:
        return AECStream(_construct(card, card.aec, kwargs), name=card.id)
    from pettingzoo.utils.conversions import parallel_to_aec

    return AECStream(parallel_to_aec(_construct(card, card.parallel, kwargs)), name=card.id)


def launch_parallel(card: EnvCard, *, backend: Any = None, **kwargs: Any) -> ParallelEnv[str, Any, Any]:
    """A game whose agents hand in their actions together; one played in turns says in its stream who is asked."""
    check_backend(card.id, backend)
    if card.parallel is not None:
        return ParallelStream(_construct(card, card.parallel, kwargs), name=card.id)
    from envweave_gym.multiagent.turn_based import TurnBasedParallel

    return TurnBasedParallel(AECStream(_construct(card, card.aec, kwargs), name=card.id))


_LAUNCHERS: dict[str, Callable[..., Any]] = {
    "env": launch_env,
    "vector": launch_vector,
    "aec": launch_aec,
    "parallel": launch_parallel,
}


def stack(
    env: gym.Env[Any, Any], *, name: str, max_steps: int | None, autoreset: bool, on_fault: OnFault
) -> gym.Env[Any, Any]:
    """The stack of an environment that comes from elsewhere, as a factory or a foreign ID built it."""
    env = RequestStream(env, name=name, max_steps=step_limit(name, max_steps), on_fault=on_fault)
    return Autoreset(env) if autoreset else env


def check_backend(name: str, backend: Any) -> None:
    """Say in one sentence when ``backend`` cannot be had."""
    if backend is None or backend == "inproc":
        return
    known = isinstance(backend, list) or (
        isinstance(backend, str) and (backend in _LATER_BACKENDS or re.match(r"https?://", backend))
    )
    if known:
        raise NotAvailable(
            f"{name}: backend={backend!r} needs the remote layer, which this version does not have yet; "
            "use backend='inproc'"
        )
    raise InvalidArgument(f"{name}: backend={backend!r} is unknown; there are 'inproc', {', '.join(_LATER_BACKENDS)}")


def step_limit(name: str, max_steps: Any) -> int | None:
    """``max_steps`` as a limit: ``None`` and -1 set none."""
    if max_steps is None or max_steps == -1:
        return None
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise InvalidArgument(f"{name}: max_steps={max_steps!r} is not a step limit; give an int >= 1, or -1 for none")
    return max_steps


def autoreset_mode_of(name: str, mode: str | AutoresetMode) -> AutoresetMode:
    """The mode a string or a mode names."""
    try:
        return AutoresetMode(mode)
    except ValueError:
        allowed = ", ".join(repr(known.value) for known in AutoresetMode)
        raise InvalidArgument(f"{name}: autoreset_mode={mode!r} is unknown; there are {allowed}") from None


def _constructor(card: EnvCard, path: str | None) -> Any:
    for module in card.requires:
        need(module, card.extra or "all", card.id)
    if path is None:
        raise InvalidArgument(f"{card.id} has no such form; it can be made as: {', '.join(card.kinds)}")
    module, attribute = path.split(":")
    return getattr(importlib.import_module(module), attribute)


def _construct(
    card: EnvCard, path: str | None, kwargs: dict[str, Any], fixed: dict[str, Any] | None = None
) -> Any:
    """Call the constructor, with one sentence about whatever argument it does not take."""
    constructor = _constructor(card, path)
    known = inspect.signature(constructor).parameters
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    own = [name for name in known if name not in (fixed or {})]
    for name in kwargs:
        if name not in own and not open_ended:
            raise InvalidArgument(_unknown_argument(card, name, own))
    _check_render_mode(card, constructor, kwargs.get("render_mode"))
    try:
        return constructor(**kwargs, **(fixed or {}))
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{card.id}: {error}") from error


def _unknown_argument(card: EnvCard, name: str, own: list[str]) -> str:
    stacked = ("backend",) if card.is_game else _STACK_KWARGS
    allowed = [*own, *stacked]
    near = difflib.get_close_matches(name, allowed, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"{card.id} takes no argument {name!r}{hint}; it takes {', '.join(allowed)}"


def _check_render_mode(card: EnvCard, constructor: Any, mode: Any) -> None:
    modes = getattr(constructor, "metadata", {}).get("render_modes")
    if mode is not None and modes is not None and mode not in modes:
        raise InvalidArgument(f"{card.id}: render_mode={mode!r} is unknown; there are {', '.join(modes)}")
