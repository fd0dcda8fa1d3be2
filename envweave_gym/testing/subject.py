"""The environment under test, and the exceptions of checks.

A :class:`Subject` is an environment's name with a function that makes it. Every check takes a subject, makes the
environment as often as needed, and closes each one. A check returns on success, raises :class:`ConformanceError` on
failure, and raises :class:`NotApplicable` if its rule does not concern this environment.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, get_args

from envweave_gym.core.faults import InvalidArgument, NotAvailable
from envweave_gym.providers.base import survives_fork
from envweave_gym.registry.catalog import Api, cards
from envweave_gym.registry.make import make
from envweave_gym.registry.names import resolve
from envweave_gym.testing.traces import Player, player_of
from envweave_gym.wrappers.scalar_rewards import is_scalar_reward

APIS: tuple[Api, ...] = get_args(Api)

_ANSI = re.compile(r"\x1b\[[0-9;]*m|WARN: ")
_CHECKERS = {"gymnasium", "pettingzoo", "envweave_gym"}
"""Packages whose warnings always concern the environment under test."""

RAISED = (Exception, SystemExit)
"""Exceptions that count as failures of the environment: ``sys.exit`` in it must not end the other checks."""
_RESET = "define reset(self, *, seed=None, options=None), as Gymnasium and PettingZoo call it"
_FIRST = "no check can go on before this works"


class ConformanceError(AssertionError):
    """Raised when the environment breaks a rule; the text names the rule, the step and the remedy."""


class TracesDiffer(ConformanceError):
    """Raised when two traces that must be equal differ: the first difference is in the text."""


class NotApplicable(Exception):
    """Raised when a check does not concern this environment; the text gives the reason."""


@dataclass(frozen=True)
class Form:
    """One of the ways to make the environment under test: wrapped for one API, or without wrappers."""

    label: str
    api: Api
    make: Callable[..., Any] = field(repr=False)
    unwrapped: bool = False

    def player(self, **kwargs: Any) -> Player:
        """Make the environment and return a player for it; the caller closes ``player.env``."""
        env = self.make(**kwargs)
        return player_of(env.unwrapped if self.unwrapped else env)

    @contextmanager
    def open(self, **kwargs: Any) -> Generator[Player]:
        """Make the environment, yield a player for it, and close the environment on exit."""
        player = self.player(**kwargs)
        try:
            yield player
        finally:
            player.env.close()


@dataclass(frozen=True)
class Subject:
    """The environment under test: its name, the function that makes it, and the properties that choose its checks.

    ``make`` takes the keyword arguments of :func:`envweave_gym.make`: ``api``, ``num_envs``, ``autoreset``,
    ``autoreset_mode``, ``max_steps``, ``render_mode``, and the environment's own. It must be picklable if
    ``start_methods`` contains ``spawn`` or ``forkserver``.
    """

    name: str
    make: Callable[..., Any] = field(repr=False)
    apis: tuple[Api, ...] = ("gym",)
    nondeterministic: bool = False
    start_methods: tuple[str, ...] = ("fork",)
    remote: bool = False
    """Whether the environment runs in another process, where a copy of the client would not copy the episode."""
    in_suite: bool = False
    """Whether it is of a package in a virtual environment of its own, whose IDs are not registered here."""
    converts_rewards: bool = False
    """Whether ``reward=`` makes one number of its rewards, so that those of ``env.unwrapped`` are none."""

    unrenderable: set[str] = field(default_factory=set[str], compare=False, repr=False)
    """Render modes for which a check has found a package or a display missing on this machine."""

    @property
    def is_game(self) -> bool:
        """Whether the environment has several agents and no single-agent form."""
        return "gym" not in self.apis

    @property
    def env_id(self) -> str | None:
        """The full registered ID that the name stands for; ``None`` if it is not an ID, as with ``local://``."""
        return resolve(self.name)

    @property
    def called(self) -> str:
        """The text that errors must contain: the ID or the local name; ``""`` if the environment has neither."""
        return self.env_id or (self.name if self.name.startswith("local://") else "")

    def stack(self, api: Api = "gym") -> Form:
        """Return the wrapped form that ``make(api=api)`` gives users; raise :class:`NotApplicable` if there is none."""
        if api not in self.apis:
            raise NotApplicable(f"{self.name} has no {api} form")
        return Form(f"{self.name} ({api})", api, partial(self.make, api=api))

    def stacks(self) -> list[Form]:
        """Return the wrapped form of every API that the environment has."""
        return [self.stack(api) for api in self.apis]

    def core(self) -> Form:
        """Return the form without wrappers, ``env.unwrapped``."""
        api = self.apis[0]
        return Form(f"{self.name} (unwrapped)", api, partial(self.make, api=api), unwrapped=True)

    def forms(self) -> list[Form]:
        """Return the wrapped form of every API, then the unwrapped one unless its rewards are converted."""
        return self.stacks() if self.converts_rewards else [*self.stacks(), self.core()]

    @property
    def is_launched(self) -> bool:
        """Whether the ID has a card, which promises more than Gymnasium's and PettingZoo's contracts."""
        return self.env_id in cards()

    @property
    def is_third_party(self) -> bool:
        """Whether the ID is registered without a card, so that only its API's own contract applies."""
        return self.in_suite or (self.env_id is not None and not self.is_launched)

    def probe(self) -> None:
        """Make the environment once, so that a failing constructor is reported once and not by every check."""
        self.make(api=self.apis[0]).close()

    def probe_episode(self) -> None:
        """Reset and step once, so that a failure of every episode is reported once and not by every check."""
        form = self.stack(self.apis[0])
        with form.open() as player:
            what = f"{form.label}: reset(seed=0) fails"
            with translated(what, _FIRST):
                try:
                    player.reset(0)
                except TypeError as error:
                    if "argument" not in str(error):
                        raise
                    refuse(f"{what}: TypeError: {error}", _RESET, error)
            with translated(f"{form.label}: the first step after reset(seed=0) fails", _FIRST):
                player.move()

    def needs_determinism(self) -> None:
        """Skip the calling check (raise :class:`NotApplicable`) if seeds do not decide the episodes."""
        if self.nondeterministic:
            raise NotApplicable(f"{self.name} is declared nondeterministic, so traces cannot be compared")


def subject_of(name: str, /, *, start_methods: tuple[str, ...] | None = None, **kwargs: Any) -> Subject:
    """Return the subject of the checks, for any name that :func:`envweave_gym.make` takes.

    ``kwargs`` go to the environment; they override the ``trial`` arguments of the ID's card. ``start_methods`` are
    the start methods that ``AsyncVectorEnv`` is tested with. The default is ``fork``; on Ray it is ``spawn``,
    because Ray does not survive a fork.
    """
    card = cards().get(resolve(name) or name)
    kwargs = {**card.trial, **kwargs} if card else kwargs
    backend = kwargs.get("backend")
    build, remote = partial(make, name, **kwargs), backend not in (None, "inproc")
    methods = _usable(start_methods, backend or name)
    if card is not None:
        return Subject(name, build, card.kinds, card.nondeterministic, methods, remote)
    found: dict[Api, Any] = {api: env for api in APIS if (env := _made_or_none(build, api)) is not None}
    if not found:
        build()  # raises the reason why no API could be made
        raise ConformanceError(f"{name} gives no gymnasium.Env, pettingzoo.AECEnv or ParallelEnv")
    spec = getattr(found.get("gym"), "spec", None)
    for env in found.values():
        env.close()
    nondeterministic = bool(spec and spec.nondeterministic)
    return Subject(
        *(name, build, tuple(found), nondeterministic, methods, remote),
        in_suite=backend == "venv",
        converts_rewards=is_scalar_reward(kwargs.get("reward")),
    )


def _usable(methods: tuple[str, ...] | None, backend: Any) -> tuple[str, ...]:
    """Return the start methods to test on this backend, a URL or a list; not all survive a ``fork``."""
    if all(map(survives_fork, backend if isinstance(backend, list) else [backend])):
        return ("fork",) if methods is None else methods
    return ("spawn",) if methods is None else tuple(one for one in methods if one != "fork")


def _made_or_none(build: Callable[..., Any], api: Api) -> Any:
    """Return the environment made for this API, or ``None`` if it does not have this API."""
    try:
        return build(api=api)
    except InvalidArgument:
        return None


def refuse(problem: str, advice: str, cause: BaseException | None = None) -> NoReturn:
    """Raise :class:`ConformanceError` with the problem and, after a semicolon, the advice if there is any."""
    __tracebackhide__ = True
    raise ConformanceError(f"{problem}; {advice}" if advice else problem) from cause


@contextmanager
def translated(problem: str, advice: str = "") -> Generator[None]:
    """Turn exceptions of the block into a :class:`ConformanceError` whose text begins with ``problem``."""
    __tracebackhide__ = True
    try:
        yield
    except (ConformanceError, NotApplicable, NotAvailable):
        raise
    except RAISED as error:
        refuse(f"{problem}: {type(error).__name__}: {_ANSI.sub('', str(error))}", advice, error)


@contextmanager
def expected(
    error: type[Exception] | tuple[type[Exception], ...], misuse: str, advice: str
) -> Generator[None]:
    """Fail unless the block raises ``error``; ``misuse`` names the wrong call in the failure's text."""
    __tracebackhide__ = True
    names = error.__name__ if isinstance(error, type) else " or ".join(one.__name__ for one in error)
    try:
        yield
    except error:
        return
    except ConformanceError:
        raise
    except RAISED as other:
        refuse(f"{misuse} raised {type(other).__name__} instead of {names}: {other}", advice, other)
    refuse(f"{misuse} raised nothing, where {names} was expected", advice)


@contextmanager
def without_warnings(label: str, env: Any, ignored: tuple[str, ...] = ()) -> Generator[None]:
    """Fail on warnings that the block raises from a checker or from the package of ``env``; ``label`` names the check.

    Warnings of other packages are left out: an author cannot mend a deprecated call in a drawing library. So are
    warnings whose text contains one of ``ignored``.
    """
    __tracebackhide__ = True
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # by default Python shows a warning of one line only once
        yield
    if not caught:
        return
    kind: type[Any] = type(env.unwrapped)
    packages = _CHECKERS | {base.__module__.partition(".")[0] for base in kind.__mro__}
    known = [one for one in caught if "WARN: " in str(one.message) or _package_of(one.filename) in packages]
    texts = dict.fromkeys(_ANSI.sub("", str(one.message)) for one in known)
    left = [text for text in texts if not any(part in text for part in ignored)]
    if left:
        refuse(f"{label} warns: {' | '.join(left)}", "")


def _package_of(filename: str) -> str:
    """Return the top-level package of the module in this file, or ``""`` if no imported module is there."""
    modules: list[tuple[str, Any]] = [*sys.modules.items()]
    found = (name for name, module in modules if getattr(module, "__file__", None) == filename)
    return next(found, "").partition(".")[0]
