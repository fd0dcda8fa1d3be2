"""Packages of the library's second generation, for the tests with the real library: made here, evaluated by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hub_evaluations import KEY, answering
from hub_interpreters import layered_interpreter
from hub_wheels import V1_PAIR_SOURCE, V1_SHELL_SOURCE, V1_SOURCE, wheel

from envweave_gym.hubs.prime import hub_chats, hub_env, hub_packages
from envweave_gym.hubs.prime.hub_lock import HubPackage

Make = Callable[..., Any]
LOCAL = {"runtime": {"type": "subprocess"}}
CHAT = {**LOCAL, "harness": {"id": "null"}}
SOURCES = {"sums": V1_SOURCE, "pair": V1_PAIR_SOURCE, "shell": V1_SHELL_SOURCE}


@contextmanager
def packages(folder: Path) -> Iterator[Make]:
    """Makes environments and games of the packages; one with the same arguments is shared."""
    wheels = {name: wheel(name, source=source) for name, source in SOURCES.items()}
    interpreter = layered_interpreter(folder, wheels)
    made: dict[str, Any] = {}

    def one(name: str = "sums", make: Callable[..., Any] = hub_env.HubEnv, **env_args: Any) -> Any:
        package = HubPackage(
            owner="acme", name=name, version="1.0.0", sha256="0" * 64, filename="x.whl", generation="v1"
        )
        key = repr((name, make, env_args))
        if key not in made:
            with pytest.MonkeyPatch.context() as patch:
                for module in (hub_chats, hub_packages):
                    patch.setattr(module, "find_installed", lambda hub_id: (package, interpreter))
                made[key] = make(hub_id=f"acme/{name}", env_args=env_args)
        return made[key]

    try:
        yield one
    finally:
        for env in made.values():
            env.close()


def evaluated(
    name: str, args: dict[str, Any], policy: Any, index: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """The episode of the library's evaluation with its own chat loop, which ``vf-eval`` runs for each task."""
    import verifiers.v1 as vf

    (site,) = folder.glob("environment/lib/python3*/site-packages")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site))  # for tool servers
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
