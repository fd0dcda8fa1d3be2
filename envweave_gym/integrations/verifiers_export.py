"""Writes an environment or game as a package for the second generation of ``verifiers``: a taskset and an ``Env``.

A task is a seed. The package has a role for each agent, and plays episodes with
:mod:`envweave_gym.integrations.verifiers_tasks`.
"""

from __future__ import annotations

import json
import keyword
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import metadata, packages_distributions
from pathlib import Path
from typing import Any

from envweave_gym.chat import ChatGame
from envweave_gym.core.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.core.spaces import Json
from envweave_gym.core.version import __version__
from envweave_gym.hubs.prime.dependency_pins import LIBRARY
from envweave_gym.registry.make import make

_TAKEN = frozenset(
    {
        *(
            "id",
            "taskset",
            "timeout",
            "retries",
            "max_concurrent_agents",
            "interception",
            "harness",
            "env_id",
        ),
        *("agent_harnesses", "model_config", "model_fields"),
    }
)
"""Names that roles cannot have, as the library's configuration has them."""
_SUMMARY = "as an environment of verifiers"
_MODULES = frozenset(
    {
        *("verifiers", "envweave_harness", "envweave_gym", "envweave_gym_server", "envweave_gym_pytest"),
        *("gymnasium", "pettingzoo", "numpy", "msgspec", "pydantic", "openai", "datasets", "prime"),
        *("pip", "setuptools", "wheel", "sitecustomize", "usercustomize", "test", "tests"),
    }
)
"""Modules that the package, the library or an install needs, installed here or not."""
_MODULE = '''"""{title} as an environment of verifiers; written by envweave export verifiers."""

import verifiers.v1 as vf

from envweave_gym.integrations.verifiers_tasks import Episodes, SeedsConfig, SeedsTask, SeedsTaskset

__all__ = ["ExportedTaskset", "ExportedEnv"]

EPISODES = Episodes(
    env_id={env_id},
    kwargs={kwargs},
    roles={roles},
    max_turns={max_turns},
)


class ExportedTaskset(SeedsTaskset, vf.Taskset[SeedsTask, SeedsConfig]):
    """Seeds, from the first one on."""


class ExportedEnvConfig(vf.EnvConfig):
    """A role for each agent."""

{fields}


class ExportedEnv(vf.Env[ExportedEnvConfig]):
    """Plays an episode of a seed."""

    async def run(self, task, agents):
        """Let the roles play, and record their returns."""
        await EPISODES.play(task, {{role: getattr(agents, field) for role, field in {by_role}.items()}})
'''
_ROLE = (
    '    {field}: vf.AgentConfig = vf.AgentConfig(harness={{"id": "null"}}, runtime={{"type": "subprocess"}})'
)
_PROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = {name}
version = "0.1.0"
description = {description}
requires-python = ">=3.11"
dependencies = [{library}, {package}]

[tool.setuptools]
py-modules = [{module}]
"""
_README = """# {name}

{description}.

It needs `envweave-gym` {version} or later. Where the package index does not have that, give its path or URL in the same
command:

    pip install PATH_OR_URL_OF_ENVWEAVE_GYM .
    vf-eval {name} --env.taskset.num-tasks 10
"""


def export(
    env_id: str,
    kwargs: Mapping[str, Any] | None = None,
    *,
    out: Path | None = None,
    name: str | None = None,
    max_turns: int = 32,
) -> Path:
    """Write the package of an environment or game into a new folder, and return the folder.

    The environment is made once, for its agents. Raise ``InvalidArgument`` if no model could play it.
    """
    kwargs = dict(kwargs or {})
    if not Json(None).contains(kwargs):
        raise InvalidArgument(
            f"{env_id}: the arguments {shown(kwargs)} are not JSON, without NaN and infinity"
        )
    if type(max_turns) is not int or max_turns < 1:
        raise InvalidArgument(
            f"{env_id}: max_turns={shown(max_turns)} is not a number of replies; give an int >= 1"
        )
    name = _checked_name(env_id, name)
    folder = Path(out or name).absolute()
    if folder.exists():
        raise InvalidArgument(f"{folder} exists already; name another folder")
    files = _files(env_id, kwargs, _roles_of(env_id, kwargs), name, max_turns)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            for path, text in files.items():
                (draft / path).write_text(text, encoding="utf-8")
            draft.chmod(0o755)
            draft.rename(folder)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    except OSError as error:
        raise NotAvailable(f"{folder} cannot be written: {error.strerror}") from None
    return folder


def _checked_name(env_id: str, name: str | None) -> str:
    given = name or re.sub(r"[^a-z0-9]+", "-", env_id.rpartition("/")[2].lower()).strip("-")
    module = given.replace("-", "_")
    installed = packages_distributions().get(module, ())
    is_foreign = any(not (metadata(one)["Summary"] or "").endswith(_SUMMARY) for one in installed)
    if is_foreign or module in _MODULES or module in sys.stdlib_module_names:
        raise InvalidArgument(f"{shown(given)} would hide the module {module}; give another name=")
    if not re.fullmatch(r"[a-z][a-z0-9-]*[a-z0-9]", given) or keyword.iskeyword(module):
        raise InvalidArgument(
            f"{shown(given)} is not a name of a package; give name= in small letters, digits and '-'"
        )
    return given


def _roles_of(env_id: str, kwargs: dict[str, Any]) -> dict[str, str]:
    """Return the fields of the roles by agent; raise ``InvalidArgument`` for an agent that cannot be a field."""
    game = ChatGame(make(env_id, **kwargs))
    try:
        game.check()
        fields = {role: re.sub(r"\W", "_", role) for role in game.roles}
    finally:
        game.close()
    for role, field in fields.items():
        is_usable = field.isidentifier() and not keyword.iskeyword(field) and not field.startswith("_")
        if not is_usable or field in _TAKEN or list(fields.values()).count(field) > 1:
            raise InvalidArgument(f"{env_id}: the agent {role!r} cannot be the name of a role in verifiers")
    return fields


def _files(
    env_id: str, kwargs: dict[str, Any], roles: Mapping[str, str], name: str, max_turns: int
) -> dict[str, str]:
    module = name.replace("-", "_")
    source = _MODULE.format(
        title=_in_docstring(env_id),
        env_id=_literal(env_id),
        kwargs=_literal(kwargs),
        roles=_literal(tuple(roles)),
        max_turns=max_turns,
        fields="\n".join(_ROLE.format(field=field) for field in roles.values()),
        by_role=_literal(dict(roles)),
    )
    compile(source, f"{module}.py", "exec")
    description = f"{env_id} {_SUMMARY}"
    project = _PROJECT.format(
        name=json.dumps(name),
        description=json.dumps(description),
        library=json.dumps(LIBRARY["v1"]),
        package=json.dumps(f"envweave-gym>={__version__}"),
        module=json.dumps(module),
    )
    readme = _README.format(name=name, description=description, version=__version__)
    return {f"{module}.py": source, "pyproject.toml": project, "README.md": readme}


def _literal(value: str | Mapping[str, Any] | Sequence[str]) -> str:
    return repr(value)


def _in_docstring(text: str) -> str:
    """Return a text that cannot end a docstring, or be an escape in it."""
    return "".join(one if one.isprintable() and one not in '"\\' else "_" for one in text)
