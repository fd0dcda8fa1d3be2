"""Vocabulary of the generated programs: names and phrases for each operator, and names of variables.

Phrases are patterns: ``{l}`` and ``{r}`` become the operands of the template, ``{x}`` its variable, ``{k}``
its constant.
"""

from __future__ import annotations

Wordings = dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
"""Type of tables from operators to a pair: words for function names, and phrases for docstrings."""


def split(text: str) -> tuple[str, ...]:
    """Split the text ``"a | b"`` into ``("a", "b")``."""
    return tuple(part.strip() for part in text.split("|"))


def wordings(table: str) -> Wordings:
    """Parse a table; each row has an operator, its words, a colon and its phrases."""
    rows = [line.split(":") for line in table.strip().splitlines()]
    return {head.split()[0]: (tuple(head.split()[1:]), split(phrases)) for head, phrases in rows}


# Rows of operator, words: phrases.

VALUES = wordings("""
    +  sum plus total: the sum of {l} and {r} | {l} plus {r} | {r} added to {l} | the total of {l} and {r}
    -  difference minus reduction: the difference of {l} and {r} | {l} minus {r} | {l} reduced by {r}
    *  product times multiple: the product of {l} and {r} | {l} times {r} | {l} multiplied by {r}
    // quotient share whole_part: the whole quotient of {l} and {r} | how often {r} fits into {l} | \
       {l} shared among {r} without the rest | {l} divided by {r} and rounded down
    %  remainder modulo leftover: the remainder of {l} divided by {r} | {l} modulo {r} | \
       what is left over when {l} is divided by {r} | the rest when {l} is split into groups of {r}
""")
TESTS = wordings("""
    <  below under smaller: below {r} | less than {r} | smaller than {r} | under {r}
    <= at_most not_above up_to: at most {r} | no more than {r} | not above {r} | {r} or less
    >  above over greater: above {r} | more than {r} | greater than {r} | over {r}
    >= at_least not_below not_under: at least {r} | no less than {r} | not below {r} | {r} or more
    == equal same matching: equal to {r} | the same as {r} | exactly {r} | identical to {r}
    != different other unequal: different from {r} | other than {r} | not equal to {r} | anything but {r}
""")
LENGTHS = wordings("""
    <  short shorter: shorter than {k} letters | fewer than {k} letters long | of length below {k}
    <= at_most not_longer: at most {k} letters long | no longer than {k} letters | of length {k} or less
    >  long longer: longer than {k} letters | more than {k} letters long | of length above {k}
    >= at_least not_shorter: at least {k} letters long | no shorter than {k} letters | of length {k} or more
    == exact of_length: exactly {k} letters long | of length equal to {k} | neither under nor over length {k}
    != wrong_length not_exact: not {k} letters long | of length other than {k} | shorter or longer than {k}
""")
ORDERS = wordings("""
    <  rising increasing: always rise | strictly increase | grow at every step
    <= never_falling sorted: never fall | rise or stay the same | ascend with repeats allowed
    >  falling decreasing: always fall | strictly decrease | shrink at every step
    >= never_rising reversed: never rise | fall or stay the same | descend with repeats allowed
    == constant all_equal: are all equal | stay the same | never change
    != changing unrepeated: change at every step | never repeat the one before | differ from the next
""")
PLACES = wordings("""
    <  before first: before index {k} | at indexes below {k} | in front of index {k}
    <= up_to through: up to index {k} inclusive | at index {k} and before it | at indexes not above {k}
    >  after behind: after index {k} | at indexes above {k} | behind index {k}
    >= starting onward: from index {k} on | at index {k} and after it | at indexes not below {k}
    == at only: at index {k} alone | with exactly index {k} | at no index but {k}
    != without excluding: at every index except {k} | unless its index is {k} | everywhere but at index {k}
""")
FOLDS = wordings("""
    +  add grow: add every {x} to {k} | increase {k} by each {x} in turn
    -  subtract spend: subtract every {x} from {k} | decrease {k} by each {x} in turn
    *  multiply scale: multiply {k} by every {x} | scale {k} by each {x} in turn
    // divide split: divide {k} by every {x} rounding down | split {k} by each {x} without the rest
    %  reduce remainder: take the remainder of {k} by every {x} | reduce {k} modulo each {x} in turn
""")
PICKS = wordings("""
    > larger bigger maximum: larger | greater | bigger | greatest
    < smaller lesser minimum: smaller | lesser | lower | least
""")
LIMITS = wordings("""
    > cap ceiling limit: no more than {k} | capped at {k} | at most {k} | limited to {k} from above
    < floor raise_to lift: no less than {k} | raised to {k} | at least {k} | limited to {k} from below
""")
MULTIPLES = wordings("""
    == divisible multiple: a multiple of {k} | divisible by {k} | in the {k} times table
    != indivisible no_multiple: no multiple of {k} | not divisible by {k} | missing from the {k} times table
""")

PAIRS = split("a b | x y | p q | left right | first second | one two | m n | u v")
NUMBERS = split("n | x | value | amount | size | level | score | age")
ELEMENTS = split("n | x | value | number | entry | element | item | v")
LISTS = split("items | values | numbers | data | entries | scores")
TWO_LISTS = split("xs ys | rows columns | items others | prices counts | here there | firsts seconds")
STRINGS = split("text | word | line | title | label | message | name | s")
STRING_LISTS = split("words | names | lines | labels | titles | texts")
INDEXES = split("i | j | place | position | index")
