"""Numbers in text."""

import time
from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st

from rlhf.models.rewards.arithmetic import answer_of, gold_number, numbers_in


@pytest.mark.parametrize(("text", "answer"), [
    ("1,234", 1234), ("so 3/4", "3/4"), ("-2.50", "-5/2"), ("The answer is 12.", 12), ("10.5.", "10.5"),
    ("1,234,567.89 dollars", "1234567.89"), ("$5", 5), ("-$5", -5), ("$-5$", -5), ("50%", 50), ("\\$1,000\\%", 1000),
    ("5-3", 3), ("5 - 3", 3), ("5 - 3 = 2", 2), ("x=-3", -3), ("(-3)", -3), ("f(2)-3", 3), ("−7", -7), ("+7", 7),
    ("1 3/4", "7/4"), ("1 / 2", "1/2"), ("3.5/2", "7/4"), (".5", "1/2"), ("12-year-old", 12), ("3 m^2", 3),
    ("3 m^{2}", 3), ("\\frac{3}{4}", "3/4"), ("2\\frac{3}{4}", "11/4"), ("-\\frac{3}{4}", "-3/4"), ("\\dfrac12", "1/2"),
    ("2e-3", "1/500"), ("1.5 \\times 10^{3}", 1500), ("1{,}234", 1234), ("1\\,234", 1234), ("1,2", 2), ("1,2345", 2345),
    ("#### 72", 72), ("5 apples, H2O", 5), ("3 eggs and 2 hens", 2),
])  # fmt: skip
def test_the_last_number(text, answer):
    assert answer_of(text) == Fraction(answer)


@pytest.mark.parametrize(("text", "answer"), [
    ("\\boxed{42} or 43", 42), ("\\boxed{1} no, \\boxed{2}", 2), ("\\boxed{\\frac{1}{2}}", "1/2"),
    ("\\boxed{42\\text{ km}}", 42), ("\\boxed{x = 5}", 5), ("\\boxed{4} then \\boxed{5", 4),
    ("$\\boxed{1,000}$.", 1000), ("} \\boxed{{1} + {\\boxed{6}}}", 6),
])  # fmt: skip
def test_a_box_comes_before_what_stands_behind_it(text, answer):
    assert answer_of(text) == Fraction(answer)


@pytest.mark.parametrize("text", [
    "", "no number", "H2O", "\\boxed{5 or 6}", "\\boxed{}", "2^{10}", "12, so 10^5", "3/0", "1/2/2020", "1e999",
    "12 or 1e" + "9" * 5000, "9" * 5000, "1/" + "2" * 5000,
])  # fmt: skip
def test_no_answer(text):
    """Not an earlier number either: what stands last was meant."""
    assert answer_of(text) is None


def test_long_text_is_read_in_little_time():
    start = time.process_time()
    for text in ("1," * 9000, "1 " * 9000, "\\boxed{" * 2000, "9" * 20000, "1/1" * 5000, "(-" * 9000, "a.1" * 9000):
        numbers_in(text)
        answer_of(text)
    assert time.process_time() - start < 5


@settings(max_examples=50, deadline=None)
@given(st.fractions(min_value=-(10**6), max_value=10**6, max_denominator=1000))
def test_fractions_and_their_spellings(value):
    sign, value = ("-" if value < 0 else ""), abs(value)
    whole, rest = divmod(value.numerator, value.denominator)
    spellings = [
        f"{sign}{value.numerator}/{value.denominator}",
        f"{sign}\\frac{{{value.numerator}}}{{{value.denominator}}}",
    ]
    spellings += [f"{sign}{whole} {rest}/{value.denominator}"]
    for spelling in spellings:
        assert answer_of(f"it is {spelling} km.") == answer_of(f"\\boxed{{{spelling}}}") == (-value if sign else value)


@settings(max_examples=50, deadline=None)
@given(st.decimals(min_value=-(10**9), max_value=10**9, places=3))
def test_decimals_and_thousands(value):
    for spelling in (f"{value}", f"{value:,}", f"{value:,}".replace(",", "{,}")):
        assert answer_of(f"so {spelling}.") == Fraction(value)


def test_gold_is_a_number_or_text():
    assert gold_number(72) == 72 and gold_number("The total is 7 + 65.\n#### 72") == 72
    assert gold_number(0.1) == Fraction(1, 10) and gold_number(1e22) == 10**22 and gold_number(-2.5) == Fraction(-5, 2)
    for none in (None, True, float("nan"), float("inf"), "none", ""):
        assert gold_number(none) is None
