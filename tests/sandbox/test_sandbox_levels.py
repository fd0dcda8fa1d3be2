"""How well programs are kept in: what is demanded is there or is refused, and what commands may do."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from absent import absent
from sandboxes import needs, readable_python
from servers import until

from envweave_gym.core.faults import InvalidArgument, NotAvailable
from envweave_gym.sandbox import Limits, Names, Sandbox, Session, Setup, levels
from envweave_gym.sandbox.inside import confinement, landlock, seccomp

SLEEPER = f"61.{os.getpid()}"
"""How long what is counted sleeps, which nobody else's does: the tests of two levels may run at once."""


@pytest.fixture(params=["landlock", "namespace"], scope="module")
def shell(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox whose programs may start others."""
    needs(request.param)
    python = readable_python() or absent("there is no interpreter that all users may run")
    made = Sandbox(Setup(isolation=request.param, profile="shell", python=python))
    yield made
    made.close()


@pytest.fixture
def session(shell: Sandbox) -> Iterator[Session]:
    opened = shell.open()
    opened.name(Names())
    yield opened
    opened.close()


def sleepers() -> int:
    """How many of the commands are there that tests leave behind."""
    listed = subprocess.run(["ps", "-e", "-o", "args"], capture_output=True, text=True, check=True)
    return listed.stdout.splitlines().count(f"sleep {SLEEPER}")


def test_commands_run(session: Session) -> None:
    done = session.shell(["git", "--version"])
    assert (done.success, done.value) == (True, 0)
    assert done.stdout.startswith("git version")
    done = session.shell("echo out; echo err >&2; exit 3")
    assert (done.success, done.value, done.stdout, done.stderr) == (False, 3, "out\n", "err\n")
    assert session.shell("echo $WORD", env={"WORD": "x"}).stdout == "x\n"
    assert session.shell("kill -9 $$").value == -9
    assert session.shell(["no-such-command"]).error_type == "FileNotFoundError"
    assert session.run("import subprocess; subprocess.run('exit 4', shell=True).returncode").value == 4


def test_a_repository_can_be_worked_in(session: Session) -> None:
    commands = (
        "git init -q . && git config user.email a@b.c && git config user.name n && echo 1 > f && "
        "git add f && git commit -qm first && echo 2 > f && git diff --stat && git log --format=%s"
    )
    assert session.shell(commands).stdout.endswith("first\n")


def test_tests_can_be_run(session: Session) -> None:
    source = "import unittest\nclass T(unittest.TestCase):\n  def test(self): pass"
    session.run(f"open('test_it.py', 'w').write({source!r})")
    done = session.shell("python3 -m unittest -q test_it")
    assert done.success, done.stderr
    assert "Ran 1 test" in done.stderr


def test_a_command_that_takes_too_long_is_killed(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "envweave_gym.sandbox.execution.GRACE_S", 10.0
    )  # a busy machine may take long over it
    session.run("x = 1")
    done = session.shell(f"sleep {SLEEPER} | sleep {SLEEPER}", timeout=0.2)
    assert (done.timed_out, done.state_lost) == (True, False)
    until(lambda: sleepers() == 0)
    assert session.run("x").value == 1


def test_processes_that_commands_leave_behind_end_with_the_episode(session: Session) -> None:
    session.shell(
        f"setsid sleep {SLEEPER} & nohup sleep {SLEEPER} > /dev/null 2>&1 & (setsid setsid sleep {SLEEPER} &)"
    )
    until(lambda: sleepers() == 3)
    branch = session.fork()
    branch.shell(f"setsid sleep {SLEEPER} &")
    until(lambda: sleepers() == 4)
    branch.close()
    until(lambda: sleepers() == 3)
    session.close()
    until(lambda: sleepers() == 0)


def test_processes_have_a_limit(shell: Sandbox) -> None:
    session = shell.open()
    session.name(Names())
    code = (
        "import os, time\nn = 0\ntry:\n  while n < 5000:\n    if os.fork() == 0: time.sleep(60)\n"
        "    n += 1\nexcept OSError: pass\nn"
    )
    done = session.run(code, timeout=20)
    session.close()
    assert done.value is None or done.value < 1000, done


def test_processes_that_go_on_to_fork_end_with_the_episode(shell: Sandbox) -> None:
    """Each is in a session of its own, and what is killed of them they would replace at once."""
    session = shell.open()
    session.name(Names())
    bomb = (
        "import os, time\nend = time.monotonic() + 60\nwhile time.monotonic() < end:\n  try:\n"
        "    if os.fork() == 0: os.setsid()\n  except OSError: pass"
    )
    session.run(f"open('bomb.py', 'w').write({bomb!r})")
    done = session.shell("python3 bomb.py & sleep 0.2")
    # The bomb may reach the memory limit within these 0.2 s: the kernel then kills the worker too.
    assert done.value == 0 or done.error_type == "WorkerDied", done
    session.close()
    until(lambda: processes_below(session.folder) == [])
    assert not Path(session.folder).parent.exists()


def processes_below(folder: str) -> list[str]:
    """The processes that work in a folder."""
    found = subprocess.run(["readlink", *Path("/proc").glob("[0-9]*/cwd")], capture_output=True, text=True)
    return [line for line in found.stdout.splitlines() if line.startswith(folder)]


@pytest.mark.parametrize(
    "command",
    [
        "cat /etc/shadow",
        "ls ..",
        "ls /root/",
        "python3 -c 'import socket; socket.socket()'",
        "unshare -r true",
        "echo > /tmp/x",
        "kill -9 1",
        "ls /proc/1/",
    ],
)
def test_commands_get_out_no_better_than_programs(session: Session, command: str) -> None:
    assert session.shell(command).value != 0


def test_attributes_of_files_are_those_of_the_episode_alone(session: Session, tmp_path: Path) -> None:
    """Where it is a user of its own it changes those of its files; else that does nothing, and fails not."""
    tmp_path.chmod(0o755)
    outside = tmp_path / "outside"
    session.shell(f"touch {outside}; touch {tmp_path}/../new; chmod 777 {tmp_path}")
    assert not outside.exists()
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    done = session.shell("echo 'echo ran' > run; chmod +x run && ./run")
    if "user" in session.process.layers:
        assert done.stdout == "ran\n"
    else:
        assert done.value == 126


@pytest.mark.parametrize("command", ["", [], [1], ["a\0b"]])
def test_an_invalid_command_is_refused(session: Session, command: object) -> None:
    if command == "":
        assert session.shell("").value == 0
        return
    with pytest.raises(InvalidArgument, match="no command"):
        session.shell(command)  # type: ignore[arg-type]


def test_where_programs_may_start_none_a_command_is_refused() -> None:
    needs("landlock")
    made = Sandbox(Setup(), ready=0)
    session = made.open()
    session.name(Names())
    assert session.shell("true").error_type == "PermissionError"
    session.close()
    made.close()


def test_as_root_commands_need_users_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("landlock")
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(levels, "is_for_all", lambda _: False)
    with pytest.raises(NotAvailable, match="give python="):
        Sandbox(Setup(profile="shell"))


def test_unknown_levels_and_profiles_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="isolation='vm' is unknown; there are 'process'"):
        Sandbox(Setup(isolation="vm"))
    with pytest.raises(InvalidArgument, match="profile='root' is unknown; there are 'code' and 'shell'"):
        Setup(profile="root")
    with pytest.raises(InvalidArgument, match=r"readable: 'here' .*absolute path"):
        Setup(readable=("here",))
    with pytest.raises(InvalidArgument, match="memory=0"):
        Limits(memory=0)


def test_without_linux_all_levels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    for level in levels.LEVELS:
        with pytest.raises(NotAvailable, match="backend='docker'"):
            levels.require(level)


def test_without_landlock_its_levels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "version", lambda: 0)
    for level in ("landlock", "namespace"):
        with pytest.raises(NotAvailable, match=r"no Landlock .* ask for isolation='process'"):
            Sandbox(Setup(isolation=level))


@pytest.mark.parametrize("how", [subprocess.TimeoutExpired("bwrap", 20), PermissionError("no")])
def test_where_bubblewrap_does_not_come_back_namespaces_are_refused(
    monkeypatch: pytest.MonkeyPatch, how: Exception
) -> None:
    def run(*_: object, **__: object) -> None:
        raise how

    levels._why_no_bubblewrap.cache_clear()
    monkeypatch.setattr(levels.shutil, "which", lambda _: "/usr/bin/bwrap")
    monkeypatch.setattr(levels.landlock, "version", lambda: 6)
    monkeypatch.setattr(levels.subprocess, "run", run)
    with pytest.raises(NotAvailable, match=r"isolation='namespace' .*bubblewrap does not run here"):
        levels.require("namespace")
    levels._why_no_bubblewrap.cache_clear()


def test_without_bubblewrap_namespaces_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("landlock")
    levels._why_no_bubblewrap.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NotAvailable, match=r"bubblewrap is not installed .*apt-get install"):
        Sandbox(Setup(isolation="namespace"))
    levels._why_no_bubblewrap.cache_clear()


def test_outside_of_containers_that_level_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "is_container", lambda: False)
    with pytest.raises(NotAvailable, match="backend='docker'"):
        Sandbox(Setup(isolation="container"))


def test_an_interpreter_that_does_not_run_is_refused() -> None:
    with pytest.raises(NotAvailable, match=r"python='/no/python' does not run: .*; name another"):
        Sandbox(Setup(python="/no/python"))


def test_a_session_lists_its_layers_of_confinement() -> None:
    needs("landlock")
    made = Sandbox(Setup(), ready=0)
    session = made.open()
    assert session.process.layers[-2:] == [f"landlock {landlock.version()}", "seccomp"]
    session.close()
    made.close()


def test_a_process_alone_keeps_state_and_ends_in_time() -> None:
    made = Sandbox(Setup(isolation="process"), ready=0)
    session = made.open()
    session.name(Names())
    assert session.run("x = 2\nx").value == 2
    assert session.run("while True: pass", timeout=0.1).timed_out
    branch = session.fork()
    assert branch.run("x").value == 2
    branch.close()
    session.close()
    made.close()


def test_in_a_container_without_landlock_system_calls_are_filtered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in gVisor, which has none."""
    needs("landlock")
    monkeypatch.setattr(landlock, "version", lambda: 0)
    monkeypatch.setattr(levels, "is_container", lambda: True)
    made = Sandbox(Setup(isolation="container"), ready=0)
    session = made.open()
    session.name(Names())
    assert session.process.layers[-1] == "seccomp"
    for code in (
        "import socket; socket.socket()",
        "import os; os.fork()",
        "import os; os.kill(os.getppid(), 9)",
    ):
        assert session.run(code).error_type == "PermissionError"
    session.close()
    made.close()


def test_writable_folders_are_written_to(tmp_path: Path) -> None:
    needs("landlock")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "given").write_text("x")
    made = Sandbox(Setup(writable=(str(shared),)), ready=0)
    session = made.open()
    session.name(Names())
    assert session.run(f"open({str(shared / 'made')!r}, 'w').write('y')").value == 1
    assert (shared / "made").read_text() == "y"
    session.close()
    made.close()


def test_the_filter_has_a_number_for_every_call() -> None:
    program = seccomp._program(programs=False, signals=True, attributes=False, notify=True)
    assert len(program) < 1000
    assert all(0 <= jump < 256 for _, yes, no, _ in program for jump in (yes, no))


def test_a_kernel_without_seccomp_has_the_level_process_with_fewer_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(code: int) -> Any:
        def keep_off_others() -> None:
            raise OSError(code, os.strerror(code))

        return keep_off_others

    monkeypatch.setattr(landlock, "keep_out_of_others", lambda: True)
    for code in (errno.ENOSYS, errno.EINVAL):
        monkeypatch.setattr(seccomp, "keep_off_others", refused(code))
        assert list(confinement._deny_access_to_others()) == ["no tracing"]
    monkeypatch.setattr(seccomp, "keep_off_others", refused(errno.EPERM))
    with pytest.raises(PermissionError):
        list(confinement._deny_access_to_others())
