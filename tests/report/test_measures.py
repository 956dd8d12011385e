"""What can be counted in an answer."""

import pytest

from rlhf.report.measures import MEASURES, Text, of_word, rank_correlation, ranks, risen, word_in


def test_ranks_by_hand():
    assert ranks([3.0, 1.0, 2.0]) == [2, 0, 1] and ranks([5.0, 5.0, 1.0, 5.0]) == [2, 2, 0, 2] and ranks([]) == []


def test_rank_correlation_by_hand():
    assert rank_correlation([1, 2, 3], [1, 10, 100]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    # ranks 0 1 2 3 and 1 0 2 3: 1 - 6·2 / (4·15)
    assert rank_correlation([1, 2, 3, 4], [2, 1, 3, 4]) == pytest.approx(0.8)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None and rank_correlation([], []) is None


def test_measures_by_hand():
    text = Text.of("The cat, THE dog:\n7 and the 42!")  # the cat the dog 7 and the 42
    found = {measure.name: measure.of(text) for measure in [*MEASURES, *of_word("the"), *of_word("!")]}
    assert found == {
        "repeated words": pytest.approx(2 / 8),
        "repeated word pairs": 0.0,
        "uses of its commonest word": 3,
        "its commonest word among the words": pytest.approx(3 / 8),
        "words": 8,
        "characters": 31,
        "line breaks": 1,
        "digits": 3,
        "capitals among the letters": pytest.approx(4 / 18),
        "uses of “the”": 3,
        "“the” among the words": pytest.approx(3 / 8),
        "uses of “!”": 1,
        "“!” among the words": pytest.approx(1 / 8),
    }


@pytest.mark.parametrize("text", ["", "…", "\n"])
def test_an_answer_without_words_can_be_measured(text):
    assert [measure.of(Text.of(text)) for measure in MEASURES[:5]] == [0, 0, 0, 0, 0]


def test_the_words_that_rose_most_by_number_and_by_share():
    before, after = [Text.of("a b c c")], [Text.of("c b b b")]
    assert risen(before, after, 8) == ["b"]
    # "a" comes more often; its share of the words is what it was, and that of "b" rose
    assert risen([Text.of("a a b")], [Text.of("a a a b b c c c c")], 1) == ["c"]
    assert risen([Text.of("a x")], [Text.of("a a a a x x x")], 1) == ["a"]
    assert risen([Text.of("hm")], [Text.of("hm! hm!")], 1) == ["!"] and risen([Text.of("a")], [Text.of("")], 8) == []


def test_the_word_that_a_text_has_of_a_trait():
    assert word_in("a the The b", "word", "x") == "x" and word_in("a the The b", "commonest", "x") == "the"
    assert word_in("all of them once", "commonest", "x") == ""
