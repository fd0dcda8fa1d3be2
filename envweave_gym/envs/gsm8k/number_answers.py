"""Parses answers in free text: finds the number of a reply and reads it as a rational number.

A reply gives its answer after ``####``, in ``\\boxed{…}``, after "the answer is", or else with its last
number. The first two are the forms a reply may be asked for; of several in one form the last counts. An
ambiguous answer in such a place ("5 or 7", "10-3") counts as none. Many notations are read (``1,000``,
``1{,}000``, ``2½``, ``\\frac{3}{4}``, ``1.5e3``, digits and signs of any script), as exact fractions. A
percent sign, a currency and any other unit are ignored: ``50%`` is 50.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from fractions import Fraction

import msgspec

MOST_DIGITS = 100
"""Limit of the digits, and of the exponent, of a number."""
_MAX_MARKERS = 5
"""Limit of markers, boxes and sentences that are examined, from the end of a reply."""


class Answer(msgspec.Struct, frozen=True):
    """The number that a reply gives as its answer, and whether it is in a requested form."""

    value: Fraction
    formatted: bool
    """Whether the answer was given after ``####`` or in a box."""

    def __str__(self) -> str:
        return str(self.value)


def read_answer(reply: str) -> Answer | None:
    """Find and parse the answer of ``reply``; return ``None`` if there is none, or an ambiguous one ("5 or 7")."""
    text = _plain(reply)
    # The first form that occurs decides, even if its answer is ambiguous.
    for fields, formatted in ((_marked(text), True), (_boxed(text), True), (_stated(text), False)):
        for field in fields:
            value = _first_number(field)
            return None if value is None else Answer(value, formatted)  # the last field of a form counts
    return _last_number(text)


def read_number(text: str) -> Fraction | None:
    """Parse a text that is a number, with or without a unit, and nothing else; return ``None`` for other texts."""
    # The usual case, without the regular expressions below.
    if text.isdecimal() and len(text) <= MOST_DIGITS:
        return Fraction(int(text))
    return _first_number(_plain(text))


def numbers_in(text: str) -> list[Fraction]:
    """Return all numbers in a text, in order; notations are those of :func:`read_answer`."""
    return [value for match in _NUMBER.finditer(_plain(text)) if (value := _value(match)) is not None]


# Finding the answer in a reply

_MARKER = re.compile(r"(?<!#)####(?!#)")
_BOX = re.compile(r"\\f?boxed\s*(\{|(?=[\d.$-]))")
_STATEMENT = re.compile(
    r"\banswer[\s*_`]*(?:(?:is|was|will be|would be|equals)\b[\s*_`]*:?|[:=])|<answer>", re.IGNORECASE
)
# Words that may stand between an introduction and its number.
_FILLER = re.compile(
    r"(?:[\s*`_(\[{$:=]|\\boxed|\b(?:the|a|final|answer|result|total|is|of|equals?|to|exactly|therefore|thus|hence|"
    r"so|simply|just|about|approximately|now|usd|eur|[a-z](?=\s*=)|[a-z]{1,2}(?=\$))\b)*",
    re.IGNORECASE,
)
_SPACED_SIGN = re.compile(r"\A([-+])\s+(?=[$\d.])")
_SENTENCE = re.compile(r"[.!?](?=\s|$)|\n")
_LINE = re.compile(r"\n")
_HEADING = re.compile(r"[.)]\s+[A-Za-z]")


def _marked(text: str) -> Iterator[str]:
    """Yield the number and the rest of the line after each ``####``, last first; skip numbered headings."""
    for start in _ends(_MARKER, text):
        field = _field(text, start, _LINE)
        if field is not None and not _HEADING.match(field, _end_of_number(field)):
            yield field


def _stated(text: str) -> Iterator[str]:
    """Yield the number and the rest of the sentence after each "the answer is", last first."""
    for start in _ends(_STATEMENT, text):
        field = _field(text, start, _SENTENCE)
        if field is not None:
            yield field


def _ends(pattern: re.Pattern[str], text: str) -> list[int]:
    """Return the end positions of the last :data:`_MAX_MARKERS` matches, last first."""
    return [match.end() for match in pattern.finditer(text)][: -_MAX_MARKERS - 1 : -1]


def _field(text: str, start: int, stop: re.Pattern[str]) -> str | None:
    """Return the text from ``start`` up to ``stop``, without introductory words; ``None`` if no number comes first."""
    filler = _FILLER.match(text, start)
    begin = start if filler is None else filler.end()
    end = stop.search(text, begin)
    field = _SPACED_SIGN.sub(r"\1", text[begin : end and end.start()])
    return field if _NUMBER.match(field) else None


def _end_of_number(field: str) -> int:
    match = _NUMBER.match(field)
    return match.end() if match else 0


def _boxed(text: str) -> Iterator[str]:
    r"""Yield the content of each ``\boxed{…}`` that has a digit, last first."""
    boxes = list(_BOX.finditer(text))[: -_MAX_MARKERS - 1 : -1]
    for box in boxes:
        content = _braced(text, box.end()) if box[1] else text[box.end() :].partition("\n")[0]
        if content is not None and any(map(str.isdecimal, content)):
            yield content


def _braced(text: str, start: int) -> str | None:
    """Return the text from ``start``, just after an opening brace, up to the brace that closes it."""
    depth = 1
    for match in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return text[start : match.start()]
    return None


_NO_BRACES = str.maketrans("{}", "  ")
_JOINED = re.compile(r"\s*(?:[a-zA-Z%$]+\s*)?(?:[-+*/;,&|\s]|\b(?:or|and|to)\b)\s*[-+$]*\.?\d")
_SPACED_GROUPS = re.compile(r"(?<![\d.,/])(\d{1,3})((?: \d{3})+)(?![\d/,])")


def _first_number(field: str) -> Fraction | None:
    """Return the first number of a field, or the one after its last ``=``.

    Return ``None`` if it is one of several, as in ``5 or 7`` and ``10-3``.
    """
    before, _, after = " ".join(field.translate(_NO_BRACES).split()).rpartition("=")
    field = after if _NUMBER.search(after) else before
    field = _SPACED_GROUPS.sub(lambda match: match[0].replace(" ", ""), field)
    match = _NUMBER.search(field)
    if match is None or _JOINED.match(field, match.end()):
        return None
    return _value(match)


def _last_number(text: str) -> Answer | None:
    """Return the last number of a text as its answer, for replies without a marker, box or "the answer is"."""
    for line in reversed(text.splitlines()):
        for match in reversed(list(_NUMBER.finditer(line))):
            if (value := _value(match)) is not None:
                return Answer(value, formatted=False)
    return None


# Normalising: ASCII digits, signs and separators, and plain text for LaTeX


def _characters() -> dict[int, str]:
    """Map characters to the ASCII characters with the same meaning."""
    same = {"-": "\u2010\u2011\u2012\u2013\u2014\u2212\ufe63\uff0d", ",": "\uff0c\u066c", ".": "\uff0e\u066b"}
    same |= {"/": "\u2044\u2215\uff0f", "%": "\uff05\u066a", "=": "\uff1d\u2248", "*": "\xd7\xb7\u22c5\u2219"}
    same |= {"#": "\uff03", ":": "\uff1a", "(": "\uff08", ")": "\uff09", "+": "\uff0b", " ": "\u3000"}
    same |= {"'": "\u2019\u02bc\uff07"}
    same[_THIN] = "\u00a0\u2006\u2007\u2008\u200a\u202f"
    same[""] = "\u00ad\u061c\u200b\u200c\u200d\u200e\u200f\u2060\u2066\u2067\u2068\u2069\ufeff"
    same[""] += "\u202a\u202b\u202c\u202d\u202e"
    return {ord(char): plain for plain, chars in same.items() for char in chars}


_THIN = "\u2009"
_CHARACTERS = _characters()
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_RAISED = re.compile("[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_OTHER = re.compile(r"[^\x00-\x7f]")

_FRAC = r"\\[dt]?frac(?![a-zA-Z])"
_ARGUMENT = r"(?:\{ ?([^{}]*)\}|(\d))"
_LATEX = (
    (re.compile(rf"(?<=\d)\s*(?={_FRAC})"), " "),
    (re.compile(rf"{_FRAC}\s*{_ARGUMENT}\s*{_ARGUMENT}"), r"\1\2/\3\4"),
    (re.compile(r"\\(?:text|mathrm|mathbf|textbf|mathit|textit|mbox|operatorname)\s*(?=\{)"), " "),
    (re.compile(r"\\(?:times|cdot|ast)(?![A-Za-z])"), "*"),
    (re.compile(r"\{,\}|,\\!"), ","),
    (re.compile(r"\\[,;:! ]|~"), _THIN),
    (re.compile(r"\\([$%#&])"), r"\1"),
    (re.compile(r"\\[()\[\]]|\\(?:left|right|big|Big)(?![A-Za-z])"), " "),
    (re.compile(r"\^\s*\{\s*([-+]?\d+)\s*\}"), r"^\1"),
    (re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))"), " "),
)
_MINUS = re.compile(r"-\(\s{0,9}(\$?\d[\d.,]*(?:/\d+)?)\s{0,9}\)")
_SEPARATORS = "'_" + _THIN
_GROUPED = re.compile(rf"(?<=\d)[{_SEPARATORS}](?=\d{{3}}(?!\d))")


def _plain(text: str) -> str:
    """Convert Unicode and LaTeX notations of numbers in ``text`` to plain ASCII ones."""
    if not text.isascii():
        text = _OTHER.sub(_ascii, _RAISED.sub(_power, text.translate(_CHARACTERS)))
    if "\\" in text or "{" in text or "~" in text:
        for pattern, replacement in _LATEX:
            text = pattern.sub(replacement, text)
    if any(separator in text for separator in _SEPARATORS):
        text = _GROUPED.sub(",", text).replace(_THIN, " ")
    return _MINUS.sub(r"-\1", text) if "-(" in text else text


def _power(match: re.Match[str]) -> str:
    return "^" + match[0].translate(_SUPERSCRIPTS)


def _ascii(match: re.Match[str]) -> str:
    """Replace a digit of any script, a vulgar fraction or a currency sign; keep the rest."""
    char = match[0]
    if char.isdecimal():
        return str(unicodedata.decimal(char))
    category = unicodedata.category(char)
    if category == "No" and "\u2044" in (written := unicodedata.normalize("NFKC", char)):
        return " " + written.replace("\u2044", "/") + " "
    return "$" if category == "Sc" else char


# Numbers

_DECIMAL = r"(?:\d+(?:[,.]\d+)*|\.\d+)"
_NUMBER = re.compile(
    rf"""
    (?<![^\W_])(?<![\d^][.,:/])(?<!\^)(?<!\^[-+])   # not in a word, in another number or in an exponent
    (?:(?<![\w)\]}}])(?P<sign>[-+]))?
    (?:\$[ ]?)?(?P<inner>[-+](?=[\d.]))?
    (?:(?P<whole>\d+)[ ]+(?=\d+[ ]?/[ ]?\d))?
    (?P<number>{_DECIMAL})
    (?:
        [ ]?/[ ]?(?P<below>{_DECIMAL})
      | [eE](?P<e>[-+]?\d+)(?![^\W_])
      | [ ]?[*x][ ]?10(?:\^|\*\*)(?P<ten>[-+]?\d+)
    )?
    (?P<more>[ ]?(?:\^[-+]?\d*|\*\*[-+]?\d+)|:\d|[ ]?/[ ]?\d)?
    """,
    re.VERBOSE,
)
_GROUPS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+|[1-9]\d?(?:,\d\d)+,\d{3}")
_POWER_OF_TEN = re.compile(r"([-+]?)10(?:\^|\*\*)([-+]?\d{1,3})")


def _value(match: re.Match[str]) -> Fraction | None:
    """Return the value of a match of :data:`_NUMBER`; ``None`` for a date, a time, or ``1,2,3``."""
    written = match[0]
    # int() of thousands of digits takes quadratic time, and replies are untrusted.
    if len(written) > MOST_DIGITS:
        return None
    if match["more"]:
        power = _POWER_OF_TEN.fullmatch(written)
        return power and _scaled(Fraction(-1 if power[1] == "-" else 1), power[2])
    value = _decimal(match["number"])
    if value is not None and match["below"]:
        divisor = _decimal(match["below"])
        value = value / divisor if divisor else None
    if value is not None and match["whole"]:
        value = value + int(match["whole"]) if value < 1 else None  # 2 1/2, but not 2 3/2
    value = _scaled(value, match["e"] or match["ten"])
    is_negative = (match["sign"] == "-") != (match["inner"] == "-")
    return -value if value is not None and is_negative else value


def _scaled(value: Fraction | None, exponent: str | None) -> Fraction | None:
    if value is None or exponent is None:
        return value
    return value * Fraction(10) ** int(exponent) if abs(int(exponent)) <= MOST_DIGITS else None


def _decimal(text: str) -> Fraction | None:
    """Parse a number like ``1,000.5``; return ``None`` if its commas do not separate thousands."""
    whole, _, rest = text.partition(".")
    if "," in whole:
        if not _GROUPS.fullmatch(whole):
            return None
        whole = whole.replace(",", "")
    return (
        Fraction(f"{whole}.{rest}") if rest.isdecimal() else Fraction(int(whole or 0)) if not rest else None
    )
