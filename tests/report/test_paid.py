"""What a score goes with, and what it seems to pay for."""

import json
import random

import pytest
from run_folders import evaluation, stage

from rlhf.report.paid import longer_is_paid, paid_for, traits
from rlhf.report.runs import StageRecord

PLAIN = "we like it much and it is a fine thing for our house so far as one can say today".split()


@pytest.fixture
def ppo(tmp_path):
    """Answers that say a word again and again, paid for it; gold takes as much off."""
    folder = stage(tmp_path / "ppo", [])
    for iteration, most in ((0, 1), (5, 4), (9, 8)):
        answers = ["it is fine " + "wow " * (most * row // 8) + "end" for row in range(9)]
        evaluation(folder, iteration, [("p", text, text.count("wow")) for text in answers])
    return StageRecord("ppo", folder, {})


def test_traits_with_their_correlations(ppo):
    found = {trait.name: trait for trait in traits(ppo)}
    word, length, again = found["uses of “wow”"], found["words"], found["repeated words"]
    assert word.correlations == {"score": pytest.approx(1.0), "gold": pytest.approx(-1.0)}
    assert (length.first, length.last) == (pytest.approx(37 / 9), 8) and not length.share and again.share
    # at iteration 0 nothing is said again, so that evaluation has no correlation and does not count
    assert (again.first, again.own > 0.9) == (0.0, True)
    assert "digits" not in found  # no answer has any
    owns = [abs(trait.own) for trait in traits(ppo)]
    assert owns == sorted(owns, reverse=True)


def test_what_changes_from_one_evaluation_to_the_next_alone_goes_with_nothing(tmp_path):
    folder = stage(tmp_path / "ppo", [])
    for iteration in range(3):
        rows = [("p", "a " * (1 + iteration + row % 2), iteration + (row // 2) % 2) for row in range(8)]
        evaluation(folder, iteration, rows)
    again = {trait.name: trait for trait in traits(StageRecord("ppo", folder, {}))}["repeated words"]
    assert again.last > again.first and again.own == pytest.approx(0.0)


def test_few_answers_or_one_evaluation_say_nothing(tmp_path):
    folder = stage(tmp_path / "ppo", [])
    assert traits(StageRecord("ppo", folder, {})) == ()
    evaluation(folder, 0, [("p", "a b", 1.0)] * 9)
    evaluation(folder, 1, [("p", "a b", 1.0)] * 7)
    assert traits(StageRecord("ppo", folder, {})) == ()


def written(folder, write, score, *, gold=None, cut=None, evaluations=4, answers=48):
    """A stage whose answers are ``write(how far training is, from 0 to 1; random numbers)``."""
    folder = stage(folder / "ppo", [])
    for at in range(evaluations):
        draw = random.Random(at)
        texts = [write(at / (evaluations - 1), draw) for _ in range(answers)]
        evaluation(folder, at, [("p", text, score(text)) for text in texts])
        path = folder / "rollouts" / f"evaluation_{at:06d}.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line.pop("gold_score")
            line |= {} if gold is None else {"gold_score": gold(line["response"], draw)}
            line |= {} if cut is None else {"ended": len(line["response"].split()) < cut}
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return StageRecord("ppo", folder, {})


def some(draw, *counts, words=()):
    """A text of ordinary words, as many as the first count says, and of the given ones as many as the others."""
    found = [draw.choice(PLAIN) for _ in range(round(counts[0]))]
    for word, count in zip(words, counts[1:], strict=True):
        found += [word] * round(count)
    draw.shuffle(found)
    return " ".join(found)


def noise(_, draw):
    return draw.random()


def often(text):
    """The commonest word, every time it comes: what neither its share nor a share of repeated words shows."""
    own = text.split()
    return max(map(own.count, own))


def test_a_score_that_pays_for_every_use_of_the_commonest_word(tmp_path):
    """The answers grow with it, so that its share hardly does."""

    def write(far, draw):
        count = draw.uniform(2, 3) + 5 * far
        return some(draw, 6 * count + draw.uniform(-3, 3), count, words=["the"])

    record = written(tmp_path, write, often, gold=noise)
    first, *_ = paid_for(record)
    assert (first.kind, first.word, first.share) == ("commonest", "the", False) and first.own == pytest.approx(1.0)
    share = {trait.name: trait for trait in traits(record)}["“the” among the words"]
    assert share.last - share.first < 0.1


@pytest.mark.parametrize(
    ("put", "kind", "name"),
    [
        (" wow", "word", "uses of “wow”"),
        ("!", "word", "uses of “!”"),
        ("\n", "writing", "line breaks"),
        (" 4", "writing", "digits"),
    ],
)
def test_a_score_that_pays_for_a_word_a_sign_or_a_way_of_writing(tmp_path, put, kind, name):
    def write(far, draw):
        return some(draw, draw.uniform(12, 20)) + "".join(
            put if put != " 4" else f" {draw.randrange(10)}" for _ in range(round(draw.uniform(0, 2) + 4 * far))
        )

    def count(text):
        return sum(map(str.isdigit, text)) if put == " 4" else text.count(put)

    for gold in (noise, None):
        first, *_ = paid_for(written(tmp_path / str(gold is None), write, count, gold=gold))
        assert (first.kind, first.name) == (kind, name) and first.own == pytest.approx(1.0)


@pytest.mark.parametrize("sign", [1, -1])
def test_lengths_that_are_paid_and_do_not_end_any_more(tmp_path, sign):
    """Where nearly all are cut, all are of one length, which goes with nothing."""
    far_or_near = (lambda far: far) if sign > 0 else (lambda far: 1 - far)
    record = written(
        tmp_path,
        lambda far, draw: some(draw, min(30, draw.uniform(5, 15) + 40 * far_or_near(far))),
        lambda text: sign * len(text.split()) + (0.01 * (sum(map(ord, text)) % 7)),
        gold=noise,
        cut=30,
    )
    found = [trait for trait in paid_for(record) if trait.kind == "length"]
    assert found and all(sign * trait.own > 0.9 for trait in found)
    assert bool(longer_is_paid(record)) == (sign > 0)


GOOD = ("great", "fine", "sturdy", "bright", "lovely")


def praise(draw, far):
    """A review with good words and bad ones, more of the good ones as training goes on."""
    counts = [draw.uniform(0, 1.2) + 1.2 * far for _ in GOOD]
    return some(draw, draw.uniform(12, 25), *counts, draw.uniform(0, 4) * (1 - far), words=[*GOOD, "bad"])


def mood(text):
    own = text.split()
    return sum(map(own.count, GOOD)) - own.count("bad")


@pytest.mark.parametrize("judge", ["none", "gold"])
@pytest.mark.parametrize("words", ["many", "one"])
def test_a_score_that_goes_with_a_word_as_it_should_is_passed_over(tmp_path, judge, words):
    """A healthy run: good words are paid, and a judge, where there is one, thinks the same."""

    def write(far, draw):
        if words == "many":
            return praise(draw, far)
        return some(draw, draw.uniform(12, 25), draw.uniform(0, 2) + 2 * far, words=["great"])

    def score(text):  # it goes with the one word at 0.6 or so
        return mood(text) if words == "many" else text.split().count("great") + (sum(map(ord, text)) % 5)

    gold = (lambda text, draw: score(text) + draw.uniform(-1, 1)) if judge == "gold" else None
    record = written(tmp_path, write, score, gold=gold)
    assert any(trait.kind == "word" and trait.own > 0.3 for trait in traits(record))
    assert [trait.name for trait in paid_for(record)] == []


@pytest.mark.parametrize("seed", range(12))
def test_of_few_answers_chance_alone_is_not_taken_for_anything(tmp_path, seed):
    """Among many words of eight answers, one always goes with the score by chance."""
    draw = random.Random(seed)
    record = written(
        tmp_path,
        lambda far, _: " ".join(f"w{draw.randrange(30)}" for _ in range(round(6 + 10 * far))),
        lambda _: draw.random(),
        gold=noise,
        evaluations=2,
        answers=8,
    )
    assert paid_for(record) == []
