"""PettingZoo games that run in a suite's process: the same classes as of games on a server, over another session."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from gymnasium.spaces import Space
from pettingzoo import AECEnv, ParallelEnv

from envweave_gym.core.arguments import check_faults, check_reproducible
from envweave_gym.core.faults import (
    RESET_DEADLINE_S,
    EnvironmentCrashed,
    Fault,
    ResetNeeded,
    SessionLost,
    fault_of,
)
from envweave_gym.core.seeding import Seeds
from envweave_gym.episode.stream import Stream
from envweave_gym.remote.games import RemoteAEC, RemoteGame, RemoteParallel
from envweave_gym.remote.served_environment import FAULTS
from envweave_gym.suites.suite_session import Launch, SuiteSession, check_sendable
from envweave_gym.wrappers.aec_stream import AECStream
from envweave_gym.wrappers.parallel_stream import ParallelStream
from envweave_gym.wrappers.turn_based_parallel import TurnBasedParallel

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0


class _Parallel(ParallelEnv[str, Any, Any]):
    """A game whose agents act at once, in the suite: the plain game, without stream and faults."""

    def __init__(self, session: SuiteSession) -> None:
        self.session, self.agents = session, list[str]()
        self.metadata = session.description["metadata"]
        self.render_mode = session.description["render_mode"]
        self.possible_agents = list(session.description["agents"])

    def observation_space(self, agent: str) -> Space[Any]:
        return _space(self.session, "observation_space", agent)

    def action_space(self, agent: str) -> Space[Any]:
        return _space(self.session, "action_space", agent)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observations, infos, self.agents = self.session.call("reset", [seed, options])
        return observations, infos

    def step(self, actions: dict[str, Any]) -> Any:
        *tables, self.agents = self.session.call("step", actions)
        return tuple(tables)

    def render(self) -> Any:
        return self.session.call("render", [])

    def state(self) -> Any:
        return self.session.call("global_state", [])


class _TurnBased(AECEnv[str, Any, Any]):
    """A game whose agents act one at a time, in the suite: the plain game, without stream and faults."""

    def __init__(self, session: SuiteSession) -> None:
        super().__init__()
        self.session, self._seen = session, dict[str, Any]()
        self.metadata = session.description["metadata"]
        self.render_mode = session.description["render_mode"]
        self.possible_agents = list(session.description["agents"])
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Space[Any]:
        return _space(self.session, "observation_space", agent)

    def action_space(self, agent: str) -> Space[Any]:
        return _space(self.session, "action_space", agent)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self._take(self.session.call("reset", [seed, options]))

    def step(self, action: Any) -> None:
        self._take(self.session.call("step", action))

    def _take(self, state: dict[str, Any]) -> None:
        self.agents, self.infos = state["agents"], state["infos"]
        self.rewards, self._cumulative_rewards = state["rewards"], state["earned"]
        self.terminations, self.truncations = state["terminations"], state["truncations"]
        self._seen.clear()
        if state["selected"] is not None:
            self.agent_selection = state["selected"]
            self._seen[self.agent_selection] = state["seen"]

    def observe(self, agent: str) -> Any:
        if agent not in self._seen:
            self._seen[agent] = self.session.call("observe", [agent])
        return self._seen[agent]

    def render(self) -> Any:
        return self.session.call("render", [])

    def state(self) -> Any:
        return self.session.call("global_state", [])


def _space(session: SuiteSession, which: str, agent: str) -> Space[Any]:
    """Return a space of an agent; PettingZoo asks that it be the same object at every call."""
    cache: dict[tuple[str, str], Space[Any]] = session.description.setdefault("built", {})
    known = cache.get((which, agent))
    if known is None:
        known = session.space(session.description["agents"][agent][which], which, agent)
        cache[which, agent] = known
    return known


class _Reply(NamedTuple):
    """Result of a reset or step, with the fields of a server's reply."""

    observation: Any
    info: dict[str, Any]
    reward: Any = None
    terminated: Any = None
    truncated: Any = None


class _Address(NamedTuple):
    url: str


class SuiteGameSession:
    """The session of a game in a suite, with the methods that :class:`RemoteGame` calls of a server's.

    A lost session is abandoned: the next reset makes the game in another process, and sends a seed.
    """

    def __init__(
        self, launch: Launch, api: str, *, truncates: bool, reset_deadline: float, session: SuiteSession
    ) -> None:
        self.name, self.truncates, self._api = launch.name, truncates, api
        self.session, self._reset_deadline = session, reset_deadline
        self.address = _Address(f"venv:{launch.folder.name}")
        self.reproducible = self.is_drawn = self.gone = False
        self.sent_seed: int | None = None
        self._stream: Any = None
        self._begun = self._closed = False
        self._cut_short = ""
        self._picture: Any = None

    @property
    def description(self) -> dict[str, Any]:
        """The suite's description of the game."""
        return {**self.session.description, "parses": False}

    def _game(self) -> Any:
        """Return the game with its stream; make it again after a loss."""
        if self._stream is None or not self.session.is_open:
            if not self.session.is_open:
                self.session.open()
            native = self.session.description["api"]
            core: Any = _TurnBased(self.session) if native == "aec" else _Parallel(self.session)
            self._stream, self._begun = _with_stream(core, self.name, self._api), False
            self._closed = self.gone = False
        return self._stream

    def reset(self, seed: int, options: dict[str, Any] | None) -> Any:
        """Start an episode; return the reply, or the fault if no try succeeds before the reset deadline."""
        deadline, pause_s = time.monotonic() + self._reset_deadline, _FIRST_PAUSE_S
        if self._cut_short:
            self._abandon()
        while True:
            try:
                game = self._game()
                goes_on = self._begun and self.is_drawn and not self.reproducible
                self.sent_seed = None if goes_on else seed
                result = game.reset(seed=self.sent_seed, options=options)
                self._begun = True
                return self._began(game, result)
            except FAULTS as error:
                self._abandon()
                if (isinstance(error, EnvironmentCrashed) and not self.truncates) or (
                    time.monotonic() + pause_s > deadline
                ):
                    return self._fault_of(error)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _began(self, game: Any, result: Any) -> _Reply:
        if self._api == "aec":
            return self._turn(game)
        observations, infos = result
        return _Reply(observations, {"infos": infos, "agents": list(game.agents)})

    def _turn(self, game: Any) -> _Reply:
        agents = list(game.agents)
        tables = dict(game.rewards), dict(game.terminations), dict(game.truncations)
        selected = game.agent_selection if agents else None
        info = {
            "agents": agents,
            "infos": game.infos,
            "earned": dict(game._cumulative_rewards),
            "selection": selected,
            **dict(zip(("rewards", "terminations", "truncations"), tables, strict=True)),
        }
        return _Reply(game.observe(selected) if agents else None, info, *tables)

    def step(self, action: Any) -> Any:
        """Step the game; return the reply or the fault."""
        try:
            game = self._stream
            result = game.step(action)
            if self._api == "aec":
                return self._turn(game)
            observations, rewards, terminations, truncations, infos = result
            table = {"infos": infos, "agents": list(game.agents)}
            return _Reply(observations, table, rewards, terminations, truncations)
        except FAULTS as error:
            return self.lost(error)
        except Exception:
            raise
        except BaseException as error:
            self._cut_short = type(error).__name__
            raise

    def lost(self, error: Exception) -> Fault:
        """Abandon the session that ``error`` ended, and return the fault or raise the error."""
        self._abandon()
        return self._fault_of(error)

    def _abandon(self) -> None:
        """Give up the episode; a process that goes on is used again, as only the game has raised."""
        self._stream, self._begun, self._cut_short, self.gone = None, False, "", True

    def _fault_of(self, error: Exception) -> Fault:
        if not self.truncates:
            raise error
        return fault_of(error)

    def check_whole(self) -> None:
        """Raise ``ResetNeeded`` if the last step was interrupted."""
        if self._cut_short:
            raise ResetNeeded(f"{self.name}: {self._cut_short} stopped the last call halfway; call reset()")

    def ask(self, question: str, argument: Any = None) -> Any:
        """Answer a question about the game, which changes nothing."""
        if self._closed:
            raise ResetNeeded(f"{self.name}: {question} was asked for after close(); call reset()")
        if self._stream is None:
            raise SessionLost(f"{self.name}: the session of this episode is gone; call reset()")
        if question == "observe":
            return self._stream.observe(argument)
        if question == "global_state":
            return self._stream.unwrapped.state()
        if question == "state":
            return self._stream.stream_state()
        assert question == "record", question
        return [self._stream.record.turn, Stream((), tuple(self._stream.record.events))]

    def recall(self, question: str, known: Any) -> Any:
        """Answer a question; return ``known`` if the episode is lost."""
        return known if self._stream is None and not self._closed else self.ask(question)

    def picture(self) -> Any:
        """Return the rendering; of a lost game the last one."""
        if self._stream is not None and self.session.is_open:
            self._picture = self._stream.render()
        return self._picture

    def close(self) -> None:
        """Close the game and its process."""
        self._abandon()
        self._closed = True
        self.session.close()


def _with_stream(core: Any, name: str, api: str) -> Any:
    """Return the game with the API that the caller asks for, and a stream that passes seeds on as they come."""
    if api == "aec":
        if isinstance(core, ParallelEnv):
            from pettingzoo.utils.conversions import parallel_to_aec

            core = parallel_to_aec(core)
        return AECStream(core, name=name, reproducible=False)
    if isinstance(core, AECEnv):
        return TurnBasedParallel(AECStream(core, name=name, reproducible=False))
    return ParallelStream(core, name=name, reproducible=False)


class _SuiteSpaces:
    """The spaces of a game's agents, with the interface of those of a server."""

    def __init__(self, session: SuiteSession) -> None:
        self._session = session

    def of(self, described: dict[str, Any], which: str, agent: str | None = None) -> Space[Any]:
        """Return the space ``which`` of an agent."""
        return _space(self._session, which, str(agent))


class _SuiteGame(RemoteGame):
    """Game in a suite; pickles hold what is needed to make it."""

    def __init__(
        self,
        launch: Launch,
        *,
        on_fault: str = "truncate",
        reset_deadline: float = RESET_DEADLINE_S,
        reproducible: bool = False,
        session: SuiteSession | None = None,
    ) -> None:
        """Stand for the game that ``launch`` makes, or that exists in ``session``."""
        check_faults(launch.name, on_fault, reset_deadline)
        check_reproducible(launch.name, reproducible)
        self._again = launch, on_fault, reset_deadline, reproducible
        session = session or SuiteSession(launch)
        self._served: Any = SuiteGameSession(
            launch,
            self._api,
            truncates=on_fault == "truncate",
            reset_deadline=reset_deadline,
            session=session,
        )
        self._served.reproducible = reproducible
        self.name = launch.name
        self._spaces: Any = _SuiteSpaces(session)
        self._seeds = Seeds(self.name)
        self._prepare(launch.kwargs.get("render_mode"))

    def _start(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        check_sendable(self.name, "reset(options=…)", options)
        return super()._start(seed, options)

    @staticmethod
    def _pack(action: Any) -> Any:
        return action  # the session packs it

    def __reduce__(self) -> Any:
        return _made_again, (type(self), *self._again)


def _made_again(
    kind: Any, launch: Launch, on_fault: str, reset_deadline: float, reproducible: bool
) -> _SuiteGame:
    return kind(launch, on_fault=on_fault, reset_deadline=reset_deadline, reproducible=reproducible)


class SuiteAEC(_SuiteGame, RemoteAEC):
    """Game in a suite with PettingZoo's AEC API."""


class SuiteParallel(_SuiteGame, RemoteParallel):
    """Game in a suite with PettingZoo's parallel API."""
