"""Makes environments with registered IDs, ours and those of other packages."""

from __future__ import annotations

import copy
import pkgutil
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym

from envweave_gym.core.arguments import check_reproducible
from envweave_gym.core.faults import InvalidArgument, UnknownEnvironment
from envweave_gym.providers.base import provider_of, urls_of
from envweave_gym.registry.catalog import REGISTRIES, Api, cards
from envweave_gym.registry.entry_points import single
from envweave_gym.registry.foreign import on_servers, wrapped_game, wrapped_gym
from envweave_gym.registry.make_call import MakeCall, no_api, vector_arguments
from envweave_gym.registry.module_search import with_modules
from envweave_gym.registry.names import import_module_of, registered_id, split_module, unknown
from envweave_gym.vector.singles import vector_of_singles


def make_registered(call: MakeCall) -> Any:
    """Make the environment with a registered ID, for the API of the call, or the only API of the ID."""
    name, api, kwargs = call.name, call.api, call.kwargs
    provider = provider_of(call.backend)
    if provider is not None and provider.maker:
        return pkgutil.resolve_name(provider.maker)(call)
    is_local = call.backend in (None, "inproc")
    known_as = import_module_of(name) if is_local else _imported_if_here(name, call.backend)
    env_id = registered_id(known_as)
    card = cards().get(env_id or "")
    if card is not None and card.game is not None and api in ("aec", "parallel"):
        return make_registered(replace(call, name=card.game))
    kinds: list[Api] = [kind for kind, registry in REGISTRIES.items() if env_id in registry]
    if env_id is None and not split_module(name)[0] and provider is not None and provider.same_packages:
        raise unknown(known_as)
    launched = card is not None and "gym" in kinds  # the entry points of cards handle backend= themselves
    if not launched and (
        urls := urls_of(name, call.backend, kwargs, card and card.image, card is not None and card.data)
    ):
        module, env_id = name.removesuffix(known_as), env_id or known_as
        here = bool(kinds) and not module and provider is not None and provider.shares_modules
        return on_servers(with_modules(env_id) if here else module + env_id, urls, call)
    if env_id is None:
        raise unknown(known_as)
    if "gym" in kinds and api in (None, "gym"):
        return _with_card(env_id, call) if card is not None else wrapped_gym(env_id, call)
    games: list[Api] = [kind for kind in kinds if kind != "gym"]
    if games and api != "gym":
        return wrapped_game(env_id, api if api in games else games[0], call)
    raise no_api(env_id, api, *(("parallel", "aec") if games else ("gym",)))


def _imported_if_here(name: str, backend: Any) -> str:
    """Return the ID in ``module:ID``; if this process starts the server, import the module first.

    The server imports the module itself. Here the module is imported only for the card that it may register, which
    determines how the server is started. A module that is not installed is skipped. For the URL of a server nothing
    is imported.
    """
    if provider_of(backend) is None:
        return split_module(name)[1]
    try:
        return import_module_of(name)
    except (ImportError, UnknownEnvironment):
        return split_module(name)[1]


def _with_card(env_id: str, call: MakeCall) -> Any:
    """Make the environment of an ID that has a card, through its entry point."""
    backend, num_envs, kwargs = call.backend, call.num_envs, call.kwargs
    if not cards()[env_id].is_remote:
        check_reproducible(env_id, reproducible := kwargs.pop("reproducible", True))
        if not reproducible:
            raise InvalidArgument(f"{env_id} seeds every reset; leave reproducible=False out")
    if backend is not None:
        kwargs["backend"] = backend
    if num_envs is None:
        return gym.make(env_id, **kwargs)
    how, options = vector_arguments(env_id, kwargs)
    if how not in ("sync", "async"):
        return gym.make_vec(env_id, num_envs=num_envs, vectorization_mode=how, **options, **kwargs)
    own = {key: value for key, value in kwargs.items() if key != "group"}
    make_one = partial(single, env_id, **own)
    vector = vector_of_singles(env_id, make_one, num_envs, how, options, kwargs.get("group"))
    vector.spec = copy.deepcopy(gym.spec(env_id))
    vector.spec.kwargs = {**kwargs, "num_envs": num_envs, "vectorization_mode": how, "vector_kwargs": options}
    return vector
