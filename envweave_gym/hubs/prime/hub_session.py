"""Plays episodes of one hub environment: its program in a child process, the model port, and the calls that wait.

The program runs the library's own evaluation of one task, with the port as its model. So every line of the package and
of the library runs unchanged, and the rewards are theirs. The process is used for all episodes; after a failure the
next episode starts another. A copy plays the recorded replies again before its first use.
"""

from __future__ import annotations

import hashlib
import queue
import shutil
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from envweave_gym.core.faults import EnvironmentCrashed, InvalidArgument
from envweave_gym.hubs.prime.hub_config import HubConfig
from envweave_gym.hubs.prime.hub_lock import HubPackage
from envweave_gym.os_support.owned_folders import owned_folder, remove_left_behind
from envweave_gym.os_support.process_local import Owner
from envweave_gym.programs.port.call import Call
from envweave_gym.programs.port.model_port import ModelPort
from envweave_gym.programs.process_idle import SAMPLE_S, IdleCheck
from envweave_gym.programs.program_process import Ended, ProgramProcess
from envweave_gym.programs.reply import Reply, assistant_message

KEY_VARIABLE = "ENVWEAVE_MODEL_KEY"
SETTLE_LIMIT_S = 1.0
"""Longest wait for simultaneous calls after the last one; a program that polls is never idle."""
_ABORT_TIMEOUT_S = 30.0
_CLOSE_PATIENCE_S = 15.0
"""Seconds in which a program that runs may tear down what it has started, such as containers."""
_PREFIX = "envweave-hub-"
_PROGRAM = Path(__file__).parent / "inside" / "hub_program.py"


class Unplayable(EnvironmentCrashed, NotImplementedError):
    """Raised for a package that cannot be played here, in this or any later episode."""


class Ending(msgspec.Struct, frozen=True):
    """How an episode has ended, by agent."""

    rewards: dict[str, float]
    metrics: dict[str, dict[str, float | None]]
    stops: dict[str, str | None]
    truncated: dict[str, bool]


class _Ready(msgspec.Struct, frozen=True):
    agents: list[str]
    tasks: int
    replaced: dict[str, dict[str, str]]


class HubSession:
    """The program of one environment, and the episode that it plays."""

    def __init__(self, config: HubConfig, package: HubPackage, interpreter: Path) -> None:
        """Start the program, and wait until it has loaded its environment."""
        self.config, self.package, self.interpreter = config, package, interpreter
        self._name = f"prime://{package.hub_id}"
        self._running: _Program | None = None
        self._finalizer: Any = None
        self._ending: list[_Program] = []
        """Programs of lost episodes, which threads end in the background."""
        self._forget_episode()
        ready = self._start().ready
        self.agents, self.tasks, self.replaced = tuple(ready.agents), ready.tasks, ready.replaced
        """``replaced`` has, by agent, what the package declares and what is not used here."""

    def _forget_episode(self) -> None:
        self._task: tuple[int, int] | None = None
        self._journal: list[tuple[dict[str, str], dict[str, Any]]] = []
        """The calls, as digests, and the replies of each step, by agent."""
        self.open_calls: dict[str, Call] = {}
        """The call of each agent that waits for its reply."""
        self.ending: Ending | None = None
        self._is_unstarted_copy = False
        """Whether this is a copy of a session in mid-episode, and has no program yet."""
        self._calls_of_original: dict[str, str] = {}
        """In such a copy: digests of the original's open calls."""

    def begin(self, index: int, seed: int) -> None:
        """Begin an episode with a task, and wait for its first calls; an episode that goes on is aborted."""
        self._abort()
        self._forget_episode()
        self._task = index, seed
        self._begin_task()
        if not self.open_calls:
            self._fail("ended its episode without a call of the model")

    def _begin_task(self) -> None:
        assert self._task is not None
        running = self._running if self._running is not None and self._running.is_alive else self._start()
        running.begin(*self._task)
        self._wait(running)

    def resume_copy(self) -> None:
        """In a copy that has no program yet: start one, and give it the recorded replies up to the original's state."""
        if not self._is_unstarted_copy:
            return
        self._is_unstarted_copy = False
        recorded, self._journal = self._journal, []
        self._begin_task()
        for calls, replies in recorded:
            self._check_repeated(calls)
            self.answer({agent: msgspec.convert(reply, Reply) for agent, reply in replies.items()})
        self._check_repeated(self._calls_of_original)

    def _check_repeated(self, original: dict[str, str]) -> None:
        """Fail if the open calls are not those of the original episode."""
        if self._call_digests() != original:
            self._fail("does not repeat itself: with the same replies it has called the model otherwise")

    def _call_digests(self) -> dict[str, str]:
        """Return a digest of the messages of each open call, by agent."""
        return {agent: _digest(self.open_calls[agent].request.chat()) for agent in sorted(self.open_calls)}

    def answer(self, replies: dict[str, Reply]) -> None:
        """Answer all open calls, and wait for the next ones or for the end."""
        running = self._running
        if running is None or not running.is_alive:
            self._fail("is not running any more")
        self._journal.append(
            (
                self._call_digests(),
                {agent: msgspec.to_builtins(replies[agent]) for agent in sorted(replies)},
            )
        )
        calls, self.open_calls = self.open_calls, {}
        for agent in sorted(calls):
            calls[agent].answer(replies[agent])
        self._wait(running)

    def message_of(self, agent: str, reply: Reply) -> dict[str, Any]:
        """Return the message that the program gets as the reply to an agent's open call.

        Raise ``InvalidAction`` if the call is of a kind that cannot carry the reply.
        """
        call = self.open_calls[agent]
        call.check(reply)
        return assistant_message(reply, call.number)

    def _wait(self, running: _Program) -> None:
        try:
            self.ending = running.wait(self.open_calls, self.agents if len(self.agents) > 1 else ())
        except TimeoutError:
            self._stop_in_background()
            raise TimeoutError(
                f"{self._name}: the program neither called the model nor ended in {self.config.step_timeout:g} s"
            ) from None
        except _Failed as error:
            self._fail(str(error), error.is_lasting)

    def _abort(self) -> None:
        if (
            self._running is not None
            and self._task is not None
            and self.ending is None
            and not self._is_unstarted_copy
        ):
            self.open_calls = {}
            if not self._running.abort():
                self._stop(0.0)

    def _start(self) -> _Program:
        self._stop(_CLOSE_PATIENCE_S)
        running = _Program(self.config, self.package, self.interpreter)
        self._running = running
        self._finalizer = weakref.finalize(self, running.close, _CLOSE_PATIENCE_S)
        try:
            running.load()
        except _Failed as error:
            self._stop(0.0)
            if error.is_lasting:
                raise InvalidArgument(f"{self._name} {error}") from None
            raise EnvironmentCrashed(f"{self._name} {error}") from None
        except BaseException:
            self._stop(0.0)
            raise
        return running

    def _fail(self, text: str, is_lasting: bool = False) -> NoReturn:
        """End the episode as lost; a program that may be in any state is not used again."""
        self._stop_in_background()
        raise (Unplayable if is_lasting else EnvironmentCrashed)(f"{self._name} {text}")

    def _stop(self, patience_s: float) -> None:
        running, self._running = self._running, None
        self.open_calls = {}
        if running is not None:
            self._finalizer.detach()
            running.close(patience_s)

    def _stop_in_background(self) -> None:
        """End the program in a thread: one that hangs may take its whole time, and the fault is reported at once."""
        running, self._running = self._running, None
        self.open_calls = {}
        if running is None:
            return
        finalizer = self._finalizer  # until the program has ended: an exit of this process waits for it too
        self._ending = [*(one for one in self._ending if not one.is_closed), running]

        def end() -> None:
            running.close(_CLOSE_PATIENCE_S)
            finalizer.detach()

        try:
            threading.Thread(target=end, name="end of a hub program", daemon=True).start()
        except RuntimeError:  # this machine has no more threads
            end()

    def close(self) -> None:
        """End the program, and wait for those that still end; the next episode starts it again."""
        if self._running is not None and self._task is not None and self.ending is None:
            self._abort()
        self._stop(_CLOSE_PATIENCE_S)
        ending, self._ending = self._ending, []
        for program in ending:
            program.close(_CLOSE_PATIENCE_S)  # which waits for the thread that ends it, if that has begun
        self._forget_episode()

    def __getstate__(self) -> dict[str, Any]:
        calls = self._calls_of_original if self._is_unstarted_copy else self._call_digests()
        own = {"_running": None, "_finalizer": None, "_ending": [], "open_calls": {}}
        is_open = self._task is not None and self.ending is None
        return {**self.__dict__, **own, "_calls_of_original": calls, "_is_unstarted_copy": is_open}


def _digest(messages: list[dict[str, Any]]) -> str:
    return hashlib.sha256(msgspec.json.encode(messages, order="deterministic")).hexdigest()


def declared_agents(package: HubPackage, interpreter: Path) -> tuple[str, ...]:
    """Return the agents that a package declares; none if it cannot say so without arguments, or is of v0."""
    if package.generation == "v0":
        return ()
    running = _Program(HubConfig(hub_id=str(package.hub_id)), package, interpreter)
    try:
        running.load(only_agents=True)
    except _Failed:
        return ()
    finally:
        running.close(0.0)
    return tuple(running.ready.agents)


class _Failed(Exception):
    """Raised if the program failed; ``is_lasting`` if another try would fail too."""

    def __init__(self, text: str, *, is_lasting: bool = False) -> None:
        super().__init__(text)
        self.is_lasting = is_lasting


class _Program:
    """One process of the program with its port; its messages, calls and end arrive in one queue."""

    def __init__(self, config: HubConfig, package: HubPackage, interpreter: Path) -> None:
        self._config, self._package = config, package
        self._owner, self._events = Owner(), queue.SimpleQueue[Any]()
        self._episode = self._aborts = 0
        self._is_over = True
        self._closing = threading.RLock()  # collecting garbage may close it in the thread that does
        self.is_closed = False
        self._backlog: deque[Call] = deque()
        """Calls of agents whose earlier call has no reply yet."""
        self._counts: dict[str, int] = {}
        """Calls of each agent in this episode."""
        self.ready = _Ready([], 0, {})
        remove_left_behind(_PREFIX)
        environment = config.environment()
        self._port = ModelPort(self._events.put)
        try:
            self._folder = owned_folder(_PREFIX)
            try:
                self._process = ProgramProcess(
                    [str(interpreter), "-u", str(_PROGRAM)],
                    {**environment, KEY_VARIABLE: self._port.token},
                    Path(config.data or self._folder).absolute(),
                    self._events,
                )
            except BaseException:
                shutil.rmtree(self._folder, ignore_errors=True)
                raise
        except BaseException:
            self._port.close()
            raise

    @property
    def is_alive(self) -> bool:
        """Whether the process runs, and belongs to this process."""
        return self._owner.is_here() and self._process.is_alive

    def load(self, *, only_agents: bool = False) -> None:
        """Send the settings, and wait until the program has loaded its environment, or knows its agents."""
        config, package = self._config, self._package
        self._process.send(
            {
                "generation": package.generation,
                "module": package.hub_id.module,
                "args": config.env_args,
                "split": config.split,
                "limit": config.limit,
                "url": f"http://127.0.0.1:{self._port.number}",
                "key": KEY_VARIABLE,
                "only_agents": only_agents,
            }
        )
        deadline = time.monotonic() + self._config.start_timeout
        try:
            while not isinstance(event := self._next(deadline), dict):
                if isinstance(event, Call):
                    event.refuse("there is no episode")
        except TimeoutError:
            raise _Failed(f"has not loaded its environment in {config.start_timeout:g} s") from None
        if event.get("is") == "refused":
            raise _Failed(f"cannot be loaded: {event.get('why')}", is_lasting=True)
        self.ready = self._read(event, "ready", _Ready)
        if not self.ready.tasks:
            raise _Failed("has no tasks: its data set is empty", is_lasting=True)
        self._port.models = tuple(self.ready.agents)

    def begin(self, index: int, seed: int) -> None:
        """Begin an episode."""
        self._episode += 1
        self._is_over = False
        self._backlog.clear()
        self._counts.clear()
        self._port.drop_calls("the episode is over")
        self._process.send({"do": "begin", "index": index, "seed": seed, "episode": self._episode})

    def wait(self, calls: dict[str, Call], simultaneous: Sequence[str]) -> Ending | None:
        """Collect calls into ``calls``, or return the end of the episode.

        If agents may call simultaneously, collect their calls until the program is idle, all of them have called, or
        for a limited time. Raise ``TimeoutError`` if the program neither calls nor ends.
        """
        deadline = time.monotonic() + self._config.step_timeout
        idle, settled = IdleCheck(self._process.pid), deadline
        for _ in range(len(self._backlog)):
            if self._sort_in(self._backlog.popleft(), calls):
                settled = min(deadline, time.monotonic() + SETTLE_LIMIT_S)
        while not calls or (len(calls) < len(simultaneous) and time.monotonic() < settled):
            try:
                event = self._next(time.monotonic() + SAMPLE_S if calls else deadline)
            except TimeoutError:
                if not calls:
                    raise
                if idle.sample():
                    break
                continue
            if isinstance(event, Call):
                if self._sort_in(event, calls):
                    settled = min(deadline, time.monotonic() + SETTLE_LIMIT_S)
                    idle = IdleCheck(self._process.pid)
            elif event.get("is") == "ended" and event.get("episode") == self._episode:
                self._is_over = True
                return self._ending(event)
        return None

    def _sort_in(self, call: Call, calls: dict[str, Call]) -> bool:
        """Add a call of this episode to ``calls``; refuse one of another episode, of no role, or a role's second."""
        if call.is_gone or self._is_over or call.prefix not in ("", f"e{self._episode}"):
            call.refuse("the episode of this call is over")
            return False
        agent = call.request.model
        if agent not in self.ready.agents:
            call.refuse(f"there is no model {agent!r}")
            raise _Failed(
                f"has called the model {agent[:80]!r}; its roles are {', '.join(self.ready.agents)}"
            )
        if agent in calls and not calls[agent].is_gone:
            self._backlog.append(call)
            return False
        if (
            agent in calls
        ):  # its program has hung up: a later equal request would join a call that nobody answers
            calls[agent].drop()
        calls[agent] = call
        # The number in the agent's chat, so that equal episodes have equal IDs.
        self._counts[agent] = call.number = self._counts.get(agent, 0) + 1
        return True

    def _ending(self, event: dict[str, Any]) -> Ending:
        if (why := event.get("refused")) is not None:
            raise _Failed(f"cannot be played: {why}", is_lasting=True)
        if (why := event.get("error")) is not None:
            raise _Failed(f"has lost its episode: {why}")
        ending = self._read(event, "result", Ending)
        if missing := [agent for agent in self.ready.agents if agent not in ending.rewards]:
            raise _Failed(f"has sent a result without a reward of {', '.join(missing)}")
        return ending

    def abort(self) -> bool:
        """Cancel the episode, and wait until the program has; return whether it can go on."""
        if self._is_over or not self.is_alive:  # a forked process would wait for what its parent gets
            return self.is_alive
        self._aborts += 1
        self._is_over = True
        self._process.send({"do": "abort", "number": self._aborts})
        deadline = time.monotonic() + _ABORT_TIMEOUT_S
        try:
            while True:
                event = self._next(deadline)
                if isinstance(event, Call):
                    event.refuse("the episode is over")
                elif event.get("is") == "aborted" and event.get("number") == self._aborts:
                    # Only now: a call that fails before the cancellation would be scored as an episode.
                    self._port.drop_calls("the episode is over")
                    return True
        except (TimeoutError, _Failed):
            return False

    def _next(self, deadline: float) -> Any:
        """Return the next call or message; raise ``TimeoutError`` after the deadline, ``_Failed`` at the end."""
        try:
            event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(event, Ended):
            raise _Failed(event.text)
        return event

    def _read(self, event: dict[str, Any], key: str, kind: type[Any]) -> Any:
        try:
            return msgspec.convert(event.get(key), kind)
        except msgspec.ValidationError as error:
            raise _Failed(f"has sent a wrong {key}: {error}") from None

    def close(self, patience_s: float) -> None:
        """End the process and the port, and remove the scratch folder."""
        if not self._owner.is_here():
            return
        with self._closing:  # a second caller waits until the first has ended it
            if self.is_closed:
                return
            self._port.close()  # first: a call without a reply would keep the program from tearing down
            self._process.close(patience_s)
            shutil.rmtree(self._folder, ignore_errors=True)
            self.is_closed = True
