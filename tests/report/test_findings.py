"""Every rule: a stage in which it speaks, with the figure, and one in which it is silent."""

import json

import pytest
from run_folders import curve, evaluation, stage

from rlhf.report.findings import PAID, RULES, findings
from rlhf.report.runs import StageRecord, Use
from rlhf.report.samples import said_before

FLAT = [1.0] * 20
SPREAD = {"eval/score_std": FLAT, "eval/gold_score_std": FLAT}


def record(folder, *curves, done=True, data=None):
    """A stage with these curves, line by line."""
    lines = [{key: value for line in step for key, value in line.items()} for step in zip(*curves, strict=True)]
    return StageRecord("ppo", stage(folder, lines, done=done, data=data), {})


def titles(stage_record):
    return {finding.title: finding for finding in findings(stage_record) if finding.title != "Nothing was evaluated"}


def rising(start, end, count=20):
    return [start + (end - start) * step / (count - 1) for step in range(count)]


# Curves that a rule must speak of, the title, and a part of its text; and curves of the same that it must pass over.
CASES = [
    (
        {"kl/sequence": rising(0, 30)},
        "The policy is far from the reference",
        "30 nats per response at most, at iteration 20; 30 at the end. The policy writes there",
    ),
    ({"policy/entropy": rising(2.0, 0.2)}, "The entropy has collapsed", "From 1.95 to 0.247 nats per token"),
    ({"rollout/length": rising(10, 40)}, "The answers grow", "From 10.8 to 39.2 tokens."),
    ({"rollout/length": rising(40, 5)}, "The answers shrink", "From 39.1 to 5.92 tokens."),
    (
        {"rollout/truncated_fraction": rising(0, 0.9)},
        "Many answers are cut by the length limit",
        "88% of the responses",
    ),
    ({"value/explained_variance": rising(0.5, -0.5)}, "The critic explains less than nothing", "−0.395 in the last"),
    ({"policy/ratio_max": [1.0] * 19 + [42.0]}, "Large probability ratios", "42 times as probable"),
    ({"policy/clip_fraction": [0.6] * 20}, "Most of the update is clipped", "60% of the tokens"),
    (
        {"rollout/logprob_gap": [0.01] * 19 + [0.5]},
        "Trainer and sampler disagree",
        "0.5 nats per token at",
    ),
    ({"advantage/std": [1.0] * 10 + [0.0] * 10}, "The advantages carry no signal", "deviation is 0 in"),
    ({"loss": [2.0] * 20}, "The loss does not fall", "2 at the start, 2 at the end"),
    ({"eval/loss": rising(1.0, 2.0)}, "The held-out loss rises again", "2 at the end, 1 at its best"),
    ({"eval/accuracy": [0.55] * 20}, "The reward model is little better than guessing", "55.0% of the held-out pairs"),
    (
        {"reward/score": FLAT, "policy/entropy": FLAT},
        "The score has not risen",
        "The score falls from 1 to 1",
    ),
    (
        {"eval/score": rising(0, 5), "eval/score_std": FLAT, "eval/distinct_2": rising(0.8, 0.1)},
        "The score rises while the answers become alike",
        "The score rises from 0.132 to 4.87 while distinct-2 falls from 78% to 12%, which is the share",
    ),
    ({"eval/distinct_2": rising(0.8, 0.1)}, "The answers become alike", "Distinct-2 falls from 78% to 12%"),
    (
        {
            "eval/score": rising(0, 5),
            "eval/score_std": FLAT,
            "eval/gold_score": rising(2, -1),
            "eval/gold_score_std": FLAT,
        },
        "The score rises while “gold” falls",
        "falls from 2 at iteration 1 to −0.921",
    ),
]
QUIET = [
    {"kl/sequence": rising(0, 10)},
    {"policy/entropy": rising(2.0, 1.5)},
    {"rollout/length": rising(10, 12)},
    {"rollout/truncated_fraction": rising(0.9, 0.1)},
    {"value/explained_variance": rising(-2.0, 0.5)},
    {"policy/ratio_max": [3.0] * 20},
    {"policy/clip_fraction": [0.1] * 20},
    {"rollout/logprob_gap": [0.01] * 20},
    {"advantage/std": FLAT},
    {"loss": rising(4.0, 1.0)},
    {"loss": rising(0.3, 0.4), "eval/loss": rising(0.7, 0.3)},  # a curriculum: the rows become harder
    {"eval/loss": rising(2.0, 1.0)},
    {"eval/accuracy": [0.8] * 20},
    {"reward/score": rising(0.0, 1.0), "policy/entropy": FLAT},
    {"eval/score": rising(0, 5), "eval/score_std": FLAT, "eval/distinct_2": FLAT},
    {"eval/score": rising(0, 5), "eval/gold_score": rising(0, 2), **SPREAD},
    # A judge that is lower by less than a quarter of a deviation is noise.
    {
        "eval/score": rising(0, 5),
        "eval/score_std": FLAT,
        "eval/gold_score": rising(0.2, 0),
        "eval/gold_score_std": FLAT,
    },
]


@pytest.mark.parametrize(("curves", "title", "text"), CASES, ids=[case[1] for case in CASES])
def test_what_is_odd_is_said_with_its_figure_and_place(tmp_path, curves, title, text):
    found = titles(record(tmp_path, *(curve(name, *values) for name, values in curves.items())))
    assert list(found) == [title]
    assert text in found[title].text
    assert found[title].figure in curves


@pytest.mark.parametrize("curves", QUIET, ids=str)
def test_what_is_usual_is_passed_over(tmp_path, curves):
    assert titles(record(tmp_path, *(curve(name, *values) for name, values in curves.items()))) == {}


def test_one_word_that_takes_over_is_named(tmp_path):
    made = record(tmp_path, curve("eval/score", *rising(0, 4)), curve("eval/score_std", *FLAT))
    start = [("p", "the screen is sharp and the case is light", 0.0), ("q", "we use it every day at home", 0.0)]
    evaluation(tmp_path, 0, start)
    evaluation(tmp_path, 9, [("p", "great great great great", 4.0), ("q", "it is great great", 2.0)])
    found = titles(made)
    assert list(found) == ["The answers repeat themselves", "One word takes over: “great”"]
    # bigrams: 2 of 3 had before in the first answer, none of 3 in the second
    text = "At iteration 9, 33% of an answer's word pairs are repeated; at iteration 0, 0%."
    assert found["The answers repeat themselves"].text == text
    text = "At iteration 9, “great” is 75% of all words in the answers; at iteration 0, it was 0.0%. The score rises"
    assert found["One word takes over: “great”"].text.startswith(text)


def paid(folder, score, *, gold=None, most=6):
    """A stage whose evaluations have nine answers, some of which say more words again."""
    made = record(folder, curve("eval/score", *rising(0, 4)), curve("eval/score_std", *FLAT))
    for iteration, more in ((0, 1), (9, most)):
        answers = ["it was so fine " + "wow now " * (more * row // 8) + f"n{row}" for row in range(9)]
        rows = [("p", text, score(text, row)) for row, text in enumerate(answers)]
        evaluation(folder, iteration, rows)
        if gold is not None:
            path = folder / "rollouts" / f"evaluation_{iteration:06d}.jsonl"
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            path.write_text("".join(json.dumps({**line, "gold_score": gold(line)}) + "\n" for line in lines))
    return made


def test_a_score_that_pays_for_repetition_is_named(tmp_path):
    made = paid(tmp_path, lambda text, _: said_before(text))
    finding = findings(made)[0]
    assert finding.title == "The score pays for repetition" and finding.figure == PAID and finding.grave
    assert "those with more repeated words score higher: rank correlation 1 (" in finding.text
    text = "(other judges: gold −1). On average, repeated words: 0% at the start, 28% at the end. The score rises from"
    assert text in finding.text


def test_a_score_that_pays_for_a_word_or_for_length_is_named(tmp_path):
    word = paid(tmp_path / "word", lambda text, _: text.count("wow") / len(text.split()))
    assert findings(word)[0].title in ("The score pays for the word “wow”", "The score pays for the word “now”")
    length = record(tmp_path / "length", curve("eval/score", *rising(0, 4)), curve("eval/score_std", *FLAT))
    for iteration, more in ((0, 1), (9, 5)):
        answers = [" ".join(f"w{row}x{at}" for at in range(3 + row * more)) for row in range(9)]
        evaluation(tmp_path / "length", iteration, [("p", text, len(text.split())) for text in answers])
    assert findings(length)[0].title == "The score pays for length"


@pytest.mark.parametrize("case", ["another judge pays for it too", "the score is another's", "nothing grew"])
def test_what_is_paid_for_with_reason_is_passed_over(tmp_path, case):
    score = (lambda text, row: (row * 5) % 9) if "another's" in case else (lambda text, _: said_before(text))
    gold = (lambda line: line["score"]) if "judge" in case else None
    made = paid(tmp_path, score, gold=gold, most=1 if "grew" in case else 6)
    assert not [finding for finding in findings(made) if "pays for" in finding.title]


def cut(folder, start, score, *, grow=5):
    """A stage of which nearly all answers are cut at the end, with the advice that is given about it."""
    made = record(
        folder,
        curve("eval/score", *rising(0, 4)),
        curve("eval/score_std", *FLAT),
        curve("eval/truncated_fraction", *rising(start, 0.9)),
    )
    for iteration, more in ((0, 1), (9, grow)):
        answers = [" ".join(f"w{row}x{at}" for at in range(3 + row * more)) for row in range(9)]
        evaluation(folder, iteration, [("p", text, score(row)) for row, text in enumerate(answers)])
    return titles(made)["Many answers are cut by the length limit"].text


def test_more_room_is_advised_only_where_it_is_not_paid_to_fill_it(tmp_path):
    paid = cut(tmp_path / "paid", 0.0, lambda row: row)
    assert "Longer answers are paid more (the score goes with: words 1, characters 1)" in paid
    assert "Raise" not in paid and "would be filled as well" in paid
    unpaid = [4.0, 1.0, 7.0, 2.0, 8.0, 0.0, 3.0, 6.0, 5.0]  # ranks that go with those of the lengths at 0.18
    assert "They have grown into the limit" in cut(tmp_path / "grown", 0.0, unpaid.__getitem__)
    always = cut(tmp_path / "always", 0.85, unpaid.__getitem__, grow=1)
    assert always.endswith("at its start. Raise sampling.max_new_tokens, or set missing_end_penalty.")


def test_a_penalty_that_is_there_is_to_be_raised(tmp_path):
    lines = curve("eval/truncated_fraction", *rising(0.85, 0.9))
    charged = StageRecord("ppo", stage(tmp_path / "ppo", lines), {"init_args": {"missing_end_penalty": 0.5}})
    text = titles(charged)["Many answers are cut by the length limit"].text
    assert text.endswith("Raise sampling.max_new_tokens, or raise missing_end_penalty, which is 0.5.")


def test_a_reward_model_is_spoken_of_where_there_is_one(tmp_path):
    made = record(tmp_path, curve("kl/sequence", *rising(0, 30)))
    with_one = StageRecord("ppo", tmp_path, {}, [Use("reward.path", "reward", "model")])
    told = [titles(one)["The policy is far from the reference"].text for one in (made, with_one)]
    assert ["reward model" in text for text in told] == [False, True]


def test_words_that_were_always_frequent_are_none(tmp_path):
    made = record(tmp_path, curve("eval/score", *rising(0, 4)))
    evaluation(tmp_path, 0, [("p", "the screen the case", 0.0)])
    evaluation(tmp_path, 9, [("p", "the price the sound", 4.0)])
    assert titles(made) == {}


def test_an_unfinished_stage_and_where_it_stands(tmp_path):
    (finding,) = titles(record(tmp_path, curve("eval/x", 1.0, 2.0), done=False)).values()
    assert finding.title == "The stage is not finished" and "end at iteration 2" in finding.text


@pytest.mark.parametrize(
    ("error", "title", "text"),
    [
        (
            "reward of response 3 is nan.\nmore of it",
            "The stage ended by an error",
            "reward of response 3 is nan. Its figures end at iteration 2.",
        ),
        ("", "The stage was interrupted", "It was asked to stop. Its figures end at iteration 2."),
    ],
)
def test_why_a_stage_is_not_finished(tmp_path, error, title, text):
    made = record(tmp_path, curve("eval/x", 1.0, 2.0), done=False)
    (tmp_path / "stopped.json").write_text(json.dumps({"error": error}))
    (finding,) = titles(made).values()
    assert finding.title == title and finding.text.startswith(text) and "more of it" not in finding.text


def test_a_stage_that_fell_before_its_first_step(tmp_path):
    (finding,) = titles(record(tmp_path, [], done=False)).values()
    assert "end at step 0" in finding.text


def test_figures_that_are_no_numbers(tmp_path):
    (finding,) = titles(record(tmp_path, curve("eval/x", 1.0, None, None))).values()
    assert finding.text == "eval/x in 2 lines, first at step 2."


@pytest.mark.parametrize(("dropped", "said"), [(5, True), (1, False)])
def test_dropped_rows_from_a_tenth_on(tmp_path, dropped, said):
    counts = {"train": 14, "heldout": 1, "dropped": {"long_prompt": dropped}, "notes": {}, "remark": ""}
    found = titles(record(tmp_path, curve("eval/x", 1.0), data={"data": {"toy": counts}}))
    text = "5 of 20 rows (25%) of “toy” were not used: long_prompt 5."
    assert [finding.text for finding in found.values()] == ([text] if said else [])


def test_training_without_evaluation_is_said(tmp_path):
    made = record(tmp_path, curve("kl/sequence", 1.0, 2.0))
    assert [finding.title for finding in findings(made)] == ["Nothing was evaluated"]


def test_a_stage_that_has_not_begun_is_no_finding(tmp_path):
    assert findings(StageRecord("ppo", tmp_path / "ppo", {})) == []


def test_grave_ones_come_first(tmp_path):
    made = record(tmp_path, curve("policy/ratio_max", *[99.0] * 20), curve("kl/sequence", *rising(0, 99)))
    assert [finding.grave for finding in findings(made)] == [True, False, False]


def test_every_rule_is_tried():
    assert len(RULES) == 14  # a new rule wants a case above
