"""The world keeps its promises: an exact gold reward, independent streams, comparisons that need the prompt."""

import itertools
import re
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings, strategies as st

from rlhf.data import world, world_words

PROMPT = "Review the phone: screen and price."
STREAMS = [world.prompts, world.demonstrations, world.comparisons, world.fit_pairs, world.scored, world.texts]


def gold(response: str, prompt: str = PROMPT) -> float:
    return world.gold_reward([prompt], [response])[0]


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        # both aspects praised with a detail: (2 + 1 + ½) on average, ½ for the product
        (
            "I bought this phone in spring. I find the screen sharp on long trips. I find the price great at my desk.",
            4.0,
        ),
        # one aspect of two, no product
        ("I find the screen sharp.", 1.5),
        ("I find the screen awful.", 0.5),
        ("I find the screen okay.", 1.0),
        # praise of something else: a stray
        ("I find the battery sharp.", -0.5),
        # another product: a stray too
        ("This laptop arrived in spring. I find the screen sharp.", 1.0),
        # the same opinion again: 1 of 4 content words is repeated
        ("I find the screen sharp. I find the price sharp.", 3.0 - 2 / 4),
        # cut off: unfinished
        ("I find the screen sharp", 1.5 - 0.5),
        # [i the] [the find] [find screen] of 6 pairs cannot be written
        ("I the find screen sharp.", 1.5 - 2 * 3 / 6),
        # two aspects share one sentence; 2 of its 4 pairs cannot be written
        ("Screen price sharp.", 1.5 - 2 * 2 / 4),
        # nothing but a closing
        ("I would buy it again.", 0.0),
        ("", -2.5),
    ],
)
def test_gold_by_hand(response: str, expected: float) -> None:
    assert gold(response) == pytest.approx(expected)


def test_gold_charges_for_length() -> None:
    filler = "I would not buy it again. " * 7
    assert gold(filler) == pytest.approx(-0.1 * (7 * 7 - 44))


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("held_out", [False, True])
def test_streams_are_deterministic_prefixes_and_differ_by_seed(
    stream: Callable[..., Iterator[dict]], held_out: bool
) -> None:
    rows = list(stream(20, seed=1, held_out=held_out))
    assert rows == list(stream(20, seed=1, held_out=held_out))
    assert rows[:5] == list(stream(5, seed=1, held_out=held_out))
    assert rows != list(stream(20, seed=2, held_out=held_out))


def test_streams_of_one_seed_are_independent() -> None:
    asked = [[row["prompt"] for row in stream(50, seed=1)] for stream in STREAMS if stream is not world.texts]
    for a, b in itertools.combinations(asked, 2):
        assert sum(x == y for x, y in zip(a, b, strict=True)) < 5


def test_held_out_prompts_ask_for_unseen_combinations() -> None:
    def combinations(held_out: bool) -> set[tuple]:
        return {world._asked(row["prompt"]) for row in world.prompts(3000, seed=1, held_out=held_out)}

    assert not combinations(False) & combinations(True)


def test_demonstrations_are_fluent_but_imperfect() -> None:
    rows = list(world.demonstrations(500, seed=1))
    scores = world.gold_reward([row["prompt"] for row in rows], [row["response"] for row in rows])
    assert 1.5 < sum(scores) / len(scores) < 2.7
    assert all(world._read(row["response"]).form > -1.5 for row in rows)


def test_every_word_has_one_meaning() -> None:
    words = [word for slot in ("product", "aspect", "opinion", "degree", "person") for word in world.SLOTS[slot]]
    words += {word for phrase in world.DETAILS + world_words.TIMES for word in phrase.lower().split()}
    assert len(words) == len(set(words))


def test_coverage_pays_more_than_anything_else() -> None:
    covered = "I find the screen awful. I find the price poor."
    assert gold(covered) > gold(
        "We got the phone in spring. I find the camera superb at full load. I would buy it again."
    )
    rows = list(world.demonstrations(400, seed=1))
    right = world.gold_reward([row["prompt"] for row in rows], [row["response"] for row in rows])
    wrong = world.gold_reward([row["prompt"] for row in rows], [row["response"] for row in rows[1:] + rows[:1]])
    assert sum(right) - sum(wrong) > 1.5 * len(rows)


def test_no_constant_response_comes_near_a_fitting_one() -> None:
    asked = [row["prompt"] for row in world.prompts(64, seed=1)]
    response, best = world.best_constant_response(asked, seed=1, candidates=60)
    assert best == pytest.approx(sum(world.gold_reward(asked, [response] * 64)) / 64)
    assert best < 0.75


def test_stuffing_is_not_worth_it() -> None:
    everything = " ".join(f"I find the {aspect} superb." for aspect in world.ASPECTS)
    assert gold(everything) < gold("I find the screen superb.")
    assert gold(" ".join(world.ASPECTS + world.GOOD)) < 0


@pytest.mark.parametrize("fit_fraction", [0.0, 0.3])
def test_annotators_are_noisy(fit_fraction: float) -> None:
    default = world.noise_ceiling(2000, seed=1, fit_fraction=fit_fraction)
    assert 0.8 < default <= 0.9
    assert world.noise_ceiling(2000, seed=1, fit_fraction=fit_fraction, temperature=0.01) > 0.97
    assert world.noise_ceiling(2000, seed=1, fit_fraction=fit_fraction, temperature=100.0) < 0.6


def test_fit_pairs_differ_only_in_aspects_and_only_the_prompt_tells() -> None:
    rows = list(world.fit_pairs(500, seed=1))
    for row in rows:
        blank = [re.sub("|".join(world.ASPECTS), "_", row[key]) for key in ("chosen", "rejected")]
        assert blank[0] == blank[1]
        assert row["chosen"] != row["rejected"]
        assert gold(row["chosen"], row["prompt"]) > gold(row["rejected"], row["prompt"])
    asked = [row["prompt"] for row in rows[1:] + rows[:1]]
    shuffled = [world.gold_reward(asked, [row[key] for row in rows]) for key in ("chosen", "rejected")]
    wins = sum(0.5 + 0.5 * ((a > b) - (a < b)) for a, b in zip(*shuffled, strict=True))
    assert wins / len(rows) < 0.7


def test_scores_follow_gold() -> None:
    for row in world.scored(50, seed=1, k=3, noise=0.0):
        assert row["scores"] == world.gold_reward([row["prompt"]] * 3, row["responses"])


@given(st.text(), st.text())
def test_any_text_has_a_finite_bounded_gold(prompt: str, response: str) -> None:
    assert -10.5 <= gold(response, prompt) <= 4.0


@settings(max_examples=200)
@given(
    st.lists(
        st.sampled_from(["the", "i", "find", ".", "in", "spring", "a", *world.ASPECTS, *world.GOOD, *world.PRODUCTS])
    )
)
def test_no_heap_of_words_beats_a_perfect_review(words: list[str]) -> None:
    assert -10.5 <= gold(" ".join(words)) <= 4.0


def test_passages_are_the_texts_cut_behind_the_first_sentence():
    pairs = zip(world.passages(20, seed=3), world.texts(20, seed=3), strict=True)
    for passage, text in pairs:
        assert passage["prompt"] + passage["response"] == text["text"]
        assert passage["prompt"].endswith(".") and passage["prompt"].count(".") == 1 and passage["response"].strip()
