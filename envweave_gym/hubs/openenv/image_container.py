"""Containers of OpenEnv images, which end with the process that has started them.

Each environment has a container of its own, because most servers of OpenEnv take one session only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from envweave_gym.containers.container_options import NO_NETWORK, ContainerOptions
from envweave_gym.containers.engine import check_image
from envweave_gym.core.config import named
from envweave_gym.core.faults import InvalidArgument, nearest, shown
from envweave_gym.core.secret_reference import is_reference, read_reference
from envweave_gym.providers.docker import DockerReplica

_START_TIMEOUT_S = 120.0
"""Servers of OpenEnv import for five seconds on an idle machine, and those with models for longer."""
_OPTIONS = tuple(field.name for field in fields(ContainerOptions))
# The engine closes the standard input when the owner process ends, however it ends. Then "cat" ends, and the
# server is killed. The shell is the first process of the container, so its end ends everything in it.
_SCRIPT = (
    'exec 3<&0; "$@" 3<&- </dev/null & server=$!; '
    "(cat <&3 >/dev/null; kill -KILL $server) & exec 3<&-; "
    "trap 'kill -TERM $server' TERM; wait $server"
)


class OpenEnvContainer(DockerReplica):
    """Container with a server of OpenEnv, which listens on port 8000."""

    program = "a server of OpenEnv on port 8000"
    advice = "the image has to run a server of OpenEnv on port 8000"

    def __init__(self, image: str, options: ContainerOptions, variables: Mapping[str, str]) -> None:
        """Start the container, with these environment variables, and wait until its server answers."""
        self.variables = variables
        super().__init__(image, options, patience=_START_TIMEOUT_S)

    def _program(self, config: dict[str, Any]) -> dict[str, Any]:
        command = [*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())]
        # Such images write to folders of their own; what they write goes with the container.
        return {"entrypoint": ["/bin/sh", "-c", _SCRIPT, "sh"], "command": command, "read_only": False}

    def _give_token(self) -> None:
        """Send nothing: these servers have no token."""


def start_container(of: str, image: str, options: Mapping[str, Any]) -> OpenEnvContainer:
    """Start a container of ``image``; ``of`` is the environment's name, for errors."""
    given = dict(options)
    variables = variables_in(of, given)
    for name in given:
        if name not in _OPTIONS:
            allowed = ("env", *_OPTIONS)
            raise InvalidArgument(
                f"{of} takes no argument {shown(name)}{nearest(name, allowed)}; a container takes "
                f"{', '.join(allowed)}"
            )
    if given.get("network") == NO_NETWORK:
        raise InvalidArgument(f"{of}: network={NO_NETWORK!r} cuts its server off; leave it out or give True")
    with named(of):
        check_image(image)
        return OpenEnvContainer(image, ContainerOptions(**given), variables)


def variables_in(of: str, options: dict[str, Any]) -> dict[str, str]:
    """Remove ``env`` from the options and return it with references to secrets replaced by the secrets."""
    given = options.pop("env", {})
    if not isinstance(given, Mapping) or not all(
        isinstance(text, str) for pair in given.items() for text in pair
    ):
        raise InvalidArgument(f"{of}: env is a dict of variables and texts, like {{'SIZE': '8'}}")
    try:
        return {name: read_reference(text) if is_reference(text) else text for name, text in given.items()}
    except (KeyError, OSError, ValueError) as error:
        raise InvalidArgument(f"{of}: env has a reference to a secret that leads nowhere: {error}") from None
