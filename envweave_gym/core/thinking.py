"""Drops what a model has thought aloud from its reply: ``<think>…</think>``, before the reply is read.

A chat template may write the opening tag into the prompt, so a closing tag alone ends thinking too; a reply
that was cut may lack the closing one. Tags in Markdown fences and behind quotes are text of a program.
"""

from __future__ import annotations

import re

_OPENING = r"<think(?:ing)?>"
_CLOSING = r"</think(?:ing)?>"
_TAG = re.compile(rf"(?<![^\s.,:;!?])(?P<open>{_OPENING})|(?<![`'\"]){_CLOSING}", re.IGNORECASE)
_BEGIN = re.compile(_OPENING, re.IGNORECASE)
_END = re.compile(_CLOSING, re.IGNORECASE)
_LONE_END = re.compile(rf"\s*{_CLOSING}", re.IGNORECASE)
_FENCE = re.compile(r"[ \t>]*(`{3,}(?=[^`\n]*$)|~{3,})")


def without_thinking(reply: str) -> str:
    """The part of a reply that is not thinking; the reply itself where there is none."""
    if _END.search(reply) is None and _TAG.search(reply) is None:
        return reply
    kept: list[str] = []
    fence, is_thinking = "", False
    for line in reply.splitlines(keepends=True):
        rest = line
        lone = None if is_thinking else _LONE_END.match(line)
        if lone is not None:  # also in a fence: the draft of a program was not ended
            kept.clear()
            fence, rest = "", line[lone.end() :]
        if fence:
            fence = "" if rest.lstrip(" \t>").startswith(fence) else fence
        elif not is_thinking and (opened := _FENCE.match(rest)):
            fence = opened[1]
        else:
            rest, is_thinking = _outside(rest, kept, is_thinking)
        kept.append(rest)
    return "".join(kept).strip()


def _outside(line: str, kept: list[str], is_thinking: bool) -> tuple[str, bool]:
    """The part of a line outside of fences that is no thinking, and whether the next line is thinking.

    ``kept`` is what came before the line; it is emptied where that turns out to be thinking.
    """
    before = ""
    while True:
        tag = (_END if is_thinking else _TAG).search(line)
        if tag is None:
            return before if is_thinking else before + line, is_thinking
        if is_thinking:
            is_thinking = False
        elif tag["open"]:
            before, is_thinking = before + line[: tag.start()], True
        elif _BEGIN.search("".join(kept) + before + line[: tag.start()]):  # a pair in the text of a program
            before += line[: tag.end()]
        else:  # it closes what the prompt has opened
            kept.clear()
            before = ""
        line = line[tag.end() :]
