"""The table of IDs, and how it gets into the registries of Gymnasium and PettingZoo.

A row is an :class:`EnvCard`: strings only, so that reading the table imports no environment. Rows come from the
entry-point group ``envweave_gym.envs`` of every installed package, ours (:data:`CARDS`) in the same way. The
value of such an entry point is a list of cards (or of plain dicts with their fields), or a function that gives
one. Keep it in a module that does not import environments, so that ``import envweave_gym`` stays light.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import gymnasium
import msgspec
import pettingzoo

from envweave_gym.faults import InvalidArgument

GROUP = "envweave_gym.envs"


class EnvCard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row: an ID and where its constructors are, each as ``"module:attribute"``."""

    id: str
    """``namespace/Name-v0``."""
    doc: str
    """One line for tables."""
    gym: str | None = None
    """Constructor of the plain ``gymnasium.Env``."""
    vector: str | None = None
    """Constructor of a native ``gymnasium.vector.VectorEnv``, called with ``num_envs``, ``autoreset_mode`` and
    ``max_steps`` beside the kwargs; without one, vectors step single environments in turn."""
    aec: str | None = None
    """Constructor of the plain ``pettingzoo.AECEnv``; without one it is made from ``parallel``."""
    parallel: str | None = None
    """Constructor of the plain ``pettingzoo.ParallelEnv``; without one it is made from ``aec``."""
    max_steps: int | None = None
    """After so many steps a Gymnasium episode is truncated, unless ``make`` says otherwise."""
    kwargs: dict[str, Any] = {}
    """Default arguments of the constructors; JSON."""
    extra: str | None = None
    """The extra of the package that brings what the environment needs."""
    requires: tuple[str, ...] = ()
    """The modules the environment cannot do without; their absence names the extra."""
    nondeterministic: bool = False
    """Whether a seed does not decide the episode."""
    wire_kwargs: tuple[str, ...] = ()
    """The kwargs and reset options a remote client may send."""

    @property
    def is_game(self) -> bool:
        """Whether it is a multi-agent environment."""
        return self.gym is None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The APIs it can be made with."""
        return ("aec", "parallel") if self.is_game else ("gym",)


CARDS = [
    EnvCard(
        id="envweave/Counter-v0",
        doc="Add to a counter until it reaches its target: the smallest example.",
        gym="envweave_gym.envs.counter:CounterEnv",
        max_steps=100,
        wire_kwargs=("target",),
    ),
    EnvCard(
        id="envweave/Echo-v0",
        doc="Text in, the same text out; a tenth of a point for each character.",
        gym="envweave_gym.envs.echo:EchoEnv",
        max_steps=100,
    ),
    EnvCard(
        id="envweave/LineWorld-v0",
        doc="Walk along a line to the goal; native vector form.",
        gym="envweave_gym.envs.lineworld:LineWorldEnv",
        vector="envweave_gym.envs.lineworld:LineWorldVectorEnv",
        max_steps=40,
        wire_kwargs=("length", "slip"),
    ),
    EnvCard(
        id="envweave/CodeFix-v0",
        doc="Choose the operator that fixes a small program; the tests decide; native vector form.",
        gym="envweave_gym.envs.codefix:CodeFixEnv",
        vector="envweave_gym.envs.codefix:CodeFixVectorEnv",
        wire_kwargs=("observation",),
    ),
    EnvCard(
        id="envweave/KuhnPoker-v0",
        doc="Three-card poker for two, turn by turn; its exact value is known.",
        aec="envweave_gym.multiagent.kuhn_poker:raw_env",
    ),
    EnvCard(
        id="envweave/CodeReview-v0",
        doc="An author picks the fix of a program, a reviewer accepts it or sends it back; shared reward.",
        aec="envweave_gym.multiagent.code_review:raw_env",
        wire_kwargs=("comments", "max_rounds"),
    ),
    EnvCard(
        id="envweave/LineRace-v0",
        doc="All runners move at once along a line; the first at the goal wins.",
        parallel="envweave_gym.multiagent.line_race:raw_env",
        wire_kwargs=("runners", "length", "slip"),
    ),
]

_cards: dict[str, EnvCard] = {}


def cards() -> dict[str, EnvCard]:
    """All registered cards by ID."""
    return dict(_cards)


def card_of(env_id: str) -> EnvCard:
    """The card of an ID that is known to be registered."""
    return _cards[env_id]


def register_all() -> None:
    """Put the cards of every installed package into the registries; doing it again changes nothing.

    A package whose cards cannot be read is reported in one warning, and breaks nothing else.
    """
    for entry_point in entry_points(group=GROUP):
        try:
            register_cards(_read(entry_point))
        except Exception as error:  # noqa: BLE001 - foreign code may raise anything
            warnings.warn(
                f"the environments of plug-in {entry_point.name!r} ({entry_point.value}) are left out: "
                f"{type(error).__name__}: {error}",
                stacklevel=2,
            )


def _read(entry_point: EntryPoint) -> list[EnvCard]:
    value = entry_point.load()
    rows = value() if callable(value) else value
    return [row if isinstance(row, EnvCard) else msgspec.convert(row, EnvCard) for row in rows]


def register_cards(rows: Iterable[EnvCard]) -> None:
    """Put these cards into the table and the registries."""
    for card in rows:
        if not any((card.gym, card.aec, card.parallel)):
            raise InvalidArgument(f"{card.id}: a card needs one of gym=, aec=, parallel=")
        if _cards.setdefault(card.id, card) != card:
            raise InvalidArgument(f"{card.id} is declared twice; an ID belongs to one package")
        _register(card)


def _register(card: EnvCard) -> None:
    """Write one card into the registries as strings; ``launch`` reads the ID back out of the attribute name."""
    if card.gym is not None and card.id not in gymnasium.registry:
        gymnasium.register(
            id=card.id,
            entry_point=f"envweave_gym.launch:env({card.id})",
            vector_entry_point=f"envweave_gym.launch:vector({card.id})",
            nondeterministic=card.nondeterministic,
            order_enforce=False,
            disable_env_checker=True,
            kwargs=dict(card.kwargs),
        )
    if not card.is_game:
        return
    for kind, registry in (("aec", pettingzoo.aec_registry), ("parallel", pettingzoo.parallel_registry)):
        if card.id not in registry:
            entry_point = f"envweave_gym.launch:{kind}({card.id})"
            pettingzoo.register(kind, card.id, entry_point, kwargs=dict(card.kwargs))
