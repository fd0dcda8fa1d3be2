"""Provider ``docker``: servers in containers, reached through a loopback port or a Unix socket.

The owner process holds a connection to the container's standard input. It sends the token there, and the server
ends when the connection closes, so containers of killed owners end by themselves. The next start of any owner
removes ended ones by their labels. A container that dies is replaced by another at the same address.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import fields
from functools import partial
from typing import Any

from envweave_gym.containers.container_options import NO_NETWORK, ContainerOptions
from envweave_gym.containers.endpoints import Endpoint, LoopbackPort, SocketFolder
from envweave_gym.containers.engine import engine, engine_errors, is_ours, require_image
from envweave_gym.containers.host_slots import VARIABLE as SLOTS
from envweave_gym.containers.host_slots import shared_folder
from envweave_gym.containers.network import closed_network, names_of_ours, remove_unused
from envweave_gym.containers.owner_stdin import OwnerStdin
from envweave_gym.containers.ownership import keep_leased, labels_of_owner, new_name, renew
from envweave_gym.containers.sweep import sweep
from envweave_gym.core.config import named
from envweave_gym.core.faults import EnvweaveError, NotAvailable
from envweave_gym.providers.base import Leftovers, Provider
from envweave_gym.providers.options import image_in, options_in
from envweave_gym.providers.replica import AT_REST, Replica, is_healthy, with_code

OPTIONS = ("image", *(field.name for field in fields(ContainerOptions)))
"""Options of ``backend="docker"``, beside ``replicas`` and ``warm``."""
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 2  # for steps that are under way
_LOG = {"type": "json-file", "config": {"max-size": "10m", "max-file": "2"}}
_LOG_LINES = 1000
_KILLED = 128 + signal.SIGKILL
_STDIN = 0
_TOKEN_FROM_STDIN = f"--token-fd={_STDIN}"
_ACCESS = ("--token-f", "--allow-anonymous")
"""Prefixes of the command-line options of ``envweave serve`` that configure access."""
_log = logging.getLogger(__name__)


class DockerReplica(Replica):
    """Replica in a Docker container."""

    variables: Mapping[str, str] = {}
    """Further environment variables of the container."""

    def __init__(
        self,
        image: str,
        options: ContainerOptions | None = None,
        *,
        token: str | None = None,
        ids: Sequence[str] = (),
        patience: float = _START_TIMEOUT_S,
    ) -> None:
        """Start the container, and wait at most ``patience`` seconds until its server is healthy.

        The server offers the environments ``ids``, by default all in its image. ``token`` is the clients'
        access token, by default a random one.
        """
        super().__init__(f"a container of {image}", token)
        self.image, self._options = image, options or ContainerOptions()
        self._ids, self._patience = ids, patience
        self.upkeep.trusted = is_ours(image)
        self._client = engine()
        require_image(self._client, image)
        self._container: Any = None
        self._stdin: OwnerStdin | None = None
        self._own_address: tuple[str, int] | None = None
        has_network = self._options.network != NO_NETWORK
        self._endpoint: Endpoint = LoopbackPort() if has_network else SocketFolder()
        self.url = self._endpoint.url
        keep_leased(self)
        self._begin()

    def renew(self) -> None:
        """Renew the container's lease.

        Processes that cannot see whether the owner lives, as in other containers, remove containers whose lease
        has expired. A byte on the standard input keeps proxies before the engine from closing an idle
        connection.
        """
        with self._lock:
            if self._container is not None:
                renew(self._container)
            if self._stdin is not None:
                with suppress(OSError):  # the container has ended, which its next use finds
                    self._stdin.send(b"\n")

    def direct_address(self) -> tuple[str, int] | None:
        """Return the container's own address, if this process can reach it.

        The engine's proxy at the published port would cost as much time as a step.
        """
        return self._own_address

    def _make(self) -> None:
        with engine_errors(f"{self.what} cannot be started"):
            sweep(self._client)
            self._container = self._create()
            self._stdin = OwnerStdin(self._client, self._container)
            self._container.start()
            self._give_token()
            self._container.reload()
        if (why := self._ended()) is not None:
            raise NotAvailable(f"{self.what} ended before its server answered: {why}")
        own = self._endpoint.locate(self._container.attrs)
        self.url = self._endpoint.url
        self._wait_until_healthy(self.url, self._patience)
        self._own_address = own if own and is_healthy(f"http://{own[0]}:{own[1]}") else None

    def _create(self) -> Any:
        is_isolated = self._options.network == NO_NETWORK
        with nullcontext(NO_NETWORK) if is_isolated else closed_network(self._client) as network:
            options, endpoint = self._options.arguments(network), self._endpoint.arguments()
            merged = {
                name: options.pop(name, {}) | endpoint.pop(name, {}) for name in ("environment", "volumes")
            }
            config = self._client.images.get(self.image).attrs["Config"]
            merged["environment"]["ENVWEAVE_OWNER_FD"] = str(_STDIN)
            merged["environment"] |= self.variables
            merged["volumes"] |= _slots_volume(config)
            arguments = {**merged, **endpoint, **options, **self._program(config)}
            return self._client.containers.create(
                self.image,
                stdin_open=True,
                labels=labels_of_owner(),
                name=new_name(),
                log_config=_LOG,
                # The owner asks the server, which is cheaper than a program in the container.
                healthcheck={"test": ["NONE"]},
                **arguments,
            )

    def _program(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of ``containers.create`` that say what to run; ``config`` is that of the image."""
        return {"command": self._command(config)}

    def _command(self, config: dict[str, Any]) -> list[str] | None:
        """Return the arguments for the image's entry point: the IDs to serve, and where the token comes from.

        If the entry point is ``envweave serve``, ``--token-fd`` names the standard input, because older images
        do not know the variable ``ENVWEAVE_OWNER_FD``.
        """
        words = list(self._ids) or list(config.get("Cmd") or ())
        serves = " envweave serve " in f" {' '.join(config.get('Entrypoint') or ())} "
        if serves and not any(word.startswith(_ACCESS) for word in words):
            words.insert(0, _TOKEN_FROM_STDIN)
        return words or None

    def _give_token(self) -> None:
        """Send the token over the standard input; if the container has ended already, its error is reported later."""
        if self._stdin is not None:
            with suppress(OSError):
                self._stdin.send(f"{self.token}\n".encode())

    def _ended(self) -> str | None:
        from docker.errors import NotFound
        from requests import RequestException

        if self._container is None:
            return AT_REST
        try:
            self._container.reload()
        except NotFound:
            return "somebody has removed it"
        except RequestException as error:
            _log.warning("the engine cannot be asked for the container of %s: %s", self.image, error)
            return None
        state = self._container.attrs["State"]
        if state["Running"]:
            return None
        # With another exit code the kernel killed one of its processes earlier, and the server went on.
        if state["OOMKilled"] and state["ExitCode"] == _KILLED:
            return f"it took more than its memory ({self._options.memory}); give it more with memory="
        return with_code(state["ExitCode"], self.logs(), "" if self.starts else self.advice)

    def logs(self) -> str:
        """Return the last lines of the container's output."""
        from requests import RequestException

        if (container := self._container) is None:
            return ""
        try:
            return container.logs(tail=_LOG_LINES).decode(errors="replace")
        except RequestException as error:
            return f"(its log cannot be read: {error})"

    def _end(self) -> None:
        from requests import RequestException

        if self._container is None:
            return
        try:
            self._container.stop(timeout=_STOP_TIMEOUT_S)
        except RequestException as error:  # it has ended already, or the removal reports the error
            _log.info("the container of %s was not stopped: %s", self.image, error)
        self._remove()
        try:
            remove_unused(self._client)
        except (RequestException, NotAvailable) as error:  # the next one that ends removes it
            _log.warning("the network of containers stays: %s", error)

    def _remove(self) -> None:
        from docker.errors import APIError

        self._own_address = None
        stdin, self._stdin = self._stdin, None
        if stdin is not None:
            stdin.close()
        if (container := self._container) is not None:
            with engine_errors(f"the container {container.name} cannot be removed"):
                try:
                    container.remove(force=True, v=True)
                except APIError as error:
                    # 404: another process has removed it. 409: another process is removing it.
                    if error.status_code not in (404, 409):
                        raise
            self._container = None
        self._endpoint.reserve()

    def _close(self) -> None:
        self._endpoint.close()


def _slots_volume(config: dict[str, Any]) -> dict[str, Any]:
    """Return a mount of this machine's folder of slot files if the image sets ``ENVWEAVE_SLOTS``, else ``{}``."""
    variables = dict(one.partition("=")[::2] for one in config.get("Env") or ())
    if not (path := variables.get(SLOTS)):
        return {}
    return {str(shared_folder()): {"bind": path, "mode": "ro"}}


class DockerProvider(Provider):
    """Provider that starts servers in Docker containers."""

    name, noun = "docker", "containers"
    uses_images = mounts_data = True

    def start(self, name: str, image: str | None, options: dict[str, Any]) -> partial[DockerReplica]:
        """Return a function that starts a container with the container options in ``options``."""
        own = options_in(options, OPTIONS)
        image = image_in(name, own, image)
        with named(name):
            return partial(DockerReplica, image, ContainerOptions(**own))

    def sweep(self, places: Iterable[Mapping[str, str]] = ()) -> Leftovers:
        """Remove the containers of owners that have ended, and their network if it is unused; ignore ``places``."""
        containers, networks, failed = list[str](), list[str](), list[str]()
        try:
            client = engine()
            before = names_of_ours(client)
            containers += sweep(client)
            remove_unused(client)
            networks += [name for name in before if name not in names_of_ours(client)]
        except EnvweaveError as error:
            failed.append(f"containers could not be looked for: {error}")
        return Leftovers({"containers": containers, "networks": networks}, failed)
