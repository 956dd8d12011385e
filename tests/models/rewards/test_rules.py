"""Rewards that can be checked."""

from typing import Any, cast

import pytest
from tiny_models import ForwardEngine, rollout

from rlhf.models.rewards import ArithmeticReward, ExactMatchReward, RegexReward
from rlhf.models.rewards.rules import Rule, normalised


def scores(reward: Rule, texts: list[str], **columns: list[Any]) -> list[float]:
    return reward.build(ForwardEngine(), cast(Any, None))(rollout(texts, columns=columns)).total.tolist()


def test_a_pattern_is_found_or_not():
    reward = RegexReward(pattern=r"<think>.*</think>", score=0.5, otherwise=-1.0)
    assert scores(reward, ["a <think>b</think>", "<think>b", "<think>\n</think>"]) == [0.5, -1.0, -1.0]
    assert scores(RegexReward(pattern=r"(?s)\A<think>.*</think>\Z"), ["<think>\n</think>", "a<think></think>"]) == [
        1,
        0,
    ]
    with pytest.raises(ValueError, match=r"pattern: '\(' is no regular expression"):
        RegexReward(pattern="(")


def test_an_answer_is_compared_without_case_space_and_punctuation():
    assert normalised("  The  “Cat”. ") == "the “cat"
    reward = ExactMatchReward(column="gold")
    texts = ["paris", " Paris.\n", "Paris, France", "", "ﬁve  hens"]
    assert scores(reward, texts, gold=["Paris", "paris", "Paris", "x", "Five hens!"]) == [1, 1, 0, 0, 1]
    assert scores(reward, ["4", "four", "5"], gold=[4, ["4", "Four"], ["4", "four"]]) == [1, 1, 0]


def test_the_answer_can_be_taken_out_of_the_response():
    texts = ["The answer is 3. No: the answer is 4.", "four", "the answer is", "the answer is 5"]
    reward = ExactMatchReward(extract=r"(?i)answer is (\w+)", score=2.0, otherwise=-2.0)
    assert scores(reward, texts, answer=["4"] * 4) == [2.0, -2.0, -2.0, -2.0]
    assert scores(ExactMatchReward(extract=r"\d+"), ["1 and 2"], answer=["2"]) == [1.0]  # no group: all that matched
    assert scores(ExactMatchReward(extract=r"(a)|b"), ["b"], answer=["b"]) == [0.0]  # a group that took no part
    with pytest.raises(ValueError, match=r"extract: .* is no regular expression"):
        ExactMatchReward(extract="[")


def test_numbers_are_compared_exactly():
    texts = ["so 1,234.", "\\boxed{3/4}, not 5", "-2.50 euros", "0.1", "0.1000000000000001", "none", "__import__('os')"]
    golds = ["#### 1234", 0.75, "-5/2", 0.1, 0.1, 3, 0]
    assert scores(ArithmeticReward(), texts, answer=golds) == [1, 1, 1, 1, 0, 0, 0]
    reward = ArithmeticReward(column="gold", tolerance=0.01, otherwise=-0.5)
    assert scores(reward, ["3.14", "3.2", "-99", "99"], gold=["3.14159", "3.14159", -100, -100]) == [1, -0.5, 1, -0.5]


@pytest.mark.parametrize(("reward", "columns", "message"), [
    (ExactMatchReward(column="gold"), {"answer": ["a"]}, "column: the data has no column gold; columns there: answer"),
    (ArithmeticReward(), {}, "column: the data has no column answer; columns there: none"),
    (ExactMatchReward(), {"answer": [None]}, "answer of a row is None, no answer to compare with"),
    (ExactMatchReward(), {"answer": [["", " . "]]}, "no answer to compare with"),
    (ArithmeticReward(), {"answer": ["many"]}, "answer of a row is 'many', no number"),
])  # fmt: skip
def test_rows_without_an_answer_are_named(reward, columns, message):
    with pytest.raises(ValueError, match=message):
        scores(reward, [""], **columns)


def test_a_tolerance_is_a_share():
    with pytest.raises(ValueError, match=r"tolerance is 1\.0; must be at least 0 and below 1"):
        ArithmeticReward(tolerance=1.0)
