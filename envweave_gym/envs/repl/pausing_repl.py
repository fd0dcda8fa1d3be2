"""A REPL whose step pauses when the program makes sub-calls, until the caller of the step answers them."""

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
"""Limit of a prompt's length in characters."""


class PausingREPL(REPLProgramEnv):
    """Environment whose step is split: ``begin`` runs a program up to its sub-calls, ``answer`` continues it.

    Sub-calls are requests of a program to language models. A copy that is made during a pause replays the episode
    up to that pause.
    """

    name = "envweave/REPLTeam-v0"

    def __init__(self, config: ReplModelConfig) -> None:
        super().__init__(config)
        self._open: list[sandbox.Call] = []
        """The calls at which the program has paused, in the order of their prompts; empty outside of a pause."""
        self._next: list[sandbox.Call] = []
        """The calls for the next pause, which the program of a copy has made during the replay already."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode with an empty namespace, without open calls."""
        self._open, self._next = [], []
        return super().reset(seed=seed, options=options)

    @property
    def prompts(self) -> list[str]:
        """The prompts that wait for answers; empty outside of a pause."""
        return [prompt for call in self._open for prompt in _prompts(call)]

    def begin(self, code: str) -> Stepped | None:
        """Run a program until it ends or pauses; return the result of the step, or ``None`` at a pause."""
        session = self._live()
        self._open, self._next = [], []
        self._journal.running = ProgramStep(code)
        self._start(session, code)
        return self._advance(session)

    def answer(self, answers: Sequence[str]) -> Stepped | None:
        """Continue the program with answers in the order of ``prompts``; return the result, or ``None`` at a pause."""
        session, left = self._live(), list(answers)
        for call in self._open:
            count = len(_prompts(call))
            given, left = left[:count], left[count:]
            self._reply(session, call, given if _is_batch(call) else given[0])
        self._open = []
        return self._advance(session)

    def step(self, action: str) -> Stepped:
        """Run a program to its end; answer each of its prompts to language models with an error text.

        Gymnasium's ``step`` cannot pause for answers. Callers that have them use ``begin`` and ``answer``.
        """
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
        """Answer a call now if it is refused or has no prompts; return whether it was answered."""
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
        """Run the program of a copied environment up to the pause; replace the open calls by those of its new process.

        Threads may make the calls in another order than the first time, so each is searched by name and arguments.
        Raise ``ResetNeeded`` if the program does not make them again.
        """
        found, made = list[sandbox.Call](), list[sandbox.Call]()
        for before in self._open:
            while (same := next((one for one in made if _is_same(before, one)), None)) is None:
                is_blocked = made and session.process.thread_count() == 1  # its only thread waits for a reply
                more = [] if is_blocked else self._answer_known(session, known)
                if not more:
                    raise ResetNeeded(
                        f"{self.name}: a program behaves differently when replayed; call reset()"
                    )
                made += more
            made.remove(same)
            found.append(same)
        self._open, self._next = found, made

    def _answer_known(self, session: Session, known: list[Call]) -> list[sandbox.Call]:
        """Answer the program's calls as recorded in ``known``, until it makes calls that are not recorded or ends.

        Return those calls; an empty list means that the program has ended.
        """
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
    """Return the prompts of a call; raise ``ToolError`` if they are invalid, as a program can forge its calls."""
    given = call.arguments
    prompts = prompts_of(given["prompts"]) if _is_batch(call) else [text_of(given.get("prompt"))]
    longest = max(map(len, prompts), default=0)
    if longest > MAX_PROMPT:
        raise ToolError(f"a prompt of {longest} characters is too long; at most {MAX_PROMPT} are accepted")
    return prompts
