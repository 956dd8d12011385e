"""How answers change."""

import pytest
from run_folders import evaluation, simple, stage

from rlhf.report.runs import StageRecord, read_run
from rlhf.report.samples import commonest, evenly, marked, repetition, said_before, share_of, stories


def test_each_prompt_with_its_answers_from_the_largest_gain(tmp_path):
    why, who = stories(read_run(simple(tmp_path / "toy")).stages[1])
    assert (why.prompt, why.gain, who.prompt, who.gain) == ("why?", 2.0, "who?", 0.0)
    assert [(a.iteration, a.text, a.scores["score"]) for a in why.answers] == [(0, "so", 0.0), (2, "good", 2.0)]
    assert why.answers[1].scores == {"score": 2.0, "gold": -2.0} and why.answers[1].ended


def test_of_many_prompts_some_are_told_best_and_worst_among_them(tmp_path):
    folder = stage(tmp_path / "ppo", [])
    for iteration, scale in ((0, 0.0), (5, 1.0)):
        evaluation(folder, iteration, [(f"p{n}", "x", scale * n) for n in range(50)])
    gains = [story.gain for story in stories(StageRecord("ppo", folder, {}))]
    assert len(gains) == 8 and gains == sorted(gains, reverse=True) and (gains[0], gains[-1]) == (49.0, 0.0)


def test_without_evaluations_there_is_nothing_to_tell(tmp_path):
    assert stories(StageRecord("sft", tmp_path, {})) == []


def test_evenly():
    assert evenly([1, 2, 3], 3) == [1, 2, 3] and evenly(list(range(10)), 4) == [0, 3, 6, 9]


def test_repetition_by_hand():
    # "a b a b a": pairs ab ba ab ba, 2 of 4 different; "a b c": none again
    assert repetition(["a b a b a"]) == pytest.approx(0.5)
    assert repetition(["a b a b a", "a b c", "single", ""]) == pytest.approx(0.25)
    assert repetition([]) == 0.0


def test_the_commonest_word_and_its_share():
    assert commonest(["Great, great!", "so great"]) == ("great", pytest.approx(3 / 4))
    assert commonest(["", "…"]) == ("", 0.0)
    assert share_of("so", ["Great, great!", "so great"]) == pytest.approx(1 / 4) and share_of("so", []) == 0.0


def test_words_that_return_are_marked_and_nothing_is_lost():
    text = " great, Great the the the — great end"
    pieces = marked(text)
    assert "".join(piece for piece, _ in pieces) == text
    assert [piece for piece, often in pieces if often] == ["great, Great the the the — great"]
    assert marked("") == []


@pytest.mark.parametrize(("text", "spans"), [
    ("so good. so bad. so long", []),  # a short word may return
    ("the screen is big and the screen glows", []),  # so may two words, once
    ("the screen is big and the screen is dim", ["the screen is", "the screen is"]),
    ("it is is fine", ["is is"]),
    ("no go, no go, no go", ["no go, no go, no go"]),
])  # fmt: skip
def test_what_is_marked(text, spans):
    assert [piece for piece, often in marked(text) if often] == spans


def test_the_word_that_is_paid_is_marked_however_short_and_inside_of_repeats():
    text = "The screen is big and the screen is dim, other! the"
    assert marked(text, "the") == [
        ("The", "paid"),
        (" screen is", "again"),
        (" big and ", ""),
        ("the", "paid"),
        (" screen is", "again"),
        (" dim, other! ", ""),
        ("the", "paid"),
    ]
    assert [piece for piece in marked("so! so. (", "!") if piece[1] == "paid"] == [("!", "paid")]
    assert marked("so (", "(") == [("so ", ""), ("(", "paid")]


def test_words_said_before():
    assert said_before("a b A c") == pytest.approx(1 / 4) and said_before("…") == 0.0


def test_the_parts_of_a_score(tmp_path):
    folder = stage(tmp_path / "ppo", [])
    evaluation(folder, 0, [("p", "x", 3.0)], **{"score/length": 1.0, "score/rm": 2.0})
    (answer,) = stories(StageRecord("ppo", folder, {}))[0].answers
    assert answer.parts == {"length": 1.0, "rm": 2.0} and answer.scores == {"score": 3.0, "gold": -3.0}
