"""Patches are tried in a fresh container of the instance's official image.

A fresh one costs a few tenths of a second and starts with the repository as it is in the image, whatever the
patch before has done. It has no network, its share of the machine, and ends with its owner: what keeps it
running is a program that reads from a connection of this process. That is its first process, which no signal
from inside can end, so a patch cannot make a loss of its own failure. It is removed by force, which is what
the official way waits 15 seconds for.
"""

from __future__ import annotations

import io
import logging
import signal
import struct
import tarfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from envweave_gym.containers.engine import engine, engine_errors
from envweave_gym.containers.owner_stdin import OwnerStdin, shut_down, socket_of
from envweave_gym.containers.ownership import labels_of_owner, new_name
from envweave_gym.containers.sweep import sweep
from envweave_gym.core.faults import InvalidArgument, MissingExtra, NotAvailable, shown
from envweave_gym.core.sizes import memory_of
from envweave_gym.data.swebench_lite import Instance
from envweave_gym.swebench.images import check_keep, images_of
from envweave_gym.swebench.workspace import NotHere, Ran, WorkspaceLost, check_pids

LONGEST_LOG = 16 << 20
"""What writes more bytes is killed."""
GRACE = 0.5
"""Seconds from a command's time limit until it is killed; this process waits as long again."""
_CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID"]
"""What root may do in it: what installing and testing needs. The engine's default is more."""
_ENVIRONMENT = {
    "PIP_NO_INDEX": "1",
    "PIP_NO_DEPS": "1",
    "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this as: no isolation
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
"""The official scripts install the repository anew, which works without a network like this."""
_SWEPT_EVERY = 60.0
_SLACK = 0.5
_PATIENCE, _PAUSE = 10.0, 0.02
_KILLED = 128 + signal.SIGKILL
_BY_TIMEOUT = (124, _KILLED)
_log = logging.getLogger(__name__)
_last_sweep = -_SWEPT_EVERY


@dataclass(frozen=True)
class Options:
    """What containers are like."""

    memory: int | str = "4g"
    pids: int = 1024
    pull: bool = True
    """Whether an image is fetched where it is not there."""
    keep_images: int | None = None
    """Limit of fetched images that stay; by default all."""

    def __post_init__(self) -> None:
        memory_of(self.memory)
        check_pids(self.pids)
        check_keep(self.keep_images)
        if type(self.pull) is not bool:
            raise InvalidArgument(f"pull={shown(self.pull)} is neither True nor False")


def open_workspace(instance: Instance, **options: Any) -> DockerWorkspace:
    """A container of the instance's image; ``options`` are those of :class:`Options`."""
    global _last_sweep
    given = Options(**options)
    client = _engine()
    if time.monotonic() - _last_sweep > _SWEPT_EVERY:
        _last_sweep = time.monotonic()
        with engine_errors("what others have left behind cannot be looked for"):
            sweep(client)
    images, keep = images_of(client), given.keep_images
    image = images.require(instance.image, pull=given.pull, keep=keep)
    memory, release = memory_of(given.memory), partial(images.release, image, keep)
    return DockerWorkspace(client, image, memory=memory, pids=given.pids, release=release)


def _engine() -> Any:
    try:
        return engine()
    except MissingExtra:
        raise
    except NotAvailable as error:
        raise NotHere(str(error)) from None


class DockerWorkspace:
    """One container."""

    testbed, scratch = "/testbed", "/tmp/envweave"

    def __init__(
        self, client: Any, image: str, *, memory: int, pids: int, release: Callable[[], None]
    ) -> None:
        self._client, self._image = client, image
        self._release: Callable[[], None] | None = release
        self._owner: OwnerStdin | None = None
        self._files: dict[str, bytes] = {}
        self._container: Any = None
        try:
            with engine_errors(f"a container of {image} cannot be started"):
                self._container = client.containers.create(image, **_arguments(memory, pids))
                self._owner = OwnerStdin(client, self._container)
                self._container.start()
        except BaseException:
            self.close()
            raise

    def run(self, command: str, timeout: float) -> Ran:
        """Run it in the container; after the grace the container is killed, whoever still runs in it."""
        timed = ["timeout", "--kill-after", f"{GRACE}", f"{timeout}", "bash", "-c", command]
        with _still_there(self._image):
            self._upload()
            api, begun = self._client.api, time.monotonic()
            execution = api.exec_create(self._container.id, timed, workdir=self.testbed)["Id"]
            stream = _Stream(api.exec_start(execution, socket=True))
            output, ended = stream.read_until(begun + timeout + GRACE + _SLACK)
            if not ended:
                self._container.kill()
                return Ran(_text(output), _KILLED, timed_out=len(output) < LONGEST_LOG)
            code = api.exec_inspect(execution)["ExitCode"]
            late = time.monotonic() - begun >= timeout
            if code is None or (code >= _KILLED and not self._is_alive()):
                raise WorkspaceLost(
                    f"the container of {self._image} has ended in the middle of an evaluation"
                )
        return Ran(_text(output), code, timed_out=late and code in _BY_TIMEOUT)

    def _is_alive(self) -> bool:
        """Whether something can still be run; what the engine says of one that is being killed comes late."""
        execution = self._client.api.exec_create(self._container.id, ["true"])["Id"]
        self._client.api.exec_start(execution)
        return self._client.api.exec_inspect(execution)["ExitCode"] == 0

    def write(self, name: str, content: bytes) -> None:
        """Keep it until something is run: putting files there takes a call of the engine."""
        self._files[name] = content

    def _upload(self) -> None:
        if not self._files:
            return
        folder = self.scratch.removeprefix("/tmp/")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
            for name, content in self._files.items():
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mode = len(content), 0o644
                archive.addfile(entry, io.BytesIO(content))
        self._container.put_archive("/tmp", packed.getvalue())
        self._files = {}

    def adapted(self, script: str) -> str:
        """The official script as it is."""
        return script

    def close(self) -> None:
        """Remove the container; what cannot be removed now ends as its owner goes, and is swept."""
        container, owner, self._owner, self._container = self._container, self._owner, None, None
        if container is not None:
            self._remove(container)
        if owner is not None:
            owner.close()
        release, self._release = self._release, None
        if release is not None:
            release()

    def _remove(self, container: Any) -> None:
        from docker.errors import APIError
        from requests import RequestException

        try:
            container.remove(force=True, v=True)
        except APIError as error:
            if error.status_code not in (404, 409):
                _log.warning("the container %s stays: %s", container.name, error)
            elif error.status_code == 409:  # the engine is removing it, as it has ended
                _wait_until_gone(container)
        except RequestException as error:
            _log.warning("the container %s stays, as the engine does not answer: %s", container.name, error)


def _arguments(memory: int, pids: int) -> dict[str, Any]:
    return {
        "entrypoint": ["cat"],
        "stdin_open": True,
        "labels": labels_of_owner(),
        "name": new_name(),
        "auto_remove": True,
        "network_mode": "none",
        "mem_limit": memory,
        "memswap_limit": memory,
        "pids_limit": pids,
        "cap_drop": ["ALL"],
        "cap_add": _CAPABILITIES,
        "security_opt": ["no-new-privileges:true"],
        "environment": _ENVIRONMENT,
        "user": "root",
        "log_config": {"type": "none"},
        "healthcheck": {"test": ["NONE"]},
    }


class _Stream:
    """What a command in a container writes, as frames of a connection."""

    def __init__(self, attached: Any) -> None:
        self._attached = attached
        # the engine's first frames may have come with its headers, and are in this buffer then
        self._reader = attached._response.raw._fp.fp

    def read_until(self, deadline: float) -> tuple[bytes, bool]:
        """Both outputs as they came, and whether that is all: not so after the deadline, or of too much."""
        parts: list[bytes] = []
        size = 0
        try:
            while size < LONGEST_LOG:
                header = self._exactly(8, deadline)
                if len(header) < 8:
                    return b"".join(parts), True
                part = self._exactly(struct.unpack(">I", header[4:])[0], deadline)
                parts.append(part)
                size += len(part)
        except TimeoutError:
            pass
        finally:
            shut_down(self._attached)
        return b"".join(parts), False

    def _exactly(self, size: int, deadline: float) -> bytes:
        """Read up to this many bytes."""
        read = bytearray()
        while len(read) < size:
            socket_of(self._attached).settimeout(max(deadline - time.monotonic(), 0.001))
            part = self._reader.read1(size - len(read))
            if not part:
                break
            read += part
        return bytes(read)


@contextmanager
def _still_there(image: str) -> Generator[None]:
    """What the engine says, or does not say, in the middle of an evaluation is a loss."""
    from docker.errors import APIError
    from requests import RequestException

    try:
        yield
    except APIError as error:
        said = str(error.explanation or error)
        raise WorkspaceLost(
            f"the container of {image} is lost, as the container engine says: {said}"
        ) from None
    except (RequestException, OSError) as error:
        raise WorkspaceLost(f"the container engine is gone in the middle of an evaluation: {error}") from None


def _wait_until_gone(container: Any) -> None:
    from docker.errors import NotFound
    from requests import RequestException

    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            container.reload()
        except NotFound:
            return
        except RequestException as error:
            _log.warning("the engine cannot be asked for the container %s: %s", container.name, error)
            return
        time.sleep(_PAUSE)
    _log.warning("the container %s is still being removed after %g s", container.name, _PATIENCE)


def _text(output: bytes) -> str:
    return output.decode(errors="replace")
