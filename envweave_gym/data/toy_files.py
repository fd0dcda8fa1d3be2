"""The files of the toy repository: a package of eight small modules, its tests, and a script that runs them.

Each module has a mistake that its tests do not find; :mod:`envweave_gym.data.toy_issues` has an issue for each.
"""

from __future__ import annotations

README = """\
# toolbox

Small things that programs need now and then. `python tests/runtests.py` runs the tests, or those of
the files it is given.
"""

INIT = '''\
"""Small things that programs need now and then."""

__version__ = "1.0"
'''

TEXT = '''\
"""Words and lines."""


def words(text):
    """The words of a text, in small letters and without the marks around them."""
    stripped = (word.strip(".,;:!?\\"'()") for word in text.lower().split())
    return [word for word in stripped if word]


def shorten(text, length):
    """The text, cut so that with the dots in place of what is left out it has at most so many characters."""
    if len(text) <= length:
        return text
    return text[:length] + "..."


def indented(text, spaces):
    """The text with so many spaces before each line that is not empty."""
    return "\\n".join(" " * spaces + line if line else line for line in text.split("\\n"))
'''

NUMBERS = '''\
"""Numbers, and what many of them say together."""


def clamp(number, low, high):
    """The number, or the bound that it is beyond."""
    return max(low, min(number, high))


def mean(numbers):
    """What each would be if all were equal."""
    numbers = list(numbers)
    return sum(numbers) / len(numbers)


def median(numbers):
    """The one in the middle; of two in the middle, what lies between them."""
    ordered = sorted(numbers)
    return ordered[len(ordered) // 2]
'''

INTERVALS = '''\
"""Intervals, as pairs of where they begin and where they end."""


def overlap(one, other):
    """How much two intervals have in common."""
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))


def merged(intervals):
    """The fewest intervals that cover the same, in order; what touches is one."""
    result = []
    for begin, end in sorted(intervals):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], end)
        else:
            result.append((begin, end))
    return result
'''

QUEUES = '''\
"""A queue that forgets."""


class Ring:
    """Keeps the last so many things that were put into it."""

    def __init__(self, size):
        self.size = size
        self._items = []

    def put(self, item):
        """Put one in; the oldest goes where there is no room."""
        self._items.append(item)
        if len(self._items) > self.size:
            self._items.pop()

    def __len__(self):
        return len(self._items)

    def __iter__(self):
        return iter(self._items)
'''

DATES = '''\
"""Years, months and days."""

_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def is_leap(year):
    """Whether a year has a day more."""
    return year % 4 == 0


def days_in(year, month):
    """How many days a month has, from 1 for January."""
    return 29 if month == 2 and is_leap(year) else _DAYS[month - 1]


def day_of_year(year, month, day):
    """Which day of its year it is, from 1."""
    return sum(days_in(year, before) for before in range(1, month)) + day
'''

MONEY = '''\
"""Amounts of money, in cents."""


def shown(cents):
    """An amount as people write it: 1234 is 12.34."""
    return f"{cents // 100}.{cents % 100:02}"


def split(cents, people):
    """The shares of so many people, as equal as cents allow; those that get a cent more come first."""
    share = cents // people
    return [share] * people
'''

GRAPHS = '''\
"""Graphs, as a dictionary of each node to those that follow it."""


def reachable(graph, start):
    """The nodes that a way leads to, the first included."""
    found, waiting = set(), [start]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(graph.get(node, ()))
    return found


def ordered(graph):
    """The nodes, each before those that follow it; a circle is a ValueError."""
    result, state = [], {}

    def visit(node):
        if state.get(node) == "done":
            return
        state[node] = "open"
        for following in graph.get(node, ()):
            if state.get(following) != "open":
                visit(following)
        state[node] = "done"
        result.append(node)

    for node in graph:
        visit(node)
    return result[::-1]
'''

CACHE = '''\
"""A cache with little room."""


class Recent:
    """Keeps what was used last, so many things at most."""

    def __init__(self, size):
        self.size = size
        self._values = {}

    def get(self, key, default=None):
        """What is kept for the key."""
        return self._values.get(key, default)

    def put(self, key, value):
        """Keep it; what was not used for the longest time goes where there is no room."""
        self._values.pop(key, None)
        self._values[key] = value
        if len(self._values) > self.size:
            del self._values[next(iter(self._values))]
'''

RUNTESTS = '''\
"""Run the tests of the files that are named, or of all, and say of each how it went, as pytest -rA does.

A conftest.py beside the tests' folder may have a function report(name, error), which says what counts as the
error of a test: None where it passed.
"""

import importlib.util
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def error_of(test):
    try:
        test()
    except Exception as error:
        traceback.print_exc(file=sys.stdout)
        return error
    return None


def run(name, report):
    try:
        tests = {key: value for key, value in vars(load(ROOT / name)).items() if key.startswith("test_")}
    except Exception as error:
        traceback.print_exc(file=sys.stdout)
        return [f"ERROR {name} - {type(error).__name__}"]
    lines = []
    for key, test in tests.items():
        error = report(f"{name}::{key}", error_of(test))
        said = "PASSED" if error is None else "FAILED"
        lines.append(f"{said} {name}::{key}" + ("" if error is None else f" - {type(error).__name__}"))
    return lines


def main(names):
    sys.path.insert(0, str(ROOT))
    hooks = load(ROOT / "conftest.py") if (ROOT / "conftest.py").exists() else None
    report = getattr(hooks, "report", lambda name, error: error)
    names = names or sorted(f"tests/{path.name}" for path in (ROOT / "tests").glob("test_*.py"))
    lines = [line for name in names for line in run(name, report)]
    print(*lines, sep="\\n", flush=True)
    return int(any(not line.startswith("PASSED") for line in lines))


if __name__ == "__main__":
    sys.exit(main([name for name in sys.argv[1:] if not name.startswith("-")]))
'''

TEST_TEXT = """\
from toolbox.text import indented, shorten, words


def test_words_are_small_and_bare():
    assert words("Well, (this) is it!") == ["well", "this", "is", "it"]


def test_what_is_short_stays():
    assert shorten("short", 10) == "short"


def test_empty_lines_stay_empty():
    assert indented("a\\n\\nb", 2) == "  a\\n\\n  b"
"""

TEST_NUMBERS = """\
from toolbox.numbers import clamp, mean, median


def test_a_number_stays_within_its_bounds():
    assert [clamp(number, 0, 5) for number in (-1, 3, 9)] == [0, 3, 5]


def test_the_mean_of_two():
    assert mean([1, 2]) == 1.5


def test_the_median_of_three():
    assert median([9, 1, 5]) == 5
"""

TEST_INTERVALS = """\
from toolbox.intervals import merged, overlap


def test_what_two_have_in_common():
    assert overlap((0, 5), (3, 9)) == 2


def test_what_is_apart_has_nothing_in_common():
    assert overlap((0, 1), (2, 3)) == 0


def test_what_touches_is_one():
    assert merged([(3, 5), (1, 3), (8, 9)]) == [(1, 5), (8, 9)]
"""

TEST_QUEUES = """\
from toolbox.queues import Ring


def test_what_fits_stays():
    ring = Ring(3)
    ring.put("a")
    ring.put("b")
    assert list(ring) == ["a", "b"]


def test_there_is_never_more_than_fits():
    ring = Ring(2)
    for number in range(5):
        ring.put(number)
    assert len(ring) == 2
"""

TEST_DATES = """\
from toolbox.dates import day_of_year, days_in, is_leap


def test_every_fourth_year_is_a_leap_year():
    assert is_leap(2024)
    assert not is_leap(2023)


def test_months_have_their_days():
    assert [days_in(2023, month) for month in (1, 2, 4)] == [31, 28, 30]


def test_the_last_day_of_a_year():
    assert day_of_year(2023, 12, 31) == 365
"""

TEST_MONEY = """\
from toolbox.money import shown, split


def test_cents_have_two_digits():
    assert shown(1205) == "12.05"


def test_what_divides_is_shared_equally():
    assert split(900, 3) == [300, 300, 300]
"""

TEST_GRAPHS = """\
from toolbox.graphs import ordered, reachable


def test_what_a_way_leads_to():
    assert reachable({"a": ["b"], "b": ["c"], "d": ["a"]}, "a") == {"a", "b", "c"}


def test_each_comes_before_what_follows_it():
    assert ordered({"a": ["b", "c"], "c": ["b"]}) == ["a", "c", "b"]
"""

TEST_CACHE = """\
from toolbox.cache import Recent


def test_what_was_put_is_kept():
    cache = Recent(2)
    cache.put("a", 1)
    assert cache.get("a") == 1


def test_the_oldest_goes():
    cache = Recent(2)
    for key in "abc":
        cache.put(key, key)
    assert cache.get("a") is None
    assert cache.get("b") == "b"
"""

FILES = {
    ".gitignore": "__pycache__/\n",
    "README.md": README,
    "tests/runtests.py": RUNTESTS,
    "tests/test_cache.py": TEST_CACHE,
    "tests/test_dates.py": TEST_DATES,
    "tests/test_graphs.py": TEST_GRAPHS,
    "tests/test_intervals.py": TEST_INTERVALS,
    "tests/test_money.py": TEST_MONEY,
    "tests/test_numbers.py": TEST_NUMBERS,
    "tests/test_queues.py": TEST_QUEUES,
    "tests/test_text.py": TEST_TEXT,
    "toolbox/__init__.py": INIT,
    "toolbox/cache.py": CACHE,
    "toolbox/dates.py": DATES,
    "toolbox/graphs.py": GRAPHS,
    "toolbox/intervals.py": INTERVALS,
    "toolbox/money.py": MONEY,
    "toolbox/numbers.py": NUMBERS,
    "toolbox/queues.py": QUEUES,
    "toolbox/text.py": TEXT,
}
"""The content of each file by its path, in git's order."""
