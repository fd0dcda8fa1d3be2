"""Codec of OpenAI's legacy completions: one prompt as a text, and no tools."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from envweave_gym.core.faults import InvalidAction
from envweave_gym.episode.message import Message
from envweave_gym.programs.dialects.chat_completions import openai_error, openai_stream, openai_usage
from envweave_gym.programs.dialects.dialect import (
    BadRequest,
    Dialect,
    Fields,
    History,
    Target,
    check_one,
    event,
    renamed,
    stop_list,
    text,
)
from envweave_gym.programs.model_request import ModelRequest
from envweave_gym.programs.reply import Reply


class LegacyCompletions(Dialect):
    """``POST /v1/completions``."""

    name = "legacy_completions"

    def read(self, fields: Fields, target: Target, history: History) -> ModelRequest:
        """Return the request in a body; raise :class:`BadRequest` if it is none."""
        prompt = Message("user", _prompt(fields.pop("prompt", None)))
        model = text(fields.pop("model", None), "model")
        for name in ("n", "best_of"):
            check_one(fields.pop(name, None), name)
        is_stream = bool(fields.pop("stream", False))
        sampling = renamed(fields, {})
        stop_list(sampling)
        return self.made(target, model, [prompt], [], sampling, is_stream)

    def check(self, reply: Reply) -> None:
        """Refuse tool calls."""
        if reply.tool_calls:
            raise InvalidAction("legacy completions carry no tool calls; reply with a text")

    def reply_body(self, request: ModelRequest, reply: Reply, number: int) -> Fields:
        """Return the body of a reply."""
        choices = [_choice(request, reply, reply.content or "", reply.finished_by)]
        return {**_head(request, number), "choices": choices, "usage": openai_usage(request, reply)}

    def reply_events(self, request: ModelRequest, reply: Reply, number: int, keep_alives: int) -> bytes:
        """Return the stream of a reply: a chunk for the text, and one for the end."""
        head = _head(request, number)
        choices = [_choice(request, reply, reply.content or "", None)]
        choices.append({"index": 0, "text": "", "finish_reason": reply.finished_by, "logprobs": None})
        chunks = [event({**head, "choices": [choice]}) for choice in choices]
        return openai_stream(request, reply, head, chunks)

    def error_body(self, status: int, text: str) -> Fields:
        """Return the body of an error."""
        return openai_error(text)


def _prompt(prompt: Any) -> str:
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise BadRequest("'prompt' is not a text; give one prompt, and no token IDs")
    return prompt


def _choice(request: ModelRequest, reply: Reply, content: str, finish_reason: str | None) -> Fields:
    logprobs = None
    wanted = request.sampling.get("logprobs")
    # 0 asks for the log-probabilities of the sampled tokens alone.
    if wanted is not None and wanted is not False and reply.logprobs is not None:
        sampled = reply.sampled()
        tokens = [token for token, _, _ in sampled]
        logprobs = {
            "tokens": tokens,
            "token_logprobs": [logprob for _, _, logprob in sampled],
            "top_logprobs": None,
            "text_offset": [0, *accumulate(map(len, tokens))][: len(tokens)],
        }
    return {"index": 0, "text": content, "finish_reason": finish_reason, "logprobs": logprobs}


def _head(request: ModelRequest, number: int) -> Fields:
    return {"id": f"cmpl-{number}", "object": "text_completion", "created": 0, "model": request.model}
