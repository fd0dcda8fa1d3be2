"""The environment under test, and the exceptions of checks.

A :class:`Subject` is a name and a way to make it. Every check takes one, makes the environment as often as it
needs, and closes what it made. It returns on success, raises :class:`ConformanceError` on failure, and
:class:`NotApplicable` where it does not apply to this environment.
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
from envweave_gym.registry.catalog import Api, cards
from envweave_gym.registry.ids import make
from envweave_gym.registry.names import resolve
from envweave_gym.testing.traces import Player, player_of

APIS: tuple[Api, ...] = get_args(Api)

_ANSI = re.compile(r"\x1b\[[0-9;]*m|WARN: ")
_CHECKERS = {"gymnasium", "pettingzoo", "envweave_gym"}
"""Packages whose warnings are about the environment that is checked."""


RAISED = (Exception, SystemExit)
"""What an environment may raise: ``sys.exit`` in its code must not end the run of the other checks."""
_RESET = "define reset(self, *, seed=None, options=None), as Gymnasium and PettingZoo call it"
_FIRST = "no check can go on before this works"


class ConformanceError(AssertionError):
    """The environment breaks a rule; the text says which, where, and what to do."""


class NotApplicable(Exception):
    """The check has nothing to say about this environment; the text says why."""


@dataclass(frozen=True)
class Form:
    """One way to hold the environment: through an API with the whole stack around it, or unwrapped."""

    label: str
    api: Api
    make: Callable[..., Any] = field(repr=False)
    unwrapped: bool = False

    def player(self, **kwargs: Any) -> Player:
        """Make the environment and give somebody who plays it; closing it is left to the caller."""
        env = self.make(**kwargs)
        return player_of(env.unwrapped if self.unwrapped else env)

    @contextmanager
    def open(self, **kwargs: Any) -> Generator[Player]:
        """Make the environment, give somebody who plays it, and close it."""
        player = self.player(**kwargs)
        try:
            yield player
        finally:
            player.env.close()


@dataclass(frozen=True)
class Subject:
    """The environment to check.

    ``make`` takes the arguments of :func:`envweave_gym.make` beside the name: ``api``, ``num_envs``,
    ``autoreset``, ``autoreset_mode``, ``max_steps``, ``render_mode``, and the environment's own. It must be
    picklable where ``start_methods`` names ``spawn`` or ``forkserver``.
    """

    name: str
    make: Callable[..., Any] = field(repr=False)
    apis: tuple[Api, ...] = ("gym",)
    nondeterministic: bool = False
    start_methods: tuple[str, ...] = ("fork",)
    remote: bool = False
    """Whether it runs in another process, so that a copy of it here is no copy of its episode."""

    @property
    def is_game(self) -> bool:
        """Whether it is a multi-agent environment."""
        return "gym" not in self.apis

    @property
    def env_id(self) -> str | None:
        """The full registered ID that the name means; ``None`` where it means none, as a local name does."""
        return resolve(self.name)

    @property
    def called(self) -> str:
        """What its errors must call it: its ID or local name; nothing, where it has neither."""
        return self.env_id or (self.name if self.name.startswith("local://") else "")

    def stack(self, api: Api = "gym") -> Form:
        """The environment as users hold it, with everything around it."""
        if api not in self.apis:
            raise NotApplicable(f"{self.name} has no {api} form")
        return Form(f"{self.name} ({api})", api, partial(self.make, api=api))

    def stacks(self) -> list[Form]:
        """The stack of every API it has."""
        return [self.stack(api) for api in self.apis]

    def core(self) -> Form:
        """The unwrapped environment."""
        api = self.apis[0]
        return Form(f"{self.name} (unwrapped)", api, partial(self.make, api=api), unwrapped=True)

    def forms(self) -> list[Form]:
        """Every stack, and the unwrapped environment."""
        return [*self.stacks(), self.core()]

    @property
    def is_launched(self) -> bool:
        """Whether the ID is one of the table, which promises more than an environment from elsewhere."""
        return self.env_id in cards()

    @property
    def is_third_party(self) -> bool:
        """Whether the ID is registered without a card, so that upstream's contract is all it promises."""
        return self.env_id is not None and not self.is_launched

    def probe(self) -> None:
        """Make it once: what stops it from being made is said here, and not by every check."""
        self.make(api=self.apis[0]).close()

    def probe_episode(self) -> None:
        """Reset and move once: what stops every episode is said here, and not by every check."""
        form = self.stack(self.apis[0])
        with form.open() as player:
            what = f"{form.label}: reset(seed=0) fails"
            with translated(what, _FIRST), _with_the_signature(what):
                player.reset(0)
            with translated(f"{form.label}: the first step after reset(seed=0) fails", _FIRST):
                player.move()

    def needs_determinism(self) -> None:
        """Leave a check that compares traces where a seed does not decide the episode."""
        if self.nondeterministic:
            raise NotApplicable(f"{self.name} is declared nondeterministic, so traces cannot be compared")


def subject_of(name: str, /, *, start_methods: tuple[str, ...] | None = None, **kwargs: Any) -> Subject:
    """The subject with this name, which may be any that :func:`envweave_gym.make` takes.

    ``start_methods`` are those of ``AsyncVectorEnv``: by default ``fork``, and on Ray, which survives no fork
    and is never tried with one, ``spawn``.
    Where its card has arguments that work on any machine, these are given, unless others are.
    """
    card = cards().get(resolve(name) or name)
    kwargs = {**card.trial, **kwargs} if card else kwargs
    backend = kwargs.get("backend")
    build, remote = partial(make, name, **kwargs), backend not in (None, "inproc")
    methods = _usable(start_methods, backend or name)
    if card is not None:
        return Subject(name, build, card.kinds, card.nondeterministic, methods, remote)
    found: dict[Api, Any] = {api: env for api in APIS if (env := _made(build, api)) is not None}
    if not found:
        build()
        raise ConformanceError(f"{name} gives no gymnasium.Env, pettingzoo.AECEnv or ParallelEnv")
    spec = getattr(found.get("gym"), "spec", None)
    for env in found.values():
        env.close()
    return Subject(name, build, tuple(found), bool(spec and spec.nondeterministic), methods, remote)


def _usable(methods: tuple[str, ...] | None, where: Any) -> tuple[str, ...]:
    """The start methods that are tried with what runs at ``where``."""
    places = where if isinstance(where, list) else [where]
    if not any(place == "ray" or str(place).startswith("ray+actor://") for place in places):
        return ("fork",) if methods is None else methods
    return ("spawn",) if methods is None else tuple(one for one in methods if one != "fork")


def _made(build: Callable[..., Any], api: Api) -> Any:
    """The environment through this API, or ``None`` where it has none."""
    try:
        return build(api=api)
    except InvalidArgument:
        return None


def refuse(problem: str, advice: str, cause: BaseException | None = None) -> NoReturn:
    """Fail with one sentence about the problem and one about what to do."""
    __tracebackhide__ = True
    raise ConformanceError(f"{problem}; {advice}" if advice else problem) from cause


@contextmanager
def translated(problem: str, advice: str = "") -> Generator[None]:
    """Turn whatever is raised inside into a :class:`ConformanceError` that begins with ``problem``."""
    __tracebackhide__ = True
    try:
        yield
    except (ConformanceError, NotApplicable, NotAvailable):
        raise
    except RAISED as error:
        refuse(f"{problem}: {type(error).__name__}: {_ANSI.sub('', str(error))}", advice, error)


@contextmanager
def _with_the_signature(problem: str) -> Generator[None]:
    """Add the signature of ``reset`` to a :class:`TypeError` about its arguments."""
    try:
        yield
    except TypeError as error:
        if "argument" not in str(error):
            raise
        refuse(f"{problem}: {type(error).__name__}: {error}", _RESET, error)


@contextmanager
def expected(
    error: type[Exception] | tuple[type[Exception], ...], misuse: str, advice: str
) -> Generator[None]:
    """Fail unless the misuse inside raises ``error``."""
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
    """Turn warnings into failures, if they come from a checker or from the package of ``env``.

    Those whose text holds one of ``ignored`` are left out, as are those of other packages: a deprecated
    call in a drawing library is not the environment's to mend.
    """
    __tracebackhide__ = True
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
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
    """The top package of the module in this file, which Gymnasium's own logger marks by its text instead."""
    modules: list[tuple[str, Any]] = [*sys.modules.items()]
    found = (name for name, module in modules if getattr(module, "__file__", None) == filename)
    return next(found, "").partition(".")[0]
