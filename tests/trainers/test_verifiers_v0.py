"""Hub packages of the library's first generation: the rewards here are those of the library's own evaluation."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from hub_evaluations import KEY, answering, played
from hub_interpreters import layered_interpreter
from hub_wheels import LOADED_SOURCE, V0_SOURCE, wheel
from prime_hub import PrimeHub, serving

import envweave_gym
from envweave_gym.hubs.prime import hub_chats, hub_packages
from envweave_gym.hubs.prime.hub_lock import HubPackage

if find_spec("verifiers") is None:
    pytest.skip("verifiers is not installed: run make trainers", allow_module_level=True)
pytestmark = pytest.mark.trainers

CALL = {"tool_calls": [{"name": "add", "arguments": {"a": 3, "b": 3}}]}


def right(model: str, messages: list[dict[str, Any]]) -> Any:
    return "6"


def wrong(model: str, messages: list[dict[str, Any]]) -> Any:
    return "no idea"


def better_later(model: str, messages: list[dict[str, Any]]) -> Any:
    return "5" if messages[-1]["content"].startswith("What") else "6"


def by_tool(model: str, messages: list[dict[str, Any]]) -> Any:
    return CALL if messages[-1]["role"] == "user" else messages[-1]["content"]


Make = Callable[..., Any]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """Makes environments of the packages; one with the same arguments is shared, as starting one takes seconds."""
    wheels = {"sums": wheel("vf-sums", source=V0_SOURCE), "loaded": wheel("vf-loaded", source=LOADED_SOURCE)}
    interpreter = layered_interpreter(tmp_path_factory.mktemp("v0"), wheels)
    made: dict[str, Any] = {}

    def one(name: str = "vf-sums", **kwargs: Any) -> Any:
        package = HubPackage(
            owner="acme", name=name, version="1.0.0", sha256="0" * 64, filename="x.whl", generation="v0"
        )
        key = repr((name, kwargs))
        if key not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(hub_chats, "find_installed", lambda hub_id: (package, interpreter))
                made[key] = gym.make("envweave/Hub-v0", hub_id=f"acme/{name}", **kwargs)
        return made[key]

    yield one
    for env in made.values():
        env.close()


def evaluated(args: dict[str, Any], policy: Any, index: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The output of the library's evaluation, with all rows, as ``vf-eval`` runs it."""
    import verifiers as vf
    from verifiers.types import ClientConfig

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with answering(policy, monkeypatch) as port:
        env = vf.load_environment("vf_sums", **args)
        client = ClientConfig(api_base_url=port.url(), api_key_var=KEY, max_retries=0)
        results = asyncio.run(env.evaluate(client=client, model="agent", on_progress=lambda *_: None))
    for number, handler in handlers.items():
        signal.signal(number, handler)
    return results["outputs"][index]


@pytest.mark.parametrize("kind", ["single", "multi", "tool"])
def test_rewards_and_metrics_are_those_of_the_librarys_evaluation(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
):
    (tmp_path / "vf_sums.py").write_text(V0_SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    env = make(env_args={"kind": kind})
    policies = {"single": [right, wrong], "multi": [right, wrong, better_later], "tool": [by_tool, right]}
    for policy in policies[kind]:
        theirs = evaluated({"kind": kind}, policy, 2, monkeypatch)
        ours, info = played(env, policy, 2)
        assert ours == theirs["reward"]
        assert info["metrics"] == theirs["metrics"]
        assert info["stop"] == theirs["stop_condition"]
    start = time.perf_counter()
    env.reset(seed=1)
    assert time.perf_counter() - start < 2.0  # 0.2 s on a quiet machine


def test_a_limit_of_turns_truncates_but_not_the_only_turn(make: Make):
    for kind, ends in (("multi", (False, True)), ("single", (True, False))):
        env = make(env_args={"kind": kind})
        env.reset(seed=0, options={"index": 2})
        while True:
            *_, terminated, truncated, _ = env.step("no idea")
            if terminated or truncated:
                break
        assert (terminated, truncated) == ends


def test_tools_are_offered_and_their_results_come_back(make: Make):
    env = make(env_args={"kind": "tool"})
    _, info = env.reset(seed=0, options={"index": 2})
    assert info["tools"][0]["function"]["name"] == "add"
    chat, *_ = env.step(CALL)
    assert [one["role"] for one in chat] == ["user", "assistant", "tool"]
    assert chat[-1]["content"] == "6"


def test_data_sets_come_from_a_local_folder_without_a_network(make: Make, tmp_path: Path):
    folder = tmp_path / "acme" / "sums" / "main"
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_text('{"question": "What is 20 + 1?", "answer": "21"}\n')
    (folder.parent / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/train.jsonl\n---\n"
    )
    env = make("vf-loaded", data=str(tmp_path))
    chat, _ = env.reset(seed=0)
    assert chat[-1]["content"] == "What is 20 + 1?"
    assert env.step("21")[1] == 1.0


def test_a_package_of_the_hub_is_installed_and_played_with_the_real_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("XDG_CONFIG_HOME", "ENVWEAVE_SUITES"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    with serving(PrimeHub()) as hub:
        monkeypatch.setenv("PRIME_API_BASE_URL", hub.url)
        hub.publish("acme", "vf-sums", "1.0.0", V0_SOURCE, requires=["verifiers>=0.1.8", "datasets>=3.0"])
        package = hub_packages.install("acme/vf-sums")
    assert package.generation == "v0"
    assert [pin for pin in package.pins if pin.startswith("verifiers==")] == ["verifiers==0.3.1"]
    env = envweave_gym.make("prime://acme/vf-sums")
    try:
        assert played(env, right, 2)[0] == 1.125
    finally:
        env.close()
        hub_packages.remove("acme/vf-sums")
