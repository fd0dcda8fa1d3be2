"""Cuts the first prompt of an episode to a number of tokens: the middle of its longest message is left out.

The beginning says which task it is, and the end mostly what to answer, as the options of a question: both stay.
"""

from __future__ import annotations

from collections.abc import Sequence

from envweave_gym.chat import ChatMessage, text_of
from envweave_gym.training.tinker.prompts import Prompts

GAP = "\n[…]\n"
"""The text in place of the middle."""
LEAST_TOKENS = 16
"""A message that would be left with fewer tokens than this is not cut."""


def cut_to(prompts: Prompts, messages: Sequence[ChatMessage], limit: int) -> list[ChatMessage]:
    """Return the messages of a prompt, with the longest one cut so that the prompt has at most ``limit`` tokens.

    Where that would leave almost nothing of the message, the messages are returned as they are.
    """
    excess = _size(prompts, messages) - limit
    if excess <= 0:
        return list(messages)
    longest = max(range(len(messages)), key=lambda index: len(text_of(messages[index])))
    tokens = prompts.encode(text_of(messages[longest]))
    kept = len(tokens) - excess - len(prompts.encode(GAP))
    while kept >= LEAST_TOKENS:
        cut = list(messages)
        cut[longest] = {**messages[longest], "content": _without_middle(prompts, tokens, kept)}
        # Text that is decoded and encoded again may have other tokens at the cut.
        if (excess := _size(prompts, cut) - limit) <= 0:
            return cut
        kept -= excess
    return list(messages)


def _size(prompts: Prompts, messages: Sequence[ChatMessage]) -> int:
    return len(prompts.encode(prompts.render(messages)))


def _without_middle(prompts: Prompts, tokens: Sequence[int], kept: int) -> str:
    head = kept // 2
    ends = prompts.decode(tokens[:head]), prompts.decode(tokens[len(tokens) - (kept - head) :])
    # A cut within a character decodes to U+FFFD.
    return GAP.join([ends[0].rstrip("\ufffd"), ends[1].lstrip("\ufffd")])
