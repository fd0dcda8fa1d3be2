"""Fleets: replicas that start together, are replaced when they die, share the work and end together."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pettingzoo
import psutil
import pytest
from engines import CORE, client
from servers import runs, until

import envweave_gym as ew
from envweave_gym.providers import replica, replica_health
from envweave_gym.providers.base import PROVIDERS, Provider, provider_of
from envweave_gym.providers.parallel import start_all
from envweave_gym.providers.replica_fleet import Fleet, KnownFleet, statuses
from envweave_gym.remote.address import Address
from envweave_gym.remote.started_servers import users_of

__all__ = ["client"]
COUNTER, LINE, KUHN = "envweave/Counter-v0", "envweave/LineWorld-v0", "envweave/KuhnPoker-v0"


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Three servers that most tests share, and leave as they are."""
    with ew.Fleet("subprocess", replicas=3, check_every=0.05) as fleet:
        yield fleet


def sessions(fleet: Fleet | KnownFleet) -> list[int | None]:
    return [one.sessions for one in fleet.status()]


def processes(fleet: Fleet) -> list[psutil.Process]:
    """All processes of the servers of a fleet."""
    parents = [psutil.Process(one.pid) for one in fleet._replicas]
    return [one for parent in parents for one in (parent, *parent.children(recursive=True))]


def test_all_of_its_replicas_serve_when_it_is_made(fleet: Fleet):
    assert len(set(fleet.urls)) == 3
    assert [(one.state, one.restarts) for one in fleet.status()] == [("healthy", 0)] * 3
    assert [one.url for one in fleet.status()] == fleet.urls


def test_its_urls_are_a_backend_for_every_make(fleet: Fleet):
    env = gym.make(COUNTER, backend=fleet.urls)
    rows = gym.make_vec(LINE, num_envs=6, backend=fleet.urls)
    own = gym.make_vec(LINE, num_envs=6)
    games = [pettingzoo.make(api, KUHN, backend=fleet.urls) for api in ("aec", "parallel")]
    assert env.reset(seed=1)[0].keys() == {"count"}
    rows.reset(seed=3)
    own.reset(seed=3)
    for _ in range(5):
        ones = np.ones(6, np.int64)
        assert np.array_equal(rows.step(ones)[0], own.step(ones)[0])
    for game in games:
        game.reset(seed=1)
        game.close()
    assert sum(found or 0 for found in sessions(fleet)) == 4
    env.close()
    rows.close()


def test_environments_go_where_there_are_fewest(fleet: Fleet):
    envs = [gym.make(COUNTER, backend=fleet.urls) for _ in range(6)]
    assert [users_of(url) for url in fleet.urls] == [2, 2, 2]
    for env in envs:
        env.reset(seed=1)
    assert sessions(fleet) == [2, 2, 2]
    emptied = fleet.urls[1]
    for env in envs:
        if env.unwrapped._served.address.url == emptied:
            env.close()
    envs += [gym.make(COUNTER, backend=fleet.urls) for _ in range(2)]
    assert [users_of(url) for url in fleet.urls] == [2, 2, 2]
    for env in envs:
        env.close()


def test_a_server_refuses_clients_without_its_token(fleet: Fleet, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_TOKEN", "another-token")
    for url in fleet.urls:
        with pytest.raises(ew.NotAvailable, match="token"):
            gym.make(COUNTER, backend=url, token="env:NO_TOKEN")


def test_an_unpickled_fleet_is_used_and_ends_nothing(fleet: Fleet):
    env = gym.make(COUNTER, backend=fleet.urls)
    program = textwrap.dedent(
        """
        import pickle, sys
        import gymnasium as gym
        fleet, env = pickle.load(sys.stdin.buffer)
        with fleet:
            for one in (env, gym.make("envweave/Counter-v0", backend=fleet.urls)):
                one.reset(seed=1)
                assert one.step({"delta": 1})[3] is False
                one.close()
            print(len(fleet), [one.state for one in fleet.status()], fleet)
        fleet.close()
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps((fleet, env)),
        capture_output=True,
        timeout=60,
    )
    expected = "3 ['healthy', 'healthy', 'healthy'] <KnownFleet of 3>"
    assert (done.stdout.decode().strip(), done.stderr.decode()) == (expected, "")
    env.reset(seed=1)
    env.close()
    twice = pickle.loads(pickle.dumps(copy.deepcopy(fleet)))
    assert (type(twice), twice.urls) == (KnownFleet, fleet.urls)
    assert [one.state for one in fleet.status()] == ["healthy"] * 3


def test_a_forked_child_closes_nothing(fleet: Fleet):
    pid = os.fork()
    if pid == 0:
        fleet.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert [(one.state, one.restarts) for one in fleet.status()] == [("healthy", 0)] * 3


def test_one_that_dies_is_replaced_behind_its_url():
    with Fleet("subprocess", replicas=2, check_every=0.02) as fleet:
        urls = fleet.urls
        envs = [gym.make(COUNTER, backend=url, reset_deadline=20.0) for url in urls]
        for env in envs:
            env.reset(seed=1)
        os.killpg(fleet._replicas[0].pid, signal.SIGKILL)
        until(lambda: [one.restarts for one in fleet.status()] == [1, 0], 30)
        lost, kept = (env.step({"delta": 1}) for env in envs)
        assert (lost[1], lost[3], lost[4]["fault"].kind) == (0.0, True, ew.FaultKind.LOST)
        assert "fault" not in kept[4]
        assert "fault" not in envs[0].reset(seed=1)[1]
        assert envs[0].step({"delta": 1})[3] is False
        assert (fleet.urls, sessions(fleet)) == (urls, [1, 1])
        for env in envs:
            env.close()


def test_one_that_hangs_is_replaced_too(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(replica_health, "_CHECK_TIMEOUT_S", 0.3)
    monkeypatch.setattr("envweave_gym.providers.subprocess._GRACE_S", 0.2)
    with Fleet("subprocess", replicas=1, check_every=0.02, misses=2) as fleet:
        before = processes(fleet)
        env = gym.make(COUNTER, backend=fleet.urls)
        env.reset(seed=1)
        os.killpg(fleet._replicas[0].pid, signal.SIGSTOP)
        until(lambda: fleet.restarts[0] > 0, 30)
        until(lambda: fleet.status()[0].state == "healthy", 30)
        assert fleet.restarts == [1]  # however long it takes to start
        assert not any(map(runs, before))
        assert f"{fleet.urls[0]} has not answered 2 times and is replaced" in caplog.text
        fault = env.step({"delta": 1})[4]["fault"]
        assert "has ended: it was replaced, as it had not answered 2 times" in fault.message
        env.close()


def test_one_that_cannot_be_started_again_says_why(monkeypatch: pytest.MonkeyPatch):
    with Fleet("subprocess", replicas=1, check_every=0.02) as fleet:
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        os.killpg(fleet._replicas[0].pid, signal.SIGKILL)
        until(lambda: fleet.problems, 30)
        (found,) = fleet.status()
        assert (found.state, found.restarts) == ("unhealthy", 0)
        assert "/nowhere/python" in found.problem
        monkeypatch.undo()
        until(lambda: fleet.restarts == [1] and fleet.status()[0].state == "healthy", 30)


def test_closing_leaves_no_process():
    fleet = Fleet("subprocess", replicas=2)
    left = processes(fleet)
    assert len(left) >= 4
    fleet.close()
    fleet.close()
    assert (fleet.urls, len(fleet)) == ([], 0)
    until(lambda: not any(map(runs, left)), 30)


def test_a_step_after_closing_fails_at_once():
    with Fleet("subprocess") as fleet:
        env = gym.make(COUNTER, backend=fleet.urls)
        env.reset(seed=1)
    began = time.monotonic()
    *_, truncated, info = env.step({"delta": 1})
    assert time.monotonic() - began < 5
    assert truncated
    assert info["fault"].kind is ew.FaultKind.LOST
    assert "this process has stopped that server; make the environment on another" in info["fault"].message
    env.close()


def test_a_reset_after_closing_fails_at_once():
    with Fleet("subprocess") as fleet:
        env = gym.make(COUNTER, backend=fleet.urls, reset_deadline=60)
        env.reset(seed=1)
    began = time.monotonic()
    _, info = env.reset()
    assert time.monotonic() - began < 20
    assert "this process has stopped that server" in info["fault"].message
    env.close()


def test_an_id_that_servers_do_not_have_is_one_sentence_without_a_traceback(
    capfd: pytest.CaptureFixture[str],
):
    with pytest.raises(ew.NotAvailable, match="'nope/None-v0' cannot be served") as refused:
        Fleet("subprocess", ids=["nope/None-v0"])
    assert "Traceback" not in str(refused.value) + capfd.readouterr().err


def test_where_one_cannot_be_started_none_is_left():
    children = psutil.Process().children
    before = {one.pid for one in children(recursive=True)}
    said = "^the server of .* ended before its server answered: exit code 1, and it last said: .*nope/None-v0"
    with pytest.raises(ew.NotAvailable, match=said):
        Fleet("subprocess", replicas=2, ids=["nope/None-v0"])
    assert {one.pid for one in children(recursive=True)} <= before


class Fake:
    """A replica of nothing, which tells how it ended."""

    def __init__(self, number: int, stopped: list[int]) -> None:
        self.url, self._number, self._stopped = f"http://127.0.0.1:{number}", number, stopped

    def stop(self) -> None:
        self._stopped.append(self._number)


def test_an_actor_that_does_not_answer_is_not_healthy(monkeypatch: pytest.MonkeyPatch):
    class Transport:
        def __init__(self, address: Address, line: bytes, deadline: float) -> None:
            self._url = address.url

        def send(self, frame: bytes, deadline: float) -> None:
            if self._url.endswith("/dead"):
                raise ConnectionError("the actor has died")

        def receive(self, deadline: float) -> bytes:
            if self._url.endswith("/hanging"):
                raise TimeoutError("it did not answer in time")
            return b"what was that?"

        def close(self) -> None:
            pass

    monkeypatch.setattr("envweave_gym.providers.ray.actor_connector.ActorTransport", Transport)
    reported = statuses([f"ray+actor://here/{how}" for how in ("alive", "dead", "hanging")], None)
    assert [(one.state, one.problem) for one in reported] == [
        ("healthy", ""),
        ("unhealthy", "the actor has died"),
        ("unhealthy", "it did not answer in time"),
    ]


def test_those_that_started_are_stopped_where_one_has_not():
    stopped: list[int] = []

    def fail() -> Any:
        time.sleep(0.05)
        raise ew.NotAvailable("no luck")

    with pytest.raises(ew.NotAvailable, match="no luck"):
        start_all([lambda: Fake(1, stopped), fail, lambda: Fake(2, stopped)])
    assert sorted(stopped) == [1, 2]


def test_an_interrupted_start_leaves_nothing():
    stopped: list[int] = []

    def slow(number: int) -> Any:
        time.sleep(0.3)
        return Fake(number, stopped)

    signal.signal(signal.SIGALRM, lambda *_: signal.default_int_handler(signal.SIGINT, None))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with pytest.raises(KeyboardInterrupt):
        start_all([lambda: slow(1), lambda: slow(2)])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert sorted(stopped) == [1, 2]


def test_it_serves_the_given_ids(monkeypatch: pytest.MonkeyPatch):
    with Fleet("subprocess", ids=[COUNTER], token="a-token-of-mine") as fleet:
        monkeypatch.setenv("ITS_TOKEN", "a-token-of-mine")
        gym.make(COUNTER, backend=fleet.urls, token="env:ITS_TOKEN").close()
        with pytest.raises(ew.UnknownEnvironment, match=f"there are {COUNTER}$"):
            gym.make(LINE, backend=fleet.urls)


def test_the_output_of_its_servers_is_retained_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    (tmp_path / "noisy_world.py").write_text(
        "import sys, gymnasium\nfrom envweave_gym.envs.toy.counter import CounterEnv\n"
        "class Noisy(CounterEnv):\n"
        "    def reset(self, **given):\n"
        "        print('noise from inside', file=sys.stderr)\n"
        "        return super().reset(**given)\n"
        "gymnasium.register('noisy/World-v0', entry_point='noisy_world:Noisy')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with Fleet("subprocess", replicas=2) as fleet:
        quiet, loud = fleet.urls
        env = ew.make("noisy_world:noisy/World-v0", backend=loud)
        env.reset(seed=1)
        until(lambda: "noise from inside" in fleet.logs()[loud], 30)
        assert fleet.logs()[quiet] == ""
        env.close()
    assert "noise from inside" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"backend": "inproc"},
            r"Fleet\('inproc'\): there is no such provider; there are subprocess, docker",
        ),
        ({"backend": ["http://x"]}, r"there is no such provider"),
        ({"replicas": 0}, r"Fleet\('subprocess'\): replicas=0 is no number of replicas from 1 to 256"),
        ({"replicas": "2"}, r"replicas='2' is no number of replicas"),
        ({"memory": "1g"}, r"Fleet\('subprocess'\) takes no option 'memory'"),
        ({"ids": COUNTER}, r"ids='envweave/Counter-v0' is no list of IDs"),
        ({"backend": "docker", "memory": "x"}, r"Fleet\('docker'\): memory='x' is no size"),
        ({"backend": "docker_http", "colour": 1}, r"Fleet\('docker_http'\) takes no option 'colour'"),
    ],
)
def test_an_invalid_fleet_is_refused(given: dict[str, Any], sentence: str):
    with pytest.raises(ew.InvalidArgument, match=sentence):
        Fleet(**{"backend": "subprocess", **given})


@pytest.mark.parametrize("name", [name for name in PROVIDERS if name != "venv"])  # it has no servers
def test_every_provider_of_the_table_is_one_and_starts_replicas(name: str):
    provider = provider_of(name)
    assert isinstance(provider, Provider)
    assert provider.name == name
    assert callable(provider.start("test", CORE, {}))


def test_its_replicas_are_what_every_provider_gives(fleet: Fleet):
    assert all(isinstance(one, replica.Replica) for one in fleet._replicas)


def test_rows_are_spread_over_subprocesses_that_end_with_them():
    children = psutil.Process().children
    before = {one.pid for one in children(recursive=True)}
    rows = gym.make_vec(LINE, num_envs=4, backend="subprocess", replicas=2)
    rows.reset(seed=1)
    assert len({shard.address.url for shard in rows._shards}) == 2
    assert len({one.pid for one in children()} - before) == 2
    rows.close()
    until(lambda: {one.pid for one in children(recursive=True)} <= before, 30)
    rows.reset(seed=1)
    assert not rows.step(np.ones(4, np.int64))[3].any()
    rows.close()
