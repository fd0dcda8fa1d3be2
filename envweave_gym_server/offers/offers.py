"""Offers of a server: the IDs that it serves, and the arguments that clients may give to each."""

from __future__ import annotations

import importlib
import inspect
import operator
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
from pettingzoo import AECEnv, ParallelEnv

import envweave_gym
from envweave_gym.core.arguments import check_deadline
from envweave_gym.core.faults import MAX_NAME_LENGTH, InvalidArgument, UnknownEnvironment, nearest, shown
from envweave_gym.registry.catalog import REGISTRIES, cards
from envweave_gym.registry.entry_points import single
from envweave_gym.registry.module_search import import_until_known
from envweave_gym.registry.names import resolve
from envweave_gym.typed import TypedEnv
from envweave_gym.wire.messages import Create
from envweave_gym_server.environments.hosted_env import HostedEnv
from envweave_gym_server.environments.own_thread import OwnThread
from envweave_gym_server.environments.reset_options import ResetOptions

_LOCAL = "local://"
_TITLE = re.compile(r"[\w./-]+")
_STACK = ("max_steps", "on_fault", "reset_deadline", "render_mode")
_LONGEST_RESET_S = 60.0
"""Limit of ``reset_deadline`` for clients, because a reset that keeps failing keeps a thread."""
_VECTOR = ("num_envs", "autoreset_mode")
_APIS = {"gym": "gym", "vector": "gym", "aec": "aec", "parallel": "parallel"}


@dataclass(frozen=True)
class Offer:
    """An environment that clients may make, and the arguments that they may give."""

    name: str
    target: str
    """Name of the environment for :func:`envweave_gym.make`."""
    doc: str
    apis: tuple[str, ...]
    kwargs: tuple[str, ...] = ()
    """Names of arguments that clients may give to the constructor and to resets.

    Commands, paths, addresses and backends are left to the operator.
    """
    factory: Callable[..., Any] | None = None
    """Function or class that makes the environment; ``None`` if ``target`` is a registered ID."""
    action: Any = None
    observation: Any = None
    """Dataclasses for ``action`` and ``observation`` of an object from ``factory`` that has no type hints."""

    @property
    def trial(self) -> dict[str, Any]:
        """Arguments with which the environment can be made on any machine, so that it can be described."""
        card = cards().get(self.target)
        return {} if card is None else card.trial

    def register(self) -> None:
        """Register the factory in this process, under the offer's ``target``."""
        if self.factory is not None:
            envweave_gym.register(self.target, factory=self._build)

    def _build(self, **given: Any) -> Any:
        env = None if self.factory is None else self.factory(**given)
        if isinstance(env, gym.Env | AECEnv | ParallelEnv):
            return env
        models = {"action_model": self.action, "observation_model": self.observation}
        for attribute, model in models.items():
            if model is not None:
                setattr(env, attribute, model)
        return TypedEnv(env)

    def check(self, create: Create) -> None:
        """Raise ``InvalidArgument`` for an API or an argument that clients may not give; values are not checked."""
        if create.api and create.api not in self.apis:
            raise InvalidArgument(
                f"{self.name} is served as {', '.join(self.apis)}, not as {shown(create.api)}"
            )
        allowed = self.arguments_for(create.api)
        for given, value in create.kwargs.items():
            text = value if isinstance(value, str) else shown(value)  # str() of some raises
            if given not in allowed and f"{given}={text}" not in allowed:
                hint = nearest(given, allowed) if isinstance(given, str) else ""
                raise InvalidArgument(
                    f"{self.name} takes no argument {shown(given)} from a client{hint}; "
                    f"it takes {', '.join(allowed)}"
                )

    def make(self, create: Create) -> Any:
        """Make the environment that a client requests.

        ``InvalidArgument`` names the arguments that are allowed.
        """
        self.check(create)
        if create.kwargs.get("render_mode") == "human":
            raise InvalidArgument(self._no_window(create))
        return self._made(create.api, self._bounded(create.kwargs))

    def _made(self, api: str, kwargs: dict[str, Any]) -> Any:
        if api == "gym" and self.target in cards():
            return single(self.target, **kwargs)
        known_as: Any = _APIS.get(api)
        return envweave_gym.make(self.target, api=known_as, **kwargs)

    def _bounded(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with a limit on ``reset_deadline``.

        Without it a reset that fails could keep a thread for as long as a client likes.
        """
        if "reset_deadline" not in kwargs:
            return kwargs
        given = kwargs["reset_deadline"]
        check_deadline(self.name, "reset_deadline", given, least=0.0)
        return {**kwargs, "reset_deadline": min(given, _LONGEST_RESET_S)}

    def _no_window(self, create: Create) -> str:
        """Return the sentence that refuses to open a window; an instance is made to list its other render modes."""
        kwargs = {name: given for name, given in create.kwargs.items() if name != "render_mode"}
        if "num_envs" in kwargs:
            kwargs["num_envs"] = 1
        env = self._made(create.api, self._bounded(kwargs))
        try:
            metadata: dict[str, Any] = getattr(env, "metadata", None) or {}
        finally:
            env.close()
        modes = ", ".join(repr(mode) for mode in metadata.get("render_modes") or () if mode != "human")
        return (
            f"{self.name}: render_mode='human' would open a window on the server; "
            f"a client may ask for {modes or 'none'}"
        )

    def serve(self, create: Create, *, threads: bool = False) -> HostedEnv:
        """Make the environment that a client requests, and return it as a :class:`HostedEnv`.

        ``threads`` says that its calls may come from several threads. Then an environment of another package,
        or one whose ``EnvCard`` says ``thread_affine``, is made and played in a thread of its own.
        """
        thread = OwnThread(self.name) if threads and self._is_bound_to_a_thread else None
        try:
            return thread.run(self._served, create, thread) if thread else self._served(create)
        except BaseException:
            if thread:
                thread.close()
            raise

    @property
    def _is_bound_to_a_thread(self) -> bool:
        """Whether only the thread that made the environment may call it: its card says so, or it has no card."""
        card = None if self.factory else cards().get(resolve(self.target.rpartition(":")[2]) or "")
        return card is None or card.thread_affine

    def _served(self, create: Create, thread: OwnThread | None = None) -> HostedEnv:
        """Make the environment that a client requests, with the reset options that clients may give.

        If the environment has a card or is made by the operator's factory, clients may give all reset options
        that it declares. The options of an environment that is merely registered were never reviewed for use by
        strangers.
        """
        env = self.make(create)
        trusted = self.factory is not None or self.target in cards()
        options = ResetOptions.of(self.name, env, self.kwargs, trusted=trusted)
        truncates = create.kwargs.get("on_fault") == "truncate"
        return HostedEnv(env, options, truncates=truncates, readable=trusted, thread=thread)

    def arguments_for(self, api: str) -> tuple[str, ...]:
        """Return the names of all arguments that a client may give for this API."""
        stack = ("render_mode",) if api in ("aec", "parallel") else _STACK
        foreign = () if self.target in cards() else ("reproducible", "reward=sum", "reward=first")
        return (*self.kwargs, *stack, *foreign, *(_VECTOR if api == "vector" else ()))


class Offers(dict[str, Offer]):
    """The offers of a server, by name."""

    def find(self, name: Any) -> Offer:
        """Return the offer with this name; raise ``UnknownEnvironment`` if there is none.

        The name may have a module prefix or lack its version. An empty name means the only offer.
        """
        offer = self.get(name) if isinstance(name, str) else None
        if offer is None and name == "" and len(self) == 1:
            offer = next(iter(self.values()))
        if offer is None and isinstance(name, str) and len(name) <= MAX_NAME_LENGTH:
            env_id = name.rpartition(":")[2]  # without its module, which only an operator has imported here
            offer = self.get(env_id) or self.get(resolve(env_id) or "")
        if offer is None and name == "":
            raise UnknownEnvironment(
                "no ID was given, and this server has not just one environment; choose one, as in "
                f"'http://host:port#ID': there are {', '.join(self)}"
            )
        if offer is None:
            hint = nearest(name, self) if isinstance(name, str) else ""
            raise UnknownEnvironment(f"{shown(name)} is not served here{hint}; there are {', '.join(self)}")
        return offer

    def allow(self, kwargs: Mapping[str, Iterable[str]]) -> None:
        """Allow clients to give additional arguments, by the name of the environment."""
        for name, more in kwargs.items():
            offer, given = self.find(name), tuple(more)
            wrong = [one for one in given if not one.isidentifier()]
            if isinstance(more, str) or not given or wrong:
                raise InvalidArgument(
                    f"{shown(more)} are no names of arguments of {offer.name}; give some, as in ('length',)"
                )
            self[offer.name] = replace(offer, kwargs=tuple(dict.fromkeys((*offer.kwargs, *given))))


class Everything(Offers):
    """Offers that serve any environment this machine can make, with any arguments, as the client is the operator."""

    def find(self, name: Any) -> Offer:
        """Return an offer for any name."""
        return Trusted(name, name, name, ("gym", "vector", "parallel", "aec"))


class Trusted(Offer):
    """Offer that accepts any arguments."""

    def check(self, create: Create) -> None:
        """Allow all arguments."""

    def make(self, create: Create) -> Any:
        """Make the environment that the owner requests."""
        api: Any = "gym" if create.api == "vector" else create.api or None
        return envweave_gym.make(import_until_known(self.target), api=api, **create.kwargs)

    def _served(self, create: Create, thread: OwnThread | None = None) -> HostedEnv:
        """Make the environment that the owner requests; its resets take any options."""
        truncates = create.kwargs.get("on_fault") == "truncate"
        return HostedEnv(self.make(create), truncates=truncates, thread=thread)


_NAME_IT = "give one a name of its own: offer_of_factory(factory, name=…)"
_SINGLE, _GAME = ("gym", "vector"), ("parallel", "aec")


def offers_of(what: Iterable[Any]) -> Offers:
    """Return the offers for IDs, environment classes and factories; all our IDs if ``what`` is empty."""
    named = tuple(what)
    if len(named) == 1 and isinstance(named[0], Offers):
        return named[0]
    ours = (env_id for env_id, card in cards().items() if card.is_self_contained)
    offers = Offers()
    for one in named or ours:
        offer = _offer(one)
        if offer.name in offers and offer.factory is not None:
            raise InvalidArgument(f"two environments are called {offer.name}; {_NAME_IT}")
        offers[offer.name] = offer
    return offers


def _offer(what: Any) -> Offer:
    if isinstance(what, Offer):
        return what
    if isinstance(what, str):
        return _offer_of_name(what)
    if callable(what):
        return offer_of_factory(what)
    raise InvalidArgument(f"{shown(what)} cannot be served; give an ID, an environment class or a factory")


def _offer_of_name(name: str) -> Offer:
    """Return the offer for a registered ID, or for the class or factory in ``module:attribute``."""
    env_id = resolve(name)
    if env_id is None:
        return offer_of_factory(_attribute(name))
    card = cards().get(env_id)
    doc, kwargs = (card.doc, card.remote_kwargs) if card else (f"{env_id}, as it is registered.", ())
    single = env_id in REGISTRIES["gym"]
    return Offer(env_id, env_id, doc, _SINGLE if single else _GAME, kwargs)


def _attribute(name: str) -> Callable[..., Any]:
    """Import the class or factory in ``module:attribute``; raise if the object cannot make environments."""
    module, colon, attribute = name.partition(":")
    if not colon or "://" in name:
        raise UnknownEnvironment(f"{shown(name)} cannot be served: no registered environment has that name")
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        why = f"there is no module {shown(error.name)}; install the package that has it"
        raise UnknownEnvironment(f"{shown(name)} cannot be served: {why}") from None
    except (ImportError, ValueError) as error:
        raise UnknownEnvironment(f"{shown(name)} cannot be served: {error}") from None
    if not all(part.isidentifier() for part in attribute.split(".")):  # it is an ID
        why = f"{module} registers no environment {shown(attribute)}{nearest(attribute, _ids())}"
        raise UnknownEnvironment(f"{shown(name)} cannot be served: {why}")
    try:
        found = operator.attrgetter(attribute)(imported)
    except AttributeError as error:
        raise UnknownEnvironment(f"{shown(name)} cannot be served: {error}") from None
    if not _makes_environments(found):
        raise UnknownEnvironment(
            f"{shown(name)} cannot be served: it is no environment and no factory of one; give an ID, a "
            "class with reset and step, or a function that returns such an environment"
        )
    return found


def _returned(factory: Any) -> Any:
    """Return the annotated return type of a factory; ``None`` if it has none."""
    with suppress(
        TypeError, NameError, AttributeError, SyntaxError
    ):  # it names what is not there at run time
        return inspect.get_annotations(factory, eval_str=True).get("return")
    return None


def _ids() -> set[str]:
    return {env_id for registry in REGISTRIES.values() for env_id in registry}


def _makes_environments(found: Any) -> bool:
    """Return whether an object can be an environment class or a factory, judging by class and annotations.

    Return ``False`` for functions of the standard library or of C modules, and for a factory that is annotated
    with the type of something else.
    """
    made = found if isinstance(found, type) else _returned(found)
    if isinstance(made, type) and made is not object:
        return hasattr(made, "reset") and hasattr(made, "step")
    package = (getattr(found, "__module__", None) or "").partition(".")[0]
    return callable(found) and package not in sys.stdlib_module_names and not inspect.isbuiltin(found)


def offer_of_factory(
    factory: Callable[..., Any],
    *,
    name: str | None = None,
    action: Any = None,
    observation: Any = None,
    kwargs: tuple[str, ...] = (),
) -> Offer:
    """Return the offer for an environment class or a factory, under its own name or ``name``.

    The factory makes a Gymnasium or PettingZoo environment, or any object with ``reset`` and ``step``. The
    types of such an object are taken from its hints (:class:`envweave_gym.typed.TypedEnv`); without hints,
    ``action`` and ``observation`` are the dataclasses. A client may give only the arguments in ``kwargs``, and
    the reset options in the environment's ``metadata["reset_options"]``. ::

        create_app(offer_of_factory(Shop, action=Purchase, observation=Receipt, kwargs=("budget",)))
    """
    title = name or getattr(factory, "__name__", type(factory).__name__)
    if not _TITLE.fullmatch(title):
        raise InvalidArgument(f"{shown(title)} is no name for {shown(factory)}; {_NAME_IT}")

    doc = (_own_doc(factory) or title).splitlines()[0]
    target, apis = f"{_LOCAL}{title}", _apis_of(factory)
    offer = Offer(title, target, doc, apis, kwargs, factory, action, observation)
    offer.register()
    return offer


def _own_doc(factory: Callable[..., Any]) -> str:
    """Return the docstring of a factory itself, not one that a class inherits from its base class."""
    doc = vars(factory).get("__doc__") if isinstance(factory, type) else factory.__doc__
    return inspect.cleandoc(doc) if isinstance(doc, str) else ""


def _apis_of(factory: Callable[..., Any]) -> tuple[str, ...]:
    """Return the APIs of a class, or of a function's annotated return type; all APIs if it has no annotation."""
    kind = factory if isinstance(factory, type) else _returned(factory)
    if not isinstance(kind, type):
        return (*_SINGLE, *_GAME)
    return _GAME if issubclass(kind, AECEnv | ParallelEnv) else _SINGLE
