"""Setup of a zygote: the offers of its server, and the registrations and imports that these need."""

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
class WorkerSetup:
    """Setup of all workers; the server pickles it for its own zygote."""

    offers: Offers
    memory: int | None
    """Limit of a worker's address space, in bytes."""
    cards: list[EnvCard] = field(default_factory=list)
    specs: list[tuple[Any, Any]] = field(default_factory=list)
    """Registered IDs of other packages: the API and the spec of each."""

    def apply(self) -> None:
        """Register the offers in this process, and import the modules that make their environments."""
        for card in self.cards:
            register_card(card)
        for api, spec in self.specs:
            REGISTRIES[api].setdefault(spec.id, spec)
        for offer in self.offers.values():
            offer.register()
        for module in sorted(set(self._modules())):
            try:
                importlib.import_module(module)
            except Exception as error:  # noqa: BLE001 - making the environment reports why
                print(f"{module} is not imported ahead: {type(error).__name__}: {error}", file=sys.stderr)

    def _modules(self) -> Iterator[str]:
        entries: list[Any] = []
        for card in self.cards:
            entries += [card.gym, card.vector, card.aec, card.parallel]
        for _, spec in self.specs:
            entries += [spec.entry_point, getattr(spec, "vector_entry_point", None)]
        return (entry.partition(":")[0] for entry in entries if isinstance(entry, str))


def setup_for(offers: Offers, memory: int | None) -> WorkerSetup:
    """Return the setup for workers with ``memory`` bytes each."""
    setup = WorkerSetup(offers, memory)
    for offer in offers.values():
        if offer.factory is not None:
            _importable(offer, offer)
        elif offer.target in cards():
            setup.cards.append(cards()[offer.target])
        else:
            registered = ((api, specs.get(offer.target)) for api, specs in REGISTRIES.items())
            setup.specs.extend(
                (api, _importable(offer, spec)) for api, spec in registered if spec is not None
            )
    return setup


def _importable(offer: Offer, entry: Any) -> Any:
    """Return ``entry`` if another process can import it by name; raise ``InvalidArgument`` otherwise."""
    try:
        pickled = pickle.dumps(entry)
    except Exception:  # noqa: BLE001 - pickling raises whatever the object raises
        pickled = None
    if pickled is None or b"__main__" in pickled:
        raise InvalidArgument(
            f"{offer.name}: isolation='process' needs a factory that other processes can import; move it to "
            "the top level of a module that is not the program itself, or serve it with isolation='thread'"
        )
    return entry
