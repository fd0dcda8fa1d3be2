"""Runs ``uv``: finds interpreters, resolves requirements to pins, makes virtual environments and installs into them.

Pins depend on the requirements, the Python, the index and the user's settings file alone. So each command
runs in the cache folder, where an empty ``uv.toml`` ends uv's search for a project's settings, and gets only those
variables of uv that say where packages come from. The user's own settings file holds, but for ``resolution`` and
``prerelease``.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, unquote

from envweave_gym.core.faults import MissingExtra, NotAvailable
from envweave_gym.os_support.owned_folders import owned_folder, remove_left_behind
from envweave_gym.suites.wheel_correction import correct_wheel

TIMEOUT_S = 3600.0
"""Longest time of one command of uv; large packages may be downloaded in it, or built."""
_LONGEST_REASON_CHARS = 600
_WITHOUT_OLD_SETUPTOOLS = (3, 12)
"""First Python that the old setuptools cannot run on."""
_SCRATCH = "envweave-wheels-"
"""Prefix of temporary folders for wheels that are built."""
_KEPT = re.compile(
    r"UV_(INDEX|DEFAULT_INDEX|EXTRA_INDEX|NO_INDEX|FIND_LINKS|OFFLINE|CONFIG_FILE|NO_CONFIG|CACHE_DIR|NO_CACHE"
    r"|KEYRING_PROVIDER|CREDENTIALS_DIR|NATIVE_TLS|SYSTEM_CERTS|INSECURE_HOST|HTTPS?|NO_PROXY|REQUEST_TIMEOUT|CONCURRENT"
    r"|LINK_MODE|GITHUB_TOKEN|(PYTHON|PYPY)_(INSTALL_MIRROR|INSTALL_DIR|CACHE_DIR|DOWNLOADS))(_.*)?"
)
"""Variables of uv about indexes, proxies, certificates, caches and downloads; no other variable of uv is passed on."""
_OF_THE_OWNER = {"VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "PIP_CONSTRAINT"}
"""Variables about the owner's Python."""
_CHOICE = ("--resolution", "highest", "--prerelease", "if-necessary-or-explicit")
"""Defaults of uv, given so that no settings file replaces them."""
_OLD_SETUPTOOLS = ("setuptools<66", "wheel<0.40")
"""Constraints of builds that later setuptools refuse, such as gym 0.21's, which wants ``opencv-python>=3.``."""
_OLD_PIP = "pip<24.1"
"""Version that reads such requirements of what it has built; uv does not."""
_INVALID_METADATA = re.compile(r"\b(?P<name>[\w.-]+)==(?P<version>[\w.+!]+) has invalid metadata")
_REFUSED_BY_SETUPTOOLS = re.compile(r"error in .+ setup command: '\w+' must be ")
_INDEXES_OF_UV = re.compile(r"UV_(INDEX(_URL)?|DEFAULT_INDEX|EXTRA_INDEX_URL|NO_INDEX|OFFLINE)")
_INDEXES_OF_PIP = {"PIP_INDEX_URL", "PIP_NO_INDEX"}
_WHEELS_ONLY = ("--only-binary", ":all:")
_OF_FOLDER = re.compile(r" @ file://(?P<path>[^;#]+?)(?=\s*;|\s*$)")
_BOX_DRAWING = re.compile(r"\x1b\[[\d;]*m|[\u2500-\u257f\u25b6\u00d7]")


class Uv:
    """The program uv, run in a folder; ``lock`` is a descriptor that its processes inherit.

    So a lock on what uv writes is held as long as a process of uv writes, even if this process is killed.
    """

    def __init__(self, folder: Path, what: str, lock: int | None = None) -> None:
        """``what`` is for error messages."""
        self._program, self._folder, self._what, self._lock = uv_program(what), folder, what, lock
        self._for_builds: list[str] = []
        """Options of commands that build packages, once setuptools has refused one."""

    def interpreter(self, request: str | None) -> tuple[str, str]:
        """Return path and version of the interpreter for a request such as ``"3.10"``; uv may download it.

        Without a request it is the interpreter of this process.
        """
        if request is None:
            return sys.executable, platform.python_version()
        find = ["python", "find", "--no-project", "--system", request]
        try:
            path = self._run("find", find)
        except NotAvailable as missing:
            if "/" in request:
                raise
            try:
                self._run("get", ["python", "install", "--quiet", "--no-bin", request])
            except NotAvailable as error:
                raise NotAvailable(
                    f"{missing}, nor download one; give python= the path of an interpreter"
                ) from error
            path = self._run("find", find)
        path = path.strip().splitlines()[-1]
        done = _asked_for_version(path)
        if done.returncode:
            raise NotAvailable(f"{self._what}: python={request!r} cannot run: {done.stderr.strip()[-300:]}")
        return path, done.stdout.strip()

    def resolve(self, requirements: Sequence[str], interpreter: str) -> list[str]:
        """Return the pins, one for each package, that satisfy the requirements together."""
        lines = list(requirements)
        while True:
            try:
                return self._compiled(lines, interpreter)
            except NotAvailable as error:
                found = _INVALID_METADATA.search(str(error))
                if found is None or any(line.startswith(f"{found['name']} @") for line in lines):
                    raise
            lines.append(self._with_readable_metadata(found["name"], found["version"], interpreter))

    def resolve_locked(self, requirements: Sequence[str], interpreter: str) -> list[str]:
        """Return pins as :meth:`resolve` does, for all platforms, each with the hashes of its files as options.

        Only packages with wheels are taken, and nothing is built.
        """
        return self._compiled(requirements, interpreter, "--universal", "--generate-hashes", *_WHEELS_ONLY)

    def _compiled(self, requirements: Sequence[str], interpreter: str, *options: str) -> list[str]:
        words = ["pip", "compile", "--quiet", "-", "--python", interpreter, "--no-header", "--no-annotate"]
        pins = self._run_building("resolve", [*words, *_CHOICE, *options], "\n".join(requirements) + "\n")
        lines = (line.strip() for line in pins.replace("\\\n", " ").splitlines())
        return [line for line in lines if line and not line.startswith(("#", "-"))]

    def make(self, folder: Path, interpreter: str, pins: Sequence[str]) -> None:
        """Make a virtual environment in ``folder``, which must not exist, with exactly these packages."""
        with _scratch_folder() as scratch:
            self.make_empty(folder, interpreter)
            built = [
                self._built(pin, interpreter, scratch) if _OF_FOLDER.search(pin) else pin for pin in pins
            ]
            self._install(folder, built)

    def make_empty(self, folder: Path, interpreter: str) -> None:
        """Make a virtual environment without packages in ``folder``, which must not exist."""
        words = ["venv", "--quiet", "--no-project", "--python", interpreter, str(folder)]
        self._run("make the environment of", words)

    def install_locked(self, folder: Path, lines: Sequence[str]) -> None:
        """Install packages, which are pins with hashes as options, from wheels with one of these hashes."""
        self._install(folder, lines, "--require-hashes", *_WHEELS_ONLY)

    def _install(self, folder: Path, lines: Sequence[str], *options: str) -> None:
        words = ["pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), "--no-deps"]
        self._run_building("install", [*words, *options, "-r", "-"], "\n".join(lines) + "\n")

    def check(self, folder: Path) -> None:
        """Raise ``NotAvailable`` if a package of an environment lacks another one that it requires."""
        self._run("use", ["pip", "check", "--python", str(folder / "bin" / "python")])

    def _built(self, pin: str, interpreter: str, scratch: Path) -> str:
        """Build the wheel of a pinned local folder, and return the pin of the wheel.

        An install of the folder would take the wheel that uv has built before, unless ``pyproject.toml`` has changed.
        """
        found = _OF_FOLDER.search(pin)
        assert found is not None
        path = Path(unquote(found["path"]))
        if not path.is_dir():
            return pin
        out = Path(tempfile.mkdtemp(dir=scratch))
        words = ["build", "--wheel", "--python", interpreter, "--out-dir", str(out), str(path)]
        self._run_building("build", words)
        [wheel] = out.glob("*.whl")
        return f"{pin[: found.start()]} @ file://{quote(str(wheel))}"

    def _with_readable_metadata(self, name: str, version: str, interpreter: str) -> str:
        """Build the wheel of a package whose requirements uv cannot read, by pip, and return it as a requirement."""
        self._check_indexes(f"{name}=={version}")
        kept = self._folder / "wheels"
        kept.mkdir(exist_ok=True)
        with _scratch_folder() as scratch:
            pip = ["tool", "run", "--quiet", "--python", interpreter, "--from", _OLD_PIP]
            pip += [word for one in _OLD_SETUPTOOLS for word in ("--with", one)]
            words = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
            words += [str(scratch)]
            self._run("build", [*pip, *words, f"{name}=={version}"])
            [wheel] = scratch.glob("*.whl")
            draft = kept / f".{wheel.name}.{os.getpid()}"
            try:
                correct_wheel(wheel, draft)
                target = draft.replace(kept / wheel.name)
            finally:
                draft.unlink(missing_ok=True)
        return f"{name} @ file://{quote(str(target))}"

    def _check_indexes(self, pin: str) -> None:
        """Raise ``NotAvailable`` if uv has an index of its own, or none, and pip would take another one."""
        own = sorted(name for name, value in os.environ.items() if value and _INDEXES_OF_UV.fullmatch(name))
        if own and not any(os.environ.get(name) for name in _INDEXES_OF_PIP):
            raise NotAvailable(
                f"{self._what}: uv cannot read the requirements of {pin}, and pip, which can, would not take it from "
                f"where {' and '.join(own)} say; set PIP_INDEX_URL or PIP_NO_INDEX too"
            )

    def _run_building(self, verb: str, words: Sequence[str], text: str = "") -> str:
        """Run a command that may build packages, once more with an old setuptools if setuptools refuses one."""
        try:
            return self._run(verb, [*words, *self._for_builds], text)
        except NotAvailable as error:
            if self._for_builds or not _REFUSED_BY_SETUPTOOLS.search(str(error)):
                raise
            refused = error
        constraints = self._folder / "old-setuptools.txt"
        constraints.write_text("\n".join([*_OLD_SETUPTOOLS, ""]), encoding="utf-8")
        self._for_builds = ["--build-constraints", str(constraints)]
        try:
            return self._run(verb, [*words, *self._for_builds], text)
        except NotAvailable as error:
            python = words[words.index("--python") + 1]
            if _INVALID_METADATA.search(str(error)) or _minor_of(python) < _WITHOUT_OLD_SETUPTOOLS:
                raise
            raise NotAvailable(
                f"{refused}; it has to be built with setuptools<66, which Python 3.12 and newer cannot run: give "
                "python='3.11' or older"
            ) from error

    def _run(self, verb: str, words: Sequence[str], text: str = "") -> str:
        inherited = [] if self._lock is None else [self._lock]
        try:
            process = subprocess.Popen(
                [*self._program, "--color", "never", "--no-progress", *words],
                cwd=self._folder,
                env=_environ(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                pass_fds=inherited,
                start_new_session=True,
            )
        except OSError as error:
            raise NotAvailable(f"{self._what}: uv cannot be started: {error}") from error
        try:
            out, complaint = process.communicate(text, timeout=TIMEOUT_S)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its builds too
            process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise NotAvailable(f"{self._what}: uv did not {verb} it in {TIMEOUT_S:g} s") from None
            raise
        if process.returncode:
            raise NotAvailable(
                f"{self._what}: uv cannot {verb} it: {reason_in(complaint, process.returncode)}"
            )
        return out


def _asked_for_version(python: str) -> subprocess.CompletedProcess[str]:
    code = "import platform; print(platform.python_version())"
    return subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=False)


def _minor_of(python: str) -> tuple[int, ...]:
    """Return the first two numbers of an interpreter's version; an empty tuple if it cannot say them."""
    return tuple(int(number) for number in _asked_for_version(python).stdout.split(".")[:2])


@contextmanager
def _scratch_folder() -> Generator[Path]:
    """Return a folder that is removed at the end of the block, or by the next install if this process is killed."""
    remove_left_behind(_SCRATCH)
    folder = owned_folder(_SCRATCH)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _environ() -> dict[str, str]:
    """Return the variables for uv: those of this process without what would decide the versions of a suite."""
    return {
        key: value
        for key, value in os.environ.items()
        if key not in _OF_THE_OWNER and (not key.startswith("UV_") or _KEPT.fullmatch(key))
    }


def uv_program(what: str) -> list[str]:
    """Return the command of uv: the one beside this interpreter, or else on the path."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        raise MissingExtra(f"{what} needs uv, which is not installed: pip install 'envweave-gym[suites]'")
    return [found]


def reason_in(complaint: str, code: int) -> str:
    """Return what uv wrote on stderr as one sentence, without its drawing, its hints and the logs of builds."""
    text = _BOX_DRAWING.sub(" ", complaint)
    if code < 0:
        return f"it was killed by signal {-code}"
    before, _, after = text.rpartition("\nerror:")
    head, *rest = re.split(r"^\s*\[(?:stdout|stderr)\]\s*$", _without_hints(after), flags=re.MULTILINE)
    log = [line.strip() for part in (before, *rest) for line in _without_hints(part).splitlines()]
    last = next((line for line in reversed(log) if line and not line.endswith("...")), "")
    reason = re.sub(r"^error:\s*", "", " ".join(head.split()))
    reason = re.sub(r"\s*\bcause: ", ": ", reason)
    whole = f"{reason}: {last}" if last else reason
    if len(whole) > _LONGEST_REASON_CHARS:
        whole = f"{whole[: _LONGEST_REASON_CHARS - 1]}…"
    return whole or f"it ended with exit code {code}"


def _without_hints(text: str) -> str:
    return re.split(r"^\s*hint:", text, flags=re.MULTILINE)[0]
