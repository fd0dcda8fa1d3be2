"""The diff in a model's reply."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envweave_gym.swebench.diffs import lines_of, parsed

_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([\w+-]*)[ \t]*")
_MARKED = frozenset({"diff", "patch", "udiff"})
_BEGIN = re.compile(r'^(?:diff --git |--- (?:"?a/|/dev/null)[^\n]*\n\+\+\+ )', re.MULTILINE)


def diff_in(reply: str) -> str:
    """The diff in a reply, as it stands there; empty where there is none.

    It is what stands between fences that are marked ``diff`` or ``patch``: all such blocks together, or the
    last one alone where several are about the same file, as those before it are drafts then. Without such
    fences it is what follows from the first ``diff --git`` or ``--- a/`` on.
    """
    blocks = list(_blocks(reply))
    if blocks:
        names = [set(parsed(block).paths) for block in blocks]
        apart = sum(map(len, names)) == len(set[str]().union(*names))
        return "".join(blocks) if apart else blocks[-1]
    begin = _BEGIN.search(reply)
    return "" if begin is None else _until_fence(reply[begin.start() :])


def _blocks(reply: str) -> Iterator[str]:
    """What stands between marked fences; the last one may be missing, as in a reply that was cut."""
    inside: list[str] | None = None
    closing = ""
    for line in lines_of(reply):
        bare = line.rstrip()
        if inside is None:
            fence = _FENCE.fullmatch(bare)
            if fence and fence[3].lower() in _MARKED:
                inside, closing = [], fence[1] + fence[2]
        elif bare == closing:
            yield _ended("".join(inside))
            inside = None
        else:
            inside.append(line)
    if inside:
        yield _ended("".join(inside))


def _until_fence(text: str) -> str:
    kept: list[str] = []
    for line in lines_of(text):
        if line.startswith(("```", "~~~")):
            break
        kept.append(line)
    return "".join(kept)


def _ended(block: str) -> str:
    return block if not block or block.endswith("\n") else f"{block}\n"
