"""One stage of two runs: figures, and answers."""

import json
import shutil

import pytest
from run_folders import config, curve, evaluation, stage

from rlhf.report.pairs import Answers, Row, pair
from rlhf.report.runs import read_run


@pytest.fixture
def paired(tmp_path):
    """A stage of two runs from their lines; ``done`` says which is finished."""

    def make(a, b, done=(True, True), fill=lambda folders: None, keys=(None, None)):
        folders = []
        for name, lines, finished, key in zip("ab", (a, b), done, keys, strict=True):
            shutil.rmtree(tmp_path / name, ignore_errors=True)  # of the comparison before
            config(tmp_path / name, {"ppo": {"class_path": "rlhf.PPO", "init_args": {}}})
            folders.append(stage(tmp_path / name / "ppo", lines, done=finished))
            (folders[-1] / "stage.json").write_text(json.dumps({"key": key}))
        fill(folders)
        first, second = (read_run(folder.parent).stages[0] for folder in folders)
        return pair("ppo", first, second)

    return make


def test_last_figures_under_the_names_of_the_report(paired):
    found = paired(
        [{"step": 1, "eval/score": 1.0, "mine/own": 5.0, "policy/entropy": 2.0, "lr/policy": 0.1}],
        [{"step": 1, "eval/score": 3.0, "mine/own": 4.0, "policy/entropy": 2.0, "lr/policy": 0.1}],
    )
    assert found.rows == [
        Row("Reward", "Score on held-out prompts", "eval/score", 1.0, 3.0, None),
        Row("Further figures", "mine/own", "mine/own", 5.0, 4.0, None),
    ]
    assert [row.difference for row in found.rows] == [2.0, -1.0]
    assert found.equal == ["policy/entropy", "lr/policy"] and found.only == ([], []) and found.same == ""


def test_figures_of_cost_are_no_results(paired):
    costs = [{"step": 1, "loss": 1.0, "time/train": t, "throughput/x": t, "memory/peak_gb": t} for t in (1.0, 2.0)]
    found = paired([costs[0]], [costs[1]])
    assert found.rows == [] and found.equal == ["loss"] and found.same == "equal"
    assert found.parting.at is None


def test_differences_in_deviations_of_the_first_evaluation(paired):
    scores = ([(0.0, 2.0), (1.0, 0.5)], [(0.0, 4.0), (4.0, 0.1)])
    rows = [
        [{"step": n, "eval/score": s, "eval/ema/score": s, "eval/score_std": d} for n, (s, d) in enumerate(own)]
        for own in scores
    ]
    found = paired(*rows)
    # The first run's first deviation is 2: (4 − 1) / 2; the average has the policy's. The deviation has no row itself.
    assert [(row.figure, row.in_deviations) for row in found.rows] == [("eval/score", 1.5), ("eval/ema/score", 1.5)]
    assert found.equal == [] and found.only == ([], [])


def test_a_deviation_of_zero_measures_nothing(paired):
    found = paired(*([{"step": 1, "eval/score": score, "eval/score_std": 0.0}] for score in (1.0, 2.0)))
    assert found.rows[0].difference == 1.0 and found.rows[0].in_deviations is None


def test_what_is_no_number_at_the_end_is_none_and_never_an_earlier_value(paired):
    found = paired(curve("loss", 1.0, None), curve("loss", 1.0, 2.0))
    assert [(row.a, row.b, row.difference) for row in found.rows] == [(None, 2.0, None)]
    assert (found.parting.equal_until, found.parting.at) == (1, 2)
    both = paired(curve("loss", 1.0, None), curve("loss", 2.0, None))
    assert [(row.a, row.b) for row in both.rows] == [(None, None)] and both.equal == []


def test_python_s_own_nan_reads_as_null(paired):
    found = paired(curve("loss", float("nan")), curve("loss", None))
    assert found.same == "equal" and found.parting.at is None


def test_figures_that_one_alone_has(paired):
    found = paired(
        [{"step": 1, "loss": 1.0, "x": 1.0}], [{"step": 1, "loss": 1.0, "eval/score": 1, "eval/score_std": 1}]
    )
    assert found.only == (["x"], ["eval/score"])


def test_finished_stages_of_different_lengths_by_the_last_of_each(paired):
    found = paired(curve("loss", 1.0, 2.0, 3.0), curve("loss", 1.0, 2.0))
    assert [(row.a, row.b) for row in found.rows] == [(3.0, 2.0)] and found.finished
    assert (found.parting.equal_until, found.parting.at, found.parting.compared) == (2, None, 1)


def test_unfinished_ones_where_both_have_a_figure_last(paired):
    one = [
        {"step": 1, "iteration": 1, "reward/score": 1.0, "eval/score": 1.0},
        {"step": 2, "iteration": 2, "reward/score": 2.0},
        {"step": 3, "iteration": 3, "reward/score": 3.0, "eval/score": 3.0},
    ]
    other = [
        {"step": 1, "iteration": 1, "reward/score": 1.5, "eval/score": 1.0},
        {"step": 2, "iteration": 2, "reward/score": 2.5},
    ]
    found = paired(one, other, done=(True, False))
    assert [(row.figure, row.a, row.b) for row in found.rows] == [("reward/score", 2.0, 2.5)]
    assert found.equal == ["eval/score"] and not found.finished


def test_unfinished_ones_without_a_common_place(paired):
    found = paired([{"step": 1, "loss": 1.0}], [{"step": 2, "loss": 1.0}], done=(True, False))
    assert found.unmatched == ["loss"] and found.rows == [] and found.equal == [] and found.parting is None


def test_stages_that_have_not_begun(paired):
    found = paired([], curve("loss", 1.0))
    assert found.same == "" and found.rows == [] and found.only == ([], ["loss"]) and found.parting is None


def test_equal_to_the_last_digit_or_not(paired):
    lines = [{"step": 1, "loss": 0.1 + 0.2, "time/train": 1.0}]
    assert paired(lines, lines).same == "copy"
    assert paired(lines, [{**lines[0], "time/train": 2.0}]).same == "equal"
    assert paired(lines, [{**lines[0], "loss": 0.3}]).same == ""  # 0.1 + 0.2 is 0.30000000000000004
    assert paired(lines, lines, done=(True, False)).same == ""


@pytest.mark.parametrize(
    ("keys", "same", "other"),
    [(("x", "x"), True, False), (("x", "y"), False, True), ((None, None), False, False), (("x", None), False, False)],
)
def test_what_the_keys_say(paired, keys, same, other):
    found = paired(curve("loss", 1.0), curve("loss", 1.0), keys=keys)
    assert (found.same_key, found.other_key) == (same, other)


def test_answers_of_the_last_evaluation_of_both(paired):
    def fill(folders):
        for folder in folders:
            evaluation(folder, 0, [("why?", "so", 0.0)])
            evaluation(folder, 2, [("why?", "weil", 0.0), ("wer?", "müde", 0.0), ("who?", folder.parent.name, 0.0)])
        evaluation(folders[0], 4, [("why?", "never", 0.0)])

    found = paired(curve("loss", 1.0), curve("loss", 1.0), fill=fill)
    assert found.answers == Answers(iteration=2, equal=2, prompts=3, further=0)


def test_answers_are_matched_by_their_prompts(paired):
    def fill(folders):
        evaluation(folders[0], 1, [("p", "x", 0.0), ("q", "y", 0.0), ("p", "z", 0.0)])
        evaluation(folders[1], 1, [("q", "y", 0.0), ("p", "x", 0.0), ("r", "x", 0.0)])

    # q and the first p are answered alike; the second p stands in the first run alone, r in the second.
    found = paired(curve("loss", 1.0), curve("loss", 1.0), fill=fill)
    assert found.answers == Answers(iteration=1, equal=2, prompts=2, further=2)


def test_no_common_evaluation(paired):
    def fill(folders):
        evaluation(folders[0], 1, [("p", "x", 0.0)])
        evaluation(folders[1], 2, [("p", "x", 0.0)])

    assert paired(curve("loss", 1.0), curve("loss", 1.0), fill=fill).answers is None
