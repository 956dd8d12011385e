"""Rated texts in the forms of the stages. The texts are w0 … w9, so that ids can be counted by hand."""

import json
from collections import Counter
from pathlib import Path

import pytest

from rlhf.data.dataset import Data
from rlhf.data.rated import RatedTexts, opening, pair_up
from rlhf.models.tokenizer import train_bpe

ROWS = [
    {"text": "A fine film about trains.", "rating": 2.0},
    {"text": "Dull, and far  too long.", "rating": -1.5},
    {"text": "Not bad for a sequel.", "rating": 0.5},
    {"text": "Superb.", "rating": 3.0},
]


@pytest.fixture
def rated(tmp_path: Path):
    def make(form: str, texts: list[dict] = ROWS, **settings) -> RatedTexts:
        path = tmp_path / "rated.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in texts))
        return RatedTexts(path=str(path), form=form, **settings)

    return make


def test_the_opening_leaves_the_space_to_the_rest() -> None:
    assert opening("A fine film about trains.", 4) == ("A fine film about", " trains.")
    assert opening("Dull, and far  too long.", 3) == ("Dull, and far", "  too long.")
    assert opening("\nTwo words", 1) == ("\nTwo", " words")
    assert opening("Two words", 2) is None  # nothing would be left to say
    assert opening("Two words ", 2) is None  # white space is nothing
    assert opening("", 1) is None


def test_demonstrations_are_first_words_and_the_rest(rated) -> None:
    rows = rated("demonstrations", prompt_words=2).load().to_list()
    assert rows == [
        {"prompt": "A fine", "response": " film about trains."},
        {"prompt": "Dull, and", "response": " far  too long."},
        {"prompt": "Not bad", "response": " for a sequel."},
        {"prompt": None, "response": None},  # one word alone: counted by the data, below
    ]


def test_prompts_carry_their_rating(rated) -> None:
    assert rated("prompts", prompt_words=2, rows=1).load().to_list() == [{"prompt": "A fine", "rating": 2.0}]
    assert rated("texts", rows=2).load().to_list() == [{"text": row["text"]} for row in ROWS[:2]]


def test_min_rating_selects_in_every_form(rated) -> None:
    assert rated("texts", min_rating=0.5).load()["text"][:] == [ROWS[i]["text"] for i in (0, 2, 3)]
    assert rated("demonstrations", min_rating=2.0, prompt_words=1).load()["prompt"][:] == ["A", None]
    chosen = rated("comparisons", min_rating=2.0).load()
    assert {(row["chosen"], row["rejected"]) for row in chosen.to_list()} == {("Superb.", "A fine film about trains.")}
    with pytest.raises(ValueError, match=r"no row has a text and a rating of at least 3.5; lower min_rating"):
        rated("texts", min_rating=3.5).load()


def test_comparisons_of_whole_texts_with_the_gap_as_margin(rated) -> None:
    rows = rated("comparisons", min_gap=3.0, rows=40).load().to_list()
    by_text = {row["text"]: row["rating"] for row in ROWS}
    assert len(rows) == 40
    for row in rows:
        assert row["prompt"] == ""
        assert row["margin"] == by_text[row["chosen"]] - by_text[row["rejected"]] >= 3.0
    # gaps of 3 or more: 2.0 and 3.0 against −1.5 only
    assert {row["rejected"] for row in rows} == {"Dull, and far  too long."}


def test_pairs_use_all_items_evenly() -> None:
    ratings = [float(i % 7) for i in range(50)]
    pairs = pair_up(ratings, 200, min_gap=1.0, seed=0)
    assert len(pairs) == 200 and all(ratings[a] - ratings[b] >= 1.0 for a, b in pairs)
    uses = Counter(item for pair in pairs for item in pair)
    assert len(uses) == 50 and set(uses.values()) <= {7, 8, 9}  # 400 uses over 50 items: 8 each
    assert len(set(pairs)) > 150  # rounds pair anew
    assert pairs == pair_up(ratings, 200, min_gap=1.0, seed=0) != pair_up(ratings, 200, min_gap=1.0, seed=1)


def test_a_minority_is_shared_out_evenly_among_the_majority() -> None:
    pairs = pair_up([1.0] * 9 + [3.0], 9, min_gap=1.0, seed=0)
    assert sorted(pairs) == [(9, low) for low in range(9)]


@pytest.mark.parametrize("ratings", [[], [1.0], [2.0, 2.0], [0.0, 0.9]])
def test_no_pair_is_far_enough_apart(ratings) -> None:
    with pytest.raises(ValueError, match=rf"min_gap: 1.0, but no two of {len(ratings)} ratings"):
        pair_up(ratings, 3, min_gap=1.0, seed=0)


def test_equal_ratings_are_never_paired() -> None:
    assert set(pair_up([1.0, 1.0, 2.0], 6, min_gap=0.0, seed=0)) == {(2, 0), (2, 1)}


def test_a_prompt_and_its_continuation_are_the_tokens_of_the_compared_text(rated) -> None:
    tokenizer = train_bpe([row["text"] for row in ROWS] * 5, vocab_size=300)
    settings = {"eval_fraction": 0.0}
    compared = Data(sources={"r": rated("comparisons", rows=8)}, **settings)
    pairs = compared.prepare(tokenizer, form="comparison", phase="reward").train
    whole = {tuple(ids) for pair in pairs for ids in (pair.chosen_ids, pair.rejected_ids)}
    assert all(pair.prompt_ids == [] for pair in pairs)
    shown = Data(sources={"r": rated("demonstrations", prompt_words=2)}, **settings)
    for example in shown.prepare(tokenizer, form="demonstration", phase="sft").train:
        assert (*example.prompt_ids, *example.response_ids) in whole


@pytest.mark.parametrize(
    ("form", "wanted"),
    [("demonstrations", "demonstration"), ("prompts", "prompt"), ("comparisons", "comparison"), ("texts", "text")],
)
def test_rows_without_a_value_are_counted(rated, form, wanted) -> None:
    rows = [*ROWS[:3], {"text": None, "rating": 1.0}, {"text": "No rating at all.", "rating": None}]
    data = Data(sources={"r": rated(form, rows, prompt_words=2)}, eval_fraction=0.0)
    prepared = data.prepare(train_bpe(["a"], 258), form=wanted, phase="sft")
    assert prepared.drops == {"r/missing_value": 2}
    assert len(prepared.train) == 3  # as many pairs as texts with a value, or a row for each of them


def test_columns_have_the_names_that_are_given(tmp_path: Path) -> None:
    path = tmp_path / "stars.csv"
    path.write_text('review,stars\n"Good, really good.",4\nUnrated one.,\nBad through and through.,1.5\n')
    source = RatedTexts(path=str(path), form="comparisons", text="review", rating="stars", rows=1)
    assert source.load().to_list() == [
        {"prompt": "", "chosen": "Good, really good.", "rejected": "Bad through and through.", "margin": 2.5},
        {"prompt": None, "chosen": None, "rejected": None, "margin": None},
    ]
    with pytest.raises(ValueError, match="no column 'rating'"):
        RatedTexts(path=str(path), form="texts", text="review").load()
    with pytest.raises(ValueError, match=r"stars.csv, row 1: review is 'Good, really good.'; give numbers"):
        RatedTexts(path=str(path), form="texts", text="review", rating="review").load()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": ""}, "path: ''; give a file"),
        ({"prompt_words": 0}, "prompt_words: 0; must be at least 1"),
        ({"rows": 0}, "rows: 0; must be at least 1"),
        ({"min_gap": -1.0}, "min_gap: -1.0; must not be negative"),
    ],
)
def test_wrong_settings(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        RatedTexts(**{"path": "x.jsonl", "form": "texts", **settings})
