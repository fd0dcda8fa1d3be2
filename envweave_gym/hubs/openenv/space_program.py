"""Source of a Hugging Face Space, run as a process of this machine in a virtual environment of its own.

The virtual environment is that of a suite (see ``suites/virtual_environments.py``). A keeper process ends the server
when this process ends in any way. This process listens before it starts the server and hands the socket over, so no
other program can take the port.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from envweave_gym.core.config import true_or_false
from envweave_gym.core.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.hubs.openenv.image_container import variables_in
from envweave_gym.os_support import process_keeper
from envweave_gym.os_support.process_local import Owner, in_forked_child
from envweave_gym.providers.replica import is_healthy, last_words
from envweave_gym.suites.virtual_environments import interpreter_of

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 4 * process_keeper.GRACE_S
_HEALTH_EVERY_S = 0.05
_LOG_BYTES = 8192
_KEPT = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "https_proxy",
    "no_proxy",
)
"""Environment variables of this process that the server gets; others may be secrets."""
# The project names its server in [project.scripts]; the module of that function has the application.
_BOOTSTRAP = """
import importlib.metadata, sys
import uvicorn
number, app = int(sys.argv[1]), sys.argv[2]
if not app:
    scripts = importlib.metadata.entry_points(group="console_scripts", name="server")
    app = next(iter(scripts)).module + ":app" if scripts else "server.app:app"
uvicorn.run(app, fd=number, log_level="warning")
"""


class OpenEnvProgram:
    """Server of OpenEnv in a process of this machine; it is started again at another port if it has ended."""

    def __init__(
        self, what: str, python: Path, folder: Path | None, app: str, variables: Mapping[str, str]
    ) -> None:
        """Start the server and wait until it answers.

        ``what`` names it in errors, ``python`` is the interpreter, and ``folder`` the working folder. ``app`` is the
        application as uvicorn takes it; if it is empty, that of the project's script ``server`` or of the
        template of OpenEnv.
        """
        self.url = ""
        self._what, self._python, self._app = what, python, app
        self._folder, self._variables = folder, dict(variables)
        self._owner = Owner()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: Any = None
        self._lifeline = -1
        self.ensure()

    @classmethod
    def of_space(
        cls, of: str, space: str, *, tag: str, project: str | None, options: Mapping[str, Any]
    ) -> Self:
        """Install the source of a Space, or the local ``project``, and start its server."""
        given = dict(options)
        variables = variables_in(of, given)
        install = given.pop("install", False)
        true_or_false(f"{of}: install", install)
        if given:
            raise InvalidArgument(
                f"{of}: {next(iter(given))}= is for containers; with use_docker=False there are env and install"
            )
        if project is None:
            at = "" if tag == "latest" else f"@{tag}"
            wanted, folder, app = f"git+https://huggingface.co/spaces/{space}{at}", None, ""
        else:
            folder = Path(project).expanduser().absolute()
            wanted, app = str(folder), _app_in(of, folder)
        command = _command(space, tag, folder)
        python = interpreter_of([wanted, "uvicorn"], install=install, what=of, command=command)
        return cls(f"the Space {space}", python, folder, app, variables)

    def ensure(self) -> None:
        """Start the server, unless it runs."""
        if not self._owner.is_here() or (self._process is not None and self._process.poll() is None):
            return
        self.stop()
        try:
            self._begin()
            self._wait()
        except BaseException:
            self.stop()
            raise

    def direct_address(self) -> None:
        """Return ``None``: the URL is the only address."""

    def _begin(self) -> None:
        read, self._lifeline = os.pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - stop() closes it
        in_forked_child(self, OpenEnvProgram._forget)
        try:
            with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
                self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
                number = listener.fileno()
                keeper = [sys.executable, "-I", "-S", process_keeper.__file__, str(read)]
                self._process = subprocess.Popen(
                    [*keeper, str(self._python), "-c", _BOOTSTRAP, str(number), self._app],
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                    cwd=self._folder or "/",  # from where Python imports too
                    env={name: os.environ[name] for name in _KEPT if name in os.environ} | self._variables,
                    pass_fds=[read, number],
                    start_new_session=True,
                )
        except OSError as error:
            raise NotAvailable(f"{self._what} cannot be started: {error}") from None
        finally:
            os.close(read)

    def _wait(self) -> None:
        """Wait until the server answers; raise ``NotAvailable`` if it ends before, or takes too long."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not is_healthy(self.url):
            if self._process is None or self._process.poll() is not None:
                raise NotAvailable(
                    f"{self._what} ended before its server answered: {last_words(self.logs())}"
                )
            if time.monotonic() > deadline:
                late = f"{self._what} did not serve within {_START_TIMEOUT_S:g} s"
                raise NotAvailable(f"{late}; it last said: {last_words(self.logs())}")
            time.sleep(_HEALTH_EVERY_S)

    def logs(self) -> str:
        """Return the end of the server's output."""
        if self._log is None:
            return ""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), _LOG_BYTES, max(size - _LOG_BYTES, 0)).decode(errors="replace")

    def stop(self) -> None:
        """End the server with all its descendants."""
        if not self._owner.is_here():
            return
        process, self._process = self._process, None
        self._close_lifeline()
        if process is not None:
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        log, self._log = self._log, None
        if log is not None:
            log.close()

    def _close_lifeline(self) -> None:
        lifeline, self._lifeline = self._lifeline, -1
        if lifeline >= 0:
            with suppress(OSError):
                os.write(lifeline, b"!")  # a forked process may hold the pipe open
            os.close(lifeline)

    def _forget(self) -> None:
        """Close the pipe in a forked child, where it would keep the server after the owner's end."""
        lifeline, self._lifeline = self._lifeline, -1
        if lifeline >= 0:
            os.close(lifeline)
        if self._process is not None:
            self._process.returncode = 0  # it is no child of this process


def _app_in(of: str, folder: Path) -> str:
    """Return the application that ``openenv.yaml`` of a project names; empty if it names none."""
    if not (folder / "pyproject.toml").is_file():
        raise InvalidArgument(
            f"{of}: project={shown(str(folder))} has no pyproject.toml; give a project's folder"
        )
    try:
        text = (folder / "openenv.yaml").read_text()
    except (OSError, ValueError):
        return ""
    lines = (line.partition(":") for line in text.splitlines())
    return next((value.strip().strip("'\"") for name, _, value in lines if name == "app"), "")


def _command(space: str, tag: str, folder: Path | None) -> str:
    """Return the shell command that installs the source of a Space, or of a project, and runs it once."""
    given = {"backend": "venv"} | ({} if tag == "latest" else {"tag": tag})
    given |= {} if folder is None else {"project": str(folder)}
    arguments = "".join(f", {name}={json.dumps(value)}" for name, value in given.items())
    program = f'envweave_gym.make("openenv://hf/{space}"{arguments}, install=True).close()'
    return f"python -c {shlex.quote(f'import envweave_gym; {program}')}"
