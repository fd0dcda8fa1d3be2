"""CodeReview: an author fixes a program, a reviewer accepts the fix or sends it back with a comment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from envweave_gym.core.arguments import call, check_int
from envweave_gym.core.config import one_of
from envweave_gym.core.faults import InvalidAction, InvalidArgument, shown
from envweave_gym.core.protocols import no_agent
from envweave_gym.core.reply_parsing import read_name
from envweave_gym.core.seeding import Seeds, mix
from envweave_gym.core.spaces import Unicode
from envweave_gym.envs.codefix.codefix import question, read_operator, token_space, tokenize
from envweave_gym.envs.codefix.generator import OPERATORS, Draw, generate
from envweave_gym.envs.games.base import RESET_OPTIONS, TurnBasedGame, check_arguments
from envweave_gym.episode.message import message
from envweave_gym.episode.stream import metrics
from envweave_gym.wrappers.aec_stream import AECStream
from envweave_gym.wrappers.turn_based_parallel import TurnBasedParallel

Comments = Literal["discrete", "text"]

_NAME = "envweave/CodeReview-v0"
AUTHOR, REVIEWER = "author_0", "reviewer_0"
AGENTS: tuple[str, ...] = (AUTHOR, REVIEWER)

ROUND_COST = 0.05
"""Penalty of each agent for every program that is sent back."""
SHOWN_TESTS = 2
"""Number of tests that the reviewer sees; after an acceptance all are run."""
MAX_COMMENT, MAX_PROMPT, MAX_ROUNDS = 1000, 4096, 1_000_000  # characters, characters, rounds
ACCEPTANCES = frozenset(
    {"accept", "accepted", "approve", "approved", "lgtm", "looks good", "looks good to me"}
)
"""Text comments that accept the fix; every other comment sends the program back."""

ACCEPT = 0
"""The reviewer's discrete action that accepts; ``1 + i`` sends the program back and suggests operator ``i``."""
_VERDICTS = {"accept": ACCEPT, "approve": ACCEPT, "0": ACCEPT} | {
    name: i for i, operator in enumerate(OPERATORS, 1) for name in (operator, str(i))
}
FEATURES = ("observer", "turn", "reviews", "suggestion", "passed")
"""Names of the numbers after the tokens of an observation.

``observer`` and ``turn``: the observing agent and the agent whose turn it is (0 author, 1 reviewer).
``reviews``: their number. ``suggestion``: the last one (0 none, ``1 + i`` operator ``i``). ``passed``: the
shown tests that pass (reviewer only, 0 before the first fix).
"""


class CodeReview(TurnBasedGame):
    """Game in which an author replaces the wrong operator of a program, and a reviewer checks the fix.

    Programs are those of ``CodeFixEnv``. The reviewer sees the program and some of its tests. It accepts the
    program, or sends it back with a suggested operator (``comments="discrete"``) or with any text (``"text"``).
    Acceptance ends the game, and earns both agents 1.0 if all tests pass, else 0.0. Every program sent back costs
    both 0.05. After ``max_rounds`` reviews without acceptance, at most :data:`MAX_ROUNDS`, the game is truncated.

    An observation holds ``"observation"``, the tokens of the current program and :data:`FEATURES`, and
    ``"prompt"``, the text for a language model at the start of the agent's last turn. Prompts are also
    emitted as messages that only their agent sees.
    """

    metadata: dict[str, Any] = {
        "name": "code_review_v0",
        "render_modes": ["human", "ansi"],
        "render_fps": 1,
        "is_parallelizable": False,
        "reset_options": RESET_OPTIONS,
    }

    def __init__(
        self,
        comments: Comments = "discrete",
        max_rounds: int = 3,
        max_cycles: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Make the game; ``max_cycles`` is PettingZoo's name for ``max_rounds``, the limit of reviews."""
        super().__init__()
        one_of(f"{_NAME}: comments", comments, ("discrete", "text"))
        check_int(f"{_NAME}: max_rounds", max_rounds, "not a number of rounds", 1, MAX_ROUNDS)
        check_arguments(_NAME, self, max_cycles, render_mode)
        self.comments, self.render_mode = comments, render_mode
        self.max_rounds = max_rounds if max_cycles is None else min(max_rounds, max_cycles)
        self.possible_agents = list(AGENTS)
        self.observation_spaces = {agent: self._observation_space() for agent in AGENTS}
        said = Discrete(1 + len(OPERATORS)) if comments == "discrete" else Unicode(MAX_COMMENT)
        self.action_spaces: dict[str, Any] = {AUTHOR: Discrete(len(OPERATORS)), REVIEWER: said}
        self.agents: list[str] = []
        self._seeds = Seeds(_NAME)
        self._program, self._shown = generate(0), [0]
        self._begin()

    def _observation_space(self) -> Dict:
        tokens = token_space()
        bounds = [1, 1, self.max_rounds, len(OPERATORS), SHOWN_TESTS]
        high = np.concatenate([tokens.high, np.array(bounds, np.int64)])
        return Dict(
            {"observation": Box(np.zeros_like(high), high, dtype=np.int64), "prompt": Unicode(MAX_PROMPT)}
        )

    def _begin(self) -> None:
        self.agent_selection = AUTHOR
        self._fix: str | None = None
        self._comment, self._suggestion, self._reviews = "", 0, 0
        self._passed = 0
        self._prompts = dict.fromkeys(AGENTS, "Wait for the author.")

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start a game with the program of the seed, which the author sees first."""
        chosen = self._seeds.next(seed)
        self._program = generate(chosen)
        key = mix(mix(chosen), Draw.TESTS)
        # Sorting by hashes shuffles the tests.
        self._shown = sorted(range(len(self._program.cases())), key=lambda test: mix(key, test))[:SHOWN_TESTS]
        self._begin()
        self._start()
        self._prompt(AUTHOR, question(self._program.source()))
        self.show()

    def _act(self, agent: str, action: Any) -> None:
        """Let the author fix the program, or the reviewer judge it."""
        if agent == AUTHOR:
            self._submit(OPERATORS[int(action)])
        else:
            self._review(action)

    def _submit(self, operator: str) -> None:
        self._fix = operator
        results, expected = self._program.results(operator), self._program.expected()
        self._passed = sum(results[test] == expected[test] for test in self._shown)
        self._prompt(REVIEWER, self._review_prompt(results, expected))

    def _review(self, action: Any) -> None:
        self._reviews += 1
        if accepts(action) if self.comments == "text" else action == ACCEPT:
            self._finish()
            return
        if self.comments == "text":
            self._comment, self._suggestion = action, named_operator(action)
        else:
            self._comment, self._suggestion = f"Use {OPERATORS[int(action) - 1]} instead.", int(action)
        self.rewards = dict.fromkeys(AGENTS, -ROUND_COST)
        back = f"The reviewer sent your {self._fix} back: {self._comment}\n\n{question(self._source())}"
        if self._reviews < self.max_rounds:
            self._prompt(AUTHOR, back)
            return
        self.truncations = dict.fromkeys(AGENTS, True)
        self._emit_outcome(accepted=False)

    def _finish(self) -> None:
        self.rewards = dict.fromkeys(AGENTS, float(self._solved()))
        self.terminations = dict.fromkeys(AGENTS, True)
        self._emit_outcome(accepted=True)

    def _emit_outcome(self, accepted: bool) -> None:
        self.agent_selection = AUTHOR
        self.emit(metrics(accepted=int(accepted), solved=int(self._solved()), reviews=self._reviews))

    def _solved(self) -> bool:
        return self._fix is not None and self._program.passes(self._fix)

    def _prompt(self, agent: str, prompt: str) -> None:
        self.agent_selection = agent
        self._prompts[agent] = prompt
        self.emit(message("user", prompt, to=(agent,)))

    def _source(self) -> str:
        return self._program.source(self._fix)

    def _review_prompt(self, results: Sequence[Any], expected: Sequence[Any]) -> str:
        name, cases = self._program.function_name, self._program.cases()
        lines = [
            f"- {_call(name, cases[i])} gives {_outcome(results[i])}, expected {expected[i]!r}"
            for i in self._shown
        ]
        how = f"one of {' '.join(OPERATORS)}" if self.comments == "discrete" else "a comment for the author"
        return (
            "The author put the marked operator into this Python function. Accept it if the function now "
            f"does what its name and docstring say.\n\n```python\n{self._source()}```\n\n"
            f"{len(lines)} of its {len(cases)} tests:\n" + "\n".join(lines) + "\n\n"
            f"Answer 'accept', or send it back with {how}."
        )

    def observe(self, agent: str) -> dict[str, Any]:
        """Return the current program, the features, and the prompt of the agent's last turn."""
        # Only the reviewer sees how many of the shown tests pass.
        turn, passed = AGENTS.index(self.agent_selection), self._passed if agent == REVIEWER else 0
        features = [AGENTS.index(agent), turn, self._reviews, self._suggestion, passed]
        tokens = np.concatenate([tokenize(self._source()), np.array(features, np.int64)])
        return {"observation": tokens, "prompt": self._prompts[agent]}

    def parse_action(self, text: str, agent: str | None = None) -> Any:
        """Parse an agent's reply.

        The author names an operator or its index. The reviewer writes one of :data:`ACCEPTANCES` or, if
        comments are discrete, an operator or the action's number, alone or in a plain sentence; a text
        comment is the action itself.
        """
        if agent == AUTHOR:
            return read_operator(text)
        if agent != REVIEWER:
            raise InvalidArgument(no_agent(_NAME, agent, AGENTS))
        space = self.action_spaces[REVIEWER]
        if self.comments == "text":
            if not space.contains(text):
                raise InvalidAction(f"{shown(text)} is not in {space}")
            return text
        return ACCEPT if accepts(text) else read_name(text, _VERDICTS, "verdict")

    def picture(self) -> str:
        """Return the current program and the last comment."""
        return self._source() + (f"reviewer: {self._comment}\n" if self._comment else "")

    def episode_state(self) -> dict[str, Any]:
        """Return the name of the program's template, the operator now in the program, and the number of reviews."""
        return {"template": self._program.template, "fix": self._fix, "reviews": self._reviews}


def accepts(comment: str) -> bool:
    """Return whether a comment is one of :data:`ACCEPTANCES`, ignoring case, quotes and final punctuation."""
    return " ".join(comment.split()).strip(" `'\".!").casefold() in ACCEPTANCES


def named_operator(comment: str) -> int:
    """Return ``1 + i`` if a comment names operator ``i`` and no other as a separate word; else 0."""
    words = {word.strip("`'\".,;:?()") for word in comment.split()}
    named = [index for index, operator in enumerate(OPERATORS) if operator in words]
    return 1 + named[0] if len(named) == 1 else 0


def _call(name: str, case: tuple[Any, ...]) -> str:
    return f"{name}({', '.join(map(repr, case))})"


def _outcome(result: Any) -> str:
    return result.__name__ if isinstance(result, type) else repr(result)


raw_env = CodeReview


def env(**kwargs: Any) -> AECStream:
    """Make the game as an ``AECEnv`` with streams in its infos; ``kwargs`` are the arguments of the game."""
    return AECStream(call(_NAME, raw_env, kwargs), name=_NAME)


def parallel_env(**kwargs: Any) -> TurnBasedParallel:
    """Make the game as a ``ParallelEnv`` with streams in its infos; ``kwargs`` are the arguments of the game."""
    return TurnBasedParallel(env(**kwargs))
