"""REPL: a model works on a context that it need not read itself, with programs and calls of other models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import msgspec

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.spaces import Unicode
from envweave_gym.envs.code.offered_tools import Call, OfferedTools
from envweave_gym.envs.code.program_env import ProgramEnv, events_of, named, shown_text
from envweave_gym.envs.repl.model_endpoint import Chat, SubcallFailed
from envweave_gym.envs.repl.printed_answers import printed_answer, printed_name, texts_in
from envweave_gym.envs.repl.repl_observation import SNAPSHOT, names_shown, observation_of, observation_space
from envweave_gym.envs.repl.repl_options import ReplOptions
from envweave_gym.envs.repl.repl_runner import episode_of
from envweave_gym.envs.repl.repl_task import MOST_ITERATIONS, RESET_OPTIONS, Rewards, Task
from envweave_gym.envs.repl.subcalls import HUGGING_FACE, Recurse, Subcalls
from envweave_gym.episode.message import message
from envweave_gym.episode.stream import metrics
from envweave_gym.sandbox import Execution, Final, Lease, Names, Variable
from envweave_gym.sandbox.inside.bounded_values import cut

MOST_CODE = 4 << 20
"""So many characters a program has at most, the answer in it included."""
_TOLD = 20_000
"""So many characters a model is told of a step."""
_READY = "FINAL(answer['content']) if isinstance(answer, dict) and answer.get('ready') else None"
_NO_ANSWER = "None is no answer; give a value"

Stepped = tuple[dict[str, Any], float, bool, bool, dict[str, Any]]


class REPLProgramEnv(ProgramEnv):
    """Each action is a program; ``context`` holds what the episode is about.

    Programs have ``llm_query`` and ``rlm_query`` (and ``…_batched``), whose answers come from functions or
    from an endpoint. They end the episode with ``FINAL(value)``, with ``FINAL_VAR(name)``, or by setting
    ``answer["content"]`` and ``answer["ready"] = True``; these names mean the same before every step.
    Without an answer the episode is terminated by its ``max_iterations``-th step: how many are left is
    observed, so it is a part of the task and no truncation of it.

    ``compat="stdout"`` is for models that print ``FINAL(…)``. What the context and sub-calls say in the same
    words is no answer then; but a program that prints what it has read is never quite safe from it.
    """

    metadata: dict[str, Any] = {
        "render_modes": ["ansi"],
        "render_fps": 1,
        "ignores_seed": True,  # it seeds the module random of programs, and nothing of the environment
        "reset_options": RESET_OPTIONS,
    }
    name = "envweave/REPL-v0"
    runs_all_fences = True  # models that were taught with REPLs write several, one after the other
    how_to_act = (
        "Write a Python program, alone or in ```repl blocks. End with `FINAL(value)` or `FINAL_VAR('name')` "
        "in it."
    )

    def __init__(
        self,
        context: Any = "",
        task_prompt: str = "",
        max_iterations: int = 30,
        expected_answer: str | None = None,
        *,
        llm_query_fn: Callable[..., str] | None = None,
        llm_batch_fn: Callable[..., list[str]] | None = None,
        llm: Any = None,
        llm_model: str | None = None,
        hf_url: str = HUGGING_FACE,
        rlm: Callable[..., str] | bool = False,
        rlm_max_depth: int = 2,
        rlm_max_iterations: int = 10,
        subcalls: str = "models",
        match: str = "exact",
        compat: str = "control",
        max_output_length: int = 8192,
        context_preview_length: int = 500,
        reward_on_success: float = 1.0,
        reward_on_iteration: float = 0.0,
        reward_on_failure: float = -0.1,
        reward_on_error: float = -0.05,
        reward_on_wrong: float = 0.0,
        step_timeout: float = 30.0,
        checkpoint: bool = False,
        on_lost: str = "restart",
        isolation: str = "landlock",
        memory: int | str = "512m",
        python: str | None = None,
        warm: Sequence[str] = (),
        render_mode: str | None = None,
    ) -> None:
        """``llm`` is an OpenAI-compatible endpoint: ``{"base_url": …, "model": …, "api_key": "env:NAME"}``.

        ``rlm`` is what plays the episodes of ``rlm_query``: a function from chat messages to a reply, or
        ``True`` for the endpoint.
        """
        with named(self.name):
            if subcalls != "models":
                raise InvalidArgument(
                    f"subcalls={shown(subcalls)}: there are 'models' here; 'agents' answer sub-calls in the "
                    "game, pettingzoo.make('parallel', 'envweave/REPL-v0') or envweave/REPLTeam-v0"
                )
            task = Task(task_prompt=task_prompt, max_iterations=max_iterations, llm_model=llm_model)
            self._given = self.task = task.changed({"context": context, "expected_answer": expected_answer})
            self._rewards = Rewards(
                success=reward_on_success,
                iteration=reward_on_iteration,
                failure=reward_on_failure,
                error=reward_on_error,
                wrong=reward_on_wrong,
                match=match,
            )
            self._options = options = ReplOptions(
                step_timeout=step_timeout,
                checkpoint=checkpoint,
                on_lost=on_lost,
                isolation=isolation,
                memory=memory,
                python=python,
                warm=warm,
                compat=compat,
                max_output_length=max_output_length,
                context_preview_length=context_preview_length,
            )
            recurse = _recursion(options, rlm, rlm_max_iterations)
            self._subcalls = Subcalls(
                llm_query_fn, llm_batch_fn, llm=llm, hf_url=hf_url, recurse=recurse, max_depth=rlm_max_depth
            )
        super().__init__(options, tools=OfferedTools(self._subcalls.tools()), render_mode=render_mode)
        self.action_space = Unicode(MOST_CODE)
        self._seen = self.observation_space = observation_space(max_output_length, context_preview_length)
        self._forget()

    def _forget(self) -> None:
        """Know of nothing that programs have done."""
        self._text = self.task.text()
        self._data = [self._text]
        """What programs have been given to read, where that may be taken for an answer."""
        self._known: dict[str, Variable] = {}
        self._iteration = 0
        self._answer: str | None = None

    @classmethod
    def inside(cls, options: ReplOptions, subcalls: Subcalls, steps: int) -> Self:
        """An episode inside another, which asks as that does."""
        env = cls(max_iterations=steps)
        env.options = env._options = msgspec.structs.replace(options, depth=subcalls.depth, compat="control")
        env._lease = Lease(env.options.setup())
        env._subcalls, env._offered = subcalls, OfferedTools(subcalls.tools())
        return env

    def entrust(self, hf_token: str) -> None:
        """Ask Hugging Face with this token until the episode ends.

        A secret is handed over and no option of a reset, because those are written down.
        """
        self._subcalls.entrust(hf_token)

    # An episode

    def _begin(self, options: dict[str, Any]) -> None:
        with named(self.name):
            self.task = self._given.changed(options)
        self._subcalls.begin(self.task.llm_model)
        self._forget()
        self.emit(message("user", self._prompt()))

    def _prompt(self) -> str:
        """What a model is told of the task."""
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
        """Run a program."""
        return self._concluded(*self._run(action, snapshot=SNAPSHOT, watch=("answer",)))

    def _concluded(self, done: Execution, calls: list[Call]) -> Stepped:
        """What a step that has run comes to."""
        self._subcalls.give_up()
        self._iteration += 1
        if self._options.compat == "stdout":
            self._data += [text for call in calls for text in texts_in(call.value)]
        done, answer = self._answered(done)
        lost = done.state_lost and self.options.on_lost == "end"
        ended = answer is not None or lost or self._iteration >= self.task.max_iterations
        parts = self._rewards.of(self.task, answer, ended=ended, success=done.success)
        result = self._shortened(done)
        self._known = done.variables
        info: dict[str, Any] = {"result": result, "reward_parts": parts}
        if answer is not None:
            self._answer = info["final_answer"] = answer
        for call in calls:
            self.emit(*events_of(call))
        self._shown = cut(shown_text(result), _TOLD)
        self.emit(message("user", self._shown))
        if ended:
            self.emit(metrics(iterations=self._iteration, answered=int(answer is not None)))
        return self._observed(result), math.fsum(parts.values()), ended, False, info

    def _shortened(self, done: Execution) -> Execution:
        """The step as it is told: its output is cut, and only variables that are new or have changed show."""
        variables = {
            name: Variable(one.kind) if self._known.get(name) == one else one
            for name, one in done.variables.items()
        }
        most = self._options.max_output_length
        out, err = cut(done.stdout, most), cut(done.stderr, most)
        return msgspec.structs.replace(done, stdout=out, stderr=err, variables=variables, watched={})

    # The answer

    def _answered(self, done: Execution) -> tuple[Execution, str | None]:
        """The step, and the answer that it gives."""
        final = done.final
        if final is None and not done.state_lost:
            done, final = self._ready(done)
        if final is None:
            return done, self._printed(done) if self._options.compat == "stdout" else None
        if (final.value, final.text) == (None, "None"):
            error = {"success": False, "error": f"ValueError: {_NO_ANSWER}", "error_type": "ValueError"}
            return msgspec.structs.replace(done, final=None, **error), None
        return msgspec.structs.replace(done, final=final), final.text

    def _ready(self, done: Execution) -> tuple[Execution, Final | None]:
        """The step, and the answer in ``answer`` if that is ready; one that is no JSON is asked for."""
        if "answer" not in done.watched:
            asked = self._asked_for(_READY)
            if not asked.success:  # such an answer cannot be given, and who gave it is told
                done = msgspec.structs.replace(
                    done, success=False, error=asked.error, error_type=asked.error_type
                )
            return done, asked.final
        answer = done.watched["answer"]
        if not isinstance(answer, dict) or not answer.get("ready"):
            return done, None
        content = answer.get("content")
        return done, Final(str(content), content)

    def _printed(self, done: Execution) -> str | None:
        value = done.value if isinstance(done.value, str) else ""
        text = f"{done.stdout}\n{value}"
        answer = printed_answer(text, self._data)
        if answer is None and (name := printed_name(text, self._data)) and not done.state_lost:
            final = self._asked_for(f"FINAL_VAR({name!r})").final
            answer = final and final.text
        return answer

    def _asked_for(self, code: str) -> Execution:
        """What a program of the environment comes to."""
        return self._live().run(code, timeout=self.options.step_timeout)

    # What is seen

    def _observed(self, done: Execution) -> dict[str, Any]:
        names = self.available_variables()
        return observation_of(self._seen, done, self.task, self._text, self._iteration, names)

    def available_variables(self) -> list[str]:
        """The names of the variables that there are, as far as there is room for them."""
        return names_shown(["context", "answer", *self._variables])

    def episode_state(self) -> dict[str, Any]:
        """How it stands; what it is about is not repeated, as that may be long."""
        return {
            "task_prompt": self.task.task_prompt,
            "context_length": len(self._text),
            "iteration": self._iteration,
            "max_iterations": self.task.max_iterations,
            "namespace_keys": self.available_variables(),
            "final_answer": self._answer,
        }

    def close(self) -> None:
        """End the episode, its processes, and the episodes inside it."""
        self._subcalls.give_up()
        super().close()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = super().__deepcopy__(memo)
        other._offered = OfferedTools(other._subcalls.tools(), left=self._offered.left())
        return other


def _recursion(options: ReplOptions, rlm: Any, steps: Any) -> Recurse | None:
    """What plays the episodes of ``rlm_query``, if anything does."""
    if not callable(rlm) and not isinstance(rlm, bool):
        raise InvalidArgument(f"rlm={shown(rlm)} is neither a function of messages nor True or False")
    if type(steps) is not int or not 1 <= steps <= MOST_ITERATIONS:
        raise InvalidArgument(f"rlm_max_iterations={shown(steps)} is no number from 1 to {MOST_ITERATIONS}")
    chat: Any = rlm if callable(rlm) else None
    return partial(_recursed, options, chat, steps) if rlm else None


def _recursed(
    options: ReplOptions, chat: Callable[..., str] | None, steps: int, subcalls: Subcalls, prompt: str
) -> str:
    """Play an episode about a prompt, as long as somebody waits for it."""

    def reply(messages: Chat) -> str:
        if not subcalls.are_awaited:
            raise SubcallFailed("nobody waits for the answer any more")
        return (chat or subcalls.chat)(messages)

    env = REPLProgramEnv.inside(options, subcalls, steps)
    try:
        return episode_of(env, reply, prompt)
    finally:
        env.close()
