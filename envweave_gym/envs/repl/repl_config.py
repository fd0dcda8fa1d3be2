"""The constructor arguments of REPL and REPLTeam; reset options may change some of them for an episode."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Annotated, Any, Self

import msgspec

from envweave_gym.core.arguments import check_int
from envweave_gym.core.config import local, one_of, wire
from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.envs.code.code_config import ProgramConfig
from envweave_gym.envs.repl.printed_answers import MATCHES, score_of

HUGGING_FACE = "https://router.huggingface.co/v1"
"""URL of Hugging Face's inference endpoint."""
MAX_ITERATIONS = 100_000
MAX_OUTPUT = 1 << 20
MAX_SUBS = 256
RESET_OPTIONS = ("context", "task_prompt", "max_iterations", "expected_answer", "llm_model")


class ReplConfig(ProgramConfig, frozen=True, kw_only=True):
    """The arguments that ``envweave/REPL-v0`` and ``envweave/REPLTeam-v0`` have in common."""

    context: Annotated[Any, wire("`context` in the namespace: text or other JSON")] = ""
    task_prompt: Annotated[str, wire("the task that the prompt begins with")] = ""
    max_iterations: Annotated[int, wire("steps after which an episode without an answer fails")] = 30
    expected_answer: Annotated[
        str | None, wire("the answer to compare with; without it any answer is a success")
    ] = None
    match: Annotated[str, wire('`"exact"`, or `"fuzzy"`: half for an answer that contains the other')] = (
        "exact"
    )
    compat: Annotated[str, wire('`"control"`, or `"stdout"`: a printed `FINAL(…)` is an answer too')] = (
        "control"
    )
    max_output_length: Annotated[int, wire("characters of each output in an observation")] = 8192
    context_preview_length: Annotated[int, wire("characters of the context in an observation")] = 500
    reward_on_success: Annotated[float, wire("the expected answer, or any if none is expected")] = 1.0
    reward_on_iteration: Annotated[float, wire("a step after which the episode goes on")] = 0.0
    reward_on_failure: Annotated[float, wire("the last step, without an answer")] = -0.1
    reward_on_error: Annotated[float, wire("added if the program raised")] = -0.05
    reward_on_wrong: Annotated[float, wire("another answer than the expected one")] = 0.0
    step_timeout: Annotated[float, wire("seconds of its own time that a step may take")] = 30.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_int("max_iterations", self.max_iterations, 1, MAX_ITERATIONS, "number of steps")
        if not isinstance(self.task_prompt, str):
            raise InvalidArgument(f"task_prompt={shown(self.task_prompt)} is not a text")
        try:
            json.dumps(self.context, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise InvalidArgument(f"context={shown(self.context)} is neither a text nor other JSON") from None
        one_of("match", self.match, MATCHES)
        one_of("compat", self.compat, ("control", "stdout"))
        for name in ("max_output_length", "context_preview_length"):
            _check_int(name, getattr(self, name), 100, MAX_OUTPUT, "number of characters")
        for name in ("success", "iteration", "failure", "error", "wrong"):
            value = getattr(self, f"reward_on_{name}")
            if type(value) not in (int, float) or not math.isfinite(value):
                raise InvalidArgument(f"reward_on_{name}={shown(value)} is no finite number")

    def for_episode(self, options: dict[str, Any]) -> Self:
        """Return the config of an episode: a copy of this one with the options of the reset applied."""
        return msgspec.structs.replace(self, **{key: options[key] for key in RESET_OPTIONS if key in options})

    def context_text(self) -> str:
        """Return the context as text; a context that is not a string is returned as JSON."""
        return self.context if isinstance(self.context, str) else json.dumps(self.context, ensure_ascii=False)

    def reward_parts(self, answer: str | None, *, ended: bool, success: bool) -> dict[str, float]:
        """Return the parts of a step's reward by name; ``answer`` is ``None`` if the program gave no answer.

        ``ended`` says whether the step ends the episode, ``success`` whether the answer is the expected one.
        """
        parts: dict[str, float] = {}
        if answer is not None:
            expected = self.expected_answer
            score = 1.0 if expected is None else score_of(answer, str(expected), self.match)
            parts |= {"success": self.reward_on_success * score} if score else {"wrong": self.reward_on_wrong}
        elif ended:
            parts["failure"] = self.reward_on_failure
        else:
            parts["iteration"] = self.reward_on_iteration
        return {**parts, **({} if success else {"error": self.reward_on_error})}


class ReplModelConfig(ReplConfig, frozen=True, kw_only=True):
    """The arguments of ``envweave/REPL-v0``, where language models answer sub-calls."""

    llm_query_fn: Annotated[Callable[..., str] | None, local("a function that answers a prompt")] = None
    llm_batch_fn: Annotated[Callable[..., list[str]] | None, local("one that answers several prompts")] = None
    llm: Annotated[
        Any, local('an OpenAI-compatible endpoint: `{"base_url": …, "model": …, "api_key": "env:NAME"}`')
    ] = None
    llm_model: Annotated[str | None, wire("the model of sub-calls that name none")] = None
    hf_url: Annotated[str, local("the address of Hugging Face's inference")] = HUGGING_FACE
    rlm: Annotated[
        Callable[..., str] | bool,
        local("a function from messages to a reply that plays `rlm_query`, or `True`"),
    ] = False
    rlm_max_depth: Annotated[int, local("how deep `rlm_query` may nest")] = 2
    rlm_max_iterations: Annotated[int, local("steps of an episode of `rlm_query`")] = 10
    subcalls: Annotated[str, local('`"models"`; in the game `"agents"`')] = "models"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.subcalls != "models":
            raise InvalidArgument(
                f"subcalls={shown(self.subcalls)}: there are 'models' here; 'agents' answer sub-calls in the "
                "game, pettingzoo.make('parallel', 'envweave/REPL-v0') or envweave/REPLTeam-v0"
            )
        if not isinstance(self.llm_model, str | None):
            raise InvalidArgument(f"llm_model={shown(self.llm_model)} is not a text")
        if not callable(self.rlm) and not isinstance(self.rlm, bool):
            raise InvalidArgument(
                f"rlm={shown(self.rlm)} is neither a function of messages nor True or False"
            )
        _check_int("rlm_max_iterations", self.rlm_max_iterations, 1, MAX_ITERATIONS, "number")


class ReplTeamConfig(ReplConfig, frozen=True, kw_only=True):
    """The arguments of ``envweave/REPLTeam-v0``, where other agents answer the prompts that a program sends."""

    subs: Annotated[int, wire("how many agents answer sub-calls")] = 4
    rewards: Annotated[
        str, wire('`"shared"`: all have the rewards of root; `"roles"`: those who answered share the outcome')
    ] = "shared"
    subcalls: Annotated[str, local('`"agents"`; in the REPL of one agent `"models"`')] = "agents"
    max_cycles: Annotated[int | None, wire("the same limit as `max_iterations`, by PettingZoo's name")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("subs", self.subs, "no number of agents", 1, MAX_SUBS)
        one_of("rewards", self.rewards, ("shared", "roles"))
        if self.subcalls != "agents":
            raise InvalidArgument(
                f"subcalls={shown(self.subcalls)}: agents answer here; models do in envweave/REPL-v0"
            )

    def for_root(self) -> ReplModelConfig:
        """Return the config of the single-agent REPL that the agent ``root`` plays."""
        shared: dict[str, Any] = {name: getattr(self, name) for name in ReplConfig.__struct_fields__}
        if self.max_cycles is not None:
            shared["max_iterations"] = min(self.max_iterations, self.max_cycles)
        shared["render_mode"] = "ansi"
        return ReplModelConfig(**shared)


def _check_int(name: str, value: Any, least: int, most: int, what: str) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InvalidArgument(f"{name}={shown(value)} is no {what} from {least} to {most}")
