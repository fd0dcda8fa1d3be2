"""Process isolation: whatever an environment does to its process, it does to its own session alone."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from isolated_sessions import (
    NAME,
    TRUNCATE,
    Player,
    is_gone,
    parent_of,
    sessions,
    until,
    workers,
    workers_with,
)

import envweave_gym as ew
from envweave_gym.core.faults import (
    AtCapacity,
    EnvironmentCrashed,
    Fault,
    FaultKind,
    InvalidArgument,
    NotAvailable,
    UnknownEnvironment,
)
from envweave_gym.sandbox.forkserver import Fork
from envweave_gym.wire import frame_limits
from envweave_gym.wire.messages import (
    Answer,
    Ask,
    Began,
    Create,
    Refused,
    Reset,
    Step,
    Stepped,
    encode,
    read_reply,
)
from envweave_gym_server.isolation import worker_hosts
from envweave_gym_server.isolation.worker_hosts import WorkerHosts
from envweave_gym_server.sessions.session_table import Sessions

__all__ = ["sessions", "workers"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process isolation needs Linux")


DEATHS = {
    "segfault": "was killed by SIGSEGV",
    "abort": "was killed by SIGABRT",
    "kill": "was killed by SIGKILL",
    "exit": "ended with exit code 3",
    "quiet exit": "ended with exit code 0",
    "unsocket": "ended with exit code 1",
}


@pytest.mark.parametrize("deed", DEATHS)
def test_a_death_in_a_step_is_the_fault_of_its_episode_alone(sessions: Sessions, deed: str):
    player, other = Player(sessions), Player(sessions, "other")
    player.reset()
    other.reset()
    assert player.step("nothing").observation == "nothing 1"
    lost = player.step(deed)
    assert isinstance(lost, Stepped)
    assert (lost.observation, lost.reward, lost.terminated, lost.truncated) == ("nothing 1", 0.0, False, True)
    assert lost.info["fault"] == Fault(FaultKind.CRASH, f"Crashing: its process {DEATHS[deed]}", True)
    assert not ew.trainable(lost.info)
    assert [str(event.kind) for event in lost.info["stream"].events] == ["act", "fault", "episode_end"]
    assert lost.info["stream"].events[0].data == {"action": deed}
    assert lost.info["seq"] == 5
    assert isinstance(player.step("nothing"), Refused)
    assert isinstance(player.reset(), Began)
    assert player.step("nothing").observation == "nothing 1"
    assert other.step("nothing").observation == "nothing 1"


def test_a_memory_bomb_is_the_fault_of_its_episode_alone(sessions: Sessions):
    player, other = Player(sessions), Player(sessions, "other")
    player.reset()
    other.reset()
    lost = player.step("bomb")
    assert lost.truncated
    assert lost.info["fault"].kind is FaultKind.CRASH
    assert "MemoryError" in lost.info["fault"].message
    assert isinstance(player.reset(), Began)
    assert other.step("limits").info["result"] == "1000"


def test_a_call_that_was_lost_is_answered_again_as_it_was(sessions: Sessions):
    player = Player(sessions)
    player.reset()
    lost = player.step("exit")
    assert player.session.core.committed == 2
    again = read_reply(player.session.call(Step(2, "exit"), player.frame))
    assert again == lost
    conflict = player.send(Step(2, "nothing"))
    assert isinstance(conflict, Refused)
    assert (conflict.kind, conflict.committed) == ("Conflict", 2)


def test_with_on_fault_raise_a_death_is_refused_and_done(sessions: Sessions):
    player = Player(sessions, on_fault="raise")
    player.reset()
    lost = player.step("segfault")
    assert lost == Refused(2, "EnvironmentCrashed", "Crashing: its process was killed by SIGSEGV", 2)
    assert player.step("nothing").kind == "ResetNeeded"
    assert isinstance(player.reset(), Began)


def test_a_death_in_a_reset_is_refused_and_the_next_reset_has_another_process(sessions: Sessions):
    player = Player(sessions)
    lost = player.reset("exit")
    assert lost == Refused(1, "EnvironmentCrashed", "Crashing: its process ended with exit code 3", 1)
    assert isinstance(player.reset(), Began)


def test_a_reset_that_cannot_have_another_process_is_refused_until_it_can(sessions: Sessions, tmp_path: Path):
    curse = tmp_path / "curse"
    player = Player(sessions, curse=str(curse))
    player.reset()
    curse.touch()
    assert player.step("kill").truncated
    lost = player.reset()
    assert lost == Refused(3, "EnvironmentCrashed", "Crashing: its process ended with exit code 4", 3)
    curse.unlink()
    assert isinstance(player.reset(), Began)


def test_a_death_in_a_vector_is_refused(workers: WorkerHosts):
    host = workers.open(Create(NAME, "vector", {"num_envs": 2, **TRUNCATE}))
    for message in (Reset(1, 0), Step(2, ("nothing", "nothing"))):
        assert host.do(message, encode(message))[1]
    lost = Step(3, ("nothing", "exit"))
    reply, done = host.do(lost, encode(lost))
    assert (read_reply(reply), done) == (
        Refused(3, "EnvironmentCrashed", "Crashing: its process ended with exit code 3", 3),
        True,
    )
    assert isinstance(read_reply(host.do(Reset(4, 0), encode(Reset(4, 0)))[0]), Began)
    host.close()


def test_a_death_between_two_steps_is_reported_by_the_second(sessions: Sessions):
    player = Player(sessions)
    player.reset()
    os.kill(pid := player.pid(), signal.SIGKILL)
    until(lambda: is_gone(pid))
    answer = player.send(Ask(-2, "state"))
    assert isinstance(answer, Answer)
    assert answer.value["count"] == 0
    assert player.step("nothing").info["fault"].message == "Crashing: its process was killed by SIGKILL"
    assert isinstance(player.reset(), Began)
    os.kill(pid := player.pid(), signal.SIGKILL)
    until(lambda: is_gone(pid))
    assert isinstance(player.reset(), Began)


def test_a_death_that_is_noted_late_is_seen_by_a_reset(sessions: Sessions, monkeypatch: pytest.MonkeyPatch):
    player, noted = Player(sessions), threading.Event()
    player.reset()
    end = Fork.end
    monkeypatch.setattr(Fork, "end", lambda fork, words: (noted.wait(5), end(fork, words)))
    os.kill(pid := player.pid(), signal.SIGKILL)
    until(lambda: is_gone(pid))
    threading.Timer(0.2, noted.set).start()
    assert isinstance(player.reset(), Began)


def test_an_environment_that_cannot_be_made_fails_as_in_the_server(sessions: Sessions, workers: WorkerHosts):
    with pytest.raises(InvalidArgument, match="takes no argument 'worse' from a client"):
        Player(sessions, worse=1)
    with pytest.raises(EnvironmentCrashed, match="Crashing cannot be made: OSError: the device") as reported:
        Player(sessions, bad="raise")
    assert reported.value.cause == "OSError"
    with pytest.raises(EnvironmentCrashed, match="its process was killed by SIGSEGV"):
        Player(sessions, bad="segfault")
    with pytest.raises(EnvironmentCrashed, match="its process was killed by SIGSEGV"):
        workers.describe(Create(NAME, "gym", {"bad": "segfault"}))
    with pytest.raises(UnknownEnvironment, match="'Nope' is not served here"):
        workers.open(Create("Nope"))
    assert len(sessions) == 0


def test_spaces_are_found_out_in_a_process(workers: WorkerHosts):
    described = workers.describe(Create(NAME))
    assert described["api"] == "gym"
    assert described["action_space"]["type"] == "Unicode"


def test_a_constructor_that_never_returns_is_killed_and_frees_its_slot():
    workers = workers_with(call_timeout=1.0)
    for make in (workers.open, workers.describe):
        with pytest.raises(
            EnvironmentCrashed, match="Crashing: no answer within 1 s, so its process was killed"
        ):
            make(Create(NAME, "gym", {"bad": "loop"}))
    assert workers.describe(Create(NAME))["api"] == "gym"
    workers.close()


def test_a_call_that_takes_too_long_is_killed():
    workers = workers_with(call_timeout=1.0)
    sessions = Sessions(workers.open, most=2, idle_timeout=300)
    player, other = Player(sessions), Player(sessions, "other")
    player.reset()
    other.reset()
    stuck = player.pid()
    started = time.monotonic()
    lost = player.step("loop")
    assert time.monotonic() - started < 20
    assert lost.info["fault"].kind is FaultKind.TIMEOUT
    assert "no answer within 1 s" in lost.info["fault"].message
    assert is_gone(stuck)
    assert isinstance(player.reset(), Began)
    assert other.pid()
    workers.close()


def test_a_reply_longer_than_a_frame_may_be_is_not_taken():
    workers = workers_with(largest_frame=100_000)
    player = Player(Sessions(workers.open, most=1, idle_timeout=300))
    player.reset()
    lost = player.step("long")
    assert "its reply has more bytes than the limit of 100000" in lost.info["fault"].message
    assert isinstance(player.reset(), Began)
    workers.close()


def test_a_reply_with_more_values_than_any_is_not_decoded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_hosts, "SMALL_REPLY", 100_000)
    monkeypatch.setattr(frame_limits, "SMALL_REPLY", 100_000)
    monkeypatch.setattr(frame_limits, "MOST_REPLY_VALUES", 3)
    workers = workers_with()
    player = Player(Sessions(workers.open, most=1, idle_timeout=300))
    player.reset()
    lost = player.step("long")
    assert "its reply is not read: the frame holds more than 3 values" in lost.info["fault"].message
    assert isinstance(player.reset(), Began)
    workers.close()


def test_sessions_draw_different_numbers_from_global_generators(sessions: Sessions):
    drawn: list[list[float]] = []
    for name in ("one", "two"):
        player = Player(sessions, name)
        player.reset()
        drawn.append(player.step("random").info["result"])
    assert drawn[0][0] != drawn[1][0]
    assert drawn[0][1] != drawn[1][1]


def test_the_end_of_the_zygote_is_a_fault_of_all_and_there_is_another():
    workers = workers_with()
    sessions = Sessions(workers.open, most=9, idle_timeout=300)
    players = [Player(sessions, name) for name in ("one", "two")]
    for player in players:
        player.reset()
    workers_of = [player.pid() for player in players]
    zygote = parent_of(workers_of[0])
    os.kill(zygote, signal.SIGKILL)
    until(lambda: all(map(is_gone, workers_of)))
    for player in players:
        lost = player.step("nothing")
        assert "its process ended with the zygote, which was killed by SIGKILL" in lost.info["fault"].message
        assert isinstance(player.reset(), Began)
    workers.close()


def test_sessions_of_many_threads_are_opened_at_once(sessions: Sessions):
    pids: list[int] = []

    def play(name: str) -> None:
        player = Player(sessions, name)
        player.reset()
        pids.append(player.pid())

    threads = [threading.Thread(target=play, args=(f"n{one}",)) for one in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(pids)) == 12
    sessions.stop()
    until(lambda: all(map(is_gone, pids)))


def test_a_question_that_ends_the_process_is_refused_and_its_episode_lost(sessions: Sessions):
    player = Player(sessions)
    player.reset()
    reported = "Crashing: its process ended with exit code 3"
    assert player.send(Ask(-2, "parse_action", ["exit", None])) == Refused(-2, "EnvironmentCrashed", reported)
    assert player.send(Ask(-3, "parse_action", ["nothing", None])).value == "nothing"
    assert player.step("nothing").info["fault"].message == reported
    assert isinstance(player.reset(), Began)


def test_where_there_is_no_room_for_another_process_the_call_is_not_done(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: Any) -> Any:
        raise AtCapacity("there is no room for another process")

    player = Player(sessions)
    player.reset()
    assert player.step("exit").truncated
    with monkeypatch.context() as patch:
        patch.setattr(WorkerHosts, "start", full)
        assert player.reset() == Refused(3, "AtCapacity", "there is no room for another process", 2)
    assert isinstance(player.reset(), Began)


def test_processes_are_offered_where_there_are_such(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(NotAvailable, match="isolation='process' needs Linux"):
        workers_with()


def test_long_frames_go_there_and_back(sessions: Sessions):
    player = Player(sessions)
    player.reset()
    assert player.step("long").info["result"] == "x" * (1 << 20)
    assert player.step("x" * (1 << 20)).kind == "InvalidAction"
