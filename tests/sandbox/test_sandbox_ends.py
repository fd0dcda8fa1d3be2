"""Nothing is left: of episodes, of sandboxes, of hosts that are killed; and what a killed zygote means."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from absent import absent
from sandboxes import needs, readable_python
from servers import until

from envweave_gym.core.faults import NotAvailable
from envweave_gym.sandbox import Limits, Names, Sandbox, Setup, SharedSandbox, sharing
from envweave_gym.sandbox.worker_process import WorkerDied
from envweave_gym.tools import ToolRegistry

HOST = """
import sys, time
from envweave_gym.sandbox import Names, Sandbox, Setup
sandbox = Sandbox(Setup(isolation=sys.argv[1], profile=sys.argv[2], python=sys.argv[3]))
session = sandbox.open()
session.name(Names())
session.run("open('file', 'w').write('x')")
if sys.argv[2] == "shell":
    session.run("import subprocess; p = subprocess.Popen(['setsid', 'sleep', '61.75'])")
session.begin("while True: pass", timeout=60)
print(sandbox._root, flush=True)
time.sleep(60)
"""

OWN = Setup(limits=Limits(files=200))
"""What nobody else wants here, so that nobody shares it."""


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    needs("landlock")
    made = Sandbox(Setup())
    yield made
    made.close()


def there(sandbox: Sandbox) -> tuple[int, int, int, int]:
    """How many processes, descriptors, threads and folders there are."""
    return (
        len(psutil.Process().children(recursive=True)),
        len(os.listdir("/proc/self/fd")),
        threading.active_count(),
        len(os.listdir(sandbox._root)),
    )


def test_two_hundred_episodes_leave_nothing(sandbox: Sandbox) -> None:
    tools = ToolRegistry({"twice": lambda x: 2 * x})
    kinds = [
        "twice(1)",
        "open('f', 'w').write('x')",
        "import os; os._exit(0)",
        "1 / 0",
        "import os; os.close(1)",
    ]

    def episode(n: int) -> None:
        session = sandbox.open()
        session.name(Names(), tools)
        session.run(kinds[n % len(kinds)], checkpoint=n % 7 == 0)
        if n % 10 == 0:
            session.fork().close()
        session.close()

    def is_at_rest() -> bool:
        return len(sandbox._ready) == 1 and threading.active_count() <= before[2]

    for n in range(5):
        episode(n)
    until(lambda: len(sandbox._ready) == 1)
    before = there(sandbox)
    for n in range(200):
        episode(n)
    until(is_at_rest, 8)
    assert all(now <= then for now, then in zip(there(sandbox), before, strict=True))


def test_a_sandbox_that_is_closed_leaves_nothing() -> None:
    needs("landlock")
    gc.collect()
    fds, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(3):
        made = Sandbox(Setup())
        session = made.open()
        made.close()  # while the next worker is made ready
        session.close()
        assert not Path(made._root).exists()
        with pytest.raises(NotAvailable, match="the sandbox is closed"):
            made.open()
    until(lambda: threading.active_count() <= threads, 8)
    assert len(os.listdir("/proc/self/fd")) <= fds


def test_a_worker_that_cannot_be_taken_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise OSError("no more descriptors")

    needs("landlock")
    made = Sandbox(Setup(), ready=0)
    made.open().close()
    fds = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "pidfd_open", refuse)
    for _ in range(3):
        with pytest.raises(WorkerDied, match="no more descriptors"):
            made.open()
    assert len(os.listdir("/proc/self/fd")) <= fds
    made.close()


def test_a_session_that_is_forgotten_ends(sandbox: Sandbox) -> None:
    session = sandbox.open()
    pid = session.process.pid
    del session
    gc.collect()
    until(lambda: not psutil.pid_exists(pid))


def test_a_dead_worker_in_a_reference_cycle_closes_its_socket_without_a_warning(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.collect()
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    with warnings.catch_warnings(action="error", category=ResourceWarning):
        for _ in range(10):
            session = sandbox.open()
            session.process.kill()
            session.process.ending(5)
            circle: list[Any] = [session]
            circle.append(circle)
            del session, circle
            gc.collect()
    assert complaints == []


@pytest.mark.parametrize(
    ("level", "profile"), [("landlock", "code"), ("landlock", "shell"), ("namespace", "shell")]
)
def test_of_a_host_that_is_killed_nothing_is_left(level: str, profile: str) -> None:
    """After two seconds; or five times as long as a busy machine takes to begin."""
    needs(level)
    python = readable_python() or absent("there is no interpreter that all users may run")
    command = [sys.executable, "-c", HOST, level, profile, python]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        root = Path(host.stdout.readline().strip())
        longest = max(2.0, 5 * (time.monotonic() - began))
        below = psutil.Process(host.pid).children(recursive=True)
        assert len(below) >= 2
        assert root.is_dir()
        host.kill()
    until(lambda: not any(map(_runs, below)) and not root.exists(), longest)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_zygote_that_is_killed_costs_the_episodes_it_has(sandbox: Sandbox) -> None:
    session = sandbox.open()
    session.name(Names())
    sandbox.fill()
    assert sandbox._forks._zygote is not None
    sandbox._forks._zygote.kill()
    done = session.run("while True: pass", timeout=5)
    assert (done.error_type, done.state_lost) == ("WorkerDied", True)
    assert "the zygote, which was killed by SIGKILL" in done.error
    session.close()
    again = sandbox.open()
    again.name(Names())
    assert again.run("1 + 1").value == 2
    again.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_worker_that_is_killed_between_steps_is_a_loss(sandbox: Sandbox, number: signal.Signals) -> None:
    session = sandbox.open()
    session.name(Names())
    session.run("x = 1")
    os.kill(session.process.pid, number)
    session.process.signal(signal.SIGCONT)  # or it has ended already
    until(lambda: not session.process.is_alive())
    done = session.run("x")
    assert (done.error_type, done.state_lost) == ("WorkerDied", True)
    assert number.name in done.error
    session.close()


def test_a_worker_that_dies_while_it_waits_is_not_given_out(sandbox: Sandbox) -> None:
    sandbox.fill()
    waiting = sandbox._ready[0]
    os.kill(waiting.pid, signal.SIGKILL)
    until(lambda: not waiting.is_alive())
    session = sandbox.open()
    session.name(Names())
    assert session.run("1 + 1").value == 2
    session.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_host_has_no_sandbox_and_harms_none(sandbox: Sandbox) -> None:
    session = sandbox.open()
    session.name(Names())
    session.run("x = 1")
    pid = os.fork()
    if pid == 0:
        refusals = 0
        for misuse in (sandbox.open, lambda: session.run("1"), session.fork):
            try:
                misuse()
            except NotAvailable:
                refusals += 1
        session.close()
        sandbox.close()
        os._exit(refusals)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert session.run("x").value == 1
    session.close()


def test_an_invalid_setup_is_refused_every_time() -> None:
    shared = SharedSandbox(Setup(python="/nope"))
    for _ in range(2):
        with pytest.raises(NotAvailable, match="python='/nope' does not run"):
            shared.open()
    shared.close()
    assert shared.setup not in sharing._sandboxes._entries


def test_a_closed_sandbox_is_made_again_for_the_next_episode() -> None:
    needs("landlock")
    shared = SharedSandbox(OWN)
    shared.open().close()
    first = shared.hold().sandbox
    assert first is not None
    first.close()
    shared.open().close()
    assert shared.hold().sandbox is not first
    shared.close()
    assert OWN not in sharing._sandboxes._entries


def test_a_share_that_is_held_keeps_the_sandbox_open() -> None:
    needs("landlock")
    one, two = SharedSandbox(OWN), SharedSandbox(OWN)
    session = one.open()
    session.name(Names())
    two.hold()
    one.close()
    assert session.run("1 + 1").value == 2
    session.close()
    two.close()
    assert not Path(os.path.dirname(os.path.dirname(session.folder))).exists()


def test_equal_setups_share_a_sandbox_and_the_last_share_ends_it() -> None:
    needs("landlock")
    one, two = SharedSandbox(OWN), SharedSandbox(OWN)
    first, second = one.open(), two.open()
    assert os.path.dirname(os.path.dirname(first.folder)) == os.path.dirname(os.path.dirname(second.folder))
    first.close()
    one.close()
    second.name(Names())
    assert second.run("1 + 1").value == 2
    second.close()
    two.close()
    assert not Path(os.path.dirname(os.path.dirname(second.folder))).exists()
