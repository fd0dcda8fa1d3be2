"""Word problems: what a solution says, rows that are wrong, and the problems that are generated."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest
from gsm8k_rows import SYNTHETIC, all_real_rows, real_rows

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.data.gsm8k import GSM8K, MAX_QUESTION, SPLITS, Problem
from envweave_gym.data.sources import rows_of
from envweave_gym.data.word_problems.generated_problems import SIZES, problem, problems
from envweave_gym.data.word_problems.templates import TEMPLATES

CLIPS = Problem(
    "Natalia sold clips to 48 of her friends in April, and then half as many clips in May. How many?",
    "She sold 48/2 = <<48/2=24>>24 clips in May.\nIn all 48+24 = <<48+24=72>>72 clips.\n#### 72",
)


def test_a_solution_has_steps_calculations_and_a_result() -> None:
    assert CLIPS.steps == ("She sold 48/2 = 24 clips in May.", "In all 48+24 = 72 clips.")
    assert CLIPS.calculations == (("48/2", "24"), ("48+24", "72"))
    assert CLIPS.final == "72"
    assert Problem("?", "#### 1,000 ").final == "1,000"
    assert Problem("?", "#### 1\n#### 2").final == "2"


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('{"question": "?"}', "missing required field `answer`"),
        ('{"question": 1, "answer": "#### 1"}', "Expected `str`"),
        ('{"question": "?", "answer": "72"}', "does not end in '#### ' and a result"),
        ('{"question": "?", "answer": "#### "}', "does not end in '#### ' and a result"),
        (f'{{"question": "{"?" * (MAX_QUESTION + 1)}", "answer": "#### 1"}}', "more than 16384"),
        ('{"question": "?", "answer": "#### 1', "truncated"),
    ],
)
def test_a_row_that_is_wrong_is_named_with_its_line(tmp_path: Path, row: str, problem: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"question": "?", "answer": "#### 1"}}\n\n{row}\n')
    with pytest.raises(InvalidArgument) as refused:
        rows_of(GSM8K, str(path), "train")
    assert f"{path}, line 3: " in str(refused.value)
    assert problem in str(refused.value)


def test_generated_splits_have_thousands_of_problems_and_none_twice() -> None:
    assert {split: len(problems(split)) for split in SPLITS} == SIZES
    assert sum(SIZES.values()) > 5000
    assert len({one.question for one in SYNTHETIC}) == len(SYNTHETIC)
    assert list(rows_of(GSM8K, "synthetic", "test")) == problems("test")


def test_a_number_gives_one_problem_for_ever() -> None:
    assert problem(0) == problem(0) == problems("train")[0]
    assert problem(12).question == (
        "In Tomas's bakery 7 people make 9 loaves an hour each. They work 10 hours a day, and 5 of the "
        "loaves cannot be sold. How many can be sold each day?"
    )
    assert problem(12).calculations == (("7*9", "63"), ("63*10", "630"), ("630-5", "625"))


def test_templates_are_many_and_each_varies() -> None:
    assert len(TEMPLATES) >= 12
    for template in range(len(TEMPLATES)):
        ones = [problem(number) for number in range(template, 50 * len(TEMPLATES), len(TEMPLATES))]
        assert len({one.question for one in ones}) > 45
        assert len({one.final for one in ones}) > 12


def test_every_generated_calculation_is_right_and_the_last_gives_the_result() -> None:
    for one in SYNTHETIC:
        assert len(one.steps) == len(one.calculations) >= 3
        for terms, result in one.calculations:
            assert computed(terms) == Fraction(result)
            assert f"{terms} = " in one.answer
        assert one.calculations[-1][1] == one.final
        assert one.answer.endswith(f"\n#### {one.final}")


def computed(terms: str) -> Fraction:
    """The value of a calculation, by Python's own arithmetic."""
    return eval(re.sub(r"[\d.]+", lambda number: f"Fraction('{number[0]}')", terms), {"Fraction": Fraction})


def test_generated_results_are_of_several_kinds() -> None:
    finals = [one.final for one in SYNTHETIC]
    kinds = {
        "integer": sum(final.isdigit() for final in finals),
        "negative": sum(final.startswith("-") for final in finals),
        "decimal": sum("." in final for final in finals),
    }
    assert kinds["integer"] > 0.8 * len(finals)
    assert kinds["negative"] > 50
    assert kinds["decimal"] > 200
    assert sum("$" in one.question for one in SYNTHETIC) > 1000
    assert sum("/" in one.question for one in SYNTHETIC) > 100


def test_all_real_rows_load() -> None:
    assert [len(real_rows(split)) for split in SPLITS] == [7473, 1319]
    rows = all_real_rows()
    assert len({row.question for row in rows}) == len(rows)
    assert all(re.fullmatch(r"-?\d[\d,]*", row.final) for row in rows)
    assert sum(bool(row.calculations) for row in rows) > 8600
    assert all(row.steps and "<<" not in "".join(row.steps) for row in rows)
