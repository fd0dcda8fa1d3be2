"""Removes a model's reasoning, ``<think>…</think>``, from its reply.

A chat template may put the opening tag into the prompt, so a closing tag alone ends reasoning too; a reply
that was cut off may lack the closing tag. Tags in Markdown fences and after quotes belong to a program.
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
    """Return the reply without its reasoning."""
    if _END.search(reply) is None and _TAG.search(reply) is None:
        return reply
    kept: list[str] = []
    fence, is_thinking = "", False
    for line in reply.splitlines(keepends=True):
        rest = line
        lone = None if is_thinking else _LONE_END.match(line)
        if lone is not None:  # also in a fence: a drafted program was not closed
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
    """Return the part of a line that is not reasoning, and whether the next line begins within reasoning.

    The line must not be in a Markdown fence. ``kept`` is the text before it. A closing tag without an opening one
    empties ``kept``, as everything before such a tag is reasoning.
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
        else:  # the opening tag was in the prompt
            kept.clear()
            before = ""
        line = line[tag.end() :]
