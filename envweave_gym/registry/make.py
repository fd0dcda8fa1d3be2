"""Public functions ``make``, whose docstring has the grammar of names, ``register`` and ``warm_up``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.providers.base import provider_names, provider_of, release_unused
from envweave_gym.registry.catalog import Api, cards
from envweave_gym.registry.make_call import MakeCall
from envweave_gym.registry.make_registered import make_registered
from envweave_gym.registry.names import factories
from envweave_gym.registry.schemes import scheme_of


def register(name: str, *, factory: Callable[..., Any]) -> None:
    """Give a factory of this process a name for ``make``: ``register("local://counter-v0", factory=CounterEnv)``.

    The factory returns a Gymnasium or PettingZoo environment and gets the kwargs of :func:`make`. Registering a
    name again replaces it. To give an ID to everybody who installs your package, add an
    :class:`envweave_gym.EnvCard` through the entry-point group ``envweave_gym.envs`` instead.
    """
    if not isinstance(name, str) or not name.startswith("local://") or name == "local://":
        looks = "a name of this process looks like 'local://counter-v0'"
        raise InvalidArgument(f"register({shown(name)}): {looks}")
    if not callable(factory):
        raise InvalidArgument(
            f"register({shown(name)}): factory={shown(factory)} cannot be called; give a function"
        )
    factories[name] = factory


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
    """Make an environment, a vector of environments or a multi-agent game by its name.

    - ``envweave/Echo-v0``: an ID of this package, or of a plug-in.
    - ``CartPole-v1``, ``atari/pong-v3``: an ID registered with Gymnasium or PettingZoo.
    - ``envweave/Echo``, ``CartPole``: the same without a version, the newest one.
    - ``module:ID``: import ``module``, which registers the ID, then make it.
    - ``local://name``: a factory given to :func:`envweave_gym.register` in this process.
    - ``http://host:port#ID``: ``ID`` on a server, also ``https``; without ``#ID`` the server's only one.
    - ``http+unix://%2Fpath#ID``: the same on a server at a Unix socket.
    - ``unix://%40name#ID``: the same on a private server of this machine.
    - ``ray+actor://…``: the same on a Ray actor.
    - ``docker://image:tag#ID``: the same in a container of an image.
    - ``openenv://host:port``: the environment of an OpenEnv server; ``openenv+https://host``, such as a live Space.
    - ``openenv://docker/image``, ``openenv://hf/owner/name``: the same, started from an image or a Space.
    - ``prime://owner/name@version``: an installed environment of the Prime Environments Hub.

    An unknown name raises :class:`envweave_gym.UnknownEnvironment`, with the nearest names. Arguments:

    - ``num_envs`` gives a ``VectorEnv`` with that many rows. It resets its environments by ``autoreset_mode``
      (``"NextStep"`` by default). IDs with a native vector form use that, and IDs whose steps wait for other
      processes step their rows in threads. ``vectorization_mode="sync"`` steps them one after the other,
      ``"async"`` each in a process of its own.
    - ``group=k`` lets k consecutive rows of a vector play the same episodes, for trainers that compare them.
    - ``api`` is ``"gym"``, ``"aec"`` or ``"parallel"``; games are parallel by default.
    - ``autoreset=True`` lets the step after the end of a single environment's episode reset it.
    - ``backend`` says where it runs: ``"inproc"`` (the default), ``"subprocess"``, ``"docker"``,
      ``"kubernetes"``, ``"ray"``, the URL of a server, or a list of URLs. ``"venv"`` makes an ID of another package
      in a virtual environment of its own, with ``requirements=`` or ``suite=`` (see ``docs/suites.md``).
    - ``max_steps`` (or ``max_episode_steps``) truncates its episodes, ``on_fault`` says what becomes of its
      exceptions and ``reset_deadline`` how long a failing reset is tried again (see
      :class:`envweave_gym.wrappers.RequestStream`).
    - ``reproducible=True`` seeds every reset of an ID of another package; IDs of this one are always seeded so.
      By default its first reset gets a seed, and later ones without a seed let its generator go on.
    - ``reward="sum"``, ``"first"`` or a function makes one number of rewards that are lists, arrays or dicts,
      as in some IDs of other packages.
    - All other arguments go to the environment.
    """
    call = MakeCall.of(name, api, num_envs, group, autoreset, backend, kwargs)
    with release_unused():
        scheme = scheme_of(name)
        return make_registered(call) if scheme is None else scheme(call)


def warm_up(
    name: str, warm: int = 1, *, backend: str = "docker", timeout: float = 60.0, **options: Any
) -> None:
    """Keep ``warm`` servers ready for later calls of ``make(name, backend=backend)``; wait until they are ready.

    ``options`` are the backend's options of ``make``; only servers with the same options are shared. ``warm=0``
    ends those that no environment uses. Raise ``NotAvailable`` after ``timeout`` seconds. ::

        from envweave_gym.registry.make import warm_up

        warm_up("envweave/Counter-v0", 2)
    """
    from envweave_gym.providers.options import check_number
    from envweave_gym.providers.pool import pool_of

    provider = provider_of(backend)
    if provider is None:
        known = ", ".join(map(repr, provider_names()))
        raise InvalidArgument(
            f"{name}: backend={shown(backend)} starts no servers to keep ready; there are {known}"
        )
    check_number(name, "warm", warm, least=0)
    card = cards().get(name.rpartition(":")[2])
    start = provider.start(name, card and card.image, options)
    if options:
        raise InvalidArgument(f"{name}: warm_up takes no option {shown(next(iter(options)))}")
    pool = pool_of(start)
    pool.keep_ready(warm)
    pool.wait(timeout)
