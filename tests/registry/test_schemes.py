from __future__ import annotations

from typing import Any

import pytest

import envweave_gym as ew
from envweave_gym.envs.toy.counter import CounterEnv

MODULE = """
from envweave_gym.envs.toy.counter import CounterEnv
from envweave_gym.registry.foreign import wrapped


def make_from_hub(call):
    return wrapped(call.name, CounterEnv, call)


NOTHING = None
"""


@pytest.fixture
def plug_in(install_plug_in: Any) -> None:
    """An installed package with schemes of its own."""
    attributes = {
        "hub": "make_from_hub",
        "local": "make_from_hub",
        "nothing": "NOTHING",
        "missing": "missing",
    }
    install_plug_in("envweave_gym.schemes", "hub_plug_in", MODULE, attributes)


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
@pytest.mark.parametrize("num_envs", [None, 2])
@pytest.mark.parametrize("backend", ["docker", "subprocess", ["http://127.0.0.1:1"]])
def test_a_scheme_that_makes_environments_in_this_process_refuses_a_backend(
    backend: Any, num_envs: int | None
) -> None:
    with pytest.raises(ew.InvalidArgument, match=r"hub://counter is known to this process alone .* backend="):
        ew.make("hub://counter", backend=backend, num_envs=num_envs)
    assert ew.make("hub://counter", backend="inproc").reset(seed=1)[1]["seq"] == 0


@pytest.mark.usefixtures("plug_in")
def test_a_plug_in_cannot_replace_a_built_in_scheme() -> None:
    with pytest.raises(ew.UnknownEnvironment, match="local://counter"):
        ew.make("local://counter")


@pytest.mark.usefixtures("plug_in")
def test_the_error_for_an_unknown_scheme_lists_plug_ins() -> None:
    with pytest.raises(ew.UnknownEnvironment, match=r"no scheme hug://; .*docker://.*hub://"):
        ew.make("hug://counter")


@pytest.mark.usefixtures("plug_in")
@pytest.mark.parametrize(("scheme", "why"), [("nothing", "Scheme"), ("missing", "attribute 'missing'")])
def test_the_error_for_a_broken_plug_in_names_it(scheme: str, why: str) -> None:
    with pytest.raises(ew.NotAvailable, match=rf"hub_plug_in:\w+ of envweave_gym.schemes.*{why}"):
        ew.make(f"{scheme}://counter")
