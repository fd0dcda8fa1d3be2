"""The table of IDs and how it gets into the registries. Plug-ins as packages are in ``test_plug_ins``."""

from __future__ import annotations

import json
import re
import warnings
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import gymnasium as gym
import msgspec
import pettingzoo
import pytest

from envweave_gym import EnvCard, InvalidArgument, UnknownEnvironment, cards
from envweave_gym.core.faults import PACKAGE
from envweave_gym.registry.catalog import CARDS, GROUP, card_of, package_of, register_all, register_card

REGISTRIES: dict[str, Any] = {
    "gym": gym.registry,
    "aec": pettingzoo.aec_registry,
    "parallel": pettingzoo.parallel_registry,
}
GYM_CARD = {"id": "tests/Walk-v0", "doc": "A walk.", "gym": "somewhere:Walk"}
GAME_CARD = {"id": "tests/Game-v0", "doc": "A game.", "aec": "somewhere:env"}


def contents() -> list[dict[str, Any]]:
    return [dict(registry) for registry in REGISTRIES.values()]


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.id)
def test_every_card_is_registered_for_the_apis_it_has(card: EnvCard):
    assert cards()[card.id] == card_of(card.id) == card
    assert package_of(card.id) == PACKAGE
    assert {kind for kind, registry in REGISTRIES.items() if card.id in registry} == set(card.leads_to)
    for kind in card.kinds:
        spec = REGISTRIES[kind][card.id]
        assert isinstance(spec.entry_point, str)
        assert json.loads(json.dumps(spec.kwargs)) == card.kwargs


@pytest.mark.parametrize("card", [c for c in CARDS if not c.is_game], ids=lambda card: card.id)
def test_specs_disable_the_wrappers_of_gymnasium(card: EnvCard):
    spec = gym.spec(card.id)
    assert spec.max_episode_steps is None
    assert spec.additional_wrappers == ()
    assert (spec.order_enforce, spec.disable_env_checker) == (False, True)
    assert spec.nondeterministic == card.nondeterministic


def test_our_rows_come_in_through_the_entry_point_group():
    [ours] = entry_points(group=GROUP, name="envweave")
    assert ours.load() is CARDS


def test_cards_is_a_copy():
    cards().clear()
    assert "envweave/Echo-v0" in cards()


# register_all


def test_registering_again_changes_nothing():
    before = contents()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        register_all()
        register_all()
    for old, new in zip(before, contents(), strict=True):
        assert old.keys() == new.keys()
        assert all(new[name] is spec for name, spec in old.items())


@pytest.mark.usefixtures("registries")
def test_registering_again_restores_deleted_ids():
    del gym.registry["envweave/Echo-v0"]
    del pettingzoo.aec_registry["envweave/KuhnPoker-v0"]
    with pytest.raises(gym.error.NameNotFound):
        gym.make("envweave/Echo-v0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        register_all()
    assert gym.make("envweave/Echo-v0").reset()[0] == "Echo environment ready!"
    assert pettingzoo.make("aec", "envweave/KuhnPoker-v0").possible_agents
    assert "envweave/KuhnPoker-v0" in pettingzoo.parallel_registry


@pytest.mark.usefixtures("registries")
def test_an_id_that_another_package_replaced_stays_replaced_with_a_warning():
    theirs = gym.envs.registration.EnvSpec("envweave/Echo-v0", entry_point="theirs:Env")
    gym.registry["envweave/Echo-v0"] = theirs
    del gym.registry["envweave/Counter-v0"]
    complaint = "envweave/Echo-v0 is registered already, with entry point 'theirs:Env'"
    with pytest.warns(UserWarning, match=re.escape(complaint)) as reported:
        register_all()
    assert len(reported) == 1
    assert gym.registry["envweave/Echo-v0"] is theirs
    assert "envweave/Counter-v0" in gym.registry


# register_card


@pytest.mark.usefixtures("registries")
def test_a_card_may_come_as_dict_or_as_envcard_and_twice():
    register_card(GYM_CARD, package="walks")
    spec = gym.spec("tests/Walk-v0")
    register_card(EnvCard(**GYM_CARD), package="walks")
    assert gym.spec("tests/Walk-v0") is spec
    assert card_of("tests/Walk-v0") == EnvCard(**GYM_CARD)
    assert package_of("tests/Walk-v0") == "walks"


@pytest.mark.usefixtures("registries")
def test_an_id_belongs_to_one_package():
    register_card(GYM_CARD, package="walks")
    with pytest.raises(InvalidArgument, match="tests/Walk-v0 is declared by walks already; choose another"):
        register_card({**GYM_CARD, "doc": "Another walk."})
    assert card_of("tests/Walk-v0").doc == "A walk."


@pytest.mark.usefixtures("registries")
def test_an_id_that_is_registered_elsewhere_is_refused_as_a_whole():
    pettingzoo.register("parallel", "tests/Game-v0", "theirs:parallel_env")
    with pytest.raises(InvalidArgument, match="entry point 'theirs:parallel_env'"):
        register_card(GAME_CARD)
    assert "tests/Game-v0" not in pettingzoo.aec_registry
    assert "tests/Game-v0" not in cards()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"id": "Walk-v0"}, "id='Walk-v0' is refused; give a string like 'namespace/Name-v0'"),
        ({"id": "tests/Walk"}, "id='tests/Walk' is refused"),
        ({"id": "tests/Walk v-v0"}, "id='tests/Walk v-v0' is refused"),
        ({"id": "tests:more/Walk-v0"}, "id='tests:more/Walk-v0' is refused"),
        ({"id": "tests/of/Walk-v0"}, "id='tests/of/Walk-v0' is refused"),
        ({"id": 5}, "card: id=5 is refused; give a string like 'namespace/Name-v0'"),
        ({"doc": None}, "card 'tests/Walk-v0': doc=None is refused; give a string"),
        (
            {"gym": "somewhere.Walk"},
            "gym='somewhere.Walk' is refused; give a string like 'module:attribute' or None",
        ),
        ({"gym": "some where:Walk"}, "gym='some where:Walk' is refused"),
        ({"vector": "a:b:c"}, "vector='a:b:c' is refused"),
        ({"gym": None}, "tests/Walk-v0: a card has either gym="),
        ({"parallel": "somewhere:env"}, "either gym="),
        ({"max_steps": 0}, "max_steps=0 is refused; give an int of at least 1 or None"),
        ({"max_steps": "many"}, "max_steps='many' is refused; give an int of at least 1 or None"),
        ({"kwargs": ["length"]}, "kwargs=['length'] is refused; give a dict with strings as keys"),
        ({"kwargs": {1: 2}}, "kwargs={1: 2} is refused; give a dict with strings as keys"),
        ({"requires": "torch"}, "requires='torch' is refused; give a tuple of strings"),
        ({"wire_kwargs": ["length", 1]}, "wire_kwargs=['length', 1] is refused; give a tuple of strings"),
        ({"call_deadline": 0}, "call_deadline=0 is refused; give a number above 0 or None"),
        ({"data": "yes"}, "data='yes' is refused; give True or False"),
        ({"colour": "red"}, "'colour' is no field; there are id, doc, gym"),
        ({"vektor": "a:b"}, "'vektor' is no field (did you mean 'vector'?)"),
        ({5: "red"}, "5 is no field"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("registries")
def test_a_card_with_a_mistake_is_refused(change: dict[Any, Any], reason: str):
    before = contents()
    with pytest.raises(InvalidArgument, match=re.escape(reason)):
        register_card({**GYM_CARD, **change})
    assert contents() == before


@pytest.mark.parametrize("field", [one.name for one in msgspec.structs.fields(EnvCard)])
def test_every_field_of_a_card_says_what_it_may_hold(field: str):
    with pytest.raises(InvalidArgument, match=rf"^card.*: {field}=<object object at .*> is refused; give "):
        register_card({**GYM_CARD, field: object()})


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"doc": "A walk."}, "card has no id; every card has id and doc"),
        ({"id": "tests/Walk-v0"}, "card 'tests/Walk-v0' has no doc; every card has id and doc"),
        (7, "7 is no card; give an EnvCard, or a dict with its fields"),
        (None, "None is no card; give an EnvCard"),
    ],
)
def test_a_card_that_is_not_whole_is_refused(row: Any, reason: str):
    with pytest.raises(InvalidArgument, match=f"^{reason}"):
        register_card(row)


@pytest.mark.parametrize(
    ("field", "value"), [("vector", "somewhere:Vector"), ("max_steps", 10), ("gym", "somewhere:Env")]
)
def test_a_game_has_nothing_of_a_gymnasium_card(field: str, value: Any):
    with pytest.raises(InvalidArgument, match="tests/Game-v0: "):
        EnvCard(**{**GAME_CARD, field: value})


@pytest.mark.usefixtures("registries")
def test_an_envcard_is_checked_like_a_dict():
    wrong: Any = {**GYM_CARD, "max_steps": "many"}
    with pytest.raises(InvalidArgument, match="max_steps='many' is refused"):
        register_card(EnvCard(**wrong))


def test_an_undeclared_id_is_unknown():
    with pytest.raises(UnknownEnvironment, match="no installed package declares 'plug/Gone-v0'"):
        card_of("plug/Gone-v0")


def test_the_table_for_authors_has_every_field_of_a_card() -> None:
    page = (Path(__file__).parents[2] / "docs" / "authors.md").read_text()
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (?:`(.*?)`)? ?\| \S", page, re.MULTILINE)
    reported = {name: default for names, default in rows for name in re.findall(r"`(\w+)`", names)}
    usual = {one.name: one.default for one in msgspec.structs.fields(EnvCard)}
    factories = {one.name: one.default_factory for one in msgspec.structs.fields(EnvCard)}
    assert list(reported) == list(usual)
    for name, default in reported.items():
        if default:
            made = usual[name] if factories[name] is msgspec.NODEFAULT else factories[name]()
            assert default == repr(made), name
        else:
            assert usual[name] is factories[name] is msgspec.NODEFAULT, name
