"""Texts as ids: what stands before and behind them, and that many at once are cut where nobody sees it."""

import pytest

from rlhf.data import tokens
from rlhf.errors import UserError


def test_texts_are_taken_so_many_at_once_and_keep_their_order(words, monkeypatch) -> None:
    monkeypatch.setattr(tokens, "_AT_ONCE", 2)
    texts = ["w0", "w1 w2", "", "w3", "w4"]
    assert tokens.encode_all(texts, words(bos=True)) == [[10], [11, 12], [], [13], [14]]  # and nothing is added
    assert tokens.encode_all([], words()) == []
    assert tokens.encode("w5 w6", words()) == [15, 16]


def test_a_beginning_stands_once_and_only_where_the_tokenizer_adds_one(words) -> None:
    rows = [[10], [2, 10], []]
    assert tokens.all_with_bos(rows, words(bos=True)) == [[2, 10], [2, 10], [2]]
    assert tokens.all_with_bos(rows, words(bos=False)) == rows
    assert tokens.with_bos([10], words(bos=True)) == [2, 10]


def test_the_end_is_the_tokenizers_unless_another_is_named(words) -> None:
    assert (tokens.marker_id(None, words()), tokens.marker_id(".", words())) == (1, 112)
    assert (tokens.marker_text(None, words(eos=False)), tokens.marker_text("x", words(eos=False))) == (None, "x")
    assert tokens.marker_id("<unk>", words()) == 3  # a token like others, where it is meant
    with pytest.raises(UserError, match="'nothing' is not a token of the tokenizer"):
        tokens.marker_id("nothing", words())
    with pytest.raises(UserError, match="end marker: none, the tokenizer has no eos_token"):
        tokens.known_marker_text(None, words(eos=False))


@pytest.mark.parametrize(
    ("text", "marker", "left"),
    [
        ("a</s></s>", "</s>", "a"),
        ("</s>a", "</s>", "</s>a"),
        ("a</s> ", "</s>", "a</s> "),
        ("a", None, "a"),
        ("a", "", "a"),
    ],
)
def test_markers_that_the_data_brought_go_as_often_as_they_stand_at_the_end(text, marker, left) -> None:
    assert tokens.without_end(text, marker) == left
