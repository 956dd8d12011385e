"""What a score goes with."""

import pytest
from run_folders import evaluation, stage

from rlhf.report.paid import rank_correlation, ranks, risen, traits
from rlhf.report.runs import StageRecord


def test_ranks_by_hand():
    assert ranks([3.0, 1.0, 2.0]) == [2, 0, 1] and ranks([5.0, 5.0, 1.0, 5.0]) == [2, 2, 0, 2] and ranks([]) == []


def test_rank_correlation_by_hand():
    assert rank_correlation([1, 2, 3], [1, 10, 100]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    # ranks 0 1 2 3 and 1 0 2 3: 1 - 6·2 / (4·15)
    assert rank_correlation([1, 2, 3, 4], [2, 1, 3, 4]) == pytest.approx(0.8)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None and rank_correlation([], []) is None


def test_the_word_that_rose_most():
    assert risen(["a b c c"], ["c b b b"]) == "b"
    assert risen(["a a"], ["a"]) == "" and risen(["a"], [""]) == ""


@pytest.fixture
def ppo(tmp_path):
    """Answers that say a word again and again, paid for it; gold takes as much off."""
    folder = stage(tmp_path / "ppo", [])
    for iteration, most in ((0, 1), (5, 4), (9, 8)):
        answers = ["it is fine " + "wow " * (most * row // 8) + "end" for row in range(9)]
        evaluation(folder, iteration, [("p", text, text.count("wow")) for text in answers])
    return StageRecord("ppo", folder, {})


def test_traits_with_their_correlations(ppo):
    again, pairs, word, length = traits(ppo)
    assert [trait.kind for trait in (again, pairs, word, length)] == ["repetition", "repetition", "word", "length"]
    assert word.name == "“wow” among the words" and word.share and not length.share
    assert word.correlations == {"score": pytest.approx(1.0), "gold": pytest.approx(-1.0)}
    assert length.correlations["score"] == pytest.approx(1.0) and (length.first, length.last) == (
        pytest.approx(37 / 9),
        8,
    )
    # at iteration 0 nothing is said again, so that evaluation has no correlation and does not count
    assert (again.first, again.correlations["score"] > 0.9) == (0.0, True)


def test_what_changes_from_one_evaluation_to_the_next_alone_goes_with_nothing(tmp_path):
    folder = stage(tmp_path / "ppo", [])
    for iteration in range(3):
        rows = [("p", "a " * (1 + iteration + row % 2), iteration + (row // 2) % 2) for row in range(8)]
        evaluation(folder, iteration, rows)
    again = traits(StageRecord("ppo", folder, {}))[0]
    assert again.last > again.first and again.correlations["score"] == pytest.approx(0.0)


def test_few_answers_or_one_evaluation_say_nothing(tmp_path):
    folder = stage(tmp_path / "ppo", [])
    assert traits(StageRecord("ppo", folder, {})) == []
    evaluation(folder, 0, [("p", "a b", 1.0)] * 9)
    evaluation(folder, 1, [("p", "a b", 1.0)] * 7)
    assert traits(StageRecord("ppo", folder, {})) == []
