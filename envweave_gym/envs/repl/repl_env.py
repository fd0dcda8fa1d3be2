"""The environment REPL: actions are programs about a long context, which may call language models (sub-calls)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from envweave_gym.core.config import configured, named
from envweave_gym.core.spaces import Unicode
from envweave_gym.envs.code.offered_tools import OfferedTools
from envweave_gym.envs.code.program_env import ProgramEnv, events_of, shown_text
from envweave_gym.envs.code.program_journal import Call, JournaledTools
from envweave_gym.envs.repl.chat_player import play_with_chat
from envweave_gym.envs.repl.model_endpoint import Chat, SubcallFailed
from envweave_gym.envs.repl.observation import SNAPSHOT, names_that_fit, observation_of, observation_space
from envweave_gym.envs.repl.printed_answers import printed_answer, printed_name, texts_in
from envweave_gym.envs.repl.repl_config import RESET_OPTIONS, ReplModelConfig
from envweave_gym.envs.repl.subcalls import Subcalls
from envweave_gym.episode.message import message
from envweave_gym.episode.stream import metrics
from envweave_gym.sandbox import Execution, Final, Names, Setup, Variable
from envweave_gym.sandbox.inside.bounded_values import cut

MAX_CODE = 4 << 20
"""Limit of a program's length in characters; a long answer may be part of a program."""
_MAX_MESSAGE = 20_000
"""Limit of characters of the message about a step."""
_SCANNED_OUTPUT_BYTES = 8 << 20
"""Limit of the bytes of output that are searched for a printed answer."""
_READY = "FINAL(answer['content']) if isinstance(answer, dict) and answer.get('ready') else None"
_NO_ANSWER = "None is no answer; give a value"

Stepped = tuple[dict[str, Any], float, bool, bool, dict[str, Any]]


class REPLProgramEnv(ProgramEnv):
    """Environment whose actions are programs about a long text or other data in the variable ``context``.

    Programs may send prompts to language models by ``llm_query`` and ``rlm_query`` (and ``…_batched``). They end the
    episode with ``FINAL(value)``, with ``FINAL_VAR(name)``, or by setting ``answer["content"]`` and
    ``answer["ready"] = True``. These names are bound again before every step.

    An episode without an answer is terminated, not truncated, by its ``max_iterations``-th step. The limit belongs to
    the task, because the number of steps left is part of the observation.

    ``compat="stdout"`` is for models that print ``FINAL(…)``. The same text in the context or in replies to sub-calls
    does not count. A program that prints a part of such a text can still end the episode by accident.
    """

    metadata: dict[str, Any] = {
        "render_modes": ["ansi"],
        "render_fps": 1,
        "ignores_seed": True,  # the seed is that of the programs' module random
        "reset_options": RESET_OPTIONS,
    }
    name = "envweave/REPL-v0"
    runs_all_fences = True  # models that were trained on REPLs write several, one after the other
    how_to_act = (
        "Write a Python program, alone or in ```repl blocks. End with `FINAL(value)` or `FINAL_VAR('name')` "
        "in it."
    )

    @configured(ReplModelConfig)
    def __init__(self, config: ReplModelConfig, *, subcalls: Subcalls | None = None) -> None:
        """Make the environment; ``subcalls`` is given only for a nested episode, which ``rlm_query`` plays."""
        self.task = self._given = config
        """The config of the present episode: the given one with the options of the last reset."""
        self._subcalls = _subcalls_of(config) if subcalls is None else subcalls
        super().__init__(config, tools=OfferedTools(self._subcalls.tools()))
        self.action_space = Unicode(MAX_CODE)
        self._space = self.observation_space = observation_space(
            config.max_output_length, config.context_preview_length
        )
        self._forget()

    def _setup(self) -> Setup:
        """Return the sandbox arguments, with the output limit that observations or the search for answers need."""
        setup, config = super()._setup(), self._given
        output = _SCANNED_OUTPUT_BYTES if config.compat == "stdout" else config.max_output_length
        return msgspec.structs.replace(setup, limits=msgspec.structs.replace(setup.limits, output=output))

    def _forget(self) -> None:
        """Set the attributes that describe the episode to their initial values."""
        self._text = self.task.context_text()
        self._read = [self._text]
        """The texts that programs were given; a printed answer that occurs in them does not count."""
        self._known: dict[str, Variable] = {}
        self._iteration = 0
        self._answer: str | None = None

    def entrust(self, hf_token: str) -> None:
        """Use a token for Hugging Face's inference until the episode ends.

        The token is not a reset option, because reset options are recorded in the events of the episode.
        """
        self._subcalls.entrust(hf_token)

    # An episode

    def _begin(self, options: dict[str, Any]) -> None:
        with named(self.name):
            self.task = self._given.for_episode(options)
        self._subcalls.begin(self.task.llm_model)
        self._forget()
        self.emit(message("user", self._prompt()))

    def _prompt(self) -> str:
        kind = type(self.task.context).__name__
        lines = [
            f"`context` is a {kind} with {len(self._text)} characters. You see it by running Python, in a "
            f"namespace that lasts; there are {self.task.max_iterations} steps.",
            "`llm_query(prompt)` and `llm_query_batched(prompts)` ask a language model, `rlm_query(prompt)` "
            "and `rlm_query_batched(prompts)` one with a REPL of its own; `SHOW_VARS()` lists variables.",
            self.how_to_act,
        ]
        return "\n\n".join(filter(None, (self.task.task_prompt, "\n".join(lines))))

    def _names(self) -> Names:
        return Names(
            seed=self._seed,
            values={"context": self.task.context, "answer": {"content": "", "ready": False}},
            constants=("context", "answer"),
            ends={"FINAL": "final", "FINAL_VAR": "final_var", "SHOW_VARS": "show"},
        )

    def step(self, action: str) -> Stepped:
        """Run a program and return the result of the step."""
        return self._conclude(*self._run(action, snapshot=SNAPSHOT, watch=("answer",)))

    def _conclude(self, done: Execution, calls: list[Call]) -> Stepped:
        """Compute answer, reward and observation of a step whose program has ended; emit its events."""
        self._subcalls.abandon()
        self._iteration += 1
        if self.task.compat == "stdout":
            self._read += [text for call in calls for text in texts_in(call.value)]
        done, answer = self._find_answer(done)
        lost = done.state_lost and self.config.on_lost == "end"
        ended = answer is not None or lost or self._iteration >= self.task.max_iterations
        parts = self.task.reward_parts(answer, ended=ended, success=done.success)
        result = self._shortened(done)
        self._known = done.variables
        info: dict[str, Any] = {"result": result, "reward_parts": parts}
        if answer is not None:
            self._answer = info["final_answer"] = answer
        for call in calls:
            self.emit(*events_of(call))
        self._shown = cut(shown_text(result), _MAX_MESSAGE)
        self.emit(message("user", self._shown))
        if ended:
            self.emit(metrics(iterations=self._iteration, answered=int(answer is not None)))
        return self._observed(result), math.fsum(parts.values()), ended, False, info

    def _shortened(self, done: Execution) -> Execution:
        """Return the outcome with its output cut to the limit, and without the ``repr`` of unchanged variables."""
        variables = {
            name: Variable(one.kind) if self._known.get(name) == one else one
            for name, one in done.variables.items()
        }
        longest = self.task.max_output_length
        out, err = cut(done.stdout, longest), cut(done.stderr, longest)
        return msgspec.structs.replace(done, stdout=out, stderr=err, variables=variables, watched={})

    # The answer

    def _find_answer(self, done: Execution) -> tuple[Execution, str | None]:
        """Return the outcome and the answer, which is ``None`` if there is none.

        An invalid answer becomes an error in the outcome.
        """
        final = done.final
        if final is None and not done.state_lost:
            done, final = self._ready_answer(done)
        if final is None:
            return done, self._printed_answer(done) if self.task.compat == "stdout" else None
        if (final.value, final.text) == (None, "None"):
            error = {"success": False, "error": f"ValueError: {_NO_ANSWER}", "error_type": "ValueError"}
            return msgspec.structs.replace(done, final=None, **error), None
        return msgspec.structs.replace(done, final=final), final.text

    def _ready_answer(self, done: Execution) -> tuple[Execution, Final | None]:
        """Return the outcome, and ``answer["content"]`` if ``answer["ready"]`` is set, else ``None``."""
        if (
            "answer" not in done.watched
        ):  # it is not JSON, so its members are read by a program in the session
            found = self._evaluate(_READY)
            if not found.success:
                done = msgspec.structs.replace(
                    done, success=False, error=found.error, error_type=found.error_type
                )
            return done, found.final
        answer = done.watched["answer"]
        if not isinstance(answer, dict) or not answer.get("ready"):
            return done, None
        content = answer.get("content")
        return done, Final(str(content), content)

    def _printed_answer(self, done: Execution) -> str | None:
        value = done.value if isinstance(done.value, str) else ""
        text = f"{done.stdout}\n{value}"
        answer = printed_answer(text, self._read)
        # the variable is read in the session, which is only possible while the process lives
        if answer is None and (name := printed_name(text, self._read)) and not done.state_lost:
            final = self._evaluate(f"FINAL_VAR({name!r})").final
            answer = final and final.text
        return answer

    def _evaluate(self, code: str) -> Execution:
        """Run a program of the environment, not of the model, in the session; it is not recorded in the journal."""
        return self._live().run(code, timeout=self.config.step_timeout)

    # Queries

    def _observed(self, done: Execution) -> dict[str, Any]:
        names, limit = self.available_variables(), self.task.max_iterations
        return observation_of(self._space, done, self._text, self._iteration, limit, names)

    def available_variables(self) -> list[str]:
        """Return the names of the variables, as many as fit into an observation."""
        return names_that_fit(["context", "answer", *self._variables])

    def episode_state(self) -> dict[str, Any]:
        """Return task, step number, variable names and answer of the episode; of the context only its length."""
        return {
            "task_prompt": self.task.task_prompt,
            "context_length": len(self._text),
            "iteration": self._iteration,
            "max_iterations": self.task.max_iterations,
            "namespace_keys": self.available_variables(),
            "final_answer": self._answer,
        }

    def close(self) -> None:
        """End the episode with its processes, and stop waiting for sub-calls and nested episodes."""
        self._subcalls.abandon()
        super().close()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # The copied tools are methods of the original's Subcalls.
        self._offered = OfferedTools(self._subcalls.tools())
        self._tools = JournaledTools(self._offered, self._journal)


def _subcalls_of(config: ReplModelConfig) -> Subcalls:
    return Subcalls(
        config.llm_query_fn,
        config.llm_batch_fn,
        llm=config.llm,
        hf_url=config.hf_url,
        recurse=partial(_play_nested, config) if config.rlm else None,
        max_depth=config.rlm_max_depth,
    )


def _play_nested(config: ReplModelConfig, subcalls: Subcalls, prompt: str) -> str:
    """Play a nested episode whose context is the prompt and return its answer; stop if nobody waits for it."""
    chat: Callable[..., str] = config.rlm if callable(config.rlm) else subcalls.chat

    def reply(messages: Chat) -> str:
        if not subcalls.is_awaited:
            raise SubcallFailed("the program that needs the answer has ended")
        return chat(messages)

    nested = msgspec.structs.replace(
        config, context="", max_iterations=config.rlm_max_iterations, expected_answer=None, compat="control"
    )
    env = REPLProgramEnv(nested, subcalls=subcalls)
    try:
        return play_with_chat(env, reply, prompt)
    finally:
        env.close()
