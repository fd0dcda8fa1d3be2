"""Draws wrong options for "which file must change?", such that heuristics cannot find the right one.

Among random files the right one is found by the words that it shares with the issue. Among very similar files it
is the least similar one. Among files that are never an answer, a list of all answers gives it away. So most wrong
options are *popular* files: the right answers of other issues. A draw also decides how many options look more
likely than the right one, so that its rank tells nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec

from envweave_gym.core.seeding import mix
from envweave_gym.envs.swebench.file_mentions import MAX_PATH, NAMED, Leak, leak_of, overlap, words_of

_ATTEMPTS = 32
"""Limit of the sets of wrong options that are drawn; the one closest to the drawn rank is used."""


_Path = Annotated[str, msgspec.Meta(max_length=MAX_PATH)]


class Candidates(msgspec.Struct, frozen=True, gc=False):
    """The files that may be wrong options of an issue, grouped by the reason why they are plausible."""

    instance_id: str
    answer: _Path
    """The file that must change."""
    popular: tuple[_Path, ...] = ()
    """Files that are the answer of other issues, once for each, as draws are weighted by that."""
    near: tuple[_Path, ...] = ()
    """Files in the same folder or near it."""
    sibling: tuple[_Path, ...] = ()
    """Files in the same folder."""
    lexical: tuple[_Path, ...] = ()
    """Files whose paths share most words with the issue."""
    mentioned: tuple[_Path, ...] = ()
    """Files that the issue names."""

    def paths(self) -> tuple[str, ...]:
        """Return the answer and all candidates."""
        kinds = (self.popular, self.near, self.sibling, self.lexical, self.mentioned)
        return (self.answer, *(path for kind in kinds for path in kind))


def distractors(candidates: Candidates, issue: str, count: int, key: int) -> tuple[str, ...]:
    """Draw ``count`` wrong options, or fewer if there are not enough candidates; ``key`` is the seed."""
    draw = _Draw(key)
    bags = _bags(candidates)
    wanted = _popular_among(count, draw)
    above = draw.below(count + 1)
    rankings = _rankings(candidates.answer, issue)
    best: tuple[int, tuple[str, ...]] | None = None
    for _ in range(_ATTEMPTS):
        picked = _picked(bags, wanted, count, draw)
        misfit = sum(_misfit(ranking, picked, above) for ranking in rankings)
        if best is None or misfit < best[0]:
            best = misfit, picked
        if not misfit:  # the drawn rank is met exactly
            break
    return best[1] if best else ()


class _Draw:
    """Counter-based random generator, seeded with ``key``."""

    def __init__(self, key: int) -> None:
        self._key, self._drawn = key, 0

    def below(self, end: int) -> int:
        """Return the next number from 0 to ``end - 1``."""
        self._drawn += 1
        return mix(self._key, self._drawn) % end


def _bags(candidates: Candidates) -> tuple[list[str], list[list[str]]]:
    """Return the popular files (answers of other issues), and a list for each other kind; all without the answer."""
    near = candidates.near or candidates.sibling
    kinds = (candidates.popular, near, candidates.lexical, candidates.mentioned)
    popular, *others = [[path for path in kind if path != candidates.answer] for kind in kinds]
    return popular, [bag for bag in others if bag]


def _popular_among(count: int, draw: _Draw) -> int:
    """Draw how many of ``count`` options are popular files: all but one or two, and at least one."""
    return max(1, count - 1 - (draw.below(4) == 0))


def _picked(bags: tuple[list[str], list[list[str]]], wanted: int, count: int, draw: _Draw) -> tuple[str, ...]:
    """Draw ``count`` distinct files from ``bags``: ``wanted`` popular ones, and the others from random kinds."""
    popular, others = bags
    picked = _sample(popular, wanted, draw)
    left = {path for bag in others for path in bag}.difference(picked)
    while len(picked) < count and left:
        bag = [path for path in others[draw.below(len(others))] if path in left]
        if bag:
            picked.append(bag[draw.below(len(bag))])
            left.discard(picked[-1])
    rest = [path for path in popular if path not in picked]
    return (*picked, *_sample(rest, count - len(picked), draw))


def _sample(bag: Sequence[str], count: int, draw: _Draw) -> list[str]:
    """Draw ``count`` distinct items, or fewer if there are not enough; duplicates in ``bag`` are weights."""
    picked: list[str] = []
    rest = list(bag)
    while rest and len(picked) < count:
        picked.append(rest[draw.below(len(rest))])
        rest = [path for path in rest if path != picked[-1]]
    return picked


# How likely a file looks


def _rankings(answer: str, issue: str) -> tuple[Callable[[str], int], Callable[[str], int]]:
    """Return two functions that compare a file with the answer, by shared words and by mentions in the issue.

    They return 1 if the file looks more likely than the answer, -1 if less, 0 for a tie.
    """
    words = words_of(issue)
    known: dict[str, tuple[Any, Any]] = {}

    def looks(path: str) -> tuple[Any, Any]:
        if path not in known:
            leak, shared = leak_of(path, issue), overlap(path, words)
            known[path] = shared, (leak in NAMED, leak is Leak.STEM, shared)
        return known[path]

    def compared(kind: int) -> Callable[[str], int]:
        own = looks(answer)[kind]
        return lambda path: (looks(path)[kind] > own) - (looks(path)[kind] < own)

    return compared(0), compared(1)


def _misfit(ranking: Callable[[str], int], picked: Sequence[str], above: int) -> int:
    """Return twice the distance between ``above`` and the number of picked files that look likelier than the answer.

    ``ranking`` compares a file with the answer; a tie counts as half a file.
    """
    likelier = [ranking(path) for path in picked]
    higher, lower = likelier.count(1), likelier.count(-1)
    return abs(higher - above) + abs(len(picked) - lower - above)
