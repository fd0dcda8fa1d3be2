"""Functions behind the entry point strings of all IDs: make an environment with its wrappers, here or on a server.

The registries of Gymnasium and PettingZoo hold strings like
``"envweave_gym.registry.entry_points:gym(envweave/Echo-v0)"``. Looking up that attribute calls the module's
``__getattr__``, which returns :func:`launch_gym` with the card of the ID. So a spec is plain JSON, its kwargs
are the user's own, and a spawned process needs nothing but the string.

The stack is ``PassiveEnvChecker < RequestStream(max_steps) < Autoreset``. The step limit is an argument of
``RequestStream``. ``gymnasium.make(max_episode_steps=…)`` sets another limit: Gymnasium puts a ``TimeLimit`` around
the whole stack. It truncates while ``info["stream"]`` still has an open request to act. So give ``max_steps`` to
``gymnasium.make``; ``gymnasium.make_vec`` and ``envweave_gym.make`` take either name for the limit of the wrapper.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import gymnasium as gym
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import PassiveEnvChecker
from pettingzoo import AECEnv, ParallelEnv

from envweave_gym.core.arguments import (
    autoreset_mode_of,
    call,
    check_autoreset,
    check_faults,
    check_num_envs,
    check_render_mode,
    one_limit,
    step_limit,
)
from envweave_gym.core.faults import RESET_DEADLINE_S, InvalidArgument, MissingExtra, NotAvailable, need
from envweave_gym.providers.base import is_elsewhere, release_unused, urls_of
from envweave_gym.registry.catalog import EnvCard, card_of, cards, package_of
from envweave_gym.remote import remote_game, remote_gym, remote_vector
from envweave_gym.vector.native import NativeVectorEnv, NoNativeForm
from envweave_gym.vector.row_groups import Groups, groups_of, refuse_group
from envweave_gym.vector.singles import vector_of_singles
from envweave_gym.wrappers.aec_stream import AECStream
from envweave_gym.wrappers.autoreset import Autoreset, LaunchedAutoreset
from envweave_gym.wrappers.gym_stream import LaunchedStream, OnFault, RequestStream, has_stream
from envweave_gym.wrappers.parallel_stream import ParallelStream

_FAULT_ARGUMENTS = ("on_fault", "reset_deadline")


def __getattr__(name: str) -> Launch:
    """Return the entry point with a name such as ``gym(envweave/Echo-v0)``, for Gymnasium's and PettingZoo's lookup."""
    kind, _, env_id = name.partition("(")
    if kind not in LAUNCHERS or len(env_id) < 2 or not env_id.endswith(")"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return Launch(LAUNCHERS[kind], card_of(env_id[:-1]))


class Launch:
    """Callable to which the entry point string of an ID resolves; a call makes the environment of that ID.

    ``card`` is the declaration of the ID, and ``launch`` the function for its form, such as :func:`launch_gym`.
    """

    def __init__(self, launch: Callable[..., Any], card: EnvCard) -> None:
        self.launch, self.card = launch, card

    def __call__(self, **kwargs: Any) -> Any:
        """Make the environment of the card; ``kwargs`` are those that the caller of ``make`` has given."""
        with release_unused():
            return self.launch(self.card, **kwargs)

    @property
    def metadata(self) -> dict[str, Any]:
        """``metadata`` of the environment class, where ``gymnasium.make`` looks for render modes."""
        metadata = getattr(_constructor(self.card, self.card.gym), "metadata", None)
        if not isinstance(metadata, dict):
            raise AttributeError("metadata")
        return metadata


def launch_gym(
    card: EnvCard,
    /,
    *,
    max_steps: int | None = None,
    autoreset: bool = False,
    backend: Any = None,
    on_fault: OnFault | None = None,
    reset_deadline: float = RESET_DEADLINE_S,
    **kwargs: Any,
) -> gym.Env[Any, Any]:
    """Make a single Gymnasium environment with all its wrappers, in this process or on a server.

    The environment's own constructor gets ``kwargs``; the other arguments are those of
    :func:`envweave_gym.make`.
    """
    check_autoreset(card.id, autoreset)
    if "group" in kwargs:
        raise refuse_group(card.id)
    if "autoreset_mode" in kwargs:
        raise InvalidArgument(
            f"{card.id}: autoreset_mode= is for vectors; give num_envs= too, or to gymnasium.make_vec with "
            "vectorization_mode= as vector_kwargs={'autoreset_mode': …}"
        )
    check_faults(card.id, "raise" if on_fault is None else on_fault, reset_deadline)
    env_id, urls = _id_and_urls(card, backend, kwargs)
    if urls:
        kwargs |= _given(max_steps=max_steps, on_fault=on_fault, reset_deadline=reset_deadline)
        env = remote_gym(env_id, urls, with_call_deadline(env_id, kwargs))
        return LaunchedAutoreset(env) if autoreset else env
    on_fault = on_fault or "raise"
    limit = step_limit(card.id, card.max_steps if max_steps is None else max_steps)
    also = ("max_steps", "autoreset", "backend", *_FAULT_ARGUMENTS)
    core = PassiveEnvChecker(_construct(card, card.gym, gym.Env, kwargs, also=also))
    env = LaunchedStream(
        core, name=card.id, max_steps=limit, on_fault=on_fault, reset_deadline=reset_deadline
    )
    return LaunchedAutoreset(env) if autoreset else env


def launch_vector(
    card: EnvCard,
    /,
    *,
    num_envs: int = 1,
    autoreset_mode: str | AutoresetMode = "NextStep",
    max_steps: int | None = None,
    max_episode_steps: int | None = None,
    group: int | None = None,
    backend: Any = None,
    on_fault: OnFault | None = None,
    reset_deadline: float = RESET_DEADLINE_S,
    **kwargs: Any,
) -> VectorEnv[Any, Any, Any]:
    """Make a vector: the card's native one, or one of single environments.

    Single environments are used if the card has no native vector, or one that does not support the arguments
    (few can render). They are stepped in turn, or in parallel threads if the card says ``concurrent``.

    ``group`` consecutive rows play the same episodes. The rows of a native vector are array code that cannot
    fail alone, so ``on_fault`` and ``reset_deadline`` are checked there and have no effect.
    """
    check_num_envs(card.id, num_envs)
    groups = groups_of(card.id, group, num_envs)
    check_faults(card.id, "raise" if on_fault is None else on_fault, reset_deadline)
    if "autoreset" in kwargs:
        raise InvalidArgument(f"{card.id}: a vector resets by autoreset_mode=; leave autoreset= out")
    mode = autoreset_mode_of(card.id, autoreset_mode)
    given = one_limit(card.id, max_steps, max_episode_steps)
    env_id, urls = _id_and_urls(card, backend, kwargs)
    if urls:
        kwargs |= _given(max_steps=given, group=group, on_fault=on_fault, reset_deadline=reset_deadline)
        return remote_vector(env_id, urls, num_envs, mode, with_call_deadline(env_id, kwargs))
    on_fault = on_fault or "raise"
    if _native_renders(card, kwargs.get("render_mode")):
        limit = step_limit(card.id, card.max_steps if given is None else given)
        fixed = {"num_envs": num_envs, "autoreset_mode": mode, "max_steps": limit}
        with suppress(NoNativeForm):  # these arguments may need single environments
            return _native(card, kwargs, fixed, groups)
    check_render_mode(card.id, _constructor(card, card.gym), kwargs.get("render_mode"))
    stack = {"max_steps": given, "on_fault": on_fault, "reset_deadline": reset_deadline}
    make = partial(single, card.id, **stack, **kwargs)
    options = {"autoreset_mode": mode}
    return vector_of_singles(card.id, make, num_envs, "sync", options, group, concurrent=card.concurrent)


def single(env_id: str, **kwargs: Any) -> gym.Env[Any, Any]:
    """Call ``gymnasium.make``; importing this module first registers the IDs in a fresh process."""
    return gym.make(env_id, **kwargs)


def _native(
    card: EnvCard, kwargs: dict[str, Any], fixed: dict[str, Any], groups: Groups | None
) -> VectorEnv[Any, Any, Any]:
    """Make the card's native vector; with ``groups``, its rows are divided into them.

    ``kwargs`` are the user's arguments, and ``fixed`` those that the user cannot give.
    """
    also = ("autoreset_mode", "max_steps", "group", "backend", *_FAULT_ARGUMENTS)
    vector = _construct(card, card.vector, VectorEnv, kwargs, also=also, fixed=fixed)
    if groups is not None:
        if not isinstance(vector, NativeVectorEnv):
            raise NoNativeForm(f"{card.id}: its vector form knows no groups")
        vector.groups = groups
    return vector


def _native_renders(card: EnvCard, render_mode: Any) -> bool:
    """Return whether the card has a native vector that supports this render mode."""
    if card.vector is None or render_mode is None:
        return card.vector is not None
    return render_mode in _constructor(card, card.vector).metadata.get("render_modes", ())


def launch_game(
    api: Literal["aec", "parallel"], card: EnvCard, /, *, backend: Any = None, **kwargs: Any
) -> AECEnv[str, Any, Any] | ParallelEnv[str, Any, Any]:
    """Make a PettingZoo game with the API ``api``, in this process or on a server.

    If the card has no form with that API, the other form is converted. With the parallel API of a turn-based
    game, only the actions of agents with an open request in ``info["stream"]`` count.
    """
    env_id, urls = _id_and_urls(card, backend, kwargs)
    if urls:
        return remote_game(env_id, urls, api, with_call_deadline(env_id, kwargs))
    path = getattr(card, api) or card.aec or card.parallel
    kind = AECEnv if path == card.aec else ParallelEnv
    game = _construct(card, path, kind, kwargs, also=("backend",))
    return as_aec(game, card.id) if api == "aec" else as_parallel(game, card.id)


def _id_and_urls(card: EnvCard, backend: Any, kwargs: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the ID on the server and the server's URLs; an empty list means that this process makes it."""
    if card.proxy and not card.is_remote and is_elsewhere(card.id, backend):
        raise InvalidArgument(f"{card.id} is played on a server that its url= names; leave backend= out")
    if not card.is_remote:
        return card.id, urls_of(card.id, backend, kwargs, card.image, card.data)
    urls = urls_of(card.id, kwargs.pop("url", None), kwargs)
    if not urls:
        raise InvalidArgument(f"{card.id} stands for an environment on a server; give url='http://host:port'")
    return kwargs.pop("env_id", ""), urls


def with_call_deadline(env_id: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for a server, with the card's ``call_deadline`` unless one is given."""
    card = cards().get(env_id)
    deadline = {} if card is None or card.call_deadline is None else {"call_deadline": card.call_deadline}
    return {**deadline, **kwargs}


def _given(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


LAUNCHERS: dict[str, Callable[..., Any]] = {
    "gym": launch_gym,
    "vector": launch_vector,
    "aec": partial(launch_game, "aec"),
    "parallel": partial(launch_game, "parallel"),
}
"""The launch functions, by the first part of the entry point's name."""


# The stack around an environment that a factory or an ID of another package has made


def as_gym(
    env: gym.Env[Any, Any],
    name: str,
    *,
    max_steps: int | None = None,
    autoreset: bool = False,
    **others: Any,
) -> gym.Env[Any, Any]:
    """Wrap ``env`` in a ``RequestStream``, which puts the events of each step into ``info["stream"]``.

    ``max_steps`` and ``others`` are arguments of that wrapper. An environment that has a stream already is not
    wrapped, and giving these arguments for it raises ``InvalidArgument``. ``autoreset`` adds next-step autoreset.

    Unless ``reproducible=True`` is given, only the first reset without a seed gets a drawn one; later resets continue
    the environment's random generator.
    """
    if not has_stream(env):
        how: dict[str, Any] = {"reproducible": False, **others}
        env = RequestStream(env, name=name, max_steps=step_limit(name, max_steps), **how)
    elif max_steps is not None or others:
        given = " and ".join(["max_steps"] * (max_steps is not None) + list(others))
        raise InvalidArgument(f"{name} has a stream already; give {given} to that one")
    return Autoreset(env) if autoreset else env


def as_aec(game: Any, name: str, *, reproducible: bool = True) -> AECEnv[str, Any, Any]:
    """Return an AEC or parallel game as an ``AECEnv`` whose infos have streams (events and open requests)."""
    if isinstance(game, ParallelEnv):
        if has_stream(game):
            raise InvalidArgument(f"{name} has a stream already, for api='parallel' alone")
        from pettingzoo.utils.conversions import parallel_to_aec

        game = parallel_to_aec(game)
    return game if has_stream(game) else AECStream(game, name=name, reproducible=reproducible)


def as_parallel(game: Any, name: str, *, reproducible: bool = True) -> ParallelEnv[str, Any, Any]:
    """Return an AEC or parallel game as a ``ParallelEnv`` whose infos have streams (events and open requests)."""
    if isinstance(game, AECEnv):
        from envweave_gym.wrappers.turn_based_parallel import TurnBasedParallel

        return TurnBasedParallel(as_aec(game, name, reproducible=reproducible))
    return game if has_stream(game) else ParallelStream(game, name=name, reproducible=reproducible)


# Constructors of cards


def _constructor(card: EnvCard, path: str | None) -> Any:
    if path is None:
        raise InvalidArgument(f"{card.id} has no such form; it can be made as: {', '.join(card.kinds)}")
    for module in card.requires:
        need(module, card.extra, card.id, package=package_of(card.id))
    module, attribute = path.split(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except MissingExtra:
        raise
    except (ImportError, AttributeError) as error:
        raise NotAvailable(f"{card.id}: {path} cannot be loaded: {error}") from error


def _construct(
    card: EnvCard,
    path: str | None,
    kind: type[Any],
    kwargs: dict[str, Any],
    *,
    also: tuple[str, ...],
    fixed: dict[str, Any] | None = None,
) -> Any:
    constructor, mode = _constructor(card, path), kwargs.get("render_mode")
    check_render_mode(card.id, constructor, mode)
    made = call(card.id, constructor, kwargs, fixed=fixed, also=also)
    if not isinstance(made, kind):
        raise InvalidArgument(f"{card.id}: {path} gave a {type(made).__name__}, not a {kind.__name__}")
    check_render_mode(card.id, made, mode)
    return made
