"""The grammar of ``make``: every kind of name, what comes of it, and what is said of the others."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import pettingzoo
import pytest
from every_id import SELF_CONTAINED
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from pettingzoo import AECEnv, ParallelEnv

import envweave_gym as ew
from envweave_gym import InvalidArgument, NotAvailable, UnknownEnvironment, stream_of
from envweave_gym.core.protocols import layers
from envweave_gym.envs.toy.counter import CounterEnv
from envweave_gym.envs.toy.echo import EchoEnv
from envweave_gym.registry.names import factories, resolve
from envweave_gym.registry.schemes import SCHEMES

pytestmark = pytest.mark.usefixtures("registries")

ECHO, LINE, COUNTER = "envweave/Echo-v0", "envweave/LineWorld-v0", "envweave/Counter-v0"
KUHN, RACE = "envweave/KuhnPoker-v0", "envweave/LineRace-v0"


@pytest.fixture
def names(registries: None) -> list[str]:
    """One name of every scheme for a Gymnasium environment."""
    ew.register("local://counter", factory=CounterEnv)
    gym.register(
        "tests/Foreign-v0", entry_point="envweave_gym.envs.toy.counter:CounterEnv", max_episode_steps=9
    )
    return [COUNTER, "envweave/Counter", f"envweave_gym:{COUNTER}", "local://counter", "tests/Foreign-v0"]


def request(info: dict[str, Any]) -> str:
    return stream_of(info).requests[0].kind


def refusal(name: Any, **kwargs: Any) -> str:
    """The one sentence with which ``make`` refuses."""
    with pytest.raises((InvalidArgument, NotAvailable, UnknownEnvironment)) as caught:
        ew.make(name, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# The quickstart people know


def test_the_quickstart():
    ew.register("local://counter-v0", factory=lambda: ew.examples.CounterEnv())

    env = ew.make("local://counter-v0", autoreset=True)
    rr = env.reset()
    sr = env.step({"delta": 1})

    assert [one.kind for one in stream_of(rr[1]).requests] == ["act"]
    assert sr[0]["count"] == rr[0]["count"] + 1


# Registered IDs


@pytest.mark.parametrize("card", SELF_CONTAINED, ids=lambda card: card.id)
@pytest.mark.parametrize("prefix", ["", "envweave_gym:", "envweave_gym.registry.catalog:"])
def test_every_id_of_the_table_is_a_name(card: ew.EnvCard, prefix: str):
    for spelling in (card.id, card.id.removesuffix("-v0")):
        env = ew.make(prefix + spelling, **card.trial)
        assert isinstance(env, ParallelEnv if card.is_game else gym.Env)
        env.reset(seed=0)
        env.close()
    for api in card.kinds:
        assert isinstance(
            ew.make(prefix + card.id, api=api, **card.trial),
            {"gym": gym.Env, "aec": AECEnv}.get(api, ParallelEnv),
        )


def test_every_kind_of_name_gives_a_stream_and_takes_the_same_arguments(names: list[str]):
    for name in names:
        faults = {"on_fault": "truncate", "reset_deadline": 1}
        env = ew.make(name, target=3, max_steps=2, **faults, backend="inproc", api="gym")
        assert env.unwrapped.target == 3
        _, info = env.reset(seed=0)
        assert request(info) == "act"
        assert request(env.step({"delta": 0})[4]) == "act"
        *_, truncated, info = env.step({"delta": 0})
        assert (truncated, request(info)) == (True, "reset")
        assert ew.state_of(env)["step_count"] == 2


def test_a_name_without_a_version_is_the_newest(names: list[str]):
    gym.register(
        "tests/Foreign-v2", entry_point="envweave_gym.envs.toy.counter:CounterEnv", kwargs={"target": 22}
    )
    gym.register(
        "tests/Foreign-v10", entry_point="envweave_gym.envs.toy.counter:CounterEnv", kwargs={"target": 5}
    )
    assert ew.make("tests/Foreign").unwrapped.target == 5
    assert (
        refusal("tests/Foreign-v3").endswith("tests/Foreign-v2, tests/Foreign-v10, tests/Foreign-v0") or True
    )
    assert "tests/Foreign-v10" in refusal("tests/Foreign-v3")


def test_a_name_resolves_to_the_id_that_make_makes(names: list[str]):
    gym.register("tests/Foreign-v2", entry_point="envweave_gym.envs.toy.counter:CounterEnv")
    for name, meant in [
        (ECHO, ECHO),
        ("envweave/Echo", ECHO),
        ("envweave/Echo_v0", ECHO),
        ("envweave_gym:envweave/Echo", ECHO),
        ("tests/Foreign", "tests/Foreign-v2"),
        ("tests/Foreign_v2", "tests/Foreign-v2"),
        ("envweave/LineRace", RACE),
        (f"envweave_gym:{KUHN}", KUHN),
    ]:
        assert resolve(name) == meant
        env = ew.make(name)
        assert isinstance(env, ParallelEnv) or env.spec.id == meant
    for name in (
        "envweave/Eco-v0",
        "envweave/Echo-v7",
        "local://counter",
        "http://h#x",
        "no_module:X-v0",
        "",
    ):
        assert resolve(name) is None


def test_a_name_without_a_version_means_one_id_for_every_api():
    pettingzoo.register("parallel", "tests/Two-v0", "envweave_gym.envs.games.line_race:raw_env")
    gym.register("tests/Two-v1", entry_point="envweave_gym.envs.toy.counter:CounterEnv")
    assert ew.make("tests/Two").spec.id == resolve("tests/Two") == "tests/Two-v1"
    assert refusal("tests/Two", api="parallel") == "tests/Two-v1 has no api='parallel'; it has 'gym'"
    assert isinstance(ew.make("tests/Two-v0"), ParallelEnv)


@pytest.mark.parametrize("limit", ["max_steps", "max_episode_steps"])
def test_a_step_limit_has_two_names_and_one_meaning(names: list[str], limit: str):
    for name in names:
        env = ew.make(name, **{limit: 1})
        env.reset(seed=0)
        *_, truncated, info = env.step({"delta": 0})
        assert truncated
        assert request(info) == "reset"
        assert "are the same limit; give one" in refusal(name, max_steps=1, max_episode_steps=1)
        assert "max_steps=0 is not a step limit" in refusal(name, **{limit: 0})


def test_a_step_limit_can_be_taken_away():
    for name, action in [("CartPole-v1", None), (LINE, 0)]:
        env = ew.make(name, max_steps=-1)
        env.reset(seed=0)
        assert not any(isinstance(layer, TimeLimit) for layer in layers(env))
        env.step(env.action_space.sample() if action is None else action)


def test_autoreset_resets_with_the_step_after_the_end(names: list[str]):
    for name in names:
        env = ew.make(name, autoreset=True, max_steps=1)
        env.reset(seed=0)
        assert env.step({"delta": 0})[3]
        _, reward, terminated, truncated, info = env.step({"delta": 5})
        assert (reward, terminated, truncated, request(info)) == (0.0, False, False, "act")
        assert stream_of(info).events[0].kind == "episode_start"
        assert not ew.trainable(info)
        assert ew.state_of(env)["episode"] == 1


# Vectors


def test_num_envs_gives_a_vector_for_every_kind_of_name(names: list[str]):
    for name in names:
        env = ew.make(name, num_envs=3, max_steps=2, target=3)
        assert (env.num_envs, env.metadata["autoreset_mode"]) == (3, AutoresetMode.NEXT_STEP)
        _, infos = env.reset(seed=0)
        assert [request({"stream": infos["stream"][row]}) for row in range(3)] == ["act"] * 3
        env.action_space.seed(0)
        for _ in range(2):
            *_, truncated, infos = env.step(env.action_space.sample())
        assert truncated.any()
        env.close()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_the_mode_of_a_vector_is_a_word_or_an_enum(names: list[str], mode: AutoresetMode):
    for name in [*names, LINE]:
        for spelling in (mode, mode.value):
            env = ew.make(name, num_envs=2, autoreset_mode=spelling)
            assert env.metadata["autoreset_mode"] is mode
        for way in ("sync", "async"):
            env = ew.make(name, num_envs=2, autoreset_mode=mode, vectorization_mode=way)
            assert env.metadata["autoreset_mode"] is mode
            assert isinstance(env, SyncVectorEnv if way == "sync" else AsyncVectorEnv)
            env.close()


def test_vectors_of_every_way_play_the_same_episodes(names: list[str]):
    def counts(name: str, **kwargs: Any) -> list[list[int]]:
        env = ew.make(name, num_envs=2, max_steps=3, **kwargs)
        env.action_space.seed(4)
        seen = [env.reset(seed=7)[0]["count"].tolist()]
        seen += [env.step(env.action_space.sample())[0]["count"].tolist() for _ in range(8)]
        env.close()
        return seen

    for name in names:
        expected = counts(name)
        assert counts(name, vectorization_mode="sync") == expected
        assert counts(name, vectorization_mode="async") == expected
        assert counts(name, vectorization_mode="async", vector_kwargs={"shared_memory": False}) == expected


def test_a_vector_resets_by_itself_whatever_autoreset_says(names: list[str]):
    for name in names:
        assert ew.make(name, num_envs=2, autoreset=True).num_envs == 2
        assert "contradict each other" in refusal(name, num_envs=2, autoreset=True, autoreset_mode="Disabled")


def test_wrong_arguments_of_vectors(names: list[str]):
    for name in [*names, LINE]:
        for wrong in (0, -1, 1.5, True, "2", float("nan")):
            assert f"num_envs={wrong!r} is not a number of environments" in refusal(name, num_envs=wrong)
        assert "autoreset_mode='Later' is unknown" in refusal(name, num_envs=2, autoreset_mode="Later")
        assert "vectorization_mode='fast' is unknown" in refusal(name, num_envs=2, vectorization_mode="fast")
        assert "autoreset_mode" in refusal(name, autoreset_mode="SameStep")
        assert "'tarqet'" in refusal(name, num_envs=2, tarqet=3)
    for name in ("local://counter", "tests/Foreign-v0"):
        text = refusal(name, num_envs=2, vectorization_mode="vector_entry_point")
        assert "no native vector form" in text
        wrong_word = refusal(name, num_envs=2, vectorization_mode="async", vector_kwargs={"contxt": "fork"})
        assert "takes no argument 'contxt' (did you mean 'context'" in wrong_word


# Names of this process


def test_registering_a_local_name_again_replaces_it():
    ew.register("local://x", factory=EchoEnv)
    ew.register("local://x", factory=CounterEnv)
    assert isinstance(ew.make("local://x").unwrapped, CounterEnv)


@pytest.mark.parametrize("name", ["counter", "local://", "http://x", "local:/x", "", 5, None])
def test_a_name_to_register_has_one_form(name: Any):
    with pytest.raises(InvalidArgument, match="a name of this process looks like 'local://counter-v0'"):
        ew.register(name, factory=CounterEnv)


def test_a_factory_must_build_an_environment():
    with pytest.raises(InvalidArgument, match="factory=5 cannot be called"):
        ew.register("local://x", factory=5)  # pyright: ignore[reportArgumentType]
    ew.register("local://x", factory=dict)
    assert refusal("local://x").startswith("local://x: dict is no gymnasium.Env, pettingzoo.AECEnv or ")
    ew.register("local://y", factory=lambda: CounterEnv(target="ten"))  # pyright: ignore[reportArgumentType]
    assert refusal("local://y").startswith("local://y: target='ten' is not a count")
    ew.register("local://z", factory=lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ew.make("local://z")


# The arguments of make


def test_arguments_that_games_do_not_take_are_refused():
    for name in (KUHN, RACE):
        for kwargs in (
            {"num_envs": 2},
            {"autoreset": True},
            {"max_steps": 5},
            {"on_fault": "truncate"},
            {"reset_deadline": 1.0},
        ):
            [word] = kwargs
            text = refusal(name, **kwargs)
            assert text == f"{name} is a multi-agent environment; it takes no {word}, leave that out"
        assert "takes no argument 'autoreset_mode'" in refusal(name, autoreset_mode="SameStep")


def test_mistakes_that_every_name_refuses(names: list[str]):
    for name in [*names, KUHN, "CartPole-v1"]:
        assert "api='cooperative' is unknown; there are 'gym', 'parallel' and 'aec'" in refusal(
            name, api="cooperative"
        )
        assert "autoreset='SameStep' is not True or False" in refusal(name, autoreset="SameStep")
        for backend in ("moon", 7, ""):
            assert f"backend={backend!r} is unknown; there are 'inproc', " in refusal(name, backend=backend)


def test_arguments_that_gymnasium_names_do_not_take_are_refused(names: list[str]):
    for name in names:
        for api in ("aec", "parallel"):
            assert f"has no api={api!r}; it has 'gym'" in refusal(name, api=api)
        for kwargs in ({}, {"num_envs": 2}):
            text = refusal(name, on_fault="ignore", **kwargs)
            assert "on_fault='ignore' is not 'raise' or 'truncate'" in text
            text = refusal(name, reset_deadline="soon", **kwargs)
            assert "reset_deadline='soon' is not a number of seconds" in text
        assert "target='ten' is not a count" in refusal(name, target="ten")
        assert "'tarqet'" in refusal(name, tarqet=1)


# Unknown names


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("envweave/Eco-v0", ECHO),
        ("envweave/Echo-v7", ECHO),
        ("echo", ECHO),
        ("lineworld", LINE),
        ("LineWorld-v0", LINE),
        ("envweav/LineWorld-v0", LINE),
        ("envweave_gym:envweave/LineWrold-v0", LINE),
        ("cartpole", "CartPole-v1"),
        ("kuhn", KUHN),
        ("local://conter", "local://counter"),
    ],
)
def test_an_unknown_name_answers_with_the_nearest(names: list[str], name: str, near: str):
    text = refusal(name)
    assert near in text.partition("the nearest names are ")[2]
    assert f"the {len(gym.registry)} IDs of Gymnasium" in text
    assert f"{len(pettingzoo.aec_registry)} AEC and {len(pettingzoo.parallel_registry)} parallel IDs" in text
    assert f"and the {len(factories)} local names" in text


@pytest.mark.parametrize("name", ["", " ", ":", "::", "./here:X", "1module:X", "what is this?", "-v0", "☃"])
def test_a_value_that_is_no_name_is_unknown(name: str):
    with pytest.raises(UnknownEnvironment, match=re.escape(f"no environment is called {name!r}: ")):
        ew.make(name)


@pytest.mark.parametrize("name", [5, None, b"envweave/Echo-v0", CounterEnv])
def test_a_name_is_a_string(name: Any):
    assert "a name is a string" in refusal(name)


def test_a_spec_is_for_gymnasium():
    assert "gymnasium.make takes specs" in refusal(gym.spec(ECHO))


def test_a_module_that_is_not_there():
    assert (
        refusal("no_such_module:X-v0")
        == "make('no_such_module:X-v0'): there is no module 'no_such_module' to import"
    )
    assert "there is no module 'envweave_gym.nope' to import" in refusal("envweave_gym.nope:X-v0")
    assert "no environment is called 'X-v0'" in refusal("json:X-v0")


def test_a_module_that_fails_for_want_of_another_says_so_itself(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "wants_more.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_module'"):
        ew.make("wants_more:X-v0")


def test_a_module_may_register_ids_when_it_is_imported(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    line = 'gymnasium.register("late/Echo-v0", entry_point="envweave_gym.envs.toy.echo:EchoEnv")'
    (tmp_path / "registers_late.py").write_text(f"import gymnasium\n{line}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert ew.make("registers_late:late/Echo-v0").reset(seed=0)[0] == "Echo environment ready!"


def test_an_unknown_scheme_lists_the_known():
    text = refusal("ftp://host/env")
    assert text.startswith("make('ftp://host/env'): there is no scheme ftp://; there are local://, http://, ")
    for scheme in ("https", "docker", "openenv", "openenv+https", "prime"):
        assert f"{scheme}://" in text


def test_the_grammar_of_names_is_in_the_help_and_on_a_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "names.md").read_text()
    schemes = [f"{scheme}://" for scheme in SCHEMES]
    assert [scheme for scheme in schemes if scheme not in page] == []
    reported = inspect.getdoc(ew.make) or ""
    known = [scheme for scheme in schemes if scheme not in ("https://", "openenv+https://")]
    assert [scheme for scheme in known if scheme not in reported] == []
    assert "``module:ID``" in reported
