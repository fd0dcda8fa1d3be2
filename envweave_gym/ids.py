"""Names to constructors: the grammar of :func:`make`.

===================================  ==============================================================
``envweave/X-v0``, ``CartPole-v1``   every ID registered with Gymnasium or PettingZoo
``local://name``                     a factory given to :func:`register` in this process
``module:ID``                        import ``module``, then make ``ID``
``http://host:port#ID``              an environment on a server
``docker://image:tag#ID``            an environment in a container
``openenv://…``, ``prime://…``       environments of other ecosystems
===================================  ==============================================================
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import gymnasium as gym
import pettingzoo
from gymnasium.vector import SyncVectorEnv, VectorEnv
from pettingzoo import AECEnv, ParallelEnv

from envweave_gym.catalog import cards
from envweave_gym.faults import InvalidArgument, NotAvailable, UnknownEnvironment
from envweave_gym.launch import autoreset_mode_of, check_backend, stack
from envweave_gym.wrappers.games import AECStream, ParallelStream

Api = Literal["gym", "aec", "parallel"]

_SCHEME = re.compile(r"(?P<scheme>[a-z][a-z+]*)://(?P<rest>.*)")
_LATER = {
    "http": "the remote layer",
    "https": "the remote layer",
    "docker": "the container layer",
    "openenv": "the OpenEnv resolver",
    "openenv+https": "the OpenEnv resolver",
    "prime": "the Prime Hub resolver",
}
_factories: dict[str, Callable[..., Any]] = {}


def register(name: str, *, factory: Callable[..., Any]) -> None:
    """Give an environment of this process a name: ``register("local://counter-v0", factory=CounterEnv)``.

    The factory returns a Gymnasium or PettingZoo environment and gets the kwargs of :func:`make`. Registering a
    name again replaces it. To give an ID to everybody who installs your package, add an
    :class:`envweave_gym.EnvCard` through the entry-point group ``envweave_gym.envs`` instead.
    """
    match = _SCHEME.fullmatch(name)
    if match is None or match["scheme"] != "local" or not match["rest"]:
        raise InvalidArgument(f"register({name!r}): a name of this process looks like 'local://counter-v0'")
    if not callable(factory):
        raise InvalidArgument(f"register({name!r}): factory={factory!r} cannot be called; give a class or function")
    _factories[match["rest"]] = factory


def make(
    name: str,
    *,
    num_envs: int | None = None,
    api: Api | None = None,
    autoreset: bool = False,
    backend: Any = None,
    **kwargs: Any,
) -> Any:
    """Make an environment by any name of the grammar above.

    - ``num_envs`` gives a ``VectorEnv`` of so many; its mode is ``autoreset_mode=`` (``"NextStep"`` by default).
    - ``api`` is ``"gym"``, ``"aec"`` or ``"parallel"``; games are parallel by default.
    - ``autoreset=True`` lets the step after the end of a single environment reset it.
    - ``backend`` says where it runs; everything else goes to the environment.
    """
    if api not in (None, "gym", "aec", "parallel"):
        raise InvalidArgument(f"make({name!r}): api={api!r} is unknown; there are 'gym', 'aec', 'parallel'")
    match = _SCHEME.fullmatch(name)
    if match is None:
        build = _registered(_imported(name), api)
    elif match["scheme"] == "local":
        build = _local(name, match["rest"], api)
    elif match["scheme"] in _LATER:
        needs = _LATER[match["scheme"]]
        raise NotAvailable(f"make({name!r}) needs {needs}, which this version does not have yet")
    else:
        known = ", ".join(f"{scheme}://" for scheme in ("local", *_LATER))
        raise UnknownEnvironment(f"make({name!r}): there is no scheme {match['scheme']}://; there are {known}")
    if backend is not None:
        kwargs["backend"] = backend
    return build(num_envs=num_envs, autoreset=autoreset, **kwargs)


def _imported(name: str) -> str:
    """Import the module of ``module:ID`` and give the ID."""
    module, colon, rest = name.partition(":")
    if not colon:
        return name
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UnknownEnvironment(f"make({name!r}): module {error.name!r} cannot be imported") from error
    return rest


def _registered(env_id: str, api: Api | None) -> Callable[..., Any]:
    """The builder of a registered ID, for the API asked for or the one it has."""
    where = {"gym": gym.registry, "aec": pettingzoo.aec_registry, "parallel": pettingzoo.parallel_registry}
    having = [kind for kind in ("gym", "parallel", "aec") if _find(where[kind], env_id)]
    if not having:
        raise UnknownEnvironment(_unknown(env_id))
    chosen = api or having[0]
    if chosen not in having:
        raise InvalidArgument(f"{env_id} has no api={chosen!r}; it has {', '.join(map(repr, having))}")
    found = _find(where[chosen], env_id)
    return partial(_make_gym if chosen == "gym" else partial(_make_game, chosen), found)


def _find(registry: Any, env_id: str) -> str | None:
    """The registered ID that ``env_id`` means: itself, or its newest version where it names none."""
    if env_id in registry:
        return env_id
    versions = [known for known in registry if re.fullmatch(re.escape(env_id) + r"-v\d+", known)]
    return max(versions, key=lambda known: int(known.rpartition("-v")[2]), default=None)


def _unknown(name: str) -> str:
    known = {*gym.registry, *pettingzoo.aec_registry, *pettingzoo.parallel_registry}
    known |= {f"local://{local}" for local in _factories}
    near = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.5)
    hint = f"; the nearest names are {', '.join(near)}" if near else ""
    return (
        f"no environment is called {name!r}: it is not among the {len(gym.registry)} IDs of Gymnasium, the "
        f"{len(pettingzoo.aec_registry)} AEC and {len(pettingzoo.parallel_registry)} parallel IDs of PettingZoo "
        f"and the {len(_factories)} local names{hint}"
    )


def _make_gym(env_id: str, *, num_envs: int | None, autoreset: bool, **kwargs: Any) -> Any:
    """A Gymnasium ID: ours through its launch entry point, a foreign one with our stack around it."""
    ours = env_id in cards()
    if num_envs is not None:
        if ours or "vectorization_mode" in kwargs:
            return gym.make_vec(env_id, num_envs=num_envs, **kwargs)
        mode = kwargs.pop("autoreset_mode", "NextStep")
        make_one = partial(_make_gym, env_id, num_envs=None, autoreset=False, **kwargs)
        return _vector(make_one, env_id, num_envs, mode)
    if ours:
        return gym.make(env_id, **kwargs, **({"autoreset": True} if autoreset else {}))
    check_backend(env_id, kwargs.pop("backend", None))
    max_steps, on_fault = kwargs.pop("max_steps", None), kwargs.pop("on_fault", "raise")
    env = gym.make(env_id, max_episode_steps=max_steps, **kwargs)
    return stack(env, name=env_id, max_steps=None, autoreset=autoreset, on_fault=on_fault)


def _make_game(api: str, env_id: str, *, num_envs: int | None, autoreset: bool, **kwargs: Any) -> Any:
    _refuse_for_games(env_id, num_envs, autoreset)
    if env_id not in cards():
        check_backend(env_id, kwargs.pop("backend", None))
    env = pettingzoo.make(api, env_id, **kwargs)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return env if env_id in cards() else _streamed(env, env_id)


def _local(name: str, local: str, api: Api | None) -> Callable[..., Any]:
    if local not in _factories:
        raise UnknownEnvironment(_unknown(name))
    return partial(_make_local, name, _factories[local], api)


def _make_local(
    name: str,
    factory: Callable[..., Any],
    api: Api | None,
    *,
    num_envs: int | None,
    autoreset: bool,
    max_steps: int | None = None,
    on_fault: Any = "raise",
    backend: Any = None,
    autoreset_mode: Any = "NextStep",
    **kwargs: Any,
) -> Any:
    check_backend(name, backend)
    if num_envs is not None:
        once = partial(_make_local, name, factory, api, num_envs=None, autoreset=False, on_fault=on_fault)
        return _vector(partial(once, max_steps=max_steps, **kwargs), name, num_envs, autoreset_mode)
    env = factory(**kwargs)
    kind = "aec" if isinstance(env, AECEnv) else "parallel" if isinstance(env, ParallelEnv) else "gym"
    if api is not None and not (api == kind or (kind == "aec" and api == "parallel")):
        raise InvalidArgument(f"{name} has no api={api!r}; its factory gave a {type(env).__name__}")
    if isinstance(env, gym.Env):
        return stack(env, name=name, max_steps=max_steps, autoreset=autoreset, on_fault=on_fault)
    if isinstance(env, AECEnv | ParallelEnv):
        _refuse_for_games(name, num_envs, autoreset)
        return _as_parallel(env, name) if kind == "aec" and api != "aec" else _streamed(env, name)
    raise InvalidArgument(
        f"{name}: its factory gave a {type(env).__name__}, not a gymnasium.Env, pettingzoo.AECEnv or ParallelEnv"
    )


def _streamed(env: Any, name: str) -> Any:
    return AECStream(env, name=name) if isinstance(env, AECEnv) else ParallelStream(env, name=name)


def _as_parallel(env: Any, name: str) -> Any:
    from envweave_gym.multiagent.turn_based import TurnBasedParallel

    return TurnBasedParallel(AECStream(env, name=name))


def _vector(make_one: Callable[[], Any], name: str, num_envs: int, mode: Any) -> VectorEnv[Any, Any, Any]:
    if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
        raise InvalidArgument(f"{name}: num_envs={num_envs!r} is not a number of environments; give an int >= 1")
    return SyncVectorEnv([make_one] * num_envs, autoreset_mode=autoreset_mode_of(name, mode))


def _refuse_for_games(name: str, num_envs: int | None, autoreset: bool) -> None:
    if num_envs is not None:
        raise InvalidArgument(f"{name} is a multi-agent environment, which has no vector form; leave num_envs out")
    if autoreset:
        raise InvalidArgument(f"{name} is a multi-agent environment, which its caller resets; leave autoreset out")
