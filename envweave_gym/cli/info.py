"""``envweave info``: spaces, arguments and limits of one environment."""

from __future__ import annotations

import argparse
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from pettingzoo import AECEnv, ParallelEnv

from envweave_gym.cli.tables import print_json, screen_width, table, wrapped
from envweave_gym.core.faults import InvalidArgument
from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.protocols import AGENT
from envweave_gym.registry.catalog import EnvCard, cards
from envweave_gym.registry.make import make
from envweave_gym.registry.names import resolve


def run(args: argparse.Namespace) -> int:
    """Make the environment, print its description and close it.

    Without ``--kwarg`` it is made with its card's ``trial`` arguments, which work on every machine.
    """
    card = card_named(args.id)
    env = make_single(args.id, dict(args.kwarg) or (dict(card.trial) if card else {}))
    try:
        document = describe(args.id, env)
    finally:
        env.close()
    if args.json:
        print_json(document)
    else:
        _print(document)
    return 0


def make_single(name: str, kwargs: Mapping[str, Any]) -> Any:
    """Make a Gymnasium environment or a game; raise ``InvalidArgument`` for arguments that make a vector."""
    env = make(name, **kwargs)
    if not isinstance(env, gym.Env | AECEnv | ParallelEnv):
        env.close()
        raise InvalidArgument(f"{name}: these arguments make a vector environment; leave num_envs out")
    return env


def card_named(name: str) -> EnvCard | None:
    """Return the card of a name in the grammar of ``make``; ``None`` for an environment without a card."""
    return cards().get(resolve(name) or "")


def describe(name: str, env: Any) -> dict[str, Any]:
    """Return the description that ``envweave info`` prints, as a dict."""
    card, core = card_named(name), env.unwrapped
    path = card and (card.gym or card.parallel or card.aec)
    constructor = pkgutil.resolve_name(path) if path else type(core)
    defaults, required = _arguments(constructor, card.kwargs if card else {})
    return {
        "id": card.id if card else name,
        "doc": _documentation(constructor, core) or (card.doc if card else ""),
        "kinds": list(card.kinds) if card else [_kind(env)],
        "native_vector": bool(card and card.vector),
        "agents": _spaces(env),
        "required_kwargs": required,
        "kwargs": jsonable(defaults),
        "wire_kwargs": list(card.remote_kwargs) if card else [],
        "max_steps": card.max_steps if card else env.spec and env.spec.max_episode_steps,
        "render_modes": list(env.metadata.get("render_modes") or []),
        "nondeterministic": bool(card and card.nondeterministic),
        "extra": card.extra if card else None,
    }


def _arguments(constructor: Callable[..., Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the constructor's arguments with their values, and the names of those without a value.

    A value is the one in ``given``, else the default.
    """
    parameters = inspect.signature(constructor).parameters.values()
    named = {p.name: p.default for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    named.update(given)
    required = [name for name, default in named.items() if default is inspect.Parameter.empty]
    return {name: default for name, default in named.items() if name not in required}, required


def _documentation(constructor: Callable[..., Any], core: Any) -> str:
    """Return the docstring of the class, else of its factory, else of its module."""
    module = inspect.getmodule(type(core))
    return inspect.cleandoc(type(core).__doc__ or constructor.__doc__ or (module and module.__doc__) or "")


def _kind(env: Any) -> str:
    return "gym" if isinstance(env, gym.Env) else "aec" if isinstance(env, AECEnv) else "parallel"


def _spaces(env: Any) -> dict[str, dict[str, str]]:
    if isinstance(env, gym.Env):
        return {AGENT: {"observation": str(env.observation_space), "action": str(env.action_space)}}
    return {
        agent: {"observation": str(env.observation_space(agent)), "action": str(env.action_space(agent))}
        for agent in env.possible_agents
    }


def _print(document: dict[str, Any]) -> None:
    width = screen_width()
    kinds = document["kinds"] + ["vector"] * document["native_vector"]
    defaults = [f"{name}={value!r}" for name, value in document["kwargs"].items()]
    rows = [
        ("kind", ", ".join(kinds)),
        *_agent_rows(document["agents"]),
        ("arguments", ", ".join(document["required_kwargs"] + defaults) or "none"),
        ("a client may send", ", ".join(document["wire_kwargs"]) or "none"),
        *([("step limit", str(document["max_steps"] or "none"))] if "gym" in kinds else []),
        ("render modes", ", ".join(document["render_modes"]) or "none"),
        ("a seed decides", "no" if document["nondeterministic"] else "yes"),
        ("extra", document["extra"] or "none"),
    ]
    print(document["id"], wrapped(document["doc"], width), table(rows, width), sep="\n\n")


def _agent_rows(agents: dict[str, dict[str, str]]) -> list[tuple[str, str]]:
    """Return rows with the agents and their spaces, which are listed once if all agents have the same."""
    first, *others = agents.values()
    rows = [("agents", ", ".join(agents))]
    if all(spaces == first for spaces in others):
        return rows + list(first.items())
    for agent, spaces in agents.items():
        rows += [(f"{part} of {agent}", text) for part, text in spaces.items()]
    return rows
