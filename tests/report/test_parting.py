"""Where the figures of two stages part."""

import pytest
from run_folders import config, stage

from rlhf.report.parting import First, Parting, parting, points_of
from rlhf.report.runs import read_run


@pytest.fixture
def parted(tmp_path):
    def make(a, b):
        stages = []
        for name, lines in zip("ab", (a, b), strict=True):
            config(tmp_path / name, {"ppo": {"class_path": "rlhf.PPO", "init_args": {}}})
            stage(tmp_path / name / "ppo", lines)
            stages.append(read_run(tmp_path / name).stages[0])
        left, right = (points_of(one) for one in stages)
        return parting({name: (left[name], right[name]) for name in left if name in right}, stages[0])

    return make


def lines(*values, unit="iteration"):
    """One line an iteration with a figure each, the loss being twice the score."""
    return [{"step": n, unit: n, "score": value, "loss": 2 * value} for n, value in enumerate(values)]


def test_the_first_iteration_that_differs_and_the_last_before(parted):
    assert parted(lines(1, 2, 3, 4), lines(1, 2, 5, 4)) == Parting(
        "iteration", 1, 2, [First("score", None, 3, 5), First("loss", None, 6, 10)], 2
    )


def test_later_equality_does_not_undo_it(parted):
    assert parted(lines(1, 9, 3), lines(1, 2, 3)).at == 1


def test_from_the_first_on(parted):
    assert parted(lines(1, 2), lines(2, 2))[:3] == ("iteration", None, 0)


def test_equal_as_far_as_both_go(parted):
    assert parted(lines(1, 2, 3), lines(1, 2)) == Parting("iteration", 1, None, [], 2)


def test_steps_where_a_stage_has_no_iterations(parted):
    rows = [[{"step": n, "loss": value} for n, value in enumerate(own, 1)] for own in ((3, 2, 1), (3, 2, 0))]
    assert parted(*rows) == Parting("step", 2, 3, [First("loss", 3, 1, 0)], 1)


def test_evaluations_at_other_iterations_are_compared_where_both_have_them(parted):
    scores = {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0, 4: 5.0}
    every, second = (
        [{"step": n, "iteration": n, "eval/score": score} for n, score in scores.items() if n % by == 0]
        for by in (1, 2)
    )
    assert parted(every, second)[:3] == ("iteration", 4, None)
    second[-1]["eval/score"] = 0.0
    assert parted(every, second) == Parting("iteration", 2, 4, [First("eval/score", None, 5.0, 0.0)], 1)


def iteration(number, steps, *, score=1.0, losses=None):
    """The lines of an iteration of several steps: what was sampled stands in the last, the evaluation behind."""
    first = (number - 1) * steps + 1
    found = [
        {"step": first + at, "iteration": number, "loss/policy": loss}
        for at, loss in enumerate(losses or [0.5] * steps)
    ]
    found[-1] = {"reward/score": score, **found[-1]}
    return [*found, {"step": number * steps, "iteration": number, "eval/score": score + sum(losses or [])}]


def test_the_update_parts_before_the_evaluation(parted):
    one = [*iteration(1, 2), *iteration(2, 2, losses=[0.5, 0.25])]
    other = [*iteration(1, 2), *iteration(2, 2, losses=[0.5, 0.125])]
    found = parted(one, other)
    assert found[:3] == ("iteration", 1, 2)
    assert found.figures == [First("loss/policy", 4, 0.25, 0.125), First("eval/score", None, 1.75, 1.625)]
    assert found.compared == 3


def test_what_is_sampled_parts_before_the_update_though_its_line_is_later(parted):
    one = [*iteration(1, 2), *iteration(2, 2, score=1.0, losses=[0.25, 0.25])]
    other = [*iteration(1, 2), *iteration(2, 2, score=2.0, losses=[0.5, 0.25])]
    assert [first.figure for first in parted(one, other).figures] == ["reward/score", "loss/policy", "eval/score"]


def test_what_is_set_is_named_last(parted):
    rows = [[{"step": 1, "iteration": 1, "lr/policy": x, "kl/coef": x, "eval/kl": x, "loss": x}] for x in (1.0, 2.0)]
    assert [first.figure for first in parted(*rows).figures] == ["loss", "eval/kl", "lr/policy", "kl/coef"]


def test_iterations_of_other_numbers_of_steps_are_compared_as_iterations(parted):
    one = [{"step": 2 * n, "iteration": n, "reward/score": n} for n in (1, 2, 3)]
    other = [{"step": n, "iteration": n, "reward/score": n if n < 3 else 0} for n in (1, 2, 3)]
    assert parted(one, other) == Parting("iteration", 2, 3, [First("reward/score", None, 3, 0)], 1)


def test_no_number_equals_no_number_alone(parted):
    one, other = (
        [{"step": n, "loss": value} for n, value in enumerate(own)] for own in ((1, None, None), (1, None, 2))
    )
    assert parted(one, other) == Parting("step", 1, 2, [First("loss", 2, None, 2)], 1)


def test_lines_of_one_step_in_order(parted):  # such as steps that fp16 skips
    one = [{"step": 1, "loss_scale/policy": value} for value in (8, 4, 2)]
    other = [{"step": 1, "loss_scale/policy": value} for value in (8, 4, 4)]
    assert parted(one, other).figures == [First("loss_scale/policy", 1, 2, 4)]
    assert parted(one, one[:2]).at is None


def test_costs_never_part(parted):
    rows = [[{"step": 1, "time/train": t, "memory/peak_gb": t, "switch/peak_mb": t, "loss": 1.0}] for t in (1.0, 2.0)]
    assert parted(*rows) == Parting("step", 1, None, [], 1)


def test_nothing_in_common(parted):
    assert parted([{"step": 1, "loss": 1.0}], [{"step": 2, "loss": 1.0}]) is None
