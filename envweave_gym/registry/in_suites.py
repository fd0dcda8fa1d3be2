"""Makes environments with ``backend="venv"``: each suite in a virtual environment and processes of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from envweave_gym.core.arguments import call as call_constructor
from envweave_gym.core.arguments import check_deadline, check_faults, check_reproducible, step_limit
from envweave_gym.core.config import true_or_false
from envweave_gym.core.faults import RESET_DEADLINE_S, InvalidArgument, UnknownEnvironment, shown
from envweave_gym.os_support.parent_process import end_with_parent
from envweave_gym.providers.venv import not_for_ours
from envweave_gym.registry.catalog import cards
from envweave_gym.registry.make_call import (
    MakeCall,
    refuse_for_games,
    take_group,
    vector_arguments,
)
from envweave_gym.registry.names import registered_id
from envweave_gym.remote.served_environment import CALL_DEADLINE
from envweave_gym.suites.requirement_lists import distributions_of, name_of, with_inside
from envweave_gym.suites.suite_env import streamed, suite_env
from envweave_gym.suites.suite_files import free_name, suite_named, suite_of
from envweave_gym.suites.suite_games import SuiteAEC, SuiteParallel
from envweave_gym.suites.suite_session import Launch, SuiteSession, shared_process
from envweave_gym.suites.suite_vector import SuiteVector
from envweave_gym.suites.virtual_environments import (
    VenvSpec,
    acquire,
    add_command,
    marker_of,
    venv_spec,
)
from envweave_gym.vector.row_groups import groups_of
from envweave_gym.vector.singles import vector_of_singles
from envweave_gym.wrappers.autoreset import LaunchedAutoreset
from envweave_gym.wrappers.scalar_rewards import is_scalar_reward

_STACK = ("on_fault", "reset_deadline", "reproducible")
_SPEC_FIELDS = ("reward_threshold", "nondeterministic")
_OF_VECTORS = ("autoreset", "group", "autoreset_mode", "vectorization_mode", "vector_kwargs")
_MAX_PROCESSES = 256


class _Parts(NamedTuple):
    """Arguments of a call, by what they are for."""

    launch: Launch
    stack: dict[str, Any]
    """Arguments of the stream wrapper."""
    processes: int | None
    """Number of processes of a vector's rows."""
    vector: dict[str, Any]
    """Arguments of the vector."""
    spec_of: Callable[[dict[str, Any]], EnvSpec | None]
    """Function that returns the environment's spec from the suite's description."""


def make_in_suite(call: MakeCall) -> Any:
    """Make an environment, a vector or a game in its suite.

    Of the keyword arguments these say where it runs: ``requirements=`` or ``suite=``, ``python=``, ``install=``,
    ``processes=`` (of a vector) and ``call_deadline=``. ``max_steps=``, ``autoreset=``, ``on_fault=``, … are those of
    :func:`envweave_gym.make`; all others go to the environment.
    """
    name = call.name.rpartition(":")[2]
    if cards().get(registered_id(name) or "") is not None:
        raise not_for_ours(name)
    end_with_parent()
    kwargs = {**call.kwargs}
    spec, command, install = _suite(call.name, name, kwargs)
    parts = _checked(call, name, kwargs)
    environment = acquire(spec, install=install, command=command)
    try:  # the sessions take leases of their own meanwhile
        marker = marker_of(environment.folder)
        names = distributions_of(spec.requirements, () if marker is None else marker.pins)
        launch = replace(parts.launch, folder=environment.folder, distributions=names)
        parts = parts._replace(launch=launch)
        return _single(call, parts) if call.num_envs is None else _vector(call, call.num_envs, parts)
    finally:
        environment.release()


def _single(call: MakeCall, parts: _Parts) -> Any:
    launch, stack, autoreset = parts.launch, parts.stack, parts.vector.pop("autoreset", False)
    session = SuiteSession(launch)
    session.open()
    try:
        if session.description["api"] == "gym":
            env = streamed(session, stack, parts.spec_of)
            return LaunchedAutoreset(env) if autoreset else env
        given = {} if launch.limit is None else {"max_steps": launch.limit}
        refuse_for_games(launch.name, None, {**given, **({"autoreset": True} if autoreset else {})})
        kind: Any = SuiteAEC if call.api == "aec" else SuiteParallel
        return kind(launch, session=session, **{key: stack[key] for key in _STACK if key in stack})
    except BaseException:
        session.close()
        raise


def _vector(call: MakeCall, num_envs: int, parts: _Parts) -> Any:
    launch, stack = parts.launch, parts.stack
    how, options = vector_arguments(launch.name, parts.vector)
    group = take_group(launch.name, parts.vector)
    if how == "vector_entry_point":
        raise InvalidArgument(
            f"{launch.name} has no native vector form in its suite; leave vectorization_mode out"
        )
    if group not in (None, 1):
        stack["reproducible"] = True
    if how == "async":
        make = partial(suite_env, launch, stack, parts.spec_of)
        return vector_of_singles(launch.name, make, num_envs, how, options, group)
    count = min(num_envs, parts.processes or max(2, os.cpu_count() or 1))
    processes = [shared_process(launch.folder, is_lone=count == 1) for _ in range(count)]
    sessions = [SuiteSession(launch, processes[row % count]) for row in range(num_envs)]
    try:
        begun = [one.begin_open() for one in sessions]
        rows = [_row(session, number, parts) for session, number in zip(sessions, begun, strict=True)]
        made = [partial(_itself, row) for row in rows]
        kind: Any = SuiteVector
        vector: Any = call_constructor(launch.name, partial(kind, made), options)
    except BaseException as error:
        for session in sessions:
            try:
                session.close()
            except Exception as other:  # noqa: BLE001 - the others have to be closed, too
                error.add_note(f"closing a row failed as well: {other}")
        raise
    vector.name, vector.groups = launch.name, groups_of(launch.name, group, num_envs)
    return vector


def _row(session: SuiteSession, begun: int, parts: _Parts) -> Any:
    session.open(begun)
    if session.description["api"] != "gym":
        refuse_for_games(session.launch.name, 1, {})
    return streamed(session, parts.stack, parts.spec_of)


def _itself(row: Any) -> Any:
    return row


# Arguments


def _checked(call: MakeCall, name: str, kwargs: dict[str, Any]) -> _Parts:
    """Divide the arguments that are left after :func:`_suite`; the launch has no folder yet."""
    # A spec may be sent to another machine, and consent to an install is for this one.
    again = {key: value for key, value in call.kwargs.items() if key != "install"}
    arguments = {**again, "backend": "venv", "name": call.name}
    deadline = kwargs.pop("call_deadline", CALL_DEADLINE)
    check_deadline(name, "call_deadline", deadline)
    stack: dict[str, Any] = {"on_fault": "truncate", "reproducible": False}
    stack |= {key: kwargs.pop(key) for key in _STACK if key in kwargs}
    check_faults(name, stack["on_fault"], stack.get("reset_deadline", RESET_DEADLINE_S))
    check_reproducible(name, stack["reproducible"])
    if is_scalar_reward(kwargs.get("reward")):
        stack["reward"] = kwargs.pop("reward")
    limit = step_limit(name, kwargs.pop("max_steps")) or -1 if "max_steps" in kwargs else None
    processes = kwargs.pop("processes", None)
    if processes is not None and (
        call.num_envs is None or type(processes) is not int or not 1 <= processes <= _MAX_PROCESSES
    ):
        raise InvalidArgument(
            f"{name}: processes={shown(processes)} is not a number of processes from 1 to {_MAX_PROCESSES} for "
            "the rows of a vector; give num_envs= too"
        )
    vector = {key: kwargs.pop(key) for key in _OF_VECTORS if key in kwargs}
    launch = Launch(name, Path(), call.name, call.api, (), kwargs, limit, deadline)
    return _Parts(launch, stack, processes, vector, partial(_spec, arguments))


def _suite(full_name: str, name: str, kwargs: dict[str, Any]) -> tuple[VenvSpec, str, bool]:
    """Take the suite out of ``kwargs``; return its spec, the command that installs it, and the consent."""
    install = kwargs.pop("install", False)
    true_or_false(f"{name}: install", install)
    requirements, suite = kwargs.pop("requirements", None), kwargs.pop("suite", None)
    python = kwargs.pop("python", None)
    if requirements is not None:
        if suite is not None:
            raise InvalidArgument(f"{name}: requirements= and suite= both say which suite; give one of them")
        spec = venv_spec(name, with_inside(requirements), python)
        own = spec.requirements[:-1]
        command = add_command(free_name(name_of(own[0])), own, spec.python, "--ids", name)
        return spec, command, install
    if python is not None:
        raise InvalidArgument(f"{name}: python= needs requirements=; a named suite has its own")
    try:
        found = suite_of(full_name) if suite is None else suite_named(suite)
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}") from error
    if found is None:
        raise UnknownEnvironment(
            f"{name}: backend='venv' knows no suite with this ID; give requirements=['…'], or add one with: "
            f"envweave suites add NAME REQUIREMENT --ids '{name}'"
        )
    what = f"{name} (suite {found.name!r} of {found.file})"
    return found.venv_spec(what), f"envweave suites add {found.name}", install


def _spec(arguments: dict[str, Any], described: dict[str, Any]) -> EnvSpec | None:
    """Return a spec with which ``gymnasium.make`` makes the environment in its suite again."""
    fields = {key: value for key, value in described["spec"].items() if key in _SPEC_FIELDS}
    try:
        return EnvSpec(
            described["spec"].get("id") or arguments["name"].rpartition(":")[2],
            entry_point=f"{__name__}:{make_again.__name__}",
            kwargs=arguments,
            disable_env_checker=True,
            order_enforce=False,
            **fields,
        )
    except gym.error.Error:
        return None


def make_again(*, name: str, **arguments: Any) -> Any:
    """Make the environment of a spec; ``name`` is its name for :func:`envweave_gym.make`."""
    from envweave_gym.registry.make import make

    return make(name, **arguments)
