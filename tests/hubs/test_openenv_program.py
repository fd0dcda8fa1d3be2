"""The source of a Space as a process: it ends with its owner, and is started again when it has died."""

from __future__ import annotations

import gc
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import envweave_gym as ew
from envweave_gym.core.faults import NotAvailable
from envweave_gym.hubs.openenv import space_program
from envweave_gym.hubs.openenv.space_program import OpenEnvProgram

SERVER = Path(__file__).parents[1] / "support" / "openenv_in_image.py"
UVICORN = """
import sys
def run(app, fd, log_level):
    assert app == "my.app:app", app
    import server_of_the_tests
    sys.argv = ["server", str(fd)]
    server_of_the_tests.main()
"""
NAME, SAY = "openenv://hf/owner/name", {"message": "x"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose uvicorn runs our stand-in, and this interpreter as that of its virtual environment."""
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'mine'\nversion = '1'\n")
    (tmp_path / "openenv.yaml").write_text("name: mine\napp: my.app:app\nport: 8000\n")
    (tmp_path / "uvicorn.py").write_text(UVICORN)
    (tmp_path / "server_of_the_tests.py").write_text(SERVER.read_text())
    monkeypatch.setattr(space_program, "interpreter_of", lambda *_, **__: Path(sys.executable))
    return tmp_path


@pytest.fixture
def wait_for() -> Callable[[Callable[[], bool]], None]:
    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    return wait


def descendants() -> set[int]:
    """The processes below this one, by PID."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_an_episode_and_its_end(project: Path) -> None:
    before = descendants()
    with ew.make(NAME, backend="venv", project=str(project), env={"SIZE": "large"}) as env:
        assert len(descendants() - before) == 2  # the keeper and the server
        seen, _ = env.reset(seed=1)
        assert seen["size"] == "large"
        assert env.step(SAY)[0]["steps"].tolist() == [1]
    assert descendants() <= before


def test_secrets_of_this_process_stay_here(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIZE", "s3cret")
    with ew.make(NAME, use_docker=False, project=str(project)) as env:
        assert env.reset(seed=1)[0]["size"] == ""


def test_a_program_that_dies_is_a_fault_and_the_next_reset_has_another(project: Path) -> None:
    with ew.make(NAME, backend="venv", project=str(project), reset_deadline=60) as env:
        env.reset(seed=1)
        assert env.step({"message": "crash"})[4]["fault"].kind == "lost"
        env.reset(seed=1)
        assert env.step(SAY)[0]["steps"].tolist() == [1]


def test_it_ends_with_an_environment_that_is_forgotten(project: Path, wait_for: Any) -> None:
    before = descendants()
    env = ew.make(NAME, backend="venv", project=str(project))
    assert descendants() - before
    del env
    gc.collect()
    wait_for(lambda: descendants() <= before)


def test_it_ends_with_its_killed_owner(project: Path, wait_for: Any) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from envweave_gym.hubs.openenv.space_program import OpenEnvProgram\n"
        "program = OpenEnvProgram('it', Path(sys.executable), Path(sys.argv[1]), 'my.app:app', {})\n"
        "print(program._process.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(project)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    keeper = psutil.Process(int(owner.stdout.readline()))
    processes = [keeper, *keeper.children(recursive=True)]
    assert len(processes) == 2
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    wait_for(lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes))


def test_a_forked_child_neither_ends_nor_keeps_it(project: Path) -> None:
    program = OpenEnvProgram("it", Path(sys.executable), project, "my.app:app", {})
    child = os.fork()
    if child == 0:
        program.stop()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    program.ensure()
    assert program._process is not None
    assert program._process.poll() is None
    program.stop()


@pytest.mark.parametrize("given", [{}, {"tag": "v1"}, {"project": True}])
def test_the_command_that_consents_is_one_that_runs(
    project: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    asked: list[Any] = []

    def interpreter_of(wanted: list[str], *, install: bool, what: str, command: str) -> Path:
        asked.append((wanted, install))
        raise NotAvailable(command)

    monkeypatch.setattr(space_program, "interpreter_of", interpreter_of)
    given = {name: str(project) if name == "project" else value for name, value in given.items()}
    with pytest.raises(NotAvailable) as caught:
        ew.make(NAME, backend="venv", **given)
    python, option, program = shlex.split(str(caught.value))
    assert (python, option) == ("python", "-c")
    with pytest.raises(NotAvailable):
        exec(program, {})
    (first, second) = asked
    assert first == (second[0], False)
    assert second[1] is True


def test_what_is_wrong_is_said(project: Path) -> None:
    before = descendants()
    for arguments, why in [
        ({"project": "/no/such/project"}, "has no pyproject.toml"),
        ({"project": str(project), "memory": "1g"}, "memory= is for containers"),
        ({"project": str(project), "install": 1}, "install"),
    ]:
        with pytest.raises(ew.InvalidArgument, match=why):
            ew.make(NAME, backend="venv", **arguments)
    (project / "openenv.yaml").unlink()
    with pytest.raises(
        NotAvailable, match=r"owner/name ended before its server answered.*AssertionError: server.app:app"
    ):
        ew.make(NAME, backend="venv", project=str(project))
    with pytest.raises(NotAvailable, match=r"ended before its server answered.*'uvicorn'"):
        ew.make(NAME, backend="venv")
    assert descendants() <= before
