"""Cards that cannot be launched, and names that no entry point has, say so in one sentence."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import gymnasium as gym
import pettingzoo
import pytest
from gymnasium.envs.registration import EnvSpec

import envweave_gym as ew
from envweave_gym import InvalidArgument, NotAvailable, UnknownEnvironment
from envweave_gym.core.faults import MissingExtra
from envweave_gym.registry.catalog import register_card

KUHN, LINE = "envweave/KuhnPoker-v0", "envweave/LineWorld-v0"


@pytest.mark.usefixtures("registries")
def test_a_missing_extra_is_one_line_with_the_pip_command():
    needs = {"extra": "docker", "requires": ["no_such_module"]}
    register_card({"id": "tests/Needy-v0", "doc": "Needy.", "gym": "nowhere:Env", **needs})
    register_card({"id": "tests/NeedyGame-v0", "doc": "Needy.", "aec": "nowhere:env", **needs})
    line = "needs no_such_module, which is not installed: pip install 'envweave-gym[docker]'"
    for make, env_id in [
        (lambda: gym.make("tests/Needy-v0"), "tests/Needy-v0"),
        (lambda: gym.make_vec("tests/Needy-v0", num_envs=2), "tests/Needy-v0"),
        (lambda: pettingzoo.make("aec", "tests/NeedyGame-v0"), "tests/NeedyGame-v0"),
        (lambda: pettingzoo.make("parallel", "tests/NeedyGame-v0"), "tests/NeedyGame-v0"),
    ]:
        with pytest.raises(MissingExtra) as caught:
            make()
        assert str(caught.value) == f"{env_id} {line}"


@pytest.mark.usefixtures("registries")
def test_a_constructor_that_is_not_what_the_card_says():
    for name, path, reason in [
        ("Gone", "nowhere:Env", "nowhere:Env cannot be loaded: No module named 'nowhere'"),
        ("Unnamed", "json:Env", "json:Env cannot be loaded: module 'json' has no attribute 'Env'"),
    ]:
        register_card({"id": f"tests/{name}-v0", "doc": "Wrong.", "gym": path})
        with pytest.raises(NotAvailable, match=f"^tests/{name}-v0: {reason}$"):
            gym.make(f"tests/{name}-v0")
    register_card({"id": "tests/Dict-v0", "doc": "Wrong.", "gym": "builtins:dict"})
    with pytest.raises(InvalidArgument, match=r"tests/Dict-v0: builtins:dict gave a dict, not a Env"):
        gym.make("tests/Dict-v0")


@pytest.mark.usefixtures("registries")
def test_a_module_may_ask_for_its_extra_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    line = 'need("no_such_module", "datasets", "tests/Asks-v0")'
    (tmp_path / "asks_itself.py").write_text(f"from envweave_gym.core.faults import need\n{line}\n")
    monkeypatch.syspath_prepend(tmp_path)
    register_card({"id": "tests/Asks-v0", "doc": "Asks.", "gym": "asks_itself:Env"})
    with pytest.raises(MissingExtra, match=r"pip install 'envweave-gym\[datasets\]'$"):
        gym.make("tests/Asks-v0")


def test_a_form_that_an_id_does_not_have():
    for form, env_id, kinds in [("gym", KUHN, "aec, parallel"), ("aec", LINE, "gym")]:
        spec = EnvSpec(env_id, entry_point=f"envweave_gym.registry.entry_points:{form}({env_id})")
        with pytest.raises(InvalidArgument, match=f"{env_id} has no such form; it can be made as: {kinds}"):
            gym.make(spec)


def test_a_spec_of_a_package_that_is_not_installed():
    spec = EnvSpec("plug/Gone-v0", entry_point="envweave_gym.registry.entry_points:gym(plug/Gone-v0)")
    with pytest.raises(UnknownEnvironment, match="no installed package declares 'plug/Gone-v0'"):
        gym.make(spec)


@pytest.mark.parametrize("attribute", ["gym", "gym()x", "page(envweave/Echo-v0)"])
def test_the_module_has_no_other_attributes(attribute: str):
    import envweave_gym.registry.entry_points

    with pytest.raises(AttributeError, match="has no attribute"):
        getattr(envweave_gym.registry.entry_points, attribute + "_")


def test_a_card_whose_steps_take_long_gives_them_their_time_on_a_server():
    env_id = "envweave/SWEBenchLitePatch-v0"
    with closing(gym.make(env_id, dataset="synthetic", backend="subprocess")) as env:
        assert env.get_wrapper_attr("_served")._call_deadline == 3600.0
    with closing(gym.make(env_id, dataset="synthetic", backend="subprocess", call_deadline=5.0)) as env:
        assert env.get_wrapper_attr("_served")._call_deadline == 5.0
    with closing(ew.make(env_id, num_envs=2, dataset="synthetic", backend="subprocess")) as rows:
        assert rows.unwrapped._call_deadline == 3600.0
