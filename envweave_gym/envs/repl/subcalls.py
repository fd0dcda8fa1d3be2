"""The sub-calls of the REPL: prompts that language models answer, singly or in batches, and nested episodes."""

from __future__ import annotations

import copy
import inspect
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.secret_reference import Secret, secret_at
from envweave_gym.envs.repl.model_endpoint import Chat, Endpoint, SubcallFailed
from envweave_gym.envs.repl.repl_config import HUGGING_FACE
from envweave_gym.tools import Tool, ToolError

MAX_PARALLEL = 8
"""Limit of prompts of one batch that are answered at the same time."""
MAX_DEPTH = 100
"""Limit of the nesting of episodes."""
MAX_PROMPTS = 1000
"""Limit of prompts in a batch."""
_MAX_ERROR_CHARS = 500

Recurse = Callable[["Subcalls", str], str]
"""Function that plays a nested episode about a prompt, with the given sub-calls, and returns its answer."""


class Awaited:
    """A flag that is true while a program waits for its sub-calls, so that abandoned work can be skipped.

    The flag of a nested episode is true only while the programs of all outer episodes wait too.
    """

    def __init__(self, outer: Awaited | None = None) -> None:
        self._outer, self._has_ended = outer, False

    def __bool__(self) -> bool:
        return not self._has_ended and (self._outer is None or bool(self._outer))

    def end(self) -> Awaited:
        """Clear the flag for good, and return a new one for the next program."""
        self._has_ended = True
        return Awaited(self._outer)


class Subcalls:
    """Answers the sub-calls of an episode, the prompts that its programs send to language models.

    The answer to a sub-call that fails is a text that begins with ``Error:``.

    The user's functions answer if they are given, else an endpoint does: by default Hugging Face's inference. Its token
    is the one of the episode (:meth:`entrust`), or else ``HF_TOKEN`` of this process.
    """

    def __init__(
        self,
        query: Callable[..., str] | None = None,
        batch: Callable[..., list[str]] | None = None,
        *,
        llm: Any = None,
        hf_url: str = HUGGING_FACE,
        recurse: Recurse | None = None,
        depth: int = 0,
        max_depth: int = 2,
    ) -> None:
        """Check the arguments.

        ``recurse`` plays the nested episodes of ``rlm_query``. Without it, or if there would be more than ``max_depth``
        episodes inside each other, ``rlm_query`` does the same as ``llm_query``.
        """
        for name, function in (("llm_query_fn", query), ("llm_batch_fn", batch), ("rlm", recurse)):
            if function is not None and not callable(function):
                raise InvalidArgument(f"{name}={shown(function)} cannot be called; give a function")
        if type(max_depth) is not int or not 1 <= max_depth <= MAX_DEPTH:
            raise InvalidArgument(f"rlm_max_depth={shown(max_depth)} is not an int from 1 to {MAX_DEPTH}")
        self._query, self._batch = query, batch
        self._is_hugging_face = llm is None
        self.endpoint = Endpoint(base_url=hf_url, api_key="env:HF_TOKEN") if llm is None else Endpoint.of(llm)
        self._recurse, self.depth, self._max_depth = recurse, depth, max_depth
        self._model: str | None = None
        self._token = Secret()
        self._awaited = Awaited()

    def begin(self, model: str | None) -> None:
        """Drop pending sub-calls and begin an episode with this default model and without a token.

        A nested episode ignores ``model`` and keeps the model and the token of the outer episode.
        """
        self.abandon()
        if self.depth == 0:
            self._model, self._token = model, Secret()

    def entrust(self, hf_token: str) -> None:
        """Use a token for Hugging Face until the next episode begins."""
        self._token = Secret(hf_token)

    def abandon(self) -> None:
        """Stop waiting for all sub-calls so far; those that have not started are dropped."""
        self._awaited = self._awaited.end()

    @property
    def is_awaited(self) -> bool:
        """Whether the program that started this nested episode still waits for its answer."""
        return bool(self._awaited)

    def deeper(self, model: str | None) -> Self:
        """Return a ``Subcalls`` for a nested episode with this default model; ``None`` means this episode's model."""
        other = copy.copy(self)
        other.depth += 1
        other._awaited = Awaited(self._awaited)
        other._model = model or self._model
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # shallow: a copy of the environment shares the user's functions, which may not be copyable
        other = memo[id(self)] = copy.copy(self)
        other._awaited = Awaited()
        return other

    def tools(self) -> list[Tool]:
        """Return the functions that programs can call."""
        several = [Tool.of(self.llm_query_batched), Tool.of(self.llm_query_batched, name="llm_batch")]
        deep = [Tool.of(self.rlm_query), Tool.of(self.rlm_query_batched)]
        return [Tool.of(self.llm_query), *several, *deep]

    # Functions for programs

    def llm_query(self, prompt: str, model: str | None = None) -> str:
        """Ask a language model; the answer is text, and begins with ``Error:`` if the call failed."""
        return self._or_error(lambda: self._query_model(text_of(prompt), model))

    def llm_query_batched(self, prompts: list[str], model: str | None = None) -> list[str]:
        """Ask a language model several prompts at once; the answers come in the same order."""
        texts = prompts_of(prompts)
        if self._batch is not None:
            return self._query_batch(self._batch, texts, model)
        return _each(lambda text: self.llm_query(text, model), texts, self._awaited)

    def rlm_query(self, prompt: str, model: str | None = None) -> str:
        """Let a model work on a prompt with a REPL of its own, in which the prompt is ``context``."""
        if self._recurse is None or self.depth + 1 >= self._max_depth:
            return self.llm_query(prompt, model)
        recurse, text = self._recurse, text_of(prompt)
        return self._or_error(lambda: recurse(self.deeper(model), text))

    def rlm_query_batched(self, prompts: list[str], model: str | None = None) -> list[str]:
        """Let a model work on several prompts at once, on each with a REPL of its own."""
        texts = prompts_of(prompts)
        if self._recurse is None or self.depth + 1 >= self._max_depth:
            return self.llm_query_batched(texts, model)
        return _each(lambda text: self.rlm_query(text, model), texts, self._awaited)

    # How they are answered

    def chat(self, messages: Chat, model: str | None = None) -> str:
        """Return the endpoint's reply to messages; raise ``SubcallFailed`` if it does not reply.

        The default endpoint, Hugging Face, needs an access token; without one nothing is sent, and this raises too.
        """
        token = self._token if self._is_hugging_face else Secret()
        if self._is_hugging_face and not token and not secret_at(self.endpoint.api_key):
            raise SubcallFailed(
                "no model answers sub-calls: give llm_query_fn= or llm=, a token, or set HF_TOKEN"
            )
        return self.endpoint.chat(messages, model or self._model, token)

    def _query_model(self, prompt: str, model: str | None) -> str:
        if self._query is not None:
            return _text(_called(self._query, prompt, model or self._model))
        if self._batch is not None:
            return self._query_batch(self._batch, [prompt], model)[0]
        return self.chat([{"role": "user", "content": prompt}], model)

    def _query_batch(self, batch: Callable[..., Any], prompts: list[str], model: str | None) -> list[str]:
        def query() -> list[str]:
            answers: list[Any] = list(_called(batch, prompts, model or self._model))
            if len(answers) != len(prompts):
                raise SubcallFailed(f"{len(prompts)} prompts were answered with {len(answers)} texts")
            return [_text(answer) for answer in answers]

        found = self._or_error(query)
        return found if isinstance(found, list) else [found] * len(prompts)

    def _or_error(self, query: Callable[[], Any]) -> Any:
        try:
            return query()
        except SubcallFailed as error:
            return f"Error: {error}"
        except (Exception, SystemExit) as error:  # noqa: BLE001 - no error of a model ends the program
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            text = self._token.hidden_in(secret_at(self.endpoint.api_key).hidden_in(text))
            return f"Error: {text[:_MAX_ERROR_CHARS]}"


def _each(query: Callable[[str], str], prompts: list[str], awaited: Awaited) -> list[str]:
    """Answer prompts in parallel in daemon threads; return the answers in the order of the prompts.

    When the program stops waiting, prompts that no thread has taken yet stay without an answer.
    """
    if len(prompts) < 2:
        return [query(prompt) for prompt in prompts]
    answers = ["Error: no answer"] * len(prompts)
    left, taking = iter(enumerate(prompts)), threading.Lock()

    def work() -> None:
        while awaited and (one := taken()) is not None:
            answers[one[0]] = query(one[1])

    def taken() -> tuple[int, str] | None:
        with taking:
            return next(left, None)

    # Daemon threads, because the threads of an executor would delay the interpreter's exit until they get replies.
    several = range(min(len(prompts), MAX_PARALLEL))
    threads = [threading.Thread(target=work, name="sub-call", daemon=True) for _ in several]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def _called(function: Callable[..., Any], prompt: Any, model: str | None) -> Any:
    """Call a user's function with a prompt, and with ``model=`` if it has such a parameter."""
    try:
        takes_model = "model" in inspect.signature(function).parameters
    except ValueError:  # functions in C may have no signature
        takes_model = False
    return function(prompt, model=model) if takes_model else function(prompt)


def text_of(prompt: Any) -> str:
    """Return a prompt as text; one that is not a string is returned as JSON."""
    return prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)


def prompts_of(prompts: Any) -> list[str]:
    """Return the prompts of a batch as texts; raise ``ToolError`` if it is no list or too long."""
    if not isinstance(prompts, Sequence) or isinstance(prompts, str):
        raise ToolError(f"prompts={shown(prompts)} is no list of prompts")
    if len(prompts) > MAX_PROMPTS:
        raise ToolError(f"{len(prompts)} prompts are too many; a batch has at most {MAX_PROMPTS}")
    return [text_of(prompt) for prompt in prompts]


def _text(answer: Any) -> str:
    if not isinstance(answer, str):
        raise SubcallFailed(f"the answer is {shown(answer)}, which is not a string")
    return answer
