"""Plays packages of the library's second generation: tasksets, their tasks, and an ``Env`` with one role or several.

Roles that declare no client of their own are agents: their model is the port, under the name of the role. Such a role
plays on this machine, without the shell that is the library's default, unless ``env_args`` say otherwise; what the
package declares in place of that is reported.
"""

from __future__ import annotations

import asyncio
import copy
import importlib.util
import itertools
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from .unplayable import Unplayable

HARNESS = "envweave_harness"
_REPLACED_HARNESSES = ("bash", "null")
"""Harnesses in whose place the chat loop of this folder is used, if the package does not name them itself."""
_NOT_PLAYED = "not_played"


async def load(settings: dict[str, Any]) -> Player | DeclaredAgents:
    """Load the environment, and bring up what its episodes share, such as tool servers; or its agents alone."""
    try:
        vf = import_module("verifiers.v1")
        import_module("verifiers.v1.harnesses.utils.mcp")  # the harness needs it
    except ImportError as error:
        raise Unplayable(f"its version of verifiers is not 0.4 or later ({error})") from None
    if settings["split"] != "train":
        raise Unplayable(
            "split='eval' is for the first generation; give the split in env_args={'taskset': {…}}"
        )
    if settings["only_agents"]:
        return DeclaredAgents(vf, settings)
    _preload_harness()
    player = Player(vf, settings)
    await player.open()
    return player


def _preload_harness() -> None:
    """Import the harness under the plain name by which the library looks for it, before a package can."""
    spec = importlib.util.spec_from_file_location(HARNESS, Path(__file__).with_name(f"{HARNESS}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[HARNESS] = module
    spec.loader.exec_module(module)


class DeclaredAgents:
    """The agents of an environment that is not loaded."""

    def __init__(self, vf: Any, settings: dict[str, Any]) -> None:
        self.ready = {"agents": _agents(_roles(_declared(vf, settings))), "tasks": 1, "replaced": {}}

    async def close(self) -> None:
        """Do nothing: nothing was brought up."""


class Player:
    """One environment with its serving resources, and the tasks that were read so far."""

    def __init__(self, vf: Any, settings: dict[str, Any]) -> None:
        args = _args_of(settings)
        declared = _declared(vf, settings)
        roles = _roles(declared)
        self._agents = _agents(roles)
        replaced: dict[str, dict[str, str]] = {}
        for name, role in roles.items():
            given = args.get(name) or {}
            defaults, differences = _role_defaults(name, role, declared, given)
            model = {"model": name} if name in self._agents else {}
            args[name] = {**given, **defaults, **model}
            if differences:
                replaced[name] = differences
        self._env = vf.load_environment(vf.resolve_env_config(args))
        url = f"{settings['url']}/v1"
        client = vf.EvalClientConfig(base_url=url, api_key_var=settings["key"])
        self._context = vf.ModelContext(model=self._agents[0], client=client)
        taskset, limit = self._env.taskset, settings["limit"]
        self._unread = iter(itertools.islice(iter(taskset), limit))
        self._tasks: list[Any] = []
        if not taskset.INFINITE:
            self._tasks = list(self._unread)
        count = limit if taskset.INFINITE else len(self._tasks)
        self.ready = {"agents": self._agents, "tasks": count, "replaced": replaced}
        self._leave, self._opened = asyncio.Event(), asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Enter ``serving()`` in a task of its own, which must also leave it."""
        self._keeper = asyncio.create_task(self._serve())
        opened = asyncio.create_task(self._opened.wait())
        await asyncio.wait([self._keeper, opened], return_when=asyncio.FIRST_COMPLETED)
        if self._keeper.done():
            opened.cancel()
            self._keeper.result()

    async def _serve(self) -> None:
        async with self._env.serving():
            self._opened.set()
            await self._leave.wait()

    async def play(self, index: int, prefix: str) -> dict[str, Any]:
        """Run one episode of a task as the library's evaluation does."""
        slot = self._env.slots(self._task(index))[0]
        episode = await self._env.run_slot(slot, self._context)
        _check(episode)
        by_role = {name: traces for name, traces in episode.by_agent.items() if name in self._agents}
        for name, traces in by_role.items():
            if len(traces) > 1:
                raise Unplayable(
                    f"its role {name!r} plays {len(traces)} times in one episode, with a reward for each; give "
                    "env_args that let it play once"
                )
        played = {name: traces[0] for name, traces in by_role.items()}
        return {
            "rewards": {name: float(played[name].reward) if name in played else 0.0 for name in self._agents},
            "metrics": {name: _numbers(trace) for name, trace in played.items()},
            "stops": {
                name: played[name].stop_condition if name in played else _NOT_PLAYED for name in self._agents
            },
            "truncated": {
                name: bool(trace.is_truncated or trace.is_timeout) for name, trace in played.items()
            },
        }

    def _task(self, index: int) -> Any:
        while len(self._tasks) <= index:
            try:
                self._tasks.append(next(self._unread))
            except StopIteration:
                raise Unplayable(f"its infinite task set has ended after {len(self._tasks)} tasks") from None
        return self._tasks[index]

    async def close(self) -> None:
        """Leave ``serving()``, which ends tool servers and containers."""
        self._leave.set()
        if self._keeper is not None:
            await asyncio.wait([self._keeper])


def _args_of(settings: dict[str, Any]) -> dict[str, Any]:
    args = copy.deepcopy(settings["args"])
    return {**args, "taskset": {**(args.get("taskset") or {}), "id": settings["module"]}}


def _declared(vf: Any, settings: dict[str, Any]) -> Any:
    return vf.resolve_env_config(_args_of(settings))


def _agents(roles: dict[str, Any]) -> list[str]:
    agents = [name for name, role in roles.items() if role.client is None]
    if not agents:
        raise Unplayable("all its roles have clients of their own, so there is no agent to play")
    return agents


def _roles(config: Any) -> dict[str, Any]:
    return import_module("verifiers.v1.configs.agent").agent_config_fields(config)


def _role_defaults(
    name: str, role: Any, config: Any, given: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return overrides of a role's runtime and harness, and what the package declares in their place."""
    overrides: dict[str, Any] = {}
    replaced: dict[str, str] = {}
    if "runtime" not in given and _is_default_sandbox(role.runtime):
        overrides["runtime"] = {"type": "subprocess"}
        replaced["runtime"] = role.runtime.type
    harness = config.agent_harnesses()[name]
    if "harness" in given:
        return overrides, replaced
    executes = _executes_code(harness.id)
    if role.harness is not None and executes:
        raise Unplayable(
            f"its role {name!r} needs the harness {harness.id!r}, which runs code that the model writes; allow that "
            f"with env_args={{'{name}': {{'harness': {{'id': '{harness.id}'}}, 'runtime': {{'type': 'docker'}}}}}}"
        )
    if harness.id in _REPLACED_HARNESSES:
        fields = import_module("verifiers.v1.configs.harness").HarnessConfig.model_fields
        # The fields that all harnesses have stay as they were declared.
        shared = {key: value for key, value in harness.model_dump().items() if key in fields}
        overrides["harness"] = {**shared, "id": HARNESS}
        replaced["harness"] = harness.id
    elif executes:
        raise Unplayable(
            f"it brings the harness {harness.id!r}, which runs code that the model writes; allow that with "
            f"env_args={{'{name}': {{'harness': {{'id': '{harness.id}'}}, 'runtime': {{'type': 'docker'}}}}}}"
        )
    return overrides, replaced


def _is_default_sandbox(runtime: Any) -> bool:
    """Return whether a runtime is the library's default, a paid sandbox of Prime, as no package has chosen it."""
    return runtime == import_module("verifiers.v1.runtimes").PrimeConfig()


def _executes_code(harness_id: str) -> bool:
    loaders = import_module("verifiers.v1.utils.loaders")
    return bool(loaders.harness_class(harness_id).EXECUTES_CODE)


def _check(episode: Any) -> None:
    """Raise ``RuntimeError`` for an episode that was lost: its rewards would not be those of what was played."""
    errors = [] if episode.is_timeout else list(episode.errors)
    for trace in episode.traces:
        errors += [] if trace.is_timeout else trace.errors
        if not trace.is_timeout and any(reward is None for reward in trace.rewards.values()):
            errors = errors or [f"{trace.agent.name} was not scored"]
    if errors:
        last = errors[-1]
        text = last if isinstance(last, str) else f"{last.type}: {last.message}"
        raise RuntimeError(f"the library reports {text}")


def _numbers(trace: Any) -> dict[str, float | None]:
    """Return the metrics of a trace, and its rewards by name with their weights."""
    rewards = {name: None if one is None else float(one.value) for name, one in trace.rewards.items()}
    return {**rewards, **trace.metrics}
