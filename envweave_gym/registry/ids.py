"""Names to constructors: :func:`make`, whose docstring has the grammar of names, and :func:`register`."""

from __future__ import annotations

import copy
import difflib
import importlib
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import pettingzoo

from envweave_gym.core.arguments import check_autoreset, check_num_envs, check_reproducible, one_limit
from envweave_gym.core.faults import InvalidArgument, NotAvailable, UnknownEnvironment, shown
from envweave_gym.providers.base import provider_of, release_unused, urls_of
from envweave_gym.registry.catalog import REGISTRIES, Api, cards
from envweave_gym.registry.foreign import (
    elsewhere,
    no_api,
    vector_arguments,
    wrapped,
    wrapped_game,
    wrapped_gym,
)
from envweave_gym.registry.launch import single
from envweave_gym.registry.registering_modules import with_modules
from envweave_gym.remote.address import SCHEMES
from envweave_gym.vector.row_groups import groups_of, refuse_group
from envweave_gym.vector.singles import vector_of_singles

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]*)://(?P<rest>.*)", re.DOTALL)
_LATER = {
    "openenv": "the OpenEnv resolver",
    "openenv+https": "the OpenEnv resolver",
    "prime": "the Prime Hub resolver",
}
_SHORTEST_PART = 4
"""Fewer letters are a part of too many names to say which was meant."""
_factories: dict[str, Callable[..., Any]] = {}


def register(name: str, *, factory: Callable[..., Any]) -> None:
    """Give an environment of this process a name: ``register("local://counter-v0", factory=CounterEnv)``.

    The factory returns a Gymnasium or PettingZoo environment and gets the kwargs of :func:`make`. Registering
    a name again replaces it. To give an ID to everybody who installs your package, add an
    :class:`envweave_gym.EnvCard` through the entry-point group ``envweave_gym.envs`` instead.
    """
    match = _SCHEME.fullmatch(name) if isinstance(name, str) else None
    if match is None or match["scheme"] != "local" or not match["rest"]:
        looks = "a name of this process looks like 'local://counter-v0'"
        raise InvalidArgument(f"register({shown(name)}): {looks}")
    if not callable(factory):
        raise InvalidArgument(
            f"register({shown(name)}): factory={shown(factory)} cannot be called; give a function"
        )
    _factories[name] = factory


def make(
    name: str,
    /,
    *,
    num_envs: int | None = None,
    group: int | None = None,
    api: Api | None = None,
    autoreset: bool = False,
    backend: Any = None,
    **kwargs: Any,
) -> Any:
    """Make an environment, a vector of them or a game by its name.

    =================================  ================================================================
    ``envweave/Echo-v0``               an ID of this package, or of a plug-in
    ``CartPole-v1``, ``atari/pong-v3`` an ID registered with Gymnasium or PettingZoo
    ``envweave/Echo``, ``CartPole``    the same without a version: the newest one
    ``module:ID``                      import ``module``, which registers it, then make ``ID``
    ``local://name``                   a factory given to :func:`envweave_gym.register` in this process
    ``http://host:port#ID``            ``ID`` on a server, also ``https``; without ``#ID`` the only one it has
    ``http+unix://%2Fpath#ID``         the same on a server at a Unix socket
    ``ray+actor://…``                  the same on a Ray actor
    ``docker://image:tag#ID``          the same in a container of an image
    ``openenv://…``, ``prime://…``     reserved for other ecosystems; refused by this version
    =================================  ================================================================

    An unknown name raises :class:`envweave_gym.UnknownEnvironment`, with the nearest names.

    - ``num_envs`` gives a ``VectorEnv`` of so many. It resets its environments by ``autoreset_mode``
      (``"NextStep"`` by default). IDs with a native vector form use that, and IDs whose steps wait for other
      processes step their rows in threads. ``vectorization_mode="sync"`` steps them one after the other,
      ``"async"`` each in a process of its own.
    - ``group=k`` lets k consecutive rows of a vector play the same episodes, for trainers that compare them.
    - ``api`` is ``"gym"``, ``"aec"`` or ``"parallel"``; games are parallel by default.
    - ``autoreset=True`` lets the step after the end of a single environment reset it.
    - ``backend`` says where it runs: ``"inproc"`` (the default), ``"subprocess"``, ``"docker"``,
      ``"kubernetes"``, ``"ray"``, the URL of a server, or a list of URLs.
    - ``max_steps`` (or ``max_episode_steps``) truncates its episodes, ``on_fault`` says what becomes of its
      exceptions and ``reset_deadline`` how long a failing reset is tried again (see
      :class:`envweave_gym.RequestStream`); everything else goes to the environment.
    - ``reproducible=True`` seeds every reset of an ID of another package, as those of this one always are;
      by default its first reset gets a seed, and later ones without a seed let its generator go on.
    - ``reward="sum"``, ``"first"`` or a function makes one number of rewards that are lists, arrays or dicts,
      as some IDs of other packages pay.
    """
    if not isinstance(name, str):
        raise InvalidArgument(f"make({shown(name)}): a name is a string; gymnasium.make takes specs")
    if api not in (None, *REGISTRIES):
        there_are = ", ".join(map(repr, REGISTRIES))
        raise InvalidArgument(f"make({shown(name)}): api={shown(api)} is unknown; there are {there_are}")
    if num_envs is not None:
        check_num_envs(name, num_envs)
    if group is not None:
        if num_envs is None:
            raise refuse_group(name)
        groups_of(name, group, num_envs)
        kwargs["group"] = group
    check_autoreset(name, autoreset)
    mode = kwargs.get("render_mode")
    if not isinstance(mode, str | None):
        raise InvalidArgument(f"{name}: render_mode={shown(mode)} is not a text, like 'ansi'")
    limit = one_limit(name, kwargs.pop("max_steps", None), kwargs.pop("max_episode_steps", None))
    given = {"max_steps": limit, **({"autoreset": True} if autoreset else {})}
    kwargs |= {key: value for key, value in given.items() if value is not None}
    with release_unused():
        return _builder(name, api, backend, kwargs)(num_envs, kwargs)


_Builder = Callable[[int | None, dict[str, Any]], Any]
"""Makes the environment, or a vector of so many, with these arguments."""


def _builder(name: str, api: Api | None, backend: Any, kwargs: dict[str, Any]) -> _Builder:
    match = _SCHEME.fullmatch(name)
    if match is None:
        return _registered(name, api, backend, kwargs)
    scheme = match["scheme"].lower()
    if scheme == "docker":
        image, _, env_id = match["rest"].partition("#")
        if not image:
            raise InvalidArgument(f"make({shown(name)}) names no image; give one: docker://envweave-core#ID")
        if "image" in kwargs:
            raise InvalidArgument(f"make({shown(name)}): the name says which image; leave image= out")
        if backend not in (None, "docker"):
            raise InvalidArgument(f"make({shown(name)}): the name says where it runs; leave backend= out")
        return partial(elsewhere, env_id, urls_of(name, "docker", kwargs, image), api)
    urls = urls_of(name, backend, kwargs)
    if scheme in SCHEMES:
        url, _, env_id = name.partition("#")
        if not match["rest"].partition("#")[0].strip("/"):
            raise InvalidArgument(f"make({shown(name)}) names no server; give one: http://host:port#ID")
        return partial(elsewhere, env_id, urls or [url], api)
    if scheme == "local":
        if name not in _factories:
            raise UnknownEnvironment(_unknown(name))
        if urls:
            raise InvalidArgument(
                f"{name} is known to this process alone and has no backend={shown(backend)}; "
                "serve its factory with envweave_gym_server.create_app, or give it an ID"
            )
        return partial(wrapped, name, _factories[name], api)
    if scheme in _LATER:
        needs = _LATER[scheme]
        raise NotAvailable(f"make({shown(name)}) needs {needs}, which this version does not have yet")
    known = ", ".join(f"{one}://" for one in ("local", *SCHEMES, "docker", *_LATER))
    raise UnknownEnvironment(f"make({shown(name)}): there is no scheme {scheme}://; there are {known}")


def _split(name: str) -> tuple[str, str]:
    """The module and the ID of ``module:ID``; without a module the first is empty."""
    module, colon, rest = name.partition(":")
    is_module = colon and all(part.isidentifier() for part in module.split("."))
    return (module, rest) if is_module else ("", name)


def _imported(name: str) -> str:
    """Import the module of ``module:ID`` and give the ID."""
    module, rest = _split(name)
    if not module:
        return name
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        missing = f"there is no module {error.name!r} to import"
        raise UnknownEnvironment(f"make({shown(name)}): {missing}") from error
    return rest


def _imported_if_here(name: str, backend: Any) -> str:
    """The ID of ``module:ID``, which a server makes: it is the server that needs the module.

    Where this process starts the server the module is imported if it is installed, as its card may say how
    the server is started. For a server at an address nothing is imported here.
    """
    if provider_of(backend) is None:
        return _split(name)[1]
    try:
        return _imported(name)
    except (ImportError, UnknownEnvironment):
        return _split(name)[1]


def resolve(name: str) -> str | None:
    """The full registered ID that a name means; ``None`` where it means none, as a local name does.

    The module of ``module:ID`` is imported, as :func:`make` does.
    """
    if _SCHEME.fullmatch(name):
        return None
    try:
        return _found(_imported(name))
    except UnknownEnvironment:
        return None


def _registered(name: str, api: Api | None, backend: Any, kwargs: dict[str, Any]) -> _Builder:
    """The builder of a registered ID, for the API asked for or the one it has."""
    known_as = _imported(name) if backend in (None, "inproc") else _imported_if_here(name, backend)
    env_id = _found(known_as)
    kinds = [kind for kind, registry in REGISTRIES.items() if env_id in registry]
    card = cards().get(env_id or "")
    if card is not None and card.game is not None and api in ("aec", "parallel"):
        return _registered(card.game, api, backend, kwargs)
    provider = provider_of(backend)
    if env_id is None and not _split(name)[0] and provider is not None and provider.same_packages:
        raise UnknownEnvironment(_unknown(known_as))
    launched = card is not None and "gym" in kinds  # the launch of our IDs picks their servers itself
    if not launched and (
        urls := urls_of(name, backend, kwargs, card and card.image, card is not None and card.data)
    ):
        module, env_id = name.removesuffix(known_as), env_id or known_as
        here = bool(kinds) and not module and provider is not None and provider.shares_modules
        named = with_modules(env_id) if here else module + env_id
        return partial(elsewhere, named, urls, api)
    if env_id is None:
        raise UnknownEnvironment(_unknown(known_as))
    if "gym" in kinds and api in (None, "gym"):
        return partial(_our_gym, env_id, backend) if env_id in cards() else partial(wrapped_gym, env_id)
    games = [kind for kind in kinds if kind != "gym"]
    if games and api != "gym":
        return partial(wrapped_game, env_id, api if api in games else games[0], api)
    raise InvalidArgument(no_api(env_id, api, *(("parallel", "aec") if games else ("gym",))))


def _found(env_id: str) -> str | None:
    """The registered ID that ``env_id`` means: itself, or its newest version where it names none."""
    for spelling in (env_id, re.sub(r"_v(\d+)$", r"-v\1", env_id)):
        if any(spelling in registry for registry in REGISTRIES.values()):
            return spelling
    known = (one.rpartition("-v") for registry in REGISTRIES.values() for one in registry)
    versions = [version for name, _, version in known if name == env_id and version.isdecimal()]
    return f"{env_id}-v{max(versions, key=int)}" if versions else None


def _unknown(name: str) -> str:
    names = _nearest(
        name, {*gym.registry, *pettingzoo.aec_registry, *pettingzoo.parallel_registry, *_factories}
    )
    hint = f"; the nearest names are {', '.join(names)}" if names else _next_step(name)
    return (
        f"no environment is called {shown(name)}: it is not among the {len(gym.registry)} IDs of Gymnasium, "
        f"the {len(pettingzoo.aec_registry)} AEC and {len(pettingzoo.parallel_registry)} parallel IDs of "
        f"PettingZoo and the {len(_factories)} local names{hint}"
    )


def _next_step(name: str) -> str:
    if name.startswith("local://"):
        return "; give it to envweave_gym.register(name, factory=…) first"
    return "; 'envweave list' shows what this package has, and gymnasium.register(…) adds to them"


def _nearest(name: str, known: set[str]) -> list[str]:
    """Up to three of the known names: those spelled nearly so, then those that have it as a part."""
    spellings = {spelling: one for one in sorted(known) for spelling in (_bare(one), one.lower())}
    bare = _bare(name)
    near = difflib.get_close_matches(bare, spellings, n=3, cutoff=0.75)
    near += difflib.get_close_matches(name.lower(), spellings, n=3, cutoff=0.9)
    near += [spelling for spelling in spellings if bare in spelling and len(bare) >= _SHORTEST_PART]
    return list(dict.fromkeys(spellings[spelling] for spelling in near))[:3]


def _bare(name: str) -> str:
    """A name as people remember it: small letters, no namespace, no version."""
    return re.sub(r"-v\d+$", "", name.rpartition("/")[2].lower())


def _our_gym(env_id: str, backend: Any, num_envs: int | None, kwargs: dict[str, Any]) -> Any:
    """An ID of the table: its launch entry point does everything."""
    if not cards()[env_id].proxy:
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
