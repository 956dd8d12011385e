"""One number per metric and cell: by hand, and why there is none."""

import math

import numpy as np
import pytest
import tiny_runs

from rlhf.algorithms.ppo import Evaluation
from rlhf.errors import UserError
from rlhf.grid import measures
from rlhf.loops import build_stage
from rlhf.metrics import read_metrics

SCORE, KL = "eval/score", "eval/kl"


def evaluations(scores, kls=None, tokens=100, every=1):
    """Lines of a run: evaluations at the start and after each iteration, of two optimiser steps and so many tokens."""
    rows = []
    for iteration, score in enumerate(scores):
        if iteration:
            rows.append({"step": 2 * iteration - 1, "iteration": iteration, "loss/policy": 0.1})
            timed = {"time/rollout": 0.7, "throughput/rollout_tokens_per_s": tokens / 0.7}
            rows.append({"step": 2 * iteration, "iteration": iteration, "loss/policy": 0.2, **timed})
        if iteration % every == 0:
            line = {"step": 2 * iteration, "iteration": iteration, SCORE: score}
            rows.append(line if kls is None else {**line, KL: kls[iteration]})
    return rows


def value(reading):
    assert isinstance(reading, measures.Reading)
    return reading.value


# ------------------------------------------------------------------------------------------------------------- curves


def test_a_curve_is_of_the_lines_that_have_the_figure():
    line = measures.curve(evaluations([1.0, None, 3.0]), SCORE)
    assert line.iterations.tolist() == [0, 1, 2]
    assert line.steps.tolist() == [0, 2, 4]
    assert line.tokens.tolist() == [0, 100, 200]
    np.testing.assert_array_equal(line.values, [1.0, math.nan, 3.0])
    assert line.known.iterations.tolist() == [0, 2]


def test_a_figure_of_steps_has_its_place_in_steps():
    line = measures.curve(evaluations([1.0, 2.0, 3.0]), "loss/policy")
    assert line.steps.tolist() == line.places.tolist() == [1, 2, 3, 4]
    assert line.iterations.tolist() == [1, 1, 2, 2]
    assert line.tokens.tolist() == [100, 100, 200, 200]  # its iteration's are sampled before it


def test_of_lines_at_the_same_step_the_last_counts():
    rows = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"step": 2, "loss": 1.0}]  # a step that was skipped
    assert measures.curve(rows, "loss").values.tolist() == [3.0, 1.0]


def test_the_average_begins_as_the_policy():
    rows = [
        {"step": 0, "iteration": 0, SCORE: 1.0},
        {"step": 2, "iteration": 1, SCORE: 5.0, "eval/ema/score": 2.0},
    ]
    assert measures.curve(rows, "eval/ema/score").values.tolist() == [1.0, 2.0]


def test_tokens_are_seconds_times_tokens_per_second():
    rows = evaluations([0.0] * 4, tokens=1807)
    assert measures.sampled_tokens(rows)[-1] == 3 * 1807  # exactly, though 1807 / 0.7 · 0.7 is rounded


def test_tokens_are_unknown_from_the_first_iteration_that_does_not_say():
    rows = evaluations([0.0] * 4)
    for row in rows:
        if row["iteration"] == 2:
            row.pop("throughput/rollout_tokens_per_s", None)
    found = measures.curve(rows, SCORE).tokens
    np.testing.assert_array_equal(found, [0, 100, math.nan, math.nan])
    assert np.isnan(measures.sampled_tokens([{"step": 1, "loss": 2.0}])).all()


def test_tokens_of_a_run(tmp_path):
    """What a real stage writes: responses times their mean length."""
    algorithm = tiny_runs.ppo(iterations=2, batch_size=8, evaluation=Evaluation(every=1, prompts=4))
    build_stage(algorithm, tiny_runs.context(tmp_path)).fit()
    rows = read_metrics(tmp_path)
    lengths = [row["rollout/length"] for row in rows if "rollout/length" in row]
    assert len(lengths) == 2
    expected = [0, 8 * lengths[0], 8 * sum(lengths)]
    assert measures.curve(rows, SCORE).tokens.tolist() == pytest.approx(expected, abs=1e-6)
    assert measures.area(rows, SCORE, over="tokens").remark == ""


# ---------------------------------------------------------------------------------------------------- one cell alone


def test_last():
    assert measures.last(evaluations([1.0, 2.0, 3.5]), SCORE) == (3.5, "")


def test_last_is_nothing_earlier():
    found = measures.last(evaluations([1.0, 2.0, None]), SCORE)
    assert math.isnan(found.value)
    assert found.remark == f"{SCORE} is not a number at iteration 2, its last; the latest number is 2 at iteration 1"


@pytest.mark.parametrize("read", [measures.last, measures.area])
def test_nothing_is_told(read):
    assert read([], SCORE).remark == f"no line has {SCORE}"
    assert read(evaluations([None, None]), SCORE).remark == f"{SCORE} is a number nowhere"
    assert math.isnan(read([], SCORE).value)


def test_infinite_is_no_number():
    assert math.isnan(value(measures.last(evaluations([1.0, math.inf]), SCORE)))


def test_best_is_read_where_another_figure_is_best():
    rows = evaluations([1.0, 2.0, 3.0], kls=[5.0, 9.0, 9.0])
    found = measures.best(rows, SCORE, KL)
    assert found.value == 2.0  # the earlier of two that are equal
    assert "highest at iteration 1, of 3 evaluations; optimistic" in found.remark
    assert value(measures.best(rows, SCORE, KL, higher_is_better=False)) == 1.0


def test_best_passes_over_what_is_no_number():
    assert value(measures.best(evaluations([1.0, None, 3.0], kls=[0.0, 9.0, 1.0]), SCORE, KL)) == 3.0
    rows = [{"step": 1, "iteration": 1, SCORE: 1.0}, {"step": 2, "iteration": 2, KL: 1.0}]
    assert "together nowhere" in measures.best(rows, SCORE, KL).remark
    assert measures.best(rows, SCORE, "eval/other").remark == "no line has eval/other"


def test_area():
    # between 0 and 1: (1 + 3) / 2 = 2; between 1 and 3: (3 + 5) / 2 · 2 = 8; (2 + 8) / 3
    rows = evaluations([1.0, 3.0, 4.0, 5.0])
    rows = [row for row in rows if not (SCORE in row and row["iteration"] == 2)]
    assert value(measures.area(rows, SCORE)) == pytest.approx(10 / 3)


def test_area_of_a_constant_is_the_constant():
    rows = evaluations([2.5] * 7, every=3)
    assert value(measures.area(rows, SCORE)) == value(measures.area(rows, SCORE, over="tokens")) == 2.5


def test_area_over_tokens_weighs_iterations_by_what_they_sample():
    rows = evaluations([0.0, 2.0, 4.0])
    for row in rows:
        if row["iteration"] == 2 and "time/rollout" in row:
            row["throughput/rollout_tokens_per_s"] *= 3
    # 100 tokens at mean height 1, 300 at mean height 3
    assert value(measures.area(rows, SCORE, over="tokens")) == pytest.approx((100 * 1 + 300 * 3) / 400)
    assert value(measures.area(rows, SCORE)) == 2.0


def test_area_bridges_gaps_and_says_so():
    found = measures.area(evaluations([1.0, None, 3.0]), SCORE)
    assert found == (2.0, f"1 of 3 values of {SCORE} are no numbers; bridged by straight lines")


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (evaluations([1.0]), "one place only"),
        (evaluations([None, 1.0, 2.0]), "not a number at iteration 0, an end"),
        (evaluations([1.0, 1.0, None]), "not a number at iteration 2, an end"),
    ],
)
def test_no_area(rows, why):
    found = measures.area(rows, SCORE)
    assert math.isnan(found.value)
    assert why in found.remark


def test_no_area_over_tokens_that_are_not_known():
    found = measures.area([{"step": 1, "loss": 1.0}, {"step": 2, "loss": 2.0}], "loss", over="tokens")
    assert math.isnan(found.value)
    assert "how many tokens" in found.remark


# ------------------------------------------------------------------------------------------ cells beside each other


def test_equal_kl_is_where_the_slowest_has_come():
    fast = evaluations([0.0, 1.0, 3.0], kls=[0.0, 1.0, 9.0])
    slow = evaluations([0.0, 2.0, 2.5], kls=[0.0, 4.0, 2.0])
    found = measures.equal_kl({"fast": fast, "slow": slow}, SCORE)
    # the slow one reached 4, at its first iteration; the fast one is there between √1 and √9, at √4: half the way
    assert found["slow"].value == 2.0
    assert found["fast"].value == 1.0 + 0.5 * 2.0
    assert found["fast"].remark == found["slow"].remark == f"at {KL} 4, as far as slow came"


def test_equal_kl_says_what_rests_on_the_line_from_the_start():
    cells = {"a": evaluations([0.0, 4.0], kls=[0.0, 4.0]), "b": evaluations([0.0, 7.0], kls=[0.0, 1.0])}
    found = measures.equal_kl(cells, SCORE)
    assert found["a"] == (2.0, f"at {KL} 1, as far as b came; {measures.EARLY}")
    assert found["b"] == (7.0, f"at {KL} 1, as far as b came")


def test_equal_kl_reads_the_first_crossing():
    winding = evaluations([0.0, 4.0, 8.0, 100.0], kls=[0.0, 4.0, 0.5, 9.0])
    other = evaluations([0.0, 7.0], kls=[0.0, 1.0])
    assert measures.equal_kl({"a": winding, "b": other}, SCORE)["a"].value == 2.0


def test_equal_kl_of_cells_that_never_move_is_their_start():
    still = evaluations([1.5, 2.0], kls=[0.0, -0.1])
    found = measures.equal_kl({"still": still, "moves": evaluations([1.0, 3.0], kls=[0.0, 1.0])}, SCORE)
    assert (found["still"].value, found["moves"].value) == (1.5, 1.0)


def test_equal_kl_beyond_the_beginning_is_not_guessed():
    late = [{"step": 9, "iteration": 3, SCORE: 1.0, KL: 5.0}, {"step": 12, "iteration": 4, SCORE: 2.0, KL: 6.0}]
    found = measures.equal_kl({"late": late, "slow": evaluations([0.0, 1.0], kls=[0.0, 2.0])}, SCORE)
    assert math.isnan(found["late"].value)
    assert "begins beyond that, 5 at iteration 3" in found["late"].remark
    assert found["slow"].value == 1.0


def test_equal_kl_leaves_out_what_has_none_and_says_so():
    found = measures.equal_kl({"a": evaluations([0.0, 1.0], kls=[0.0, 2.0]), "failed": []}, SCORE)
    assert found["a"] == (1.0, f"at {KL} 2, as far as a came; without failed, of which that is not known")
    assert math.isnan(found["failed"].value)
    assert "together nowhere" in measures.equal_kl({"failed": []}, SCORE)["failed"].remark


def test_equal_kl_passes_over_what_is_no_number():
    gap = evaluations([0.0, 50.0, 2.0], kls=[0.0, None, 4.0])
    assert measures.equal_kl({"a": gap, "b": evaluations([0.0, 1.0], kls=[0.0, 1.0])}, SCORE)["a"].value == 1.0


def test_the_kl_is_that_of_the_same_responses():
    names = ["eval/gold_score", "eval/ema/gold_score", "reward/score"]
    assert [measures.kl_of(name) for name in names] == ["eval/kl", "eval/ema/kl", "kl/sequence"]


def test_equal_tokens():
    long, short = evaluations([0.0, 4.0, 6.0], tokens=200), evaluations([0.0, 1.0, 3.0], tokens=150)
    found = measures.equal_tokens({"long": long, "short": short}, SCORE)
    assert found["short"].value == 3.0  # at its end, 300 tokens
    assert found["long"].value == 5.0  # halfway between 200 and 400
    assert found["long"].remark == "at 300 sampled tokens, as far as short came"


def test_equal_tokens_tells_what_is_not_known():
    rows = {"a": evaluations([0.0, 1.0]), "stored": [{"step": 1, "loss": 1.0, SCORE: 1.0}], "none": []}
    found = measures.equal_tokens(rows, SCORE)
    assert list(found) == ["a", "stored", "none"]
    assert found["a"].value == 1.0
    assert "without none, stored" in found["a"].remark
    assert "how many tokens" in found["stored"].remark
    assert found["none"].remark == f"no line has {SCORE}"
    late = evaluations([0.0, 1.0, 2.0])[-1:]
    late = [{**late[0], "iteration": 0, "step": 0}]
    assert measures.equal_tokens({"late": late}, SCORE)["late"].value == 2.0


def test_equal_tokens_beyond_the_beginning_is_not_guessed():
    late = [row for row in evaluations([0.0, 1.0, 2.0, 3.0]) if SCORE not in row or row["iteration"] > 1]
    found = measures.equal_tokens({"late": late, "short": evaluations([0.0, 5.0])}, SCORE)
    assert math.isnan(found["late"].value)
    assert "beyond that, 200 at iteration 2" in found["late"].remark


def test_every_reading_by_its_name():
    cells = {"a": evaluations([0.0, 2.0, 1.0], kls=[0.0, 1.0, 2.0])}
    found = {at: measures.read(cells, SCORE, at)["a"].value for at in ("last", "best", "area", "equal_kl")}
    assert found == {"last": 1.0, "best": 2.0, "area": 1.25, "equal_kl": 1.0}
    assert measures.read(cells, SCORE, "equal_tokens")["a"].value == 1.0
    assert measures.read(cells, SCORE, "best", by=KL)["a"].value == 1.0
    assert measures.read(cells, SCORE, "best", by=KL, higher_is_better=False)["a"].value == 0.0
    with pytest.raises(UserError, match="at: 'end' is none of last, best"):
        measures.read(cells, SCORE, "end")
