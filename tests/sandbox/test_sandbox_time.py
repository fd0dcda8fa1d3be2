"""Steps that take too long: what is kept, what is lost, what is as before; and whose time it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from sandboxes import needs, stands_still

from envweave_gym.core.faults import InvalidArgument, NotAvailable
from envweave_gym.sandbox import Names, Sandbox, Session, Setup, Variable
from envweave_gym.tools import ToolRegistry

STOP = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
NEVER = threading.Event()


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    needs("landlock")
    made = Sandbox(Setup())
    yield made
    NEVER.set()
    made.close()


@pytest.fixture
def session(sandbox: Sandbox) -> Iterator[Session]:
    opened = sandbox.open()
    nap = lambda seconds: time.sleep(seconds)  # noqa: E731
    opened.name(Names(), ToolRegistry({"nap": nap, "never": lambda: NEVER.wait()}))
    opened.run("x = 1")
    yield opened
    opened.close()


def test_a_step_that_is_interrupted_keeps_its_variables(session: Session) -> None:
    done = session.run("x = 2\nprint('so far')\nwhile True: pass", timeout=0.2)
    assert (done.success, done.timed_out, done.state_lost) == (False, True, False)
    assert done.error_type == "StepTimeout"
    assert done.error.endswith("StepTimeout: the step took longer than 0.2 s; its variables are kept")
    assert "while True: pass" in done.error
    assert done.stdout == "so far\n"
    assert session.run("x").value == 2


def test_a_step_that_does_not_heed_that_loses_them(session: Session) -> None:
    done = session.run(f"print('so far')\n{STOP}", timeout=0.1)
    assert (done.timed_out, done.state_lost, done.stdout) == (True, True, "so far\n")
    assert done.error.endswith("was killed, and all variables are gone")
    with pytest.raises(NotAvailable, match="begin another"):
        session.run("1")


def test_an_interruption_that_comes_late_does_not_reach_the_next_step(session: Session) -> None:
    code = "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, {2})\ntime.sleep(0.3)"
    assert session.run(code, timeout=0.2).timed_out
    assert session.run("nap(0.01)\n7").value == 7


@pytest.mark.parametrize("end", [STOP, "import os; os._exit(3)", "import ctypes; ctypes.string_at(0)"])
def test_with_a_checkpoint_all_is_as_before(session: Session, end: str) -> None:
    session.run("open('file', 'w').write('before')")
    done = session.run(f"x = 2; y = 3\nopen('file', 'w').write('after')\n{end}", timeout=0.1, checkpoint=True)
    assert (done.success, done.state_lost, done.restored) == (False, False, True)
    assert done.error.endswith("and all is as before the step")
    assert done.variables == {"x": Variable("int")}
    assert session.run("x, open('file').read()").value == [1, "before"]


def test_a_checkpoint_that_is_not_needed_changes_nothing(session: Session) -> None:
    done = session.run("x = 2\nx", checkpoint=True)
    assert (done.value, done.restored, done.variables) == (2, False, {"x": Variable("int")})


def test_where_no_checkpoint_can_be_the_step_is_run_without(session: Session) -> None:
    session.run(
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    assert session.run("x", checkpoint=True).value == 1
    done = session.run("import os; os._exit(3)", checkpoint=True)
    assert done.state_lost
    assert "not copied before: a thread of the program" in done.error


def test_the_time_of_the_host_does_not_count(session: Session) -> None:
    assert session.run("nap(0.3); nap(0.3); 5", timeout=0.2).value == 5
    assert session.usage.seconds < 0.2 < 0.6 < session.usage.wall


def test_its_own_time_goes_on_after_a_tool(session: Session) -> None:
    done = session.run("nap(0.3)\nwhile True: pass", timeout=0.2)
    assert done.timed_out
    assert 0.5 < session.usage.wall < 4  # when all time would be over


def test_a_tool_that_never_returns_ends_with_all_time_and_keeps_the_variables(session: Session) -> None:
    done = session.run("x = 2\nnever()", timeout=0.02)
    assert (done.timed_out, done.state_lost) == (True, False)
    assert 0.4 <= session.usage.wall < 4
    assert session.run("x").value == 2


def test_a_session_whose_tool_never_returns_is_closed_at_once(sandbox: Sandbox) -> None:
    session = sandbox.open()
    session.name(Names(), ToolRegistry({"never": lambda: NEVER.wait()}))
    session.begin("never()")
    began = time.monotonic()
    session.close()
    assert time.monotonic() - began < 10


def test_too_much_output_ends_a_step_and_keeps_its_variables(session: Session) -> None:
    done = session.run("while True: print('x' * 10 ** 6)", timeout=10)
    assert (done.error_type, done.timed_out, done.state_lost) == ("OutputLimit", False, False)
    assert session.run("x").value == 1


def test_a_thread_that_is_left_behind_takes_nothing_between_steps(session: Session) -> None:
    session.run("def f():\n    while True: pass\nimport threading, time")
    session.run("threading.Thread(target=f, daemon=True).start()")
    assert session.process.thread_count() == 2
    stands_still(session)
    assert session.run("1").value == 1
    stands_still(session)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), 1e6, "1", None, True])
def test_an_invalid_timeout_is_refused(session: Session, timeout: Any) -> None:
    with pytest.raises(InvalidArgument, match="is no number of seconds up to 86400"):
        session.run("1", timeout=timeout)
    assert session.run("1").value == 1
