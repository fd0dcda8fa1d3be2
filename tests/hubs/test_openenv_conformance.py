"""An environment of an OpenEnv server keeps every rule of the conformance kit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from conforming import every_check, run
from openenv_servers import OBSERVATION, SCHEMA, OpenEnvServer, openenv_server

import envweave_gym
from envweave_gym.testing import Subject
from envweave_gym.testing.runs import Check

ID = "envweave/OpenEnv-v0"
# A bound, as Gymnasium's AsyncVectorEnv(shared_memory=False) resets a row twice if reset() follows an episode's end.
BOUNDED = {**OBSERVATION["properties"], "text": {"type": "string", "maxLength": 32}}
_servers: list[OpenEnvServer] = []


def make(**kwargs: Any) -> Any:
    return envweave_gym.make(ID, url=_servers[0].name, **kwargs)


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    """One server lasts for all checks."""
    with openenv_server(
        schema={**SCHEMA, "observation": {**OBSERVATION, "properties": BOUNDED}}, seeded=True
    ) as running:
        _servers.append(running)
        yield
        _servers.clear()


@every_check([(ID, Subject(ID, make, remote=True))])
def test_an_openenv_environment_conforms(subject: Subject, check: Check) -> None:
    run(check, subject)
