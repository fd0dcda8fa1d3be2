"""Answers of replies in free text: which number they give, and that it is given in the form asked for."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest

from envweave_gym.envs.gsm8k.number_answers import read_answer, read_number

NB, THIN, NARROW = "\u00a0", "\u2009", "\u202f"

FORMATTED = {
    "#### 72": 72,
    "####72": 72,
    "So she sold 72.\n#### 72\n": 72,
    "#### 72.": 72,
    "#### -7": -7,
    "#### - 7": -7,
    "#### \u22127": -7,
    "#### \u20137": -7,
    "#### +7": 7,
    "#### -(7)": -7,
    "#### -( $7.50 )": Fraction("-7.5"),
    "#### 10-(3)": None,
    "\\boxed{-(3/4)}": Fraction(-3, 4),
    "#### $1,000": 1000,
    "#### \u20ac1,234.50": Fraction("1234.5"),
    "#### -$5": -5,
    "#### $-5": -5,
    "#### US$5": 5,
    "#### USD 5": 5,
    "#### Rs 5": None,  # a word begins it, as it begins a heading
    "#### 5 USD": 5,
    "#### 50%": 50,
    "#### 72 clips": 72,
    "#### 72clips": 72,
    "#### 12 km/h": 12,
    "#### 25 m\u00b2": 25,
    "#### 25 m^2": 25,
    "#### **72**": 72,
    "#### `72`": 72,
    "#### $72$": 72,
    "#### \\$72": 72,
    "#### \\(72\\)": 72,
    "#### \\boxed{72}": 72,
    "#### x = 72": 72,
    "#### Answer: 72": 72,
    "#### Final answer\n72": 72,
    "#### 48 + 24 = 72": 72,
    "#### 72 (48 + 24)": 72,
    "#### 3/4": Fraction(3, 4),
    "#### 1 3/4": Fraction(7, 4),
    "#### -1 1/2": Fraction(-3, 2),
    "#### 2\u00bd cups": Fraction(5, 2),
    "#### \u00be": Fraction(3, 4),
    "#### 3\u20444": Fraction(3, 4),
    "#### 0.75": Fraction(3, 4),
    "#### .5": Fraction(1, 2),
    "#### 5.00": 5,
    "#### 007": 7,
    "#### 1.5e3": 1500,
    "#### 2E-2": Fraction(1, 50),
    "#### 1.5 x 10^3": 1500,
    "#### 1.5 \u00d7 10\u00b3": 1500,
    "#### 10^6": 10**6,
    "#### 10 000": 10000,
    f"#### 10{NB}000": 10000,
    f"#### 1{THIN}234{THIN}567": 1234567,
    f"#### 1{NARROW}000,5": None,
    "#### 1'000": 1000,
    "#### 1_000": 1000,
    "#### 1,00,000": 100000,
    "#### \uff11\uff12\uff13": 123,
    "\uff03\uff03\uff03\uff03 \uff11\uff0c\uff10\uff10\uff10": 1000,
    "#### \u0661\u066c\u0662\u0663\u0664\u066b\u0665": Fraction("1234.5"),
    "#### \u096d\u0968": 72,
    "#### \u200e72\u200f": 72,
    "#### 5\n#### 6": 6,
    "#### Step 2: add\n48 + 24 = 72\n#### 72": 72,
    "\\boxed{72}": 72,
    "$\\boxed{72}$.": 72,
    "\\boxed{\\text{72 clips}}": 72,
    "\\boxed{72 \\text{ clips}}": 72,
    "\\boxed{\\$1{,}000}": 1000,
    "\\boxed{1,\\!000}": 1000,
    "\\boxed{1\\,000}": 1000,
    "\\boxed{50\\%}": 50,
    "\\boxed{\\frac{3}{4}}": Fraction(3, 4),
    "\\boxed{-\\dfrac{1}{2}}": Fraction(-1, 2),
    "\\boxed{2\\frac{1}{2}}": Fraction(5, 2),
    "\\boxed{\\tfrac34}": Fraction(3, 4),
    "\\boxed{x = 5}": 5,
    "\\boxed{\\boxed{5}}": 5,
    "\\boxed{1.5 \\times 10^{3}}": 1500,
    "\\boxed{30^\\circ}": 30,
    "\\boxed 7": 7,
    "\\boxed{4}, no: \\boxed{5}": 5,
    "\\boxed{\\text{yes}} as \\boxed{5}, \\boxed{\\text{so}}": 5,
}
PLAIN = {
    "72": 72,
    " 72 ": 72,
    "72.": 72,
    "The answer is 72.": 72,
    "the answer is: $72": 72,
    "The final answer is **72** clips in 2 months.": 72,
    "The answer is x = 72": 72,
    "The answer is therefore 72, as 48+24 is that.": 72,
    "Answer: 72\nI used 2 steps.": 72,
    "answer = -3": -3,
    "**Answer**: 72\nThese are 2 steps.": 72,
    "<answer>72</answer> in 2 steps": 72,
    "The answer is:\n\n**72** in 2 steps": 72,
    "The answer is 48 + 24 = 72.": 72,
    "The answer is not 5. It is 6.": 6,
    "She sold 48 in April and 24 in May, 72 in all.": 72,
    "It costs $1,234.56.": Fraction("1234.56"),
    "10-3 leaves 7": 7,
    "COVID-19 took 5": 5,
    "5 apples on 2024/05/06": 5,
    "5 apples at 10:30": 5,
    "x_1 is 5 m^2": 5,
    "#### 1. Add up\n48 + 24 = 72": 72,
    "#### Step 1\nThere are 72": 72,
    "##### 5\nIt is 6": 6,
    "\\boxed{72": 72,
    "\u0665": 5,
    "3\u00b2 = 9": 9,
}
NOTHING = (
    *(
        "",
        " ",
        "no idea",
        "####",
        "#### none",
        "\\boxed{}",
        "\\boxed{\\text{no}}",
        "seventy-two",
        "$",
        "-",
        ".",
    ),
    *("#### 5 or 7", "#### 5-7", "#### 5 to 7", "#### 5, 7", "#### 5 / 0", "#### 5 hours and 30 minutes"),
    *("The answer is 5 or 7.", "The answer is 5 and 7.", "\\boxed{5, 7}", "\\boxed{5 \\text{ or } 7}"),
    *(
        "#### 3,5",
        "#### 1,0000",
        "#### 12,34",
        "#### 0,123",
        "1.2.3",
        "#### 1.000,50",
        "1/2/3",
        "2^5",
        "10:30",
    ),
    *("1e999999999", "9" * 5000, "nan", "inf", "x1", "#### 1 3/2", "\u00b2"),
)


@pytest.mark.parametrize(("reply", "number"), FORMATTED.items())
def test_an_answer_in_the_form_asked_for(reply: str, number: Fraction | int | None) -> None:
    answer = read_answer(reply)
    if number is None:
        assert answer is None or not answer.formatted
        return
    assert answer is not None
    assert (answer.value, answer.formatted) == (number, True)


@pytest.mark.parametrize(("reply", "number"), PLAIN.items())
def test_an_answer_in_a_sentence_or_the_last_number(reply: str, number: Fraction | int) -> None:
    answer = read_answer(reply)
    assert answer is not None
    assert (answer.value, answer.formatted) == (number, False)


@pytest.mark.parametrize("reply", NOTHING)
def test_no_answer_or_more_than_one(reply: str) -> None:
    assert read_answer(reply) is None


def test_numbers_are_compared_exactly() -> None:
    third = read_number("1/3")
    assert third == Fraction(2, 6)
    assert third != read_number("0.3333333333333333")
    assert read_number("0.1") == Fraction(1, 10) != Fraction(0.1)
    assert read_number("1,000") == read_number("1000.0") == read_number("1e3") == 1000


def test_the_number_of_a_result_is_read_alone() -> None:
    assert read_number("7 clips") == 7
    assert read_number("\uff17") == 7
    assert read_number("none") is None
    assert read_number("5 or 7") is None


@pytest.mark.parametrize(
    "part",
    [
        *(
            "1 ",
            "1,",
            "1 111 ",
            "#### ",
            "#### 7 ",
            "\\boxed{",
            "\\boxed{1}",
            "answer is ",
            " ",
            "\n",
            "-",
            "$",
        ),
        *("\\frac{", "9", "1/", "*", "=1", "\u00bd", "5e", "1'", "^ ", "\\frac{1 ", "72 or ", "answer: the "),
        *("\u00e91", "(", "1 1/", "{", "}", "~", "\\,", "a$", "x="),
    ],
)
def test_no_reply_takes_long_to_read(part: str) -> None:
    started = time.thread_time()
    for reply in (part * (65_536 // len(part)), f"#### 72{part * (60_000 // len(part))}x"):
        read_answer(reply)
    assert time.thread_time() - started < 2
