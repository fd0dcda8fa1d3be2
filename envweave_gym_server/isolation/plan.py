"""What a zygote is told of its server: the offers, and what they need in a fresh process."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.registry.catalog import REGISTRIES, EnvCard, cards, register_card
from envweave_gym_server.offers.offers import Offer, Offers


@dataclass(frozen=True)
class Plan:
    """What the worker of any session needs; pickled by the server, for its own zygote alone."""

    offers: Offers
    memory: int | None
    """So many bytes a worker may take."""
    cards: list[EnvCard] = field(default_factory=list)
    specs: list[tuple[Any, Any]] = field(default_factory=list)
    """Registered IDs that are not ours: the API, and the spec."""

    def carry_out(self) -> None:
        """Register what is offered, and import where it is made."""
        for card in self.cards:
            register_card(card)
        for api, spec in self.specs:
            REGISTRIES[api].setdefault(spec.id, spec)
        for offer in self.offers.values():
            offer.register()
        for module in sorted(set(self._modules())):
            try:
                importlib.import_module(module)
            except Exception as error:  # noqa: BLE001 - whoever makes the environment is told, and told why
                print(f"{module} is not imported ahead: {type(error).__name__}: {error}", file=sys.stderr)

    def _modules(self) -> Iterator[str]:
        entries: list[Any] = []
        for card in self.cards:
            entries += [card.gym, card.vector, card.aec, card.parallel]
        for _, spec in self.specs:
            entries += [spec.entry_point, getattr(spec, "vector_entry_point", None)]
        return (entry.partition(":")[0] for entry in entries if isinstance(entry, str))


def plan_of(offers: Offers, memory: int | None) -> Plan:
    """The plan for workers that may take so many bytes of memory each."""
    plan = Plan(offers, memory)
    for offer in offers.values():
        if offer.factory is not None:
            _importable(offer, offer)
        elif offer.target in cards():
            plan.cards.append(cards()[offer.target])
        else:
            registered = ((api, specs.get(offer.target)) for api, specs in REGISTRIES.items())
            plan.specs.extend((api, _importable(offer, spec)) for api, spec in registered if spec is not None)
    return plan


def _importable(offer: Offer, what: Any) -> Any:
    """``what``, if another process can have it too: by name, from a module that can be imported."""
    try:
        pickled = pickle.dumps(what)
    except Exception:  # noqa: BLE001 - what pickling raises depends on what is pickled
        pickled = None
    if pickled is None or b"__main__" in pickled:
        raise InvalidArgument(
            f"{offer.name}: isolation='process' needs a factory that other processes can import; move it to "
            "the top level of a module that is not the program itself, or serve it with isolation='thread'"
        )
    return what
