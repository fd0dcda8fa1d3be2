"""Both state machines of a session against each other on a virtual clock, while everything goes wrong.

Whatever happens: no call is done twice, a reply is that of its call, a session that is lost is reported and
never replaced by a fresh environment, and every call ends by its deadline.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from simulated_server import DEADLINE_S, LEASE_S, Weather, World

from envweave_gym.core.faults import AtCapacity, SessionLost
from envweave_gym.remote import session as client
from envweave_gym.remote import session_protocol
from envweave_gym.wire.messages import Call, Step
from envweave_gym_server.sessions import session_protocol as server_core

SEEDS = 300
CALLS = 30
LOSSES = (SessionLost, AtCapacity, ConnectionError, TimeoutError)
WEATHERS = {
    "calm": Weather(),
    "frames are lost": Weather(lost=0.1),
    "connections are cut": Weather(cut=0.2),
    "frames are doubled": Weather(doubled=0.3),
    "frames are late": Weather(delayed=0.2),
    "calls are slow": Weather(slow=0.2, cut=0.1),
    "the server restarts": Weather(restarts_every_s=8.0),
    "connections are refused": Weather(refused=0.4, unanswered=0.2, cut=0.2),
    "everything": Weather(0.05, 0.1, 0.1, 0.1, 0.2, 0.1, 0.05, 40.0),
}


class Player:
    """Plays episodes, and checks every reply."""

    def __init__(self, world: World) -> None:
        self._world, self._session = world, world.session()
        self.outcomes = Counter[str]()
        self._env: int | None = None
        """The environment of the episode."""
        self._calls = 0

    def play(self, calls: int) -> None:
        for number in range(calls):
            draw = self._world.random.random()
            if self._env is None or draw < 0.1:
                self._call("reset", lambda number=number: self._session.reset(number, None), number)
            elif draw < 0.2:
                self._call("ask", lambda: self._session.ask("state"), None)
            elif draw < 0.25:
                self._world.clock.sleep(self._world.random.uniform(0.0, 2 * LEASE_S))
            elif draw < 0.28:
                self._leave()
            else:
                self._call("step", lambda number=number: self._session.call(Step(0, number)), number)

    def _call(self, what: str, call: Any, argument: Any) -> None:
        began = self._world.clock.now
        try:
            reply = call()
        except LOSSES as error:
            if "Conflict" in str(error):
                pytest.fail("the only writer of a session is refused as another")
            self.outcomes[f"{what} {type(error).__name__}"] += 1
            self._session.abandon()
            self._env, self._session = None, self._world.session()
        else:
            self.outcomes[what] += 1
            self._check(what, reply, argument)
        # the deadline counts once more from the first refused connection
        assert self._world.clock.now - began <= 2 * DEADLINE_S + 1.0, f"{what} has not ended"

    def _check(self, what: str, reply: Any, argument: Any) -> None:
        if what == "ask":
            assert reply == [self._env, self._calls], "the answer of another environment"
            return
        env, call, seen = reply.observation
        assert seen == argument, f"{what}({argument}) was given the reply to {seen}"
        if self._env is None:
            self._calls = 0
        else:
            assert env == self._env, "a fresh environment has taken the place of a lost one"
        self._env, self._calls = env, self._calls + 1
        assert call == self._calls, "a call was done that nobody has made"

    def _leave(self) -> None:
        self._session.close()
        self._env, self._session = None, self._world.session()


def outcomes(weather: Weather, monkeypatch: pytest.MonkeyPatch, **world: Any) -> Counter[str]:
    """Play with every seed; the outcomes of all calls."""
    counted = Counter[str]()
    for seed in range(SEEDS):
        one = World(seed, weather, **world)
        monkeypatch.setattr(client, "time", one.clock)
        player = Player(one)
        try:
            player.play(CALLS)
        except (AssertionError, pytest.fail.Exception) as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        counted += player.outcomes
    return counted


@pytest.mark.parametrize("name", WEATHERS)
def test_every_call_is_done_once_or_reported_as_lost(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = outcomes(WEATHERS[name], monkeypatch)
    lost = sum(count for what, count in counted.items() if " " in what)
    done = counted.total() - lost
    assert done > lost, counted
    if name in ("calm", "frames are doubled"):
        assert set(counted) <= {"reset", "step", "ask"}, counted
    if name == "the server restarts":
        assert counted["step SessionLost"] > 0, counted


# The simulation finds state machines that are broken


class ForgetsNumbers(session_protocol.SessionCore):
    """Takes any reply for that to its call."""

    def received(self, reply: Any) -> session_protocol.Operation:
        if getattr(reply, "call", 0):
            self.call.number = reply.call
        return super().received(reply)


class BringsTheCreateAlong(session_protocol.SessionCore):
    """Sends the create with every call, which makes another environment where the session is lost."""

    def begin(self, frame: bytes, number: int, now: float, *arguments: Any, **options: Any) -> Any:
        operation = super().begin(frame, number, now, *arguments, **options)
        self.call.opening = self._create
        return operation


class NeverGivesUp(session_protocol.SessionCore):
    """Goes on after its deadline."""

    def _again(self, now: float) -> session_protocol.Operation:
        self.call.deadline = now + 5.0
        return super()._again(now)


class CountsTooFar(session_protocol.SessionCore):
    """Takes a call that was lost for done."""

    def unanswered(self, now: float) -> session_protocol.Operation:
        self.next_number += 1
        return super().unanswered(now)


class DoesEverything(server_core.SessionCore):
    """Does a reset or a step whatever its number."""

    def receive(self, message: Call, frame: bytes) -> server_core.Decision:
        decision = super().receive(message, frame)
        if decision.verdict is server_core.Verdict.REPEAT and frame != self._create_frame:
            return server_core.Decision(server_core.Verdict.DO)
        return decision


class HasNoStoredReply(server_core.SessionCore):
    """Refuses the last call where it should repeat its reply."""

    def commit(self, frame: bytes, reply: bytes, now: float) -> None:
        super().commit(b"", reply, now)


@pytest.mark.parametrize("broken", [ForgetsNumbers, BringsTheCreateAlong, NeverGivesUp, CountsTooFar])
def test_a_broken_client_is_found(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SessionCore", broken)
    with pytest.raises(AssertionError, match="seed"):
        outcomes(WEATHERS["everything"], monkeypatch)


@pytest.mark.parametrize("broken", [DoesEverything, HasNoStoredReply])
def test_a_broken_server_is_found(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="seed"):
        outcomes(WEATHERS["everything"], monkeypatch, core=broken)
