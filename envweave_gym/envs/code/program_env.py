"""The base class of environments whose actions are programs: each episode has a sandbox session and a journal."""

from __future__ import annotations

import copy
import sys
import weakref
from typing import Any, Self

from gymnasium.spaces import Dict, Discrete

from envweave_gym.core.config import named
from envweave_gym.core.faults import NotAvailable, ResetNeeded, shown
from envweave_gym.core.reply_parsing import require_text
from envweave_gym.core.seeding import HashedRandomness
from envweave_gym.core.sizes import memory_of
from envweave_gym.core.spaces import Unicode
from envweave_gym.envs.code.code_config import ProgramConfig
from envweave_gym.envs.code.offered_tools import OfferedTools
from envweave_gym.envs.code.program_journal import Call, Journal, JournaledTools, ProgramStep
from envweave_gym.episode.emitter import Emitter
from envweave_gym.episode.message import message
from envweave_gym.episode.stream import UNNUMBERED, Event, EventKind
from envweave_gym.os_support.parent_process import end_with_parent
from envweave_gym.rewards.program_reading import is_prose, program_in
from envweave_gym.rewards.transforms import RewardFunction, judged, require_function
from envweave_gym.sandbox import Execution, Limits, Names, Session, Setup, SharedSandbox, levels
from envweave_gym.sandbox.worker_process import WorkerDied

MAX_CODE = 65_536
"""Limit of an action's length in characters."""
MAX_OUTPUT, MAX_VALUE, MAX_ERROR = 8_300, 4_200, 21_000
"""Limits in characters of the parts of an observation: each output stream, the value, the error."""


class ProgramEnv(Emitter, HashedRandomness[dict[str, Any], str]):
    """Environment that runs one program in each step, in a namespace that persists during the episode.

    Errors of programs are observations. A deep copy continues the episode in a fork of the sandbox process. An
    unpickled copy replays the episode's programs first, with the results that the tools returned the first time.
    """

    metadata: dict[str, Any] = {
        "render_modes": ["ansi"],
        "render_fps": 1,
        "ignores_seed": True,  # the seed is that of the programs' module random
        "reset_options": (),
    }
    name = "programs"
    """The ID that error messages begin with."""
    runs_all_fences = False
    """Whether all Markdown code fences of a reply are joined to one program; otherwise only the last one runs."""
    how_to_act = "Write a Python program, alone or in a ```python block."
    """The sentence in prompts that tells the model the form of a reply."""

    def __init__(
        self,
        config: ProgramConfig,
        *,
        tools: OfferedTools | None = None,
        transform: RewardFunction | None = None,
    ) -> None:
        self.config, self.render_mode = config, config.render_mode
        self._offered = tools or OfferedTools()
        self._transform: RewardFunction | None = None
        self.transform = transform
        self.action_space = Unicode(MAX_CODE)
        self.observation_space = Dict(
            {
                "stdout": Unicode(MAX_OUTPUT),
                "stderr": Unicode(MAX_OUTPUT),
                "value": Unicode(MAX_VALUE),
                "exception": Unicode(MAX_ERROR),
                "success": Discrete(2),
            }
        )
        self._sandbox = SharedSandbox(self._setup())
        self._session: Session | None = None
        self._closing: weakref.finalize[..., Any] | None = None
        """The finalizer that closes the session when this environment is garbage-collected."""
        self._is_closed = False
        self._seed = 0
        self._journal = Journal()
        self._tools = JournaledTools(self._offered, self._journal)
        self._variables: dict[str, str] = {}
        self._shown = ""

    def _setup(self) -> Setup:
        return setup_of(self.config)

    @property
    def transform(self) -> RewardFunction | None:
        """The reward function of a step; it can be replaced at any time. ``None`` means that every reward is 0."""
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
        """Begin an episode with an empty namespace in a new session."""
        self._seed = self.episode_key(seed) % (1 << 31)
        self._is_closed = False
        self._end_session()
        self._journal, self._variables, self._shown = Journal(), {}, ""
        self._offered.begin()
        # A new object for each episode: a tool call of the last episode may still run and write to its journal.
        self._tools = JournaledTools(self._offered, self._journal)
        self._begin(options or {})
        self._live()
        return self._observed(Execution()), {}

    def _begin(self, options: dict[str, Any]) -> None:
        """Apply the options of a reset, and emit the prompt."""

    def _names(self) -> Names:
        """Return the names that are bound in the namespace of the programs."""
        return Names(seed=self._seed)

    def step(self, action: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Run a program and return its outcome.

        The episode ends when the program gives a final answer; with ``on_lost="end"`` also when its process is lost.
        """
        done, calls = self._run(action)
        observation = self._observed(done)
        info: dict[str, Any] = {"result": done, **self._remarks(action, done)}
        self._shown = shown_text(done)
        self.emit(*(event for call in calls for event in events_of(call)), message("user", self._shown))
        ended = done.final is not None or (done.state_lost and self.config.on_lost == "end")
        reward = 0.0
        if self._transform is not None:
            score = judged(self.name, self._transform, action, observation, info)
            info["reward_parts"], reward = score.parts(), score.total
        return observation, reward, ended, False, info

    def _run(self, code: str, **more: Any) -> tuple[Execution, list[Call]]:
        """Run a program and record it in the journal; return the execution and its tool calls."""
        session = self._live()
        done = self._run_in(session, code, more)
        calls = self._calls()
        if done.state_lost and not calls and session.is_confined() and not session.has_zygote():
            # The zygote died, not the program. Without tool calls and network it had no effects, so run it again.
            self._end_session()
            done = self._run_in(self._live(), code, more)
            calls = self._calls()
        self._record(done)
        return done, calls

    def _run_in(self, session: Session, code: str, more: dict[str, Any]) -> Execution:
        config, journal = self.config, self._journal
        journal.running = ProgramStep(code)
        try:
            return session.run(code, timeout=config.step_timeout, checkpoint=config.checkpoint, **more)
        except BaseException:
            journal.running = None
            raise
        finally:
            if session is not self._session:
                raise ResetNeeded(
                    f"{self.name}: the episode was ended while a program ran; call reset()"
                ) from None

    def _calls(self) -> list[Call]:
        """Return the tool calls of the running program whose results have come so far."""
        running = self._journal.running
        return [] if running is None else list(running.calls)

    def _record(self, done: Execution) -> None:
        """Add the program that has ended to the journal; empty the journal if all variables are lost."""
        journal, running = self._journal, self._journal.running
        journal.running = None
        if done.state_lost:
            self._end_session()
            journal.steps = []
        elif not done.restored and running is not None:
            journal.steps.append(ProgramStep(running.code, list(running.calls)))
        self._variables = {name: one.kind for name, one in done.variables.items()}

    # The session

    def _live(self) -> Session:
        """Return the sandbox session of the episode; if it is closed or lost, replay the episode in a new one."""
        if self._is_closed:
            raise ResetNeeded(f"{self.name}: step() was called after close(); call reset()")
        session = self._session
        is_paused = self._journal.running is not None  # a loss then ends the step
        if session is not None and not session.is_closed and (is_paused or not session.why_lost):
            return session
        session = self._open_session()
        if session.why_lost and not session.has_zygote():  # the zygote died meanwhile: try once more
            session = self._open_session()
        return session

    def _open_session(self) -> Session:
        """Open a sandbox session and replay the episode in it.

        If the zygote (the process that forks workers) dies meanwhile, return the lost session. After other errors
        close the session and raise.
        """
        self._end_session()
        with named(self.name):  # the interpreter, for example, may not run
            opened = self._sandbox.open()
        session = self._adopt(opened)
        try:
            self._replay(session)
        except BaseException as error:
            if not isinstance(error, WorkerDied) or session.has_zygote():
                self._end_session()
                raise
        return session

    def _replay(self, session: Session) -> None:
        """Bind the names and run the programs of the journal again, with recorded results of tool calls."""
        tools = self._tools
        session.name(self._names(), tools)
        try:
            for step in self._journal.steps:
                tools.replay(step.calls)
                session.run(step.code, timeout=self.config.step_timeout)
        finally:
            tools.replay(None)

    def _adopt(self, session: Session) -> Session:
        end_with_parent()  # else an orphaned worker of multiprocessing would keep the episode's process alive
        self._session = session
        # A method of the session: a finalizer that refers to this object would keep it from being collected.
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
        """Return further entries for the ``info`` of a step; subclasses override it."""
        return {}

    # Queries

    def parse_action(self, text: str, agent: str | None = None) -> str:
        """Return the program in a model's reply: the content of its last Markdown code fence, or the whole reply.

        Raise ``ValueError`` if the reply is prose without a program, or the program is too long.
        """
        require_text(text)
        code = program_in(text, joined=self.runs_all_fences)
        if code == text and is_prose(text):
            how = self.how_to_act
            raise ValueError(f"{shown(text)} is no program; {how[0].lower()}{how[1:]}")
        if not self.action_space.contains(code):
            raise ValueError(f"{shown(code)} is no program of at most {MAX_CODE} characters")
        return code

    def render(self) -> Any:
        """Return the text of the last step's outcome, as the model sees it; ``None`` without ``"ansi"``."""
        return self._shown if self.render_mode == "ansi" else None

    def episode_state(self) -> dict[str, Any]:
        """Return the isolation level and the names and types of the variables."""
        return {"isolation": self.config.isolation, "variables": dict(self._variables)}

    def close(self) -> None:
        """End the episode with its processes and MCP servers; a reset begins another episode."""
        self._is_closed = True
        self._end_session()
        self._offered.close()
        self._sandbox.close()

    # Copies

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = type(self).__new__(type(self))
        memo[id(self)] = other  # first, as attributes that refer to this object are copied below
        state = self.__getstate__()
        shared = {"config": self.config, "_transform": self._transform, "_offered": state.pop("_offered")}
        rest = {name: value for name, value in state.items() if name not in shared}
        other.__setstate__(copy.deepcopy(rest, memo) | shared)
        session = self._session
        if session is not None and not session.is_closed and self._journal.running is None:
            try:
                other._adopt(session.fork()).use_tools(other._tools)
            except (NotAvailable, WorkerDied):  # the copy then replays the episode
                return other
            other._sandbox.hold()  # so that the sandbox stays open for the copy when this environment is closed
        return other

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name != "_tools"}
        return state | {
            "_session": None,
            "_closing": None,
            "_sandbox": self._sandbox.setup,
            "_offered": self._offered.copy(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._sandbox = SharedSandbox(state["_sandbox"])
        self._tools = JournaledTools(self._offered, self._journal)


def setup_of(config: ProgramConfig) -> Setup:
    """Return the sandbox arguments for a config; raise if this machine does not support the isolation level."""
    levels.require(config.isolation)
    return Setup(
        isolation=config.isolation,
        limits=Limits(memory=memory_of(config.memory)),
        python=config.python or sys.executable,
        warm=tuple(config.warm),
    )


def shown_text(done: Execution) -> str:
    """Return the text that a model is shown after a step: output, value and error."""
    parts = [done.stdout.rstrip(), done.stderr.rstrip(), done.shown, done.error]
    return "\n".join(filter(None, parts)) or "(no output)"


def events_of(call: Call) -> tuple[Event, Event]:
    """Return the two events of a tool call: ``tool_call`` and ``tool_result``."""
    result = {"result": call.value} if call.error is None else {"error": call.error}
    return (
        Event(UNNUMBERED, EventKind.TOOL_CALL, None, None, {"name": call.name, "arguments": call.arguments}),
        Event(UNNUMBERED, EventKind.TOOL_RESULT, None, None, {"name": call.name, **result}),
    )
