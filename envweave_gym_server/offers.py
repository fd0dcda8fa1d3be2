"""What a server offers: the IDs on its list, and what a client may say about them."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
from pettingzoo import AECEnv, ParallelEnv

import envweave_gym
from envweave_gym.arguments import check_deadline
from envweave_gym.catalog import REGISTRIES, cards
from envweave_gym.faults import LONGEST_NAME, InvalidArgument, UnknownEnvironment, nearest, shown
from envweave_gym.ids import resolve
from envweave_gym.launch import single
from envweave_gym.typed import TypedEnv
from envweave_gym.wire.messages import Create
from envweave_gym_server.reset_options import ResetOptions
from envweave_gym_server.serving import Served

_LOCAL = "local://"
_TITLE = re.compile(r"[\w./-]+")
_STACK = ("max_steps", "on_fault", "reset_deadline", "render_mode")
_LONGEST_RESET = 60.0
"""So many seconds a client may have a reset tried that fails, which keeps a thread."""
_VECTOR = ("num_envs", "autoreset_mode")
_APIS = {"gym": "gym", "vector": "gym", "aec": "aec", "parallel": "parallel"}


@dataclass(frozen=True)
class Offer:
    """One environment that clients may make."""

    name: str
    target: str
    """What :func:`envweave_gym.make` knows it by."""
    doc: str
    apis: tuple[str, ...]
    kwargs: tuple[str, ...] = ()
    """What a client may give its constructor and its resets; commands, paths, addresses and backends are the
    operator's."""
    factory: Callable[..., Any] | None = None
    """What makes it, where that is no ID."""
    action: Any = None
    observation: Any = None
    """The dataclasses of what ``factory`` makes, where that has no hints."""

    @property
    def trial(self) -> dict[str, Any]:
        """Arguments with which it can be made on any machine, for who wants to know what it is like."""
        card = cards().get(self.target)
        return {} if card is None else card.trial

    def register(self) -> None:
        """Let this process know by its name what a factory makes."""
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

    def make(self, create: Create) -> Any:
        """Make what a client asks for, or say what it may ask for."""
        if create.api and create.api not in self.apis:
            raise InvalidArgument(
                f"{self.name} is served as {', '.join(self.apis)}, not as {shown(create.api)}"
            )
        allowed = self.taken(create.api)
        for given, value in create.kwargs.items():
            if given not in allowed and f"{given}={value}" not in allowed:
                hint = nearest(given, allowed) if isinstance(given, str) else ""
                raise InvalidArgument(
                    f"{self.name} takes no argument {shown(given)} from a client{hint}; "
                    f"it takes {', '.join(allowed)}"
                )
        if create.kwargs.get("render_mode") == "human":
            raise InvalidArgument(self._no_window(create))
        return self._made(create.api, self._bounded(create.kwargs))

    def _made(self, api: str, kwargs: dict[str, Any]) -> Any:
        if api == "gym" and self.target in cards():
            return single(self.target, **kwargs)
        known_as: Any = _APIS.get(api)
        return envweave_gym.make(self.target, api=known_as, **kwargs)

    def _bounded(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments, with which a reset that fails keeps no thread for as long as a client likes."""
        if "reset_deadline" not in kwargs:
            return kwargs
        given = kwargs["reset_deadline"]
        check_deadline(self.name, "reset_deadline", given, least=0.0)
        return {**kwargs, "reset_deadline": min(given, _LONGEST_RESET)}

    def _no_window(self, create: Create) -> str:
        """The sentence that refuses to open a window; an instance tells what it draws otherwise."""
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

    def serve(self, create: Create) -> Served:
        """What a client asks for, behind messages.

        Clients may give the reset options that an environment names itself, if it has a card or the operator
        handed it over; what is merely registered nobody has looked through for what strangers may say to it.
        """
        env = self.make(create)
        trusted = self.factory is not None or self.target in cards()
        options = ResetOptions.of(self.name, env, self.kwargs, trusted=trusted)
        return Served(env, options, truncates=create.kwargs.get("on_fault") == "truncate")

    def taken(self, api: str) -> tuple[str, ...]:
        """The arguments that a client may give for this API."""
        stack = ("render_mode",) if api in ("aec", "parallel") else _STACK
        return (*self.kwargs, *stack, *(_VECTOR if api == "vector" else ()))


class Offers(dict[str, Offer]):
    """What a server has, by name."""

    def find(self, name: Any) -> Offer:
        """The offer of this name, which may have a module or no version; without a name the only one."""
        offer = self.get(name) if isinstance(name, str) else None
        if offer is None and name == "" and len(self) == 1:
            offer = next(iter(self.values()))
        if offer is None and isinstance(name, str) and len(name) <= LONGEST_NAME:
            offer = self.get(name.rpartition(":")[2] if ":" in name else resolve(name) or "")
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
        """Let clients give these arguments too, by the names of environments."""
        for name, more in kwargs.items():
            offer, given = self.find(name), tuple(more)
            wrong = [one for one in given if not one.isidentifier()]
            if isinstance(more, str) or not given or wrong:
                raise InvalidArgument(
                    f"{shown(more)} are no names of arguments of {offer.name}; give some, as in ('length',)"
                )
            self[offer.name] = replace(offer, kwargs=tuple(dict.fromkeys((*offer.kwargs, *given))))


_NAME_IT = "give one a name of its own: offer_of_factory(factory, name=…)"
_SINGLE, _GAME = ("gym", "vector"), ("parallel", "aec")


def offers_of(what: Iterable[Any]) -> Offers:
    """The offers that IDs, environment classes and factories mean; all of ours where nothing is named."""
    named = tuple(what)
    if len(named) == 1 and isinstance(named[0], Offers):
        return named[0]
    ours = (env_id for env_id, card in cards().items() if not card.proxy)
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
    """The offer of a registered ID, or of the class or the factory in ``module:attribute``."""
    env_id = resolve(name)
    if env_id is None:
        return offer_of_factory(_attribute(name))
    card = cards().get(env_id)
    doc, kwargs = (card.doc, card.wire_kwargs) if card else (f"{env_id}, as it is registered.", ())
    single = env_id in REGISTRIES["gym"]
    return Offer(env_id, env_id, doc, _SINGLE if single else _GAME, kwargs)


def _attribute(name: str) -> Callable[..., Any]:
    try:
        found = pkgutil.resolve_name(name) if ":" in name else None
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownEnvironment(f"{shown(name)} cannot be served: {error}") from None
    if not callable(found):
        raise UnknownEnvironment(f"{shown(name)} cannot be served: no registered environment has that name")
    return found


def offer_of_factory(
    factory: Callable[..., Any],
    *,
    name: str | None = None,
    action: Any = None,
    observation: Any = None,
    kwargs: tuple[str, ...] = (),
) -> Offer:
    """Offer what an environment class or a factory makes, under its own name or another.

    It makes a Gymnasium or PettingZoo environment, or any object with ``reset`` and ``step``, whose types are
    read off their hints (:class:`envweave_gym.TypedEnv`); ``action`` and ``observation`` are the dataclasses
    of one without hints. A client may give the arguments in ``kwargs`` and no others, and the reset options
    that the environment names in ``metadata["reset_options"]``. ::

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
    """What a factory says of itself; a class does not say what the class says that it is made of."""
    doc = vars(factory).get("__doc__") if isinstance(factory, type) else factory.__doc__
    return inspect.cleandoc(doc) if isinstance(doc, str) else ""


def _apis_of(factory: Callable[..., Any]) -> tuple[str, ...]:
    """What a class is, or what a function says that it returns; any of them where it says nothing."""
    kind = factory if isinstance(factory, type) else getattr(factory, "__annotations__", {}).get("return")
    if not isinstance(kind, type):
        return (*_SINGLE, *_GAME)
    return _GAME if issubclass(kind, AECEnv | ParallelEnv) else _SINGLE
