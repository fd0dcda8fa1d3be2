"""Lettered options of multiple-choice questions: shuffles and prints them, and reads the letter in a reply."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from functools import cache

from envweave_gym.core.faults import InvalidAction, shown
from envweave_gym.core.reply_parsing import require_text
from envweave_gym.core.seeding import mix

LETTERS = string.ascii_uppercase
"""The letters of options, in their order."""
_PLACING = 0x0DD5  # any number that no other draw from the same key uses


def shuffled(right: str, wrong: Sequence[str], key: int) -> tuple[tuple[str, ...], int]:
    """Shuffle the options with the seed ``key``; return them, and the index of ``right``, which is uniform."""
    draw = mix(key, _PLACING)  # a hash of its own, as an episode draws its task from mix(key)
    others = [wrong[number] for number in sorted(range(len(wrong)), key=lambda number: mix(draw, number + 1))]
    place = mix(draw) % (len(others) + 1)
    return (*others[:place], right, *others[place:]), place


def lettered(options: Sequence[str]) -> str:
    """Return the options as lines of a prompt: ``A. first``."""
    return "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False))


def letters_of(count: int) -> str:
    """Return the letters of ``count`` options as prose: ``A, B, C or D``."""
    return f"{', '.join(LETTERS[: count - 1])} or {LETTERS[count - 1]}"


def read_letter(text: str, count: int) -> int:
    """Return the index of the option whose letter a reply chooses, of ``count`` options.

    The last explicit statement counts (``Answer: B``, ``the answer is (b)``, ``\\boxed{B}``,
    ``<answer>B</answer>``). Without one a last line that is a letter and nothing else counts, or else the only
    letter in the reply. Raise :class:`InvalidAction` if there is none of these.
    """
    require_text(text)
    stated, last = _patterns(count)
    for pattern, where in ((stated, text), (last, _MARGIN.sub("\n", text))):
        if said := pattern.findall(where):
            return LETTERS.index(said[-1].upper())
    named = set() if _NEGATION.search(text) else set(_named(count).findall(text))
    if len(named) != 1:
        raise InvalidAction(
            f"{shown(text)} chooses no option, or more than one; answer with one of {letters_of(count)}"
        )
    return LETTERS.index(named.pop())


_MARGIN = re.compile(r"\n[\s*_`'\"(\[{$]+")
"""Blanks and marks that a last line may begin with; removed first, as matching is quadratic in empty lines."""
_NEGATION = re.compile(
    r"\b(?:not|never|neither|nor|except|wrong|incorrect|unlikely)\b|n['\u2019]t\b", re.IGNORECASE
)


@cache
def _patterns(count: int) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return a pattern for a statement like ``Answer: B``, and one for a last line that is one letter."""
    last = LETTERS[count - 1]
    letter = f"[A-{last}a-{last.lower()}]"
    capital, open_, close = f"[A-{last}]", r"[\s*_`'\"(\[{$]*+", r"[\s*_`'\").\]}$]*+"
    doubt = rf"(?!\w)(?!['\u2019]\w)(?!{close}(?:,|/|&|\bor\b|\band\b){open_}{capital}(?!\w))"
    stated = (
        rf"(?:\\boxed\{{|<answer>|\b(?i:answer|choice|choose|pick|select)\b(?i:\s++(?:is|option|letter)\b)*+)"
        rf"{open_}[:=]?+(?:\s*+\\text\{{)?+{open_}({capital}{doubt}|{letter}(?={close}(?:$|\n|</answer>)))"
    )
    return re.compile(stated), re.compile(rf"(?:\A|\n){open_}({letter}){close}\Z")


@cache
def _named(count: int) -> re.Pattern[str]:
    """Return a pattern for a capital letter that stands alone; ``A`` before a word is an article."""
    return re.compile(
        rf"(?<![\w'\u2019.-])(?!A\s+(?!or\b|and\b)[a-z])[A-{LETTERS[count - 1]}](?![\w'\u2019+#-])"
    )
