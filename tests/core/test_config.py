"""Arguments that a struct declares: signatures, arguments of remote clients, tables, refusals."""

from __future__ import annotations

import copy
import inspect
from typing import Annotated, Any

import pytest

from envweave_gym.core.config import (
    Config,
    arguments_table,
    configured,
    local,
    named,
    one_of,
    takes_arguments_of,
    wire,
    wire_names,
)
from envweave_gym.core.faults import InvalidArgument, MissingExtra, NotAvailable


class Base(Config, frozen=True, kw_only=True):
    mode: Annotated[str, wire("how it plays")] = "fast"

    def __post_init__(self) -> None:
        one_of("mode", self.mode, ("fast", "slow"))


class Derived(Base, frozen=True, kw_only=True):
    data: Annotated[str, wire("the data set", only=("a", "b"))] = "a"
    secret: Annotated[Any, local("not for clients")] = None


class Player:
    name = "tests/Player-v0"

    @configured(Derived)
    def __init__(self, config: Derived) -> None:
        self.config = config


def test_the_signature_has_the_fields_of_the_derived_struct_first() -> None:
    assert str(inspect.signature(Player)) == "(data: str = 'a', secret: Any = None, mode: str = 'fast')"
    assert Player("b", mode="slow").config == Derived(data="b", mode="slow")
    assert Player(Derived(data="b")).config.data == "b"


def test_remote_clients_may_give_what_the_fields_say() -> None:
    assert wire_names(Derived) == ("data=a", "data=b", "mode")


@pytest.mark.parametrize("kind", [NotAvailable, MissingExtra])
def test_what_is_not_available_keeps_its_type_and_cause_and_gets_the_name(kind: type[NotAvailable]) -> None:
    for said in ("no file 'x'", "tests/Player-v0: no file 'x'"):
        cause = OSError("gone")
        with (
            pytest.raises(kind, match=r"^tests/Player-v0: no file 'x'$") as refused,
            named("tests/Player-v0"),
        ):
            raise kind(said) from cause
        assert type(refused.value) is kind
        assert refused.value.__cause__ is cause


def test_wrong_arguments_are_refused_with_the_name() -> None:
    with pytest.raises(InvalidArgument, match=r"^tests/Player-v0: mode='x' is unknown; .*'fast' and 'slow'"):
        Player(mode="x")
    with pytest.raises(TypeError, match=r"Player.*unexpected keyword argument 'moode'"):
        Player(moode="fast")


def test_a_function_shows_the_arguments_that_it_passes_on() -> None:
    @takes_arguments_of(Derived, mode="slow")
    def make(url: str, **kwargs: Any) -> dict[str, Any]:
        return {"url": url, **kwargs}

    shown = inspect.signature(make).parameters
    assert list(shown) == ["url", "data", "secret", "mode"]
    assert shown["mode"].default == "slow"
    assert make("u", data="b") == {"url": "u", "data": "b"}


def test_the_table_has_each_argument_with_its_default() -> None:
    assert "| `mode` | `'fast'` | how it plays |" in arguments_table(Derived).splitlines()


def test_the_table_shows_the_default_that_a_factory_makes() -> None:
    class Factory(Config, frozen=True, kw_only=True):
        extras: Annotated[dict[str, Any], local("more")] = {}

    assert arguments_table(Factory).splitlines()[-1] == "| `extras` | `{}` | more |"


def test_a_copy_of_an_environment_shares_its_config() -> None:
    config = Derived(secret=object())
    assert copy.deepcopy(config) is config
