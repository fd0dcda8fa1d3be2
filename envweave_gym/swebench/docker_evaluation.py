"""Runs evaluations in Docker: one fresh container of the instance's official image for each of them.

A container starts in a few tenths of a second. It has no network, and limited memory and processes.
PID 1 in it is ``cat``, which reads from a connection of this process, so the container ends with its owner.
No signal from inside the container can end PID 1, so a failing patch cannot fake the loss of its workspace.
Containers are removed by force; the official harness waits 15 seconds for each.
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
from envweave_gym.core.arguments import check_int
from envweave_gym.core.config import true_or_false
from envweave_gym.core.faults import MissingExtra, NotAvailable
from envweave_gym.core.sizes import memory_of
from envweave_gym.data.swebench_lite import Instance
from envweave_gym.swebench.image_cache import images_of
from envweave_gym.swebench.workspace import NotHere, Ran, WorkspaceLost, check_pids

MAX_LOG_BYTES = 16 << 20
"""A command that writes more is killed."""
GRACE_S = 0.5
"""Seconds between SIGTERM and SIGKILL in the container; this process waits :data:`_SLACK_S` longer."""
_CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID"]
"""Capabilities that installing and testing need; the engine's default has more."""
_ENVIRONMENT = {
    "PIP_NO_INDEX": "1",
    "PIP_NO_DEPS": "1",
    "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this as: no isolation
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
"""The official scripts install the repository again; these settings make that work without a network."""
_SWEEP_EVERY_S = 60.0
_SLACK_S = 0.5
_REMOVAL_TIMEOUT_S, _PAUSE_S = 10.0, 0.02
_KILLED = 128 + signal.SIGKILL
_TIMEOUT_CODES = (124, _KILLED)
"""Exit codes of the program ``timeout`` after SIGTERM and SIGKILL."""
_log = logging.getLogger(__name__)
_last_sweep = -_SWEEP_EVERY_S


@dataclass(frozen=True)
class Options:
    """The limits of containers, and the handling of images."""

    memory: int | str = "4g"
    """Limit in bytes, or as text like ``"4g"``."""
    pids: int = 1024
    """Limit of processes and threads."""
    pull: bool = True
    """Whether missing images are pulled; if not, they raise."""
    keep_images: int | None = None
    """Limit of pulled images on disk; the least recently used ones beyond it are removed. ``None``: no limit."""

    def __post_init__(self) -> None:
        memory_of(self.memory)
        check_pids(self.pids)
        check_int("keep_images", self.keep_images, "no number of images", 1, or_none=True)
        true_or_false("pull", self.pull)


def open_workspace(instance: Instance, **options: Any) -> DockerWorkspace:
    """Start a container of the instance's image; ``options`` are the fields of :class:`Options`."""
    global _last_sweep
    given = Options(**options)
    client = _engine()
    if time.monotonic() - _last_sweep > _SWEEP_EVERY_S:
        _last_sweep = time.monotonic()
        with engine_errors("containers whose owner was killed cannot be listed"):
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
    """A :class:`~envweave_gym.swebench.workspace.Workspace` in one container, which it starts and removes."""

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
        """Run a line of bash; SIGTERM it after ``timeout`` seconds, then SIGKILL it, then kill the container.

        The container must be killed if a child that has left the process group of the command still runs.
        """
        timed = ["timeout", "--kill-after", f"{GRACE_S}", f"{timeout}", "bash", "-c", command]
        with _losses(self._image):
            self._upload()
            api, begun = self._client.api, time.monotonic()
            execution = api.exec_create(self._container.id, timed, workdir=self.testbed)["Id"]
            stream = _Stream(api.exec_start(execution, socket=True))
            output, ended = stream.read_until(begun + timeout + GRACE_S + _SLACK_S)
            if not ended:
                self._container.kill()
                return Ran(_text(output), _KILLED, timed_out=len(output) < MAX_LOG_BYTES)
            code = api.exec_inspect(execution)["ExitCode"]
            late = time.monotonic() - begun >= timeout
            # A command may be killed by its own tests; only if the container is dead too the workspace is lost.
            if code is None or (code >= _KILLED and not self._is_alive()):
                raise WorkspaceLost(
                    f"the container of {self._image} has ended in the middle of an evaluation"
                )
        return Ran(_text(output), code, timed_out=late and code in _TIMEOUT_CODES)

    def _is_alive(self) -> bool:
        """Return whether the container still runs commands, by running one.

        The engine's own status lags when a container is being killed.
        """
        execution = self._client.api.exec_create(self._container.id, ["true"])["Id"]
        self._client.api.exec_start(execution)
        return self._client.api.exec_inspect(execution)["ExitCode"] == 0

    def write(self, name: str, content: bytes) -> None:
        """Buffer a file for the folder ``scratch``; the next :meth:`run` uploads all of them in one request."""
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

    def adapt_script(self, script: str) -> str:
        """Return the script unchanged."""
        return script

    def close(self) -> None:
        """Remove the container and release its image.

        A container that cannot be removed is logged. It ends with this process, and a later sweep removes it.
        """
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
            elif error.status_code == 409:  # it has ended, and the engine is removing it already
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
        "memswap_limit": memory,  # memory and swap together, so none of it is swap
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
    """A reader of a command's output on Docker's attach stream: frames with an 8-byte header."""

    def __init__(self, attached: Any) -> None:
        self._attached = attached
        # The HTTP client may have read the first frames with the headers; they are in this buffer.
        self._reader = attached._response.raw._fp.fp

    def read_until(self, deadline: float) -> tuple[bytes, bool]:
        """Read stdout and stderr, interleaved as written; ``deadline`` is a time of ``time.monotonic()``.

        The second value is False if the deadline or :data:`MAX_LOG_BYTES` came before the end of the stream.
        """
        parts: list[bytes] = []
        size = 0
        try:
            while size < MAX_LOG_BYTES:
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
        """Read ``size`` bytes, or fewer at the end of the stream; raise ``TimeoutError`` at the deadline."""
        read = bytearray()
        while len(read) < size:
            socket_of(self._attached).settimeout(max(deadline - time.monotonic(), 0.001))
            part = self._reader.read1(size - len(read))
            if not part:
                break
            read += part
        return bytes(read)


@contextmanager
def _losses(image: str) -> Generator[None]:
    """Convert errors of the container engine and of its connection to :class:`WorkspaceLost`."""
    from docker.errors import APIError
    from requests import RequestException

    try:
        yield
    except APIError as error:
        reason = str(error.explanation or error)
        raise WorkspaceLost(
            f"the container of {image} is lost, as the container engine says: {reason}"
        ) from None
    except (RequestException, OSError) as error:
        raise WorkspaceLost(f"the container engine is gone in the middle of an evaluation: {error}") from None


def _wait_until_gone(container: Any) -> None:
    from docker.errors import NotFound
    from requests import RequestException

    deadline = time.monotonic() + _REMOVAL_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            container.reload()
        except NotFound:
            return
        except RequestException as error:
            _log.warning("the engine cannot be asked for the container %s: %s", container.name, error)
            return
        time.sleep(_PAUSE_S)
    _log.warning("the container %s is still being removed after %g s", container.name, _REMOVAL_TIMEOUT_S)


def _text(output: bytes) -> str:
    return output.decode(errors="replace")
