from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import envweave_gym as ew
from envweave_gym.core import plug_ins
from envweave_gym.envs.toy.counter import CounterEnv
from envweave_gym.registry import schemes

MODULE = """
from envweave_gym.envs.toy.counter import CounterEnv
from envweave_gym.registry.foreign import wrapped


def make_from_hub(call):
    return wrapped(call.name, CounterEnv, call)


NOTHING = None
"""


@pytest.fixture
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package with schemes of its own."""
    values = {
        "hub": "hub_plug_in:make_from_hub",
        "nothing": "hub_plug_in:NOTHING",
        "missing": "hub_plug_in:missing",
        "local": "hub_plug_in:make_from_hub",
    }
    entries = [EntryPoint(name, value, "envweave_gym.schemes") for name, value in values.items()]
    (tmp_path / "hub_plug_in.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        plug_ins, "entry_points", lambda group: [one for one in entries if one.group == group]
    )
    monkeypatch.setattr(schemes._table, "_loaded", {})
    yield
    sys.modules.pop("hub_plug_in", None)


@pytest.mark.usefixtures("plug_in")
def test_a_package_makes_the_environments_of_its_own_scheme() -> None:
    with ew.make("hub://counter", target=3, max_steps=5) as env:
        assert isinstance(env.unwrapped, CounterEnv)
        env.reset(seed=1)
        assert env.step({"delta": 3})[2]
    rows = ew.make("hub://counter", num_envs=2)
    assert rows.num_envs == 2
    rows.close()


@pytest.mark.usefixtures("plug_in")
def test_nobody_takes_a_scheme_of_ours() -> None:
    with pytest.raises(ew.UnknownEnvironment, match="local://counter"):
        ew.make("local://counter")


@pytest.mark.usefixtures("plug_in")
def test_an_unknown_scheme_is_answered_with_those_of_plug_ins_too() -> None:
    with pytest.raises(ew.UnknownEnvironment, match=r"no scheme hug://; .*docker://.*hub://"):
        ew.make("hug://counter")


@pytest.mark.usefixtures("plug_in")
@pytest.mark.parametrize(("scheme", "why"), [("nothing", "Scheme"), ("missing", "attribute 'missing'")])
def test_a_plug_in_that_is_no_scheme_is_named(scheme: str, why: str) -> None:
    with pytest.raises(ew.NotAvailable, match=rf"hub_plug_in:\w+ of envweave_gym.schemes.*{why}"):
        ew.make(f"{scheme}://counter")
