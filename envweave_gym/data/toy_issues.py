"""The issues of the toy repository: the text of each, the change that fixes it, and the tests of the fix."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Issue:
    """One issue, fixed by replacing ``before`` by ``after`` in the file ``path``.

    ``tests`` is source to append to ``test_path``; its tests fail before the fix and pass after it.
    """

    number: int
    text: str
    path: str
    before: str
    after: str
    test_path: str
    tests: str


_TEXT = Issue(
    1,
    """\
Shortened texts are too long
I cut titles for a table whose column has ten characters:

```python
>>> from toolbox.text import shorten
>>> shorten("a rather long title", 10)
'a rather l...'
```

That is 13 characters. The docstring says that the dots count, so I expected `'a rathe...'`.
""",
    "toolbox/text.py",
    'return text[:length] + "..."',
    'return text[: length - 3] + "..."',
    "tests/test_text.py",
    """\


def test_the_dots_count():
    assert shorten("a rather long title", 10) == "a rathe..."
""",
)

_NUMBERS = Issue(
    2,
    """\
The median of an even number of values is one of them
`median([1, 2, 3, 4])` is 3, and every spreadsheet says 2.5. For an odd number of values it is
right. What lies between the two in the middle would be their mean, and there is a function for that
already.
""",
    "toolbox/numbers.py",
    "    return ordered[len(ordered) // 2]\n",
    """\
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return mean(ordered[middle - 1 : middle + 1])
""",
    "tests/test_numbers.py",
    """\


def test_the_median_of_four_lies_between_two():
    assert median([4, 1, 3, 2]) == 2.5


def test_the_median_of_two_is_their_mean():
    assert median([1, 4]) == 2.5
""",
)

_INTERVALS = Issue(
    3,
    """\
Merging loses the end of an interval that another one lies in
My calendar has a meeting from 9 to 17, and a break from 12 to 13 in it:

```python
>>> merged([(9, 17), (12, 13)])
[(9, 13)]
```

The afternoon is gone. I expected `[(9, 17)]`.
""",
    "toolbox/intervals.py",
    "(result[-1][0], end)",
    "(result[-1][0], max(end, result[-1][1]))",
    "tests/test_intervals.py",
    """\


def test_what_lies_in_another_adds_nothing():
    assert merged([(9, 17), (12, 13)]) == [(9, 17)]
""",
)

_QUEUES = Issue(
    4,
    """\
A full ring ignores what is put into it
The documentation says that a `Ring` keeps the last things and that the oldest goes. It is the other
way round: once it is full, whatever I put in is gone at once, and the first things stay for ever.
""",
    "toolbox/queues.py",
    "self._items.pop()",
    "self._items.pop(0)",
    "tests/test_ring_order.py",
    """\
from toolbox.queues import Ring


def test_the_last_things_stay():
    ring = Ring(2)
    for number in range(5):
        ring.put(number)
    assert list(ring) == [3, 4]
""",
)

_DATES = Issue(
    5,
    """\
1900 was no leap year
`is_leap(1900)` says True, and so the first of March 1900 is day 61 by `day_of_year`. Full centuries
are leap years only where 400 divides them, as 2000 was.
""",
    "toolbox/dates.py",
    "    return year % 4 == 0\n",
    "    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)\n",
    "tests/test_dates.py",
    """\


def test_centuries_are_leap_years_where_400_divides_them():
    assert [is_leap(year) for year in (1800, 1900, 2000)] == [False, False, True]


def test_the_first_of_march_1900():
    assert day_of_year(1900, 3, 1) == 60
""",
)

_MONEY = Issue(
    6,
    """\
Cents are lost when a bill is split
We were three and the bill was 10.00. `split(1000, 3)` gives everybody 333, and the waiter got a
cent too little. Those who come first should pay the cents that are left: `[334, 333, 333]`.
""",
    "toolbox/money.py",
    """\
    share = cents // people
    return [share] * people
""",
    """\
    share, left = divmod(cents, people)
    return [share + (number < left) for number in range(people)]
""",
    "tests/test_money.py",
    """\


def test_no_cent_is_lost():
    assert split(1000, 3) == [334, 333, 333]


def test_shares_are_as_equal_as_cents_allow():
    assert split(5, 3) == [2, 2, 1]
""",
)

_GRAPHS = Issue(
    7,
    """\
A circle is put in order without a complaint
`ordered({"a": ["b"], "b": ["a"]})` returns a list, though there is no order. The docstring promises
a ValueError.
""",
    "toolbox/graphs.py",
    """\
            if state.get(following) != "open":
                visit(following)
""",
    """\
            if state.get(following) == "open":
                raise ValueError(f"{following} follows itself")
            visit(following)
""",
    "tests/test_graphs.py",
    """\


def test_a_circle_has_no_order():
    try:
        ordered({"a": ["b"], "b": ["a"]})
    except ValueError:
        return
    raise AssertionError("it has none")
""",
)

_CACHE = Issue(
    8,
    """\
What is read all the time is forgotten
`Recent` drops what was put in first even if I `get` it again and again. Reading is using, so a key
that was just read should be the last to go.
""",
    "toolbox/cache.py",
    "        return self._values.get(key, default)\n",
    """\
        if key not in self._values:
            return default
        self._values[key] = value = self._values.pop(key)
        return value
""",
    "tests/test_cache.py",
    """\


def test_what_was_read_stays():
    cache = Recent(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.get("a")
    cache.put("c", 3)
    assert cache.get("a") == 1
    assert cache.get("b") is None
""",
)

ISSUES = {
    "test": (_TEXT, _NUMBERS, _INTERVALS, _QUEUES, _DATES, _MONEY),
    "dev": (_GRAPHS, _CACHE),
}
"""The issues of each split."""
