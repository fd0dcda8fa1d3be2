"""A server, a network and a clock in this process: the real state machines of both sides, without I/O.

Blocking calls of the client move the clock and let happen what comes until they end. So the whole run is one
thread, and a seed repeats it.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from envweave_gym.core.faults import AtCapacity
from envweave_gym.remote import session as client
from envweave_gym.wire.messages import (
    Answer,
    Ask,
    Began,
    Call,
    Close,
    Create,
    Refused,
    Reset,
    Step,
    Stepped,
    encode,
    number_of,
    read_call,
)
from envweave_gym_server.sessions.session_protocol import CREATED, SessionCore, SlotState, TableCore, Verdict

LEASE_S, DEADLINE_S = 20.0, 12.0


@dataclass
class Weather:
    """How often things go wrong, as probabilities of a frame or a connection."""

    lost: float = 0.0
    """A frame, and all later ones of its connection in the same direction, never arrive."""
    cut: float = 0.0
    """The connection ends after the frame."""
    doubled: float = 0.0
    delayed: float = 0.0
    """A frame takes up to half the deadline of a call."""
    refused: float = 0.0
    unanswered: float = 0.0
    """A handshake takes too long."""
    slow: float = 0.0
    """A call takes up to the deadline of a call."""
    restarts_every_s: float = 0.0


class Clock:
    """The virtual time, and what will happen; it stands in for the module ``time`` in the client."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.run_until(lambda: False, self.now + seconds)

    def after(self, seconds: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), happens))

    def run_until(self, is_over: Callable[[], bool], deadline: float) -> None:
        """Let things happen until ``is_over``, or up to the deadline."""
        while not is_over():
            if not self._events or self._events[0][0] > deadline:
                self.now = max(self.now, deadline)
                return
            self.now, _, happens = heapq.heappop(self._events)
            happens()


class Connection:
    """A connection to the server, as a transport of the client."""

    def __init__(self, world: World, session_id: str) -> None:
        self.world, self.session_id = world, session_id
        self.is_cut = self.has_left = self.is_busy = False
        self.pending: deque[bytes] = deque()
        self._inbox: deque[bytes] = deque()
        self._stuck: set[bool] = set()
        self._last_arrival = {True: 0.0, False: 0.0}

    def send(self, frame: bytes, deadline: float, before: bytes = b"") -> None:
        for one in (before, frame) if before else (frame,):
            if self.is_cut:
                raise ConnectionResetError
            self._carry(one, to_server=True)

    def receive(self, deadline: float) -> bytes:
        self.world.clock.run_until(lambda: bool(self._inbox) or self.is_cut, deadline)
        if self._inbox:
            return self._inbox.popleft()
        raise ConnectionResetError if self.is_cut else TimeoutError

    def close(self) -> None:
        def leave() -> None:
            self.has_left = True

        self.world.clock.after(self.world.random.uniform(0.0, 2.0), leave)

    def reply(self, frame: bytes) -> None:
        if not self.is_cut:
            self._carry(frame, to_server=False)

    def cut(self) -> None:
        self.is_cut = True

    def _carry(self, frame: bytes, *, to_server: bool) -> None:
        """Bring a frame to the other end, in the order of its connection, if nothing happens to it."""
        weather, draw, clock = self.world.weather, self.world.random, self.world.clock
        if draw.random() < weather.lost:
            self._stuck.add(to_server)
        if to_server in self._stuck:
            return
        seconds = draw.uniform(0.0, DEADLINE_S / 2) if draw.random() < weather.delayed else 0.001
        arrival = max(clock.now + seconds, self._last_arrival[to_server])
        self._last_arrival[to_server] = arrival
        for _ in range(2 if draw.random() < weather.doubled else 1):
            clock.after(arrival - clock.now, lambda: self._arrive(frame, to_server))
        if draw.random() < weather.cut:
            clock.after(draw.uniform(0.0, 1.0), self.cut)

    def _arrive(self, frame: bytes, to_server: bool) -> None:
        if to_server:  # what was sent before a connection ended may still arrive
            self.world.server.arrived(self, frame)
        elif not self.is_cut:
            self._inbox.append(frame)


class SimulatedEnv:
    """Counts its calls, and refuses none: each reply says which environment has done which call."""

    def __init__(self, number: int) -> None:
        self.number, self.done = number, list[int]()

    def do(self, message: Reset | Step) -> bytes:
        assert message.call == len(self.done) + 1, f"call {message.call} was done after {self.done}"
        self.done.append(message.call)
        seen = [self.number, message.call, message.seed if isinstance(message, Reset) else message.action]
        if isinstance(message, Reset):
            return encode(Began(message.call, seen, {}))
        return encode(Stepped(message.call, seen, 0.0, False, False, {}))


class ServerSession:
    """A session with its lock: one call at a time, the others wait."""

    def __init__(self, core: SessionCore, env: SimulatedEnv) -> None:
        self.core, self.env = core, env
        self.is_locked = False
        self.waiting: deque[Connection] = deque()
        self.attached: set[Connection] = set()


class Server:
    """The loop around the state machines of a server; ``restart`` ends it with all its sessions."""

    def __init__(self, world: World, core: type[SessionCore]) -> None:
        self._world, self._core, self._environments = world, core, itertools.count()
        self.is_up = True
        self._begin()
        world.clock.after(LEASE_S / 4, self._reap)

    def _begin(self) -> None:
        self.sessions: dict[str, ServerSession] = {}
        self._table = TableCore(2, 2)

    def restart(self) -> None:
        """End with all sessions, and be back a while later."""
        self._begin()
        self.is_up = False

        def be_back() -> None:
            self.is_up = True

        self._world.clock.after(self._world.random.uniform(0.0, 3.0), be_back)
        for connection in self._world.connections:
            if self._world.random.random() < 0.8:  # of a machine that lost its power nobody hears
                connection.cut()
            connection.is_busy, connection.pending = True, deque()  # nobody reads it any more
        self._world.connections.clear()

    def arrived(self, connection: Connection, frame: bytes) -> None:
        if connection in self._world.connections:
            connection.pending.append(frame)
            self._work(connection)

    def _work(self, connection: Connection) -> None:
        """Answer the next frame of a connection, unless one is under way."""
        while connection.pending and not connection.is_busy:
            frame = connection.pending.popleft()
            message = read_call(frame)
            session = self.sessions.get(connection.session_id)
            if isinstance(message, Create) and session is None:
                connection.reply(self._create(connection.session_id, frame))
                session = self.sessions.get(connection.session_id)
                if session is not None:
                    session.attached.add(connection)
            elif session is None:
                connection.reply(encode(Refused(number_of(message), "NoSession", "there is none")))
            elif session.is_locked:
                connection.is_busy = True
                connection.pending.appendleft(frame)
                session.waiting.append(connection)
            else:
                session.attached.add(connection)
                self._decide(connection, session, message, frame)

    def _create(self, session_id: str, frame: bytes) -> bytes:
        try:
            assert self._table.create(session_id, 1) is SlotState.RESERVED
        except AtCapacity as error:
            return encode(Refused(0, "AtCapacity", str(error)))
        self._table.opened(session_id)
        core = self._core(session_id, frame, self._world.clock.now)
        self.sessions[session_id] = ServerSession(core, SimulatedEnv(next(self._environments)))
        return CREATED

    def _decide(self, connection: Connection, session: ServerSession, message: Call, frame: bytes) -> None:
        core, clock = session.core, self._world.clock
        decision = core.receive(message, frame)
        core.used = clock.now
        if decision.verdict is Verdict.DO:
            session.is_locked = connection.is_busy = True
            draw, weather = self._world.random, self._world.weather
            seconds = draw.uniform(0.0, DEADLINE_S) if draw.random() < weather.slow else 0.01
            clock.after(seconds, lambda: self._done(connection, session, message, frame))
        elif decision.verdict is Verdict.ANSWER and isinstance(message, Ask):
            connection.reply(encode(Answer(message.number, [session.env.number, len(session.env.done)])))
        elif decision.verdict is Verdict.CLOSE and isinstance(message, Close):
            self._close(core.id)
            connection.reply(encode(Answer(message.number, None)))
        else:
            connection.reply(decision.reply)

    def _done(self, connection: Connection, session: ServerSession, message: Call, frame: bytes) -> None:
        if self.sessions.get(session.core.id) is not session:
            return  # it has ended with the server
        assert isinstance(message, Reset | Step)
        reply = session.env.do(message)
        session.core.commit(frame, reply, self._world.clock.now)
        connection.reply(reply)
        session.is_locked = connection.is_busy = False
        waiting, session.waiting = session.waiting, deque()
        for one in (connection, *waiting):
            if one is connection or not one.has_left:
                one.is_busy = False
                self._work(one)

    def _reap(self) -> None:
        now = self._world.clock.now
        for session in list(self.sessions.values()):
            attached = any(not (one.has_left or one.is_cut) for one in session.attached)
            if session.core.idle_s(now, wanted=attached or session.is_locked) > LEASE_S:
                self._close(session.core.id)
        self._world.clock.after(LEASE_S / 4, self._reap)

    def _close(self, session_id: str) -> None:
        self.sessions.pop(session_id).core.closed = True
        self._table.release(session_id)


class World:
    """A clock, a server and the connections to it; also the address and the connector of the client."""

    url, token, sees_abandoned = "sim://server", None, True

    def __init__(self, seed: int, weather: Weather, core: type[SessionCore] = SessionCore) -> None:
        self.random, self.weather, self.clock = random.Random(seed), weather, Clock()
        self.connections: list[Connection] = []
        self.server = Server(self, core)
        if weather.restarts_every_s:
            self._restart_later()

    def _restart_later(self) -> None:
        def restart() -> None:
            self.server.restart()
            self._restart_later()

        self.clock.after(self.random.expovariate(1 / self.weather.restarts_every_s), restart)

    def session(self) -> client.RemoteSession:
        """A session of the client, over simulated connections."""
        address: Any = self
        return client.RemoteSession(address, Create("sim/Env-v0"), DEADLINE_S)

    def connector(self) -> World:
        return self

    def is_stopped(self) -> bool:
        return False

    def connect(self, session_id: str, deadline: float) -> Connection:
        if self.random.random() < self.weather.unanswered:
            self.clock.run_until(lambda: False, deadline)
            raise TimeoutError
        self.clock.sleep(0.001)
        if not self.server.is_up or self.random.random() < self.weather.refused:
            raise ConnectionRefusedError
        connection = Connection(self, session_id)
        self.connections.append(connection)
        return connection
