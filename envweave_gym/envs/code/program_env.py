"""What environments whose actions are programs share: a sandbox, an episode in it, what is told of a step."""

from __future__ import annotations

import copy
import os
import sys
import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import msgspec
from gymnasium.spaces import Dict, Discrete

from envweave_gym.core.faults import InvalidArgument, NotAvailable, ResetNeeded, shown
from envweave_gym.core.parsing import require_text
from envweave_gym.core.seeding import HashedRandomness
from envweave_gym.core.sizes import memory_of
from envweave_gym.core.spaces import Unicode
from envweave_gym.envs.code.offered_tools import Call, OfferedTools
from envweave_gym.episode.emitter import Emitter
from envweave_gym.episode.message import message
from envweave_gym.episode.stream import UNNUMBERED, Event, EventKind
from envweave_gym.os_support.parent_process import end_with_parent
from envweave_gym.rewards.program_source import is_prose, program_in
from envweave_gym.rewards.transforms import RewardFunction, judged, require_function
from envweave_gym.sandbox import Execution, Lease, Limits, Names, Session, Setup, levels
from envweave_gym.sandbox.worker_process import WorkerDied

MOST_CODE = 65_536
"""So many characters an action has at most."""
MOST_OUTPUT, MOST_VALUE, MOST_ERROR = 8_300, 4_200, 21_000
"""So many characters of output, of a value and of an error an observation has at most."""
_LOST = ("restart", "end")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How programs are run."""

    step_timeout: float = 10.0
    """Seconds a step may take of its own."""
    checkpoint: bool = False
    """Whether a step that is lost leaves everything as it was before; not while threads go on."""
    on_lost: str = "restart"
    """What a step that loses all variables leads to: ``restart`` with none, or the ``end`` of the episode."""
    isolation: str = "landlock"
    memory: int | str = "512m"
    python: str | None = None
    warm: Sequence[str] = ()
    """Modules that are imported before a program runs."""

    def __post_init__(self) -> None:
        timeout = self.step_timeout
        if type(timeout) not in (int, float) or not 0 < timeout <= 86_400:
            raise InvalidArgument(f"step_timeout={shown(timeout)} is no number of seconds up to 86400")
        if self.on_lost not in _LOST:
            known = " and ".join(map(repr, _LOST))
            raise InvalidArgument(f"on_lost={shown(self.on_lost)} is unknown; there are {known}")
        if type(self.checkpoint) is not bool:
            raise InvalidArgument(f"checkpoint={shown(self.checkpoint)} is not True or False")
        names = [] if isinstance(self.warm, str) else list(self.warm)
        if not all(isinstance(name, str) and name for name in names) or (self.warm and not names):
            raise InvalidArgument(f"warm={shown(self.warm)} are no names of modules; give some as ('numpy',)")

    def setup(self) -> Setup:
        """The sandbox that is wanted, whose level this machine must reach."""
        levels.require(self.isolation)
        limits = Limits(memory=memory_of(self.memory))
        python = self.python or sys.executable
        return Setup(isolation=self.isolation, limits=limits, python=python, warm=tuple(self.warm))


class ProgramEnv(Emitter, HashedRandomness[dict[str, Any], str]):
    """An episode is a namespace that lasts; a step runs a program in it.

    Errors are observations. Copies and pickles go on in mid-episode: a copy is a fork of the process, and a
    pickle plays the programs again where it is read, with the answers that tools gave.
    """

    metadata: dict[str, Any] = {
        "render_modes": ["ansi"],
        "render_fps": 1,
        "ignores_seed": True,
        "reset_options": (),
    }
    name = "programs"
    """What errors call it."""
    runs_all_fences = False
    """Whether all programs in the Markdown fences of a reply are run as one, rather than the last alone."""
    how_to_act = "Write a Python program, alone or in a ```python block."
    """One sentence that tells a model what a reply should be."""

    def __init__(
        self,
        options: Options,
        *,
        tools: OfferedTools | None = None,
        transform: RewardFunction | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.options, self.render_mode = options, render_mode
        self._offered = tools or OfferedTools()
        self._transform: RewardFunction | None = None
        self.transform = transform
        self.action_space = Unicode(MOST_CODE)
        self.observation_space = Dict(
            {
                "stdout": Unicode(MOST_OUTPUT),
                "stderr": Unicode(MOST_OUTPUT),
                "value": Unicode(MOST_VALUE),
                "exception": Unicode(MOST_ERROR),
                "success": Discrete(2),
            }
        )
        self._lease = Lease(options.setup())
        self._session: Session | None = None
        self._closing: weakref.finalize[..., Any] | None = None
        """Ends the session with this environment, where that is forgotten."""
        self._owner = 0
        """The process that the session is of; one that was forked from it has none."""
        self._is_closed = False
        self._seed = 0
        self._journal: list[tuple[str, list[Call]]] = []
        """The programs since the namespace was empty, with the calls that they made."""
        self._variables: dict[str, str] = {}
        self._shown = ""

    @property
    def transform(self) -> RewardFunction | None:
        """What says how much a step is worth; it may be replaced at any time."""
        return self._transform

    @transform.setter
    def transform(self, value: RewardFunction | None) -> None:
        if value is not None:
            require_function(value)
        self._transform = value

    # An episode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin with an empty namespace."""
        self._seed = self.episode_key(seed) % (1 << 31)
        self._is_closed = False
        self._end_session()
        self._journal, self._variables, self._shown = [], {}, ""
        self._offered.begin()
        self._begin(options or {})
        self._live()
        done = Execution()
        return self._observed(done), {}

    def _begin(self, options: dict[str, Any]) -> None:
        """Take in the options of a reset."""

    def _names(self) -> Names:
        """What programs find."""
        return Names(seed=self._seed)

    def step(self, action: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Run a program."""
        done, calls = self._run(action)
        observation = self._observed(done)
        info: dict[str, Any] = {"result": done, **self._remarks(action, done)}
        for call in calls:
            self.emit(*events_of(call))
        self._shown = shown_text(done)
        self.emit(message("user", self._shown))
        ended = done.final is not None or (done.state_lost and self.options.on_lost == "end")
        reward = 0.0
        if self._transform is not None:
            score = judged(self.name, self._transform, action, observation, info)
            info["reward_parts"], reward = score.parts(), score.total
        return observation, reward, ended, False, info

    def _run(self, code: str, **more: Any) -> tuple[Execution, list[Call]]:
        """Run a program, and keep what is needed to do it again."""
        session = self._live()
        done, calls = self._tried(session, code, more)
        if done.state_lost and not calls and session.is_confined() and not session.has_zygote():
            self._end_session()  # it was lost with the zygote, and did nothing that others could see
            done, calls = self._tried(self._live(), code, more)
        self._note(code, done, calls)
        return done, calls

    def _tried(self, session: Session, code: str, more: dict[str, Any]) -> tuple[Execution, list[Call]]:
        """Run a program in a session; return the execution, and the tool calls that it made."""
        tools = self._offered.now()
        tools.calls = answered = []
        session.use_tools(tools)  # a fork has those of the original
        options = self.options
        try:
            done = session.run(code, timeout=options.step_timeout, checkpoint=options.checkpoint, **more)
        finally:
            self._require(session)
        return done, list(answered)  # an answer that comes later is nobody's

    def _require(self, session: Session) -> None:
        """Refuse to go on with a step whose episode another thread, or a tool, has ended meanwhile."""
        if session is not self._session:
            raise ResetNeeded(
                f"{self.name}: the episode was ended while a program ran; call reset()"
            ) from None

    def _note(self, code: str, done: Execution, calls: list[Call]) -> None:
        """Keep what is needed to do a step again."""
        if done.state_lost:
            self._end_session()
            self._journal = []
        elif not done.restored:
            self._journal.append((code, calls))
        self._variables = {name: one.kind for name, one in done.variables.items()}

    def _live(self) -> Session:
        """The session of the episode; where there is none, one that has done the same so far."""
        if self._is_closed:
            raise ResetNeeded(f"{self.name}: step() was called after close(); call reset()")
        session = self._session
        if session is None or self._owner != os.getpid() or self._is_over(session):
            self._end_session()
            session = self._opened()
            if session.why_lost and not session.has_zygote():
                self._end_session()
                session = self._opened()
        return session

    def _opened(self) -> Session:
        """A new session that has done the same so far, unless it was lost with the zygote meanwhile."""
        session = self._own(self._lease.open())
        try:
            self._play_again(session)
        except BaseException as error:
            if isinstance(error, WorkerDied) and not session.has_zygote():
                return session
            self._end_session()  # it has done but a part
            raise
        return session

    def _is_over(self, session: Session) -> bool:
        """Whether nothing more is to be had from a session."""
        return bool(session.why_lost)

    def _play_again(self, session: Session) -> None:
        """Bring a new session to where the episode is."""
        tools = self._offered.now()
        session.name(self._names(), tools)
        try:
            for code, calls in self._journal:
                tools.replay(calls)
                session.run(code, timeout=self.options.step_timeout)
        finally:
            tools.replay(None)

    def _own(self, session: Session) -> Session:
        """Take a session for that of the episode."""
        end_with_parent()
        self._session, self._owner = session, os.getpid()
        self._closing = weakref.finalize(self, session.close)
        return session

    def _end_session(self) -> None:
        session, self._session = self._session, None
        closing, self._closing = self._closing, None
        if closing is not None:
            closing.detach()
        if session is not None:
            session.close()

    def _observed(self, done: Execution) -> dict[str, Any]:
        return {
            "stdout": done.stdout,
            "stderr": done.stderr,
            "value": done.shown,
            "exception": done.error,
            "success": int(done.success),
        }

    def _remarks(self, code: str, done: Execution) -> dict[str, Any]:
        """What ``info`` tells of a step beside its result."""
        return {}

    # What else may be asked

    def parse_action(self, text: str, agent: str | None = None) -> str:
        """The program in a model's reply: what is in its last Markdown fence, or else all of it.

        A reply in plain words, without a program, is refused.
        """
        require_text(text)
        code = program_in(text, joined=self.runs_all_fences)
        if code == text and is_prose(text):
            how = self.how_to_act
            raise ValueError(f"{shown(text)} is no program; {how[0].lower()}{how[1:]}")
        if not self.action_space.contains(code):
            raise ValueError(f"{shown(code)} is no program of at most {MOST_CODE} characters")
        return code

    def render(self) -> Any:
        """What the last step showed."""
        return self._shown if self.render_mode == "ansi" else None

    def episode_state(self) -> dict[str, Any]:
        """How well programs are kept in, and the variables there are."""
        return {"isolation": self.options.isolation, "variables": dict(self._variables)}

    def close(self) -> None:
        """End the episode and its processes; a reset begins another."""
        self._is_closed = True
        self._end_session()
        self._offered.close()
        self._lease.close()

    # Copies

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = type(self).__new__(type(self))
        memo[id(self)] = other
        special = ("_session", "_closing", "_lease", "_offered", "_transform")
        rest = {name: value for name, value in vars(self).items() if name not in special}
        vars(other).update(copy.deepcopy(rest, memo))
        other._lease, other._transform = Lease(self._lease.setup), self._transform
        other._offered = self._offered.again()
        other._session = other._closing = None
        if self._session is not None and self._owner == os.getpid():
            try:
                other._own(self._session.fork())
            except (NotAvailable, WorkerDied):  # as where a thread goes on: the copy plays its steps again
                return other
            other._lease.hold()  # so that the sandbox goes on when this one is closed
        return other

    def __getstate__(self) -> dict[str, Any]:
        state = vars(self).copy()
        return state | {
            "_session": None,
            "_closing": None,
            "_lease": self._lease.setup,
            "_offered": self._offered.again(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lease = Lease(state["_lease"])


@contextmanager
def named(name: str) -> Generator[None]:
    """Have what is refused in this block name the environment it is for."""
    try:
        yield
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}") from None


def shown_text(done: Execution) -> str:
    """What a model is told of a step."""
    parts = [done.stdout.rstrip(), done.stderr.rstrip(), done.shown, done.error]
    return "\n".join(filter(None, parts)) or "(no output)"


def events_of(call: Call) -> tuple[Event, Event]:
    """The events of a call."""
    result = {"result": call.value} if call.error is None else {"error": call.error}
    return (
        Event(UNNUMBERED, EventKind.TOOL_CALL, None, None, {"name": call.name, "arguments": call.arguments}),
        Event(UNNUMBERED, EventKind.TOOL_RESULT, None, None, {"name": call.name, **result}),
    )
