"""A REPL whose sub-calls are answered by whoever steps it: its program waits meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from envweave_gym import sandbox
from envweave_gym.core.faults import ResetNeeded
from envweave_gym.envs.code.offered_tools import CALLED_OTHERWISE, Call
from envweave_gym.envs.repl.repl import REPLProgramEnv, Stepped
from envweave_gym.envs.repl.repl_observation import SNAPSHOT
from envweave_gym.envs.repl.subcalls import prompts_of, text_of
from envweave_gym.sandbox import Execution, Session
from envweave_gym.tools import ToolError

MOST_PROMPT = 1 << 20
"""So many characters a prompt has at most."""


class AskedREPL(REPLProgramEnv):
    """A step is begun, has its prompts answered, and comes to its end.

    A copy that is made meanwhile plays its program again up to there.
    """

    name = "envweave/REPLTeam-v0"

    _running: str | None = None
    """The program that waits."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._open: list[sandbox.Call] = []
        self._next: list[sandbox.Call] = []
        """Those that were not asked yet when a copy was made, and that its program makes sooner."""
        self._closed: list[Call] = []
        """The calls of the program so far, with their answers."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin with an empty namespace."""
        self._running, self._open, self._next, self._closed = None, [], [], []
        return super().reset(seed=seed, options=options)

    @property
    def prompts(self) -> list[str]:
        """What the program asks now."""
        return [prompt for call in self._open for prompt in _prompts(call)]

    def begin(self, code: str) -> Stepped | None:
        """Run a program to its end, or until it asks: then there is no result yet."""
        session = self._live()
        self._running, self._open, self._next, self._closed = code, [], [], []
        self._start(session, code)
        return self._advance(session)

    def answer(self, answers: Sequence[str]) -> Stepped | None:
        """Answer the prompts, in their order, and go on."""
        session, left = self._live(), list(answers)
        for call in self._open:
            count = len(_prompts(call))
            given, left = left[:count], left[count:]
            value = given if _is_batch(call) else given[0]
            self._closed.append(Call(call.name, call.arguments, value))
            session.answer(call, value)
        self._open = []
        return self._advance(session)

    def step(self, action: str) -> Stepped:
        """Run a program, whose sub-calls nobody answers."""
        stepped = self.begin(action)
        while stepped is None:
            stepped = self.answer(["Error: nobody answers here"] * len(self.prompts))
        return stepped

    def _advance(self, session: Session) -> Stepped | None:
        while not self._open:
            told, self._next = self._next or session.wait(), []
            if isinstance(told, Execution):
                return self._end(told)
            self._open = [call for call in told if not self._is_refused(session, call)]
        return None

    def _is_refused(self, session: Session, call: sandbox.Call) -> bool:
        """Answer at once what asks nothing, or cannot be asked."""
        try:
            prompts = _prompts(call)
            self._offered.now().take(call.name, call.arguments)
        except ToolError as error:
            self._closed.append(Call(call.name, call.arguments, error=str(error)))
            session.answer(call, error=str(error))
            return True
        if not prompts:
            self._closed.append(Call(call.name, call.arguments, []))
            session.answer(call, [])
        return not prompts

    def _end(self, done: Execution) -> Stepped:
        code, self._running = self._running or "", None
        self._note(code, done, self._closed)
        return self._concluded(done, self._closed)

    # The same again, elsewhere

    def _is_over(self, session: Session) -> bool:
        return self._running is None and super()._is_over(session)

    def _play_again(self, session: Session) -> None:
        tools = self._offered.now()
        session.name(self._names(), tools, [tool.name for tool in tools])
        for code, calls in self._journal:
            self._start(session, code)
            known = list(calls)
            while unknown := self._replay(session, known):
                for call in unknown:
                    session.answer(call, error=f"{call.name} {CALLED_OTHERWISE}")
        if self._running is not None:
            self._start(session, self._running)
            self._find_open(session, list(self._closed))

    def _start(self, session: Session, code: str) -> None:
        session.begin(code, timeout=self.options.step_timeout, snapshot=SNAPSHOT, watch=("answer",))

    def _find_open(self, session: Session, known: list[Call]) -> None:
        """Wait for the calls that are open, whose agents have been asked, and keep them in their order."""
        found, made = list[sandbox.Call](), list[sandbox.Call]()
        for before in self._open:
            while (same := next((one for one in made if _is_same(before, one)), None)) is None:
                waits = made and session.process.thread_count() == 1  # and so asks nothing else
                more = [] if waits else self._replay(session, known)
                if not more:
                    raise ResetNeeded(
                        f"{self.name}: a program does otherwise when played again; call reset()"
                    )
                made += more
            made.remove(same)
            found.append(same)
        self._open, self._next = found, made

    def _replay(self, session: Session, known: list[Call]) -> list[sandbox.Call]:
        """Answer as before; the calls that were not answered then."""
        unknown = list[sandbox.Call]()
        while not unknown and not isinstance(told := session.wait(), Execution):
            for call in told:
                before = next((one for one in known if _is_same(one, call)), None)
                if before is None:
                    unknown.append(call)
                else:
                    known.remove(before)
                    session.answer(call, before.value, before.error)
        return unknown

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        session = self._session
        if self._running is not None:
            self._session = None
        try:
            return super().__deepcopy__(memo)
        finally:
            self._session = session


def _is_same(before: Call | sandbox.Call, call: sandbox.Call) -> bool:
    return (before.name, before.arguments) == (call.name, call.arguments)


def _is_batch(call: sandbox.Call) -> bool:
    return "prompts" in call.arguments


def _prompts(call: sandbox.Call) -> list[str]:
    """The prompts of a call; a program that has forged it may have given anything."""
    given = call.arguments
    prompts = prompts_of(given["prompts"]) if _is_batch(call) else [text_of(given.get("prompt"))]
    longest = max(map(len, prompts), default=0)
    if longest > MOST_PROMPT:
        raise ToolError(f"a prompt of {longest} characters is too long; it may have {MOST_PROMPT}")
    return prompts
