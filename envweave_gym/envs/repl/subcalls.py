"""What programs of a REPL ask other models: one prompt, several at once, or a whole episode of its own."""

from __future__ import annotations

import copy
import inspect
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.envs.repl.hidden_secrets import Secret, secret_at
from envweave_gym.envs.repl.model_endpoint import HUGGING_FACE, Chat, Endpoint, SubcallFailed
from envweave_gym.tools import Tool, ToolError

AT_ONCE = 8
"""So many prompts of a batch are asked at once."""
DEEPEST = 100
"""So deep at most may episodes be inside of each other."""
MOST_PROMPTS = 1000
"""So many prompts a batch has at most."""
_TOLD = 500

Recurse = Callable[["Subcalls", str], str]
"""Plays an episode about a prompt, with these sub-calls, and gives its answer."""


class Waiting:
    """Whether a program waits for what it asks; one in an episode inside another, no longer than that one."""

    def __init__(self, outer: Waiting | None = None) -> None:
        self._outer, self._has_ended = outer, False

    def __bool__(self) -> bool:
        return not self._has_ended and (self._outer is None or bool(self._outer))

    def ended(self) -> Waiting:
        """End it; gives that of the next program."""
        self._has_ended = True
        return Waiting(self._outer)


class Subcalls:
    """Answers the sub-calls of an episode; what fails is an answer that begins with ``Error:``.

    Functions answer where they are given, else the endpoint, which is Hugging Face's inference where none
    is. That is asked with the token of the episode (:meth:`entrust`), or else the one of this process,
    ``HF_TOKEN``.
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
        """``recurse`` answers ``rlm_query`` up to ``max_depth``; without it that is as ``llm_query``."""
        for name, function in (("llm_query_fn", query), ("llm_batch_fn", batch), ("rlm", recurse)):
            if function is not None and not callable(function):
                raise InvalidArgument(f"{name}={shown(function)} cannot be called; give a function")
        if type(max_depth) is not int or not 1 <= max_depth <= DEEPEST:
            raise InvalidArgument(f"rlm_max_depth={shown(max_depth)} is no number from 1 to {DEEPEST}")
        self._query, self._batch = query, batch
        self._is_hugging_face = llm is None
        self.endpoint = Endpoint(base_url=hf_url, api_key="env:HF_TOKEN") if llm is None else Endpoint.of(llm)
        self._recurse, self.depth, self._max_depth = recurse, depth, max_depth
        self._model: str | None = None
        self._token = Secret()
        self._waiting = Waiting()

    def begin(self, model: str | None) -> None:
        """Begin an episode, in which this model is asked where a program names none; it has no token yet.

        An episode inside another has what that has.
        """
        self.give_up()
        if self.depth == 0:
            self._model, self._token = model, Secret()

    def entrust(self, hf_token: str) -> None:
        """Ask Hugging Face with this token until the next episode begins."""
        self._token = Secret(hf_token)

    def give_up(self) -> None:
        """Nobody waits any more for what was asked so far: nothing else is asked for its sake."""
        self._waiting = self._waiting.ended()

    @property
    def are_awaited(self) -> bool:
        """Whether somebody waits for the episode that these are of."""
        return bool(self._waiting)

    def deeper(self, model: str | None) -> Self:
        """The same for an episode inside, in which this model is asked."""
        other = copy.copy(self)
        other.depth += 1
        other._waiting = Waiting(self._waiting)
        other._model = model or self._model
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = memo[id(self)] = copy.copy(self)
        other._waiting = Waiting()
        return other

    def tools(self) -> list[Tool]:
        """The functions that programs have."""
        several = [Tool.of(self.llm_query_batched), Tool.of(self.llm_query_batched, name="llm_batch")]
        deep = [Tool.of(self.rlm_query), Tool.of(self.rlm_query_batched)]
        return [Tool.of(self.llm_query), *several, *deep]

    # What programs call

    def llm_query(self, prompt: str, model: str | None = None) -> str:
        """Ask a language model; the answer is text, and begins with ``Error:`` where there is none."""
        return self._tried(lambda: self._asked(text_of(prompt), model))

    def llm_query_batched(self, prompts: list[str], model: str | None = None) -> list[str]:
        """Ask a language model several prompts at once; the answers come in the same order."""
        texts = prompts_of(prompts)
        if self._batch is not None:
            return self._all_tried(self._batch, texts, model)
        return _each(lambda text: self.llm_query(text, model), texts, self._waiting)

    def rlm_query(self, prompt: str, model: str | None = None) -> str:
        """Have a model work on a prompt with a REPL of its own, in which it is ``context``."""
        if self._recurse is None or self.depth + 1 >= self._max_depth:
            return self.llm_query(prompt, model)
        recurse, text = self._recurse, text_of(prompt)
        return self._tried(lambda: recurse(self.deeper(model), text))

    def rlm_query_batched(self, prompts: list[str], model: str | None = None) -> list[str]:
        """Have a model work on several prompts at once, on each with a REPL of its own."""
        texts = prompts_of(prompts)
        if self._recurse is None or self.depth + 1 >= self._max_depth:
            return self.llm_query_batched(texts, model)
        return _each(lambda text: self.rlm_query(text, model), texts, self._waiting)

    # How they are answered

    def chat(self, messages: Chat, model: str | None = None) -> str:
        """The endpoint's reply to messages."""
        token = self._token if self._is_hugging_face else Secret()
        if self._is_hugging_face and not token and not secret_at(self.endpoint.api_key):
            raise SubcallFailed(
                "nobody answers sub-calls: give llm_query_fn= or llm=, a token, or set HF_TOKEN"
            )
        return self.endpoint.chat(messages, model or self._model, token)

    def _asked(self, prompt: str, model: str | None) -> str:
        if self._query is not None:
            return _text(_called(self._query, prompt, model or self._model))
        if self._batch is not None:
            return self._all_tried(self._batch, [prompt], model)[0]
        return self.chat([{"role": "user", "content": prompt}], model)

    def _all_tried(self, batch: Callable[..., Any], prompts: list[str], model: str | None) -> list[str]:
        def ask() -> list[str]:
            answers: list[Any] = list(_called(batch, prompts, model or self._model))
            if len(answers) != len(prompts):
                raise SubcallFailed(f"{len(prompts)} prompts were answered with {len(answers)} texts")
            return [_text(answer) for answer in answers]

        found = self._tried(ask)
        return found if isinstance(found, list) else [found] * len(prompts)

    def _tried(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except SubcallFailed as error:
            return f"Error: {error}"
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, the program goes on
            told = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return f"Error: {self._token.hidden_in(secret_at(self.endpoint.api_key).hidden_in(told))[:_TOLD]}"


def _each(ask: Callable[[str], str], prompts: list[str], waiting: Waiting) -> list[str]:
    """The answers, in order; what is not asked yet when nobody waits any more is not asked.

    The threads keep no process from ending, as a function may take for ever.
    """
    if len(prompts) < 2:
        return [ask(prompt) for prompt in prompts]
    answers = ["Error: nobody answered"] * len(prompts)
    left, taking = iter(enumerate(prompts)), threading.Lock()

    def work() -> None:
        while waiting and (one := taken()) is not None:
            answers[one[0]] = ask(one[1])

    def taken() -> tuple[int, str] | None:
        with taking:
            return next(left, None)

    several = range(min(len(prompts), AT_ONCE))
    threads = [threading.Thread(target=work, name="sub-call", daemon=True) for _ in several]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def _called(function: Callable[..., Any], prompt: Any, model: str | None) -> Any:
    """Call a function, with the model where it takes one."""
    try:
        takes_model = "model" in inspect.signature(function).parameters
    except ValueError:  # what is written in C may not tell
        takes_model = False
    return function(prompt, model=model) if takes_model else function(prompt)


def text_of(prompt: Any) -> str:
    """A prompt as text; of what is none its JSON."""
    return prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)


def prompts_of(prompts: Any) -> list[str]:
    """The prompts of a batch."""
    if not isinstance(prompts, Sequence) or isinstance(prompts, str):
        raise ToolError(f"prompts={shown(prompts)} is no list of prompts")
    if len(prompts) > MOST_PROMPTS:
        raise ToolError(f"{len(prompts)} prompts are too many; a batch has at most {MOST_PROMPTS}")
    return [text_of(prompt) for prompt in prompts]


def _text(answer: Any) -> str:
    if not isinstance(answer, str):
        raise SubcallFailed(f"the answer is {shown(answer)}, which is no text")
    return answer
