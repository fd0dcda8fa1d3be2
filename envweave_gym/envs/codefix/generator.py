"""Generates small functions with one wrong operator, millions of different ones, from seeds.

A program is a template, the operator it needs, and a choice of wordings and names. Every choice is a hash of
the seed, so arrays of seeds can be turned into arrays of choices (see ``codefix.py``). No table says which
operators are right: a program with an operator is right if it returns the same as the reference program.

Texts are patterns. ``{x}``, ``{y}``, ``{items}`` and ``{others}`` stand for names, ``{k}`` for a constant,
``{op}`` for the operator to choose, ``{w}`` and ``{p}`` for a word and a phrase that describe the operator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any, NamedTuple

from envweave_gym.core.seeding import mix
from envweave_gym.envs.codefix.wordings import (
    ELEMENTS,
    FOLDS,
    INDEXES,
    LENGTHS,
    LIMITS,
    LISTS,
    MULTIPLES,
    NUMBERS,
    ORDERS,
    PAIRS,
    PICKS,
    PLACES,
    STRING_LISTS,
    STRINGS,
    TESTS,
    TWO_LISTS,
    VALUES,
    Wordings,
    split,
)

ARITHMETIC = ("+", "-", "*", "//", "%")
COMPARISON = ("<", "<=", ">", ">=", "==", "!=")
OPERATORS = (*ARITHMETIC, *COMPARISON)
"""The operators in the order of the actions."""

Case = tuple[Any, ...]


class Template(NamedTuple):
    """The body of a function with slots, and the wordings, names and constants that may vary in it."""

    arguments: str
    body: str
    wordings: Wordings
    titles: tuple[str, ...]
    """Patterns of function names."""
    sentences: tuple[str, ...]
    """Patterns of docstrings."""
    slots: dict[str, tuple[str, ...]]
    """Slots -> the names that can fill them."""
    cases: str
    """The key of its test cases in ``_CASES``."""
    constants: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8, 9)

    def used_constants(self) -> tuple[int, ...]:
        """Return the constants of the template, or ``(0,)`` if its body uses none."""
        return self.constants if "{k}" in self.body else (0,)

    def names(self) -> tuple[dict[str, str], ...]:
        """Return all ways to fill the slots with names."""
        keys = " ".join(self.slots).split()
        rows = [" ".join(row).split() for row in product(*self.slots.values())]
        return tuple(dict(zip(keys, row, strict=True)) for row in rows)

    def function_names(self, operator: str) -> tuple[str, ...]:
        """Return all function names for this operator."""
        words = self.wordings[operator][0]
        return tuple(dict.fromkeys(title.format(w=word) for title in self.titles for word in words))

    def docstrings(self, operator: str) -> tuple[str, ...]:
        """Return all docstring patterns for this operator."""
        right = "{k}" if "{k}" in self.body else "{y}"
        phrases = [phrase.format(l="{x}", r=right, x="{x}", k="{k}") for phrase in self.wordings[operator][1]]
        return tuple(sentence.replace("{p}", phrase) for sentence in self.sentences for phrase in phrases)

    def marked_body(self) -> str:
        """Return the body pattern with a comment ``# fix: {op}`` at the line of the operator to choose."""
        lines = self.body.splitlines()
        return "\n".join(f"    {line}" + "  # fix: {op}" * ("{op}" in line) for line in lines)


# Arguments of the tests, by constant, chosen so that operators with different meanings give different results

_PAIR_CASES = ((7, 3), (3, 7), (4, 4), (-5, 2), (12, 5), (1, 6), (2, 2), (9, 1), (6, -4), (-8, -3))
_TWO_LIST_CASES = (([7, 3, 4], [3, 7, 4]), ([12, 1, 2, 9], [5, 6, 2, 1]), ([-5, 6], [2, -4]), ([8], [8]))
_STEPS = ([1, 2, 3], [2, 2, 3], [5, 5], [3, 2, 1], [3, 3, 1], [4, 1, 4], [5, 3], [-4, 3], [2, 9, 5, 5])
_LETTERS = "any environment of words"


def _near(k: int) -> list[int]:
    return [k, k + 1, k - 1, 3 * k + 1, -k - 1, 2 * k, 1, k * k]


def _lists(k: int) -> tuple[Case, ...]:
    low, same, high = [k - 1, -k], [k, k], [k + 1, 5 * k]
    lists = (_near(k), low, same, high, low + same, same + high, low + high, [k + 2, 1], [2 * k], [-k, k])
    return tuple((numbers,) for numbers in lists)


_CASES: dict[str, Callable[[int], tuple[Case, ...]]] = {
    "number": lambda k: tuple((n,) for n in _near(k)),
    "pair": lambda k: _PAIR_CASES,
    "list": _lists,
    "two lists": lambda k: tuple((left[:], right[:]) for left, right in _TWO_LIST_CASES),
    "steps": lambda k: tuple((numbers[:],) for numbers in _STEPS),
    "shrinking": lambda k: (([7, 2],), ([11],), ([2, 3, 5],), ([13, 4],), ([29, 3, 2],)),
    "places": lambda k: tuple((list(range(10, 10 + n)),) for n in (k, k + 1, k + 2, 2 * k + 2)),
    "string": lambda k: tuple((_LETTERS[:n],) for n in (k - 1, k, k + 1, 2 * k, 2 * k + 1, 1)),
    "string list": lambda k: tuple(([_LETTERS[:k], _LETTERS[:n]],) for n in (k - 1, k + 1, 2 * k, 1)),
}


def _each(what: str) -> tuple[str, ...]:
    return f"Return {{p}} for every {what}.", f"List {{p}} for each {what}.", f"For every {what} give {{p}}."


def _whether(what: str) -> tuple[str, ...]:
    return f"Return whether {what} {{p}}.", f"Tell if {what} {{p}}.", f"Check that {what} {{p}}."


_FIND = split("{w}_of | get_{w} | find_{w} | compute")
_GIVE = split("Return {p}. | Compute {p}. | Give back {p}. | Find {p}.")
_IS = split("is_{w} | {w} | check")
_KEEP = split("Keep every {x} of {items} that is {p}. | Return each {x} in {items} that is {p}.")
_LIST_SLOTS = {"items": LISTS, "x": ELEMENTS}

TEMPLATES = {
    "value of two": Template("{x}, {y}", "return {x} {op} {y}", VALUES, _FIND, _GIVE, {"x y": PAIRS}, "pair"),
    "test of two": Template(
        "{x}, {y}", "return {x} {op} {y}", TESTS, _IS, _whether("{x} is"), {"x y": PAIRS}, "pair",
    ),
    "value": Template("{x}", "return {x} {op} {k}", VALUES, _FIND, _GIVE, {"x": NUMBERS}, "number"),
    "test": Template("{x}", "return {x} {op} {k}", TESTS, _IS, _whether("{x} is"), {"x": NUMBERS}, "number"),
    "map": Template(
        "{items}", "return [{x} {op} {k} for {x} in {items}]",
        VALUES, split("{w}_each | map_{w} | transform"), _each("{x} in {items}"), _LIST_SLOTS, "list",
    ),
    "pairs": Template(
        "{items}, {others}", "return [{x} {op} {y} for {x}, {y} in zip({items}, {others})]",
        VALUES, split("{w}_pairs | zip_{w} | combine"), _each("{x} and {y} of {items} and {others}"),
        {"items others": TWO_LISTS, "x y": PAIRS[:4]}, "two lists",
    ),
    "sum": Template(
        "{items}", "return sum({x} {op} {y} for {y}, {x} in enumerate({items}, 1))",
        VALUES, split("{w}_places | sum_{w} | weigh"),
        split("Sum {p} over every {x} of {items} at place {y}. | Add up {p} for each {x} at place {y}."),
        {**_LIST_SLOTS, "y": INDEXES}, "steps",
    ),
    "neighbours": Template(
        "{items}", "return [{x} {op} {y} for {y}, {x} in zip({items}, {items}[1:])]",
        VALUES, split("{w}_steps | neighbour_{w} | walk"), _each("two neighbours {y} then {x} in {items}"),
        {"items": LISTS, "x y": PAIRS}, "steps",
    ),
    "count": Template(
        "{items}", "return sum(1 for {x} in {items} if {x} {op} {k})",
        TESTS, split("count_{w} | how_many_{w} | number_{w} | count"),
        split("Count every {x} of {items} that is {p}. | Return how often {x} in {items} is {p}."),
        _LIST_SLOTS, "list",
    ),
    "keep": Template(
        "{items}", "return [{x} for {x} in {items} if {x} {op} {k}]",
        TESTS, split("keep_{w} | pick_{w} | select_{w} | select"), _KEEP, _LIST_SLOTS, "list",
    ),
    "every": Template(
        "{items}", "return all({x} {op} {k} for {x} in {items})",
        TESTS, split("all_{w} | every_{w} | check"), _whether("each {x} in {items} is"), _LIST_SLOTS, "list",
    ),
    "some": Template(
        "{items}", "return any({x} {op} {k} for {x} in {items})",
        TESTS, split("any_{w} | some_{w} | check"), _whether("some {x} in {items} is"), _LIST_SLOTS, "list",
    ),
    "fold": Template(
        "{items}", "result = {k}\nfor {x} in {items}:\n    result = result {op} {x}\nreturn result",
        FOLDS, split("{w}_all | {w} | fold"), split("Go through {items} and {p}. | Take {items} and {p}."),
        _LIST_SLOTS, "shrinking", (120, 250, 360, 480, 600, 720, 840, 960),
    ),
    "order": Template(
        "{items}", "return all({x} {op} {y} for {x}, {y} in zip({items}, {items}[1:]))",
        ORDERS, split("is_{w} | {w}_order | check"), _whether("the numbers in {items}"),
        {"items": LISTS, "x y": PAIRS}, "steps",
    ),
    "place": Template(
        "{items}", "return [{x} for {y}, {x} in enumerate({items}) if {y} {op} {k}]",
        PLACES, split("{w}_index | take_{w} | choose"),
        split("Return every {x} of {items} {p}. | Keep each {x} of {items} {p}."),
        {**_LIST_SLOTS, "y": INDEXES}, "places",
    ),
    "pick": Template(
        "{x}, {y}", "return {x} if {x} {op} {y} else {y}",
        PICKS, split("{w} | {w}_of | pick_{w} | choose"),
        split("Return the {p} of {x} and {y}. | Of {x} and {y} give the {p}."), {"x y": PAIRS}, "pair",
    ),
    "limit": Template(
        "{x}", "if {x} {op} {k}:\n    return {k}\nreturn {x}", LIMITS, split("{w} | keep_{w} | clamp"),
        split("Return {x} but {p}. | Give {x} which must be {p}."), {"x": NUMBERS}, "number",
    ),
    "length": Template(
        "{x}", "return len({x}) {op} {k}", LENGTHS, _IS, _whether("{x} is"), {"x": STRINGS}, "string",
    ),
    "keep by length": Template(
        "{items}", "return [{x} for {x} in {items} if len({x}) {op} {k}]",
        LENGTHS, split("keep_{w} | {w}_ones | select_{w} | select"), _KEEP,
        {"items": STRING_LISTS, "x": STRINGS[:6]}, "string list",
    ),
    "multiple": Template(
        "{x}", "return {x} % {k} {op} 0",
        MULTIPLES, _IS, _whether("{x} is"), {"x": NUMBERS}, "number", (3, 4, 5, 6, 7, 8, 9),
    ),
}  # fmt: skip


class Meaning(NamedTuple):
    """A template with the operator it needs, and all names, wordings and constants that remain to be chosen."""

    template: str
    operator: str
    constants: tuple[int, ...]
    function_names: tuple[str, ...]
    docstrings: tuple[str, ...]
    names: tuple[dict[str, str], ...]


_NAMES = {title: template.names() for title, template in TEMPLATES.items()}
MEANINGS = tuple(
    Meaning(title, op, shape.used_constants(), shape.function_names(op), shape.docstrings(op), _NAMES[title])
    for title, shape in TEMPLATES.items()
    for op in shape.wordings
)


class Draw:
    """The choices of :func:`generate`, as second arguments of the hash :func:`mix` of a seed."""

    MEANING, CONSTANT, BROKEN, FUNCTION_NAME, DOCSTRING, NAMES, TESTS = range(7)


class Program(NamedTuple):
    """A generated program; :func:`generate` makes it from a seed."""

    template: str
    operator: str
    """The operator that the name and the docstring describe; others may have the same results."""
    broken: str
    """The wrong operator that the program is shown with."""
    constant: int
    function_name: str
    docstring: str
    names: dict[str, str]

    def source(self, operator: str | None = None) -> str:
        """Return the source with ``operator`` on the marked line; ``None`` means the wrong operator."""
        template = TEMPLATES[self.template]
        body = template.marked_body()
        pattern = f'def {self.function_name}({template.arguments}):\n    """{self.docstring}"""\n{body}\n'
        return pattern.format(**self.names, k=self.constant, op=operator or self.broken)

    def cases(self) -> tuple[Case, ...]:
        """Return the arguments of the tests; their lists are fresh copies."""
        return _CASES[TEMPLATES[self.template].cases](self.constant)

    def expected(self) -> tuple[Any, ...]:
        """Return the expected results of the tests, those of the reference program; their lists are copies."""
        reference = outputs(self.template, self.operator, self.constant)
        return tuple([given[:] if isinstance(given, list) else given for given in reference])

    def results(self, operator: str) -> tuple[Any, ...]:
        """Execute the program with ``operator`` on the marked line, and return its results on the tests."""
        return execute(self.source(operator), self.function_name, self.cases())

    def passes(self, operator: str) -> bool:
        """Execute the program with ``operator`` on the marked line, and return whether all tests pass."""
        return self.results(operator) == self.expected()


def generate(seed: int) -> Program:
    """Return the program of ``seed``."""
    key = mix(seed)
    meaning = MEANINGS[mix(key, Draw.MEANING) % len(MEANINGS)]
    constant = meaning.constants[mix(key, Draw.CONSTANT) % len(meaning.constants)]
    wrong = wrong_operators(meaning.template, meaning.operator, constant)
    return Program(
        meaning.template,
        meaning.operator,
        wrong[mix(key, Draw.BROKEN) % len(wrong)],
        constant,
        meaning.function_names[mix(key, Draw.FUNCTION_NAME) % len(meaning.function_names)],
        meaning.docstrings[mix(key, Draw.DOCSTRING) % len(meaning.docstrings)],
        meaning.names[mix(key, Draw.NAMES) % len(meaning.names)],
    )


# All names that generated programs use.
_BUILTINS = {function.__name__: function for function in (all, any, enumerate, len, sum, zip)}


def execute(source: str, function_name: str, cases: tuple[Case, ...]) -> tuple[Any, ...]:
    """Run the function ``function_name`` of a generated program on each case, and return its results.

    The result of a case that raises is the type of the exception.
    """
    namespace: dict[str, Any] = {"__builtins__": _BUILTINS}
    exec(compile(source, "<codefix>", "exec"), namespace)  # text of our own templates only
    return tuple([_call(namespace[function_name], case) for case in cases])


def _call(function: Callable[..., Any], case: Case) -> Any:
    try:
        return function(*case)
    except (ArithmeticError, TypeError) as error:
        return type(error)


@cache
def outputs(template: str, operator: str, constant: int) -> tuple[Any, ...]:
    """Execute the template with this name, with an operator and a constant, on its tests; return the results.

    Names and wordings do not change the results, so the cache holds them for all programs.
    """
    names = _NAMES[template][0]
    return Program(template, operator, operator, constant, "function", "", names).results(operator)


@cache
def passing(template: str, operator: str, constant: int) -> tuple[bool, ...]:
    """Return for each of :data:`OPERATORS` whether it passes the tests of the reference ``operator``."""
    expected = outputs(template, operator, constant)
    return tuple(outputs(template, candidate, constant) == expected for candidate in OPERATORS)


@cache
def wrong_operators(template: str, operator: str, constant: int) -> tuple[str, ...]:
    """Return the operators that fail the tests, of the family of ``operator``: arithmetic or comparison."""
    family = ARITHMETIC if operator in ARITHMETIC else COMPARISON
    right = passing(template, operator, constant)
    return tuple(op for op in family if not right[OPERATORS.index(op)])
