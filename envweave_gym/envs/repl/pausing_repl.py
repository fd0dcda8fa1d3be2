"""A REPL whose step pauses at sub-calls, until its caller answers them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import envweave_gym.sandbox as sandbox
from envweave_gym.core.faults import ResetNeeded, ToolError
from envweave_gym.envs.code.program_journal import CALLED_OTHERWISE, Call, ProgramStep, take_call
from envweave_gym.envs.repl.observation import SNAPSHOT
from envweave_gym.envs.repl.repl_config import ReplModelConfig
from envweave_gym.envs.repl.repl_env import REPLProgramEnv, Stepped
from envweave_gym.envs.repl.subcalls import prompts_of, text_of
from envweave_gym.sandbox import Execution, Session

MAX_PROMPT = 1 << 20
"""Characters of a prompt."""


class PausingREPL(REPLProgramEnv):
    """A step is begun, pauses with prompts, and continues with answers until its program ends.

    A copy that is made during a pause replays the episode up to there.
    """

    name = "envweave/REPLTeam-v0"

    def __init__(self, config: ReplModelConfig) -> None:
        super().__init__(config)
        self._open: list[sandbox.Call] = []
        """The calls of the pause, in the order of their prompts."""
        self._next: list[sandbox.Call] = []
        """Calls of the next pause that the program of a copy has already made."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin with an empty namespace."""
        self._open, self._next = [], []
        return super().reset(seed=seed, options=options)

    @property
    def prompts(self) -> list[str]:
        """The prompts of the pause."""
        return [prompt for call in self._open for prompt in _prompts(call)]

    def begin(self, code: str) -> Stepped | None:
        """Run a program until it ends or pauses; return the result of the step, or None."""
        session = self._live()
        self._open, self._next = [], []
        self._journal.running = ProgramStep(code)
        self._start(session, code)
        return self._advance(session)

    def answer(self, answers: Sequence[str]) -> Stepped | None:
        """Answer the prompts, in their order, and continue."""
        session, left = self._live(), list(answers)
        for call in self._open:
            count = len(_prompts(call))
            given, left = left[:count], left[count:]
            self._reply(session, call, given if _is_batch(call) else given[0])
        self._open = []
        return self._advance(session)

    def step(self, action: str) -> Stepped:
        """Run a program, and answer its sub-calls with an error."""
        stepped = self.begin(action)
        while stepped is None:
            stepped = self.answer(["Error: nobody answers here"] * len(self.prompts))
        return stepped

    def _advance(self, session: Session) -> Stepped | None:
        while not self._open:
            event, self._next = self._next or session.wait(), []
            if isinstance(event, Execution):
                calls = self._calls()
                self._record(event)
                return self._conclude(event, calls)
            self._open = [call for call in event if not self._answer_at_once(session, call)]
        return None

    def _answer_at_once(self, session: Session, call: sandbox.Call) -> bool:
        """Answer a call that is refused, or has no prompts; return whether it was one."""
        try:
            prompts = _prompts(call)
            self._tools.spend(call.name, call.arguments)
        except ToolError as error:
            self._reply(session, call, error=str(error))
            return True
        if not prompts:
            self._reply(session, call, [])
        return not prompts

    def _reply(
        self, session: Session, call: sandbox.Call, value: Any = None, error: str | None = None
    ) -> None:
        if self._journal.running is not None:
            self._journal.running.calls.append(Call(call.name, call.arguments, value, error))
        session.answer(call, value, error)

    # Replay

    def _replay(self, session: Session) -> None:
        specs, journal = self._tools.specs(), self._journal
        session.name(self._names(), self._tools, [spec["name"] for spec in specs])
        for step in journal.steps:
            self._start(session, step.code)
            known = list(step.calls)
            while unknown := self._answer_known(session, known):
                for call in unknown:
                    session.answer(call, error=f"{call.name} {CALLED_OTHERWISE}")
        if journal.running is not None:
            self._start(session, journal.running.code)
            self._find_open(session, list(journal.running.calls))

    def _start(self, session: Session, code: str) -> None:
        config = self.config
        session.begin(
            code,
            timeout=config.step_timeout,
            checkpoint=config.checkpoint,
            snapshot=SNAPSHOT,
            watch=("answer",),
        )

    def _find_open(self, session: Session, known: list[Call]) -> None:
        """Run the program up to its pause, and put its open calls into the order of their prompts."""
        found, made = list[sandbox.Call](), list[sandbox.Call]()
        for before in self._open:
            while (same := next((one for one in made if _is_same(before, one)), None)) is None:
                is_blocked = made and session.process.thread_count() == 1  # it can make no further call
                more = [] if is_blocked else self._answer_known(session, known)
                if not more:
                    raise ResetNeeded(
                        f"{self.name}: a program does otherwise when played again; call reset()"
                    )
                made += more
            made.remove(same)
            found.append(same)
        self._open, self._next = found, made

    def _answer_known(self, session: Session, known: list[Call]) -> list[sandbox.Call]:
        """Answer calls as before; return the first ones that were not made before."""
        unknown = list[sandbox.Call]()
        while not unknown and not isinstance(event := session.wait(), Execution):
            for call in event:
                before = take_call(known, call.name, call.arguments)
                if before is None:
                    unknown.append(call)
                else:
                    session.answer(call, before.value, before.error)
        return unknown


def _is_same(before: sandbox.Call, call: sandbox.Call) -> bool:
    return (before.name, before.arguments) == (call.name, call.arguments)


def _is_batch(call: sandbox.Call) -> bool:
    return "prompts" in call.arguments


def _prompts(call: sandbox.Call) -> list[str]:
    """Return the prompts of a call; a program that forges calls may have given anything."""
    given = call.arguments
    prompts = prompts_of(given["prompts"]) if _is_batch(call) else [text_of(given.get("prompt"))]
    longest = max(map(len, prompts), default=0)
    if longest > MAX_PROMPT:
        raise ToolError(f"a prompt of {longest} characters is too long; it may have {MAX_PROMPT}")
    return prompts
