"""SWE-bench Lite with patches: shows an issue, takes a diff as the reply, and runs tests for the reward."""

from __future__ import annotations

from functools import partial
from typing import Any

from gymnasium.spaces import Space

from envweave_gym.core.config import configured
from envweave_gym.core.faults import Fault, MissingExtra
from envweave_gym.core.spaces import Chat, Unicode
from envweave_gym.core.thinking import without_thinking
from envweave_gym.data.swebench_lite import Instance, instances
from envweave_gym.envs.swebench.instance_env import INSTANCE_OPTIONS, InstanceEnv, shortened
from envweave_gym.envs.swebench.swebench_config import PatchConfig
from envweave_gym.envs.tasks.task_env import AS_JSON
from envweave_gym.episode.message import message
from envweave_gym.episode.stream import metrics
from envweave_gym.swebench.diffs import MAX_CHARS, diff_in
from envweave_gym.swebench.evaluation import LOSSES, Evaluation, evaluate, loss_of
from envweave_gym.swebench.grading import check_instance
from envweave_gym.swebench.open_workspaces import EpisodeWorkspace
from envweave_gym.swebench.repository_commands import (
    MAX_OUTPUT_CHARS,
    USAGE,
    RepositoryCommand,
    command_in,
    run_command,
)
from envweave_gym.swebench.unpatched_pass_rates import BASELINES

Stepped = tuple[Any, float, bool, bool, dict[str, Any]]

APPLIES, SOME_PASS = 0.1, 0.4
"""Shaped rewards: of a patch that applies, and the largest addition for tests that begin to pass."""
MAX_ISSUE = 30_000
"""Limit of the characters of an issue that are shown; the longest of Lite has 24,770."""
MAX_REPLY = MAX_CHARS
"""Limit of a reply in characters."""
_FRAME_CHARS = 4000  # upper bound of a prompt without its issue
_TASK = (
    "Resolve the issue with a change of the repository's source files. Answer with a unified diff, as git "
    "writes it, in a block marked ```diff. Tests and the configuration of tests must not be touched."
)
_TURNS = (
    "Before that you may look at the repository, {looks} times at most, each time with a reply whose first "
    f"line is one of: {USAGE}. A reply with a diff and no such line is final."
)
_NEITHER = f"I can read neither a diff nor a command there; there is {USAGE}."


class SWEBenchPatchEnv(InstanceEnv[Any, str]):
    """Environment that shows an issue of a real project, applies the diff in the reply and runs the issue's tests.

    ``reward="shaped"`` pays :data:`APPLIES` for a patch that applies, and up to :data:`SOME_PASS` for tests
    that begin to pass, as long as the others still do. With ``turns=N`` up to N - 1 replies may read files of
    the repository, or run its tests, before the final one.

    ``info`` of every reset and step has the same keys; the results are filled in at the end of the episode. A
    failure of the container or sandbox ends the episode as a fault, and never as a reward.
    """

    metadata: dict[str, Any] = {
        "render_modes": ["ansi"],
        "render_fps": 1,
        "reset_options": INSTANCE_OPTIONS,
    }
    name = "envweave/SWEBenchLitePatch-v0"

    @configured(PatchConfig)
    def __init__(self, config: PatchConfig) -> None:
        self.config, self.trial, self.render_mode = config, config.trial(), config.render_mode
        longest, turns = MAX_ISSUE + _FRAME_CHARS, config.turns
        chat = Chat(AS_JSON * (longest + 2 * turns * (MAX_OUTPUT_CHARS + _FRAME_CHARS)))
        self.observation_space: Space[Any] = Unicode(longest) if config.observation == "text" else chat
        self.action_space = Unicode(MAX_REPLY)
        tasks = instances(config.dataset, config.split)
        super().__init__(tasks, dataset=config.dataset, split=config.split)
        self.evaluation = Evaluation()
        """The evaluation of the last patch, empty before it."""
        self._instance: Instance | None = None
        self._workspace = EpisodeWorkspace()
        self._messages: list[dict[str, str]] = []
        self._replies = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Show the issue that the seed draws, or the one named in ``options``."""
        self._workspace.close()
        self._instance = self.choose(seed, options)
        check_instance(self._instance)
        self.evaluation, self._replies, self._messages = Evaluation(), 0, []
        self._say(_prompt(self._instance, self.config.turns))
        return self._shown(), self._info()

    def step(self, action: str) -> Stepped:
        """Run the repository command of a reply, or evaluate its diff and end the episode."""
        assert self._instance is not None
        self._replies += 1
        self._messages.append({"role": "assistant", "content": shortened(action, MAX_OUTPUT_CHARS)})
        reply = without_thinking(action)
        if self._replies < self.config.turns:
            command, diff = command_in(reply), diff_in(reply)
            if command is not None or not diff:
                return self._run_command(self._instance, command)
        opened = partial(self._workspace.open, self._instance, self.trial)
        self.evaluation = evaluate(self._instance, diff_in(reply), self.trial, opened)
        return self._judged(self._instance, self.evaluation)

    def _judged(self, instance: Instance, found: Evaluation) -> Stepped:
        before = 0.0
        # The baseline takes a whole test run; it is needed only where some of the tests pass.
        if found.fault is None and self.config.reward == "shaped" and found.f2p > 0.0 and not found.resolved:
            known = BASELINES.pass_rate(instance, self.trial)
            if isinstance(known, Fault):
                return self._lost(known)
            before = known
        if found.fault is not None:
            return self._lost(found.fault)
        numbers = {"applied": int(found.applied), "resolved": int(found.resolved)}
        self.emit(metrics(**numbers, f2p=found.f2p, p2p=found.p2p, replies=self._replies))
        earned = float(found.resolved) if self.config.reward == "binary" else shaped(found, before)
        return self._shown(), earned, True, False, self._info()

    def _lost(self, fault: Fault) -> Stepped:
        self.evaluation = Evaluation(fault=fault)
        return self._shown(), 0.0, False, True, self._info() | {"fault": fault}

    def _run_command(self, instance: Instance, command: RepositoryCommand | None) -> Stepped:
        try:
            output = (
                _NEITHER if command is None else run_command(instance, command, self.trial, self._workspace)
            )
        except MissingExtra:
            raise
        except LOSSES as error:
            return self._lost(loss_of(error))
        self._say(shortened(output, MAX_OUTPUT_CHARS))
        return self._shown(), 0.0, False, False, self._info()

    def _info(self) -> dict[str, Any]:
        found = self.evaluation
        return {
            **self.task_info(),
            "instance_id": self._instance.instance_id if self._instance else "",
            "applied": found.applied,
            "apply_cmd": found.apply_cmd,
            "resolved": found.resolved,
            "f2p": found.f2p,
            "p2p": found.p2p,
            "problem": found.problem,
            "violations": list(found.violations),
            "log_tail": found.log_tail,
            "timings": dict(found.timings),
        }

    def _say(self, content: str) -> None:
        self._messages.append({"role": "user", "content": content})
        self.emit(message("user", content))

    def _shown(self) -> Any:
        if self.config.observation == "chat":
            return [one.copy() for one in self._messages]
        return next((one["content"] for one in reversed(self._messages) if one["role"] == "user"), "")

    def parse_action(self, text: str, agent: str | None = None) -> str:
        """Return the reply unchanged."""
        return text

    def render(self) -> Any:
        """Return the conversation so far."""
        return "\n\n".join(one["content"] for one in self._messages) if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Close the workspace of the episode."""
        self._workspace.close()

    def episode_state(self) -> dict[str, Any]:
        """Return the issue, the number of replies and their limit, and whether the patch resolved it."""
        counters = {
            "replies": self._replies,
            "turns": self.config.turns,
            "resolved": self.evaluation.resolved,
        }
        return {**super().episode_state(), **counters}


def shaped(found: Evaluation, before: float) -> float:
    """Return the shaped reward of a patch: 1 if it resolves the issue, 0 if it does not apply.

    Otherwise it is :data:`APPLIES` plus :data:`SOME_PASS` times two shares: of the FAIL_TO_PASS tests that failed
    before, those that pass now, and of the PASS_TO_PASS tests, those that still pass. ``found`` is the result with
    the patch; ``before`` is the share of FAIL_TO_PASS tests that pass without it, which earn nothing.
    """
    if found.resolved or not found.applied:
        return float(found.resolved)
    # The share of the failing tests that the patch has added, of those that it could add.
    gained = max(0.0, found.f2p - before) / (1.0 - before) if before < 1.0 else 0.0
    return APPLIES + SOME_PASS * gained * found.p2p


def _prompt(instance: Instance, turns: int) -> str:
    issue = shortened(instance.problem_statement.strip(), MAX_ISSUE)
    task = _TASK if turns == 1 else f"{_TASK} {_TURNS.format(looks=turns - 1)}"
    return f"Repository: {instance.repo}\n\nIssue:\n{issue}\n\n{task}"
