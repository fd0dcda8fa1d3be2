"""Hub packages of the library's second generation: the rewards here are those of the library's own evaluation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_evaluations import KEY, answering, played, played_game
from hub_interpreters import layered_interpreter
from hub_wheels import V1_PAIR_SOURCE, V1_SOURCE, wheel

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.hubs import hub_env, hub_team
from envweave_gym.hubs.hub_lock import HubPackage
from envweave_gym.hubs.hub_session import Unplayable

pytestmark = pytest.mark.trainers

Make = Callable[..., Any]
CALL = {"tool_calls": [{"name": "calculator_add", "arguments": {"a": 3, "b": 3}}]}
LOCAL = {"runtime": {"type": "subprocess"}}
CHAT = {**LOCAL, "harness": {"id": "null"}}


def right(model: str, messages: list[dict[str, Any]]) -> Any:
    return "6"


def better_later(model: str, messages: list[dict[str, Any]]) -> Any:
    return "5" if messages[-1]["content"].startswith("What") else "6"


def by_tool(model: str, messages: list[dict[str, Any]]) -> Any:
    return CALL if messages[-1]["role"] == "user" else messages[-1]["content"]


def unequal(model: str, messages: list[dict[str, Any]]) -> Any:
    return "9" if model == "left" else "4"


def customer(model: str, messages: list[dict[str, Any]]) -> Any:
    if model == "user":
        return "###DONE###" if len(messages) > 3 else "What is three and three?"
    return "6"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("v1")


@pytest.fixture(scope="module")
def make(folder: Path) -> Iterator[Make]:
    """Makes environments and games of the packages; one with the same arguments is shared."""
    wheels = {"sums": wheel("sums", source=V1_SOURCE), "pair": wheel("pair", source=V1_PAIR_SOURCE)}
    interpreter = layered_interpreter(folder, wheels)
    made: dict[str, Any] = {}

    def one(name: str = "sums", *, game: bool = False, **env_args: Any) -> Any:
        package = HubPackage(
            owner="acme", name=name, version="1.0.0", sha256="0" * 64, filename="x.whl", generation="v1"
        )
        key = repr((name, game, env_args))
        if key not in made:
            with pytest.MonkeyPatch.context() as patch:
                for module in (hub_env, hub_team):
                    patch.setattr(module, "find_installed", lambda hub_id: (package, interpreter))
                kind = hub_team.parallel_env if game else hub_env.HubEnv
                made[key] = kind(hub_id=f"acme/{name}", env_args=env_args)
        return made[key]

    yield one
    for env in made.values():
        env.close()


def evaluated(
    name: str, args: dict[str, Any], policy: Any, index: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """The episode of the library's evaluation with its own chat loop, which ``vf-eval`` runs for each task."""
    import verifiers.v1 as vf

    (site,) = folder.glob("environment/lib/python3*/site-packages")
    monkeypatch.syspath_prepend(site)
    taskset = {**args.get("taskset", {}), "id": name}

    async def run() -> Any:
        env = vf.load_environment(vf.resolve_env_config({**args, "taskset": taskset}))
        client = vf.EvalClientConfig(base_url=port.url(), api_key_var=KEY)
        tasks = list(env.taskset)
        async with env.serving():
            return await env.run_slot(
                env.slots(tasks[index])[0], vf.ModelContext(model="agent", client=client)
            )

    with answering(policy, monkeypatch) as port:
        episode = asyncio.run(run())
    assert episode.ok, episode.errors or [trace.errors for trace in episode.traces]
    return episode


@pytest.mark.parametrize(
    ("args", "policy"),
    [
        ({}, right),
        ({"mode": "talk"}, better_later),
        ({"taskset": {"tools": True}}, by_tool),
    ],
    ids=["single-turn", "multi-turn", "tool"],
)
def test_rewards_and_metrics_are_those_of_the_librarys_evaluation(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch, args: dict[str, Any], policy: Any
):
    env = make(**args)
    roles = {"agent": CHAT, "rival": LOCAL}
    (trace,) = evaluated("sums", {**args, **roles}, policy, 2, folder, monkeypatch).traces
    ours, info = played(env, policy, 2)
    assert ours == trace.reward == 2.0
    assert info["metrics"] == {"right": 2.0, **trace.metrics}
    assert info["stop"] == trace.stop_condition
    start = time.perf_counter()
    _, info = env.reset(seed=1)
    assert time.perf_counter() - start < 2.0  # 0.2 s on a quiet machine
    assert info["replaced"]["agent"] == {"runtime": "prime", "harness": "bash"}


@pytest.mark.parametrize("at_once", [True, False])
def test_each_role_of_a_game_gets_its_own_reward_of_the_librarys(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
):
    args = {"max_concurrent_agents": None} if at_once else {}
    game = make("pair", game=True, **args)
    totals, rounds = played_game(game, unequal, 1)
    assert rounds == ([{"left", "right"}] if at_once else [{"left"}, {"right"}])
    assert totals == {"left": 5.0, "right": -2.5}
    if at_once:
        roles = {
            name: {**CHAT, "model": name} for name in ("left", "right")
        }  # the library gives all roles one name
        episode = evaluated("pair", {**args, **roles}, unequal, 1, folder, monkeypatch)
        assert {trace.agent.name: trace.reward for trace in episode.traces} == totals


def test_a_user_who_is_simulated_is_an_agent(make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch):
    args = {"id": "user-sim", "persona": "You want: {scenario} Say {done} then."}
    game = make("pair", game=True, **args)
    totals, rounds = played_game(game, customer, 0)
    assert rounds == [{"user"}, {"assistant"}, {"user"}]
    roles = {name: {**CHAT, "model": name} for name in ("assistant", "user")}
    episode = evaluated("pair", {**args, **roles}, customer, 0, folder, monkeypatch)
    assert {trace.agent.name: trace.reward for trace in episode.traces} == totals


def test_a_role_that_plays_several_times_is_refused(make: Make):
    env = make(mode="twice")
    env.reset(seed=0, options={"index": 0})
    env.step("2")
    with pytest.raises(Unplayable, match="plays 2 times"):
        env.step("2")


def test_shells_are_refused_unless_they_are_asked_for(make: Make):
    with pytest.raises(InvalidArgument, match="runs code"):
        make("pair", game=True, left={"harness": {"id": "null"}}, id="shell-needed")


def test_an_endless_task_set_has_a_bound(make: Make):
    env = make(taskset={"endless": True})
    assert env.episode_state()["tasks"] == 10_000
    chat, _ = env.reset(seed=0, options={"index": 40})
    assert chat[-1]["content"] == "What is 41 + 41?"
