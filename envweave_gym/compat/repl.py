"""A typed client of ``envweave/REPL-v0``, in this process or on a server, and of OpenEnv's REPL."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from envweave_gym.compat.clients import Action, Observation, State, StepResult, TypedClient
from envweave_gym.core.config import takes_arguments_of
from envweave_gym.core.secret_reference import check_encrypted
from envweave_gym.envs.repl.repl_config import ReplModelConfig
from envweave_gym.hubs.openenv.environment_names import OpenEnvName, image_of_space


@dataclass
class REPLAction(Action):
    """An action: a program to run, or the final answer."""

    code: str = ""
    is_final: bool = False
    """Whether the action ends the episode with ``final_answer``; then no program is run."""
    final_answer: str | None = None


@dataclass
class CodeBlockResult:
    """The result of running a program."""

    stdout: str = ""
    """The text that the program printed, and the value of its last expression."""
    stderr: str = ""
    locals_snapshot: dict[str, str] = field(default_factory=dict[str, str])
    """The variables that are new or have changed, each as its ``repr``."""
    execution_time: float = 0.0
    """The seconds that the step took, including the transport to a server."""
    success: bool = True
    exception: str | None = None
    """The traceback, if the program raised."""


@dataclass
class REPLObservation(Observation):
    """The observation after a reset or step: the program's result, and the state of the episode."""

    result: CodeBlockResult = field(default_factory=CodeBlockResult)
    context_preview: str | None = None
    context_length: int = 0
    available_variables: list[str] = field(default_factory=list[str])
    iteration: int = 0
    max_iterations: int = 30
    done: bool = False
    reward: float | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    """A dict with ``task_prompt``, ``final_answer`` (``None`` until it is given) and ``execution_time``."""


@dataclass(kw_only=True)
class REPLState(State):
    """The state of an episode, as far as the client knows it."""

    context: str | None = None
    task_prompt: str | None = None
    iteration: int = 0
    max_iterations: int = 30
    namespace_keys: list[str] = field(default_factory=list[str])
    final_answer: str | None = None
    total_execution_time: float = 0.0


class REPLEnv(TypedClient[REPLAction, REPLObservation]):
    """
    Typed client of the REPL, where programs work on a context and query other models.

    It has the same behaviour on a server and in this process. Programs may end an episode by printing ``FINAL(…)``,
    as ``compat="stdout"`` is its default. It notices if the server is one of OpenEnv; then the arguments of the
    environment are those of that server.

    Examples:
        >>> # Connect to a running server
        >>> with REPLEnv(base_url="http://localhost:8000") as env:
        ...     result = env.reset(context="Hello World", task_prompt="Count chars")
        ...     result = env.execute("count = len(context)")
        ...     result = env.execute("print(f'FINAL({count})')")
        ...     print(result.done)  # True

        >>> # Run locally without a server
        >>> with REPLEnv() as env:
        ...     result = env.reset(context="Hello World", task_prompt="Count chars")
        ...     result = env.execute("count = len(context)")
        ...     print(result.observation.result.success)  # True

        >>> # Local with LLM support for recursive calls
        >>> def my_llm(prompt: str) -> str:
        ...     return "LLM response"
        >>> with REPLEnv(llm_query_fn=my_llm) as env:
        ...     result = env.reset(context="...")
        ...     result = env.execute("response = llm_query('Summarize: ' + context)")

        >>> # From Docker image; sub-calls need network= with access to the model
        >>> env = REPLEnv.from_docker_image("repl-env:latest")

        >>> # From HuggingFace Hub
        >>> env = REPLEnv.from_hub("openenv/repl-env")
    """

    env_id = "envweave/REPL-v0"
    _defaults: ClassVar[dict[str, Any]] = {"compat": "stdout"}

    @takes_arguments_of(ReplModelConfig, compat="stdout")
    def __init__(
        self,
        base_url: str | None = None,
        *,
        connect_timeout_s: float = 10.0,
        message_timeout_s: float = 60.0,
        **kwargs: Any,
    ) -> None:
        """Make the environment, on the server at ``base_url``, or without it in this process.

        ``kwargs`` are those of the environment and of :func:`envweave_gym.make`, such as ``token=``.
        Functions that answer sub-calls must run in the process of the environment, so they cannot be combined
        with a server.
        """
        given: dict[str, Any] = {}
        if base_url is not None:
            given |= {"reset_deadline": connect_timeout_s, "call_deadline": message_timeout_s}
        given |= {name: value for name, value in kwargs.items() if value is not None}
        super().__init__(base_url, **given)
        self._last: StepResult[REPLObservation] | None = None
        self._known = REPLState()

    @classmethod
    def from_hub(
        cls,
        repo_id: str,
        *,
        use_docker: bool = True,
        tag: str = "latest",
        project_path: str | None = None,
        **kwargs: Any,
    ) -> Self:
        """Start a container with the image of a Hugging Face Space, or run its source with ``use_docker=False``.

        The source is that of the commit or branch ``tag``, or the folder ``project_path``. It is installed in a
        virtual environment of its own with ``install=True``. ``kwargs`` are those of :meth:`from_docker_image`.
        """
        name = f"openenv://hf/{repo_id}"
        OpenEnvName.parse(f"{cls.__name__}.from_hub", name)
        if use_docker:
            return cls.from_docker_image(image_of_space(repo_id, tag), **kwargs)
        return cls(name, use_docker=False, tag=tag, project=project_path, **kwargs)

    def reset(
        self,
        *,
        context: str = "",
        task_prompt: str = "",
        max_iterations: int = 30,
        seed: int | None = None,
        episode_id: str | None = None,
        hf_token: str | None = None,
        llm_model: str | None = None,
        **options: Any,
    ) -> StepResult[REPLObservation]:
        """Begin an episode.

        With ``hf_token`` sub-calls of this episode query Hugging Face's inference API, wherever it is played.
        The token is sent separately from the options of the reset, which are recorded in its events. It goes to
        another machine over https only.
        """
        if hf_token:  # before anything is done: an own server gets it after the reset
            check_encrypted(f"{type(self).__name__}: base_url", self._where)
        options |= {"context": context, "task_prompt": task_prompt, "max_iterations": max_iterations}
        if llm_model is not None:
            options["llm_model"] = llm_model
        core: Any = self._env.unwrapped
        if self._is_openenv:
            if episode_id is not None:
                options["episode_id"] = episode_id
            core.entrust(**({"hf_token": hf_token} if hf_token else {}))
        try:
            result = super().reset(seed=seed, **options)
        finally:
            if self._is_openenv:
                core.entrust()
        self._known = REPLState(
            episode_id=episode_id or uuid.uuid4().hex,
            context=context,
            task_prompt=task_prompt,
            max_iterations=max_iterations,
        )
        if hf_token and not self._is_openenv:
            core.entrust(hf_token=hf_token)
        return self._stored(result, 0.0)

    def step(self, action: REPLAction) -> StepResult[REPLObservation]:
        """Run a program, or end the episode with the final answer."""
        started = time.monotonic()
        result = super().step(action)
        self._known.step_count += 1
        return self._stored(result, time.monotonic() - started)

    def _stored(self, result: StepResult[REPLObservation], took: float) -> StepResult[REPLObservation]:
        """Store a result, and return it with the fields that only this client knows; ``took`` is in seconds."""
        self._last, known, seen = result, self._known, result.observation
        seen.result.execution_time = took
        known.total_execution_time += took
        known.final_answer = result.info.get("final_answer")
        if self._is_openenv and result.done and known.final_answer is None:  # servers of 0.3 send no metadata
            core: Any = self._env.unwrapped
            known.final_answer = core.episode_state().get("final_answer")
        seen.metadata = {
            "task_prompt": known.task_prompt,
            "final_answer": known.final_answer,
            "execution_time": took,
        }
        return result

    def execute(self, code: str) -> StepResult[REPLObservation]:
        """Run a program as one step."""
        return self.step(REPLAction(code=code))

    def submit_final_answer(self, answer: str) -> StepResult[REPLObservation]:
        """End the episode with an answer."""
        return self.step(REPLAction(is_final=True, final_answer=answer))

    def get_variable(self, name: str) -> StepResult[REPLObservation]:
        """Print the ``repr`` of a variable; this counts as a step."""
        return self.execute(f"print(repr({name}))")

    def list_variables(self) -> list[str]:
        """Return the names of the variables after the last step, without a request to the server."""
        return [] if self._last is None else list(self._last.observation.available_variables)

    def state(self) -> REPLState:
        """Return the state of the episode as this client knows it, without a request to the server."""
        if self._last is not None:
            self._known.iteration = self._last.observation.iteration
            self._known.namespace_keys = self.list_variables()
        return replace(self._known)

    # Conversions between types and JSON

    def _step_payload(self, action: REPLAction) -> str:
        if not action.is_final:
            return action.code
        answer = action.final_answer
        return f"FINAL({'' if answer is None else str(answer)!r})"

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[REPLObservation]:
        seen: dict[str, Any] = payload["observation"]
        ran = CodeBlockResult(
            stdout=seen["stdout"],
            stderr=seen["stderr"],
            locals_snapshot=seen["locals_snapshot"],
            success=bool(seen["success"]),
            exception=seen["exception"] or None,
        )
        names = ("context_preview", "context_length", "available_variables", "iteration", "max_iterations")
        payload["observation"] = REPLObservation(
            result=ran,
            done=payload["done"],
            reward=payload["reward"],
            **{name: seen[name] for name in names},
        )
        return StepResult(**payload)

    def _openenv_payload(self, action: REPLAction) -> dict[str, Any]:
        return {"code": action.code, "is_final": action.is_final, "final_answer": action.final_answer}

    def _parse_openenv_result(
        self, payload: dict[str, Any], info: dict[str, Any]
    ) -> StepResult[REPLObservation]:
        seen: dict[str, Any] = payload["observation"]
        ran: dict[str, Any] = seen["result"]
        names = ("stdout", "stderr", "locals_snapshot", "success", "exception")
        flat = {**seen, **{name: ran[name] for name in names}}
        return self._parse_result({**payload, "observation": flat})
