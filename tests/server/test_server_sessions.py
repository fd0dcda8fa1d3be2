"""The table of sessions on a machine that is short of threads."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from servers import until

from envweave_gym.wire.messages import Create, Reset, encode
from envweave_gym_server.isolation.local_hosts import LocalHosts
from envweave_gym_server.offers.offers import offers_of
from envweave_gym_server.sessions.session_table import Sessions

COUNTER = "envweave/Counter-v0"
CREATE = Create(COUNTER)


@pytest.fixture
def one_fails(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that could not be started: from now on the first."""
    failed: list[str] = []
    start = threading.Thread.start

    def fail_once(thread: threading.Thread) -> None:
        if not failed:
            failed.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_once)
    return failed


def sessions_with(**options: Any) -> Sessions:
    return Sessions(LocalHosts(offers_of([COUNTER])).open, most=2, **{"idle_timeout": 0.02, **options})


def open_one(sessions: Sessions, name: str) -> None:
    sessions.create(name, CREATE, encode(CREATE))


def test_a_session_without_a_thread_takes_no_slot(one_fails: list[str]):
    sessions = sessions_with()
    with pytest.raises(RuntimeError):
        open_one(sessions, "one")
    assert (one_fails, len(sessions)) == (["reaper"], 0)
    open_one(sessions, "one")
    until(lambda: len(sessions) == 0)
    sessions.stop()


def test_the_reaper_goes_on_after_a_session_that_it_found_no_thread_to_close(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
):
    sessions = sessions_with(idle_timeout=0.2)
    open_one(sessions, "one")
    failed = request.getfixturevalue("one_fails")
    until(lambda: len(sessions) == 0)
    assert failed == ["close one"]
    assert "session not closed" in caplog.text
    open_one(sessions, "two")
    until(lambda: len(sessions) == 0)
    sessions.stop()


def test_a_busy_session_that_finds_no_thread_to_be_closed_stays(one_fails: list[str]):
    one_fails.append("none yet")
    sessions = sessions_with(idle_timeout=60)
    open_one(sessions, "one")
    session = sessions.get("one")
    one_fails.clear()
    with session._lock, pytest.raises(RuntimeError):
        sessions.close("one")
    assert sessions.get("one") is session
    assert session.call(Reset(1, 0), encode(Reset(1, 0)))
    sessions.stop()
