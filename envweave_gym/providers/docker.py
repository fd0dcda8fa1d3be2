"""A server in a container, reached through a port of this machine's loopback, or a Unix socket.

The container is its owner's. Its standard input is a connection of the owner: the token comes over it, and
the server ends when it closes, so the containers of a killed owner end by themselves. Labels say whose they
are, and the next owner that starts removes what has ended. One that dies is started again at the same port.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import fields
from functools import partial
from typing import Any

from envweave_gym.containers.box import NO_NETWORK, Box
from envweave_gym.containers.engine import engine, told
from envweave_gym.containers.entrance import Entrance, LoopbackPort, SocketFolder
from envweave_gym.containers.host_slots import VARIABLE as SLOTS
from envweave_gym.containers.host_slots import shared_folder
from envweave_gym.containers.images import is_ours, require_image
from envweave_gym.containers.lease import keep_leased, new_name, renew
from envweave_gym.containers.network import closed_network, names_of_ours, remove_unused
from envweave_gym.containers.owner_stdin import OwnerStdin
from envweave_gym.containers.ownership import labels_of_owner
from envweave_gym.containers.sweep import sweep
from envweave_gym.core.faults import EnvweaveError, NotAvailable
from envweave_gym.providers.base import Leftovers, Provider
from envweave_gym.providers.health import is_healthy
from envweave_gym.providers.options import image_in, named, options_in
from envweave_gym.providers.replica import AT_REST, NO_SERVER, Replica, with_code

OPTIONS = ("image", *(field.name for field in fields(Box)))
"""What ``make`` takes beside ``backend="docker"``, ``replicas`` and ``warm``."""
_PATIENCE = 60.0
_GRACE = 2
"""So many seconds a server has for the steps that are under way when it is stopped."""
_LOG = {"type": "json-file", "config": {"max-size": "10m", "max-file": "2"}}
_LINES = 1000
"""So many lines of its log are read."""
_KILLED = 128 + signal.SIGKILL
_STDIN = 0
_TOKEN_FROM_STDIN = f"--token-fd={_STDIN}"
_ACCESS = ("--token-f", "--allow-anonymous")
"""How the options of ``envweave serve`` begin that say whom it lets in."""
_log = logging.getLogger(__name__)


class DockerReplica(Replica):
    """One container."""

    def __init__(
        self,
        image: str,
        box: Box | None = None,
        *,
        token: str | None = None,
        ids: Sequence[str] = (),
        patience: float = _PATIENCE,
    ) -> None:
        """Start it, and wait until it serves.

        ``box`` says what it may do and use, and ``ids`` what it serves: by default what the image has.
        """
        super().__init__(f"a container of {image}", token)
        self.image, self._box, self._ids, self._patience = image, box or Box(), ids, patience
        self.upkeep.trusted = is_ours(image)
        self._client = engine()
        require_image(self._client, image)
        self._container: Any = None
        self._stdin: OwnerStdin | None = None
        self._place: tuple[str, int] | None = None
        self._is_alone = self._box.network == NO_NETWORK
        self._entrance: Entrance = SocketFolder() if self._is_alone else LoopbackPort()
        self.url = self._entrance.url
        keep_leased(self)
        self._begin()

    def renew(self) -> None:
        """Renew the lease by which processes that cannot see this one know that the container is in use.

        A byte on its standard input keeps proxies before the engine from ending a connection that is idle.
        """
        with self._lock:
            if self._container is not None:
                renew(self._container)
            if self._stdin is not None:
                with suppress(OSError):  # the container has ended, which whoever uses it next finds
                    self._stdin.send(b"\n")

    def place(self) -> tuple[str, int] | None:
        """Where the container itself is: the engine's proxy behind the port costs as much as a step."""
        return self._place

    def _make(self) -> None:
        with told(f"{self.what} cannot be started"):
            sweep(self._client)
            self._container = self._create()
            self._stdin = OwnerStdin(self._client, self._container)
            self._container.start()
            self._give_token()
            self._container.reload()
        if (why := self._ended()) is not None:
            raise NotAvailable(f"{self.what} ended before its server answered: {why}")
        inside = self._entrance.found(self._container.attrs)
        self.url = self._entrance.url
        self._wait_until_healthy(self.url, self._patience)
        self._place = inside if inside and is_healthy(f"http://{inside[0]}:{inside[1]}") else None

    def _create(self) -> Any:
        with nullcontext(NO_NETWORK) if self._is_alone else closed_network(self._client) as network:
            boxed, entered = self._box.arguments(network), self._entrance.arguments()
            merged = {
                name: boxed.pop(name, {}) | entered.pop(name, {}) for name in ("environment", "volumes")
            }
            config = self._client.images.get(self.image).attrs["Config"]
            merged["environment"]["ENVWEAVE_OWNER_FD"] = str(_STDIN)
            merged["volumes"] |= _slots(config)
            return self._client.containers.create(
                self.image,
                self._command(config),
                stdin_open=True,
                labels=labels_of_owner(),
                name=new_name(),
                log_config=_LOG,
                healthcheck={"test": ["NONE"]},  # this process asks; a program in it each time costs more
                **merged,
                **entered,
                **boxed,
            )

    def _command(self, config: dict[str, Any]) -> list[str] | None:
        """The arguments of the image's entry point.

        Where that is ``envweave serve`` an option names standard input as the origin of the token: images
        that were built before there was ``ENVWEAVE_OWNER_FD`` know the option alone.
        """
        words = list(self._ids) or list(config.get("Cmd") or ())
        serves = " envweave serve " in f" {' '.join(config.get('Entrypoint') or ())} "
        if serves and not any(word.startswith(_ACCESS) for word in words):
            words.insert(0, _TOKEN_FROM_STDIN)
        return words or None

    def _give_token(self) -> None:
        """Send the token; one that has ended by now says why when it is asked for."""
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
        if state["OOMKilled"] and state["ExitCode"] == _KILLED:  # not one of its processes, at another time
            return f"it took more than its memory ({self._box.memory}); give it more with memory="
        return with_code(state["ExitCode"], self.logs(), "" if self.starts else NO_SERVER)

    def logs(self) -> str:
        """The end of what the container has written."""
        from requests import RequestException

        if (container := self._container) is None:
            return ""
        try:
            return container.logs(tail=_LINES).decode(errors="replace")
        except RequestException as error:
            return f"(its log cannot be read: {error})"

    def _end(self) -> None:
        from requests import RequestException

        if self._container is None:
            return
        try:
            self._container.stop(timeout=_GRACE)
        except RequestException as error:  # it has ended already, or the removal tells
            _log.info("the container of %s was not stopped: %s", self.image, error)
        self._remove()
        try:
            remove_unused(self._client)
        except (RequestException, NotAvailable) as error:  # whoever goes next takes it along
            _log.warning("the network of containers stays: %s", error)

    def _remove(self) -> None:
        from docker.errors import APIError

        self._place = None
        stdin, self._stdin = self._stdin, None
        if stdin is not None:
            stdin.close()
        if (container := self._container) is not None:
            with told(f"the container {container.name} cannot be removed"):
                try:
                    container.remove(force=True, v=True)
                except APIError as error:
                    if error.status_code not in (404, 409):  # somebody else has removed it, or is removing it
                        raise
            self._container = None
        self._entrance.keep()

    def _close(self) -> None:
        self._entrance.close()


def _slots(config: dict[str, Any]) -> dict[str, Any]:
    """The volume with the lock files of this machine's slots, if the image sets ``ENVWEAVE_SLOTS``."""
    variables = dict(one.partition("=")[::2] for one in config.get("Env") or ())
    if not (there := variables.get(SLOTS)):
        return {}
    return {str(shared_folder()): {"bind": there, "mode": "ro"}}


class DockerProvider(Provider):
    """Starts servers in containers."""

    name, noun = "docker", "containers"
    uses_images = mounts_data = True

    def start(self, name: str, image: str | None, options: dict[str, Any]) -> partial[DockerReplica]:
        """A function that starts a container."""
        own = options_in(options, OPTIONS)
        image = image_in(name, own, image)
        with named(name):
            return partial(DockerReplica, image, Box(**own))

    def sweep(self, places: Iterable[Mapping[str, str]] = ()) -> Leftovers:
        """Remove the containers of owners that are gone, and their network if it is unused."""
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
