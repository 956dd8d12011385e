"""Which figures are drawn together."""

import pytest
from run_folders import config, simple, stage

from rlhf.report.curves import BY_SOURCE, FURTHER, GROUPS, charts, frontiers, steady, thinned, traces
from rlhf.report.runs import Series, read_runs


def titles(*names):
    return {group: [chart.title for chart in found] for group, found in charts(names).items()}


def test_the_same_figure_of_policy_and_average_are_one_chart():
    (chart,) = charts(["eval/score", "eval/ema/score"])["Reward"]
    assert chart.lines == {"eval/score": "policy", "eval/ema/score": "its average (EMA)"}


def test_judges_are_told_apart_and_named():
    found = charts(["eval/gold_score", "eval/ema/gold_score", "eval/vader_score", "eval/score"])["Reward"]
    assert [chart.title for chart in found] == [
        "Score on held-out prompts",
        "Score by the judge “gold”",
        "Score by the judge “vader”",
    ]
    assert list(found[1].lines) == ["eval/gold_score", "eval/ema/gold_score"]


def test_a_figure_that_nobody_knows_is_drawn_all_the_same():
    assert titles("mine/own", "loss/mine", "reward/mine") == {
        "Reward": ["Part “mine” of the score"],
        "Terms of the loss": ["Term “mine”"],
        FURTHER: ["mine/own"],
    }


def test_a_metric_of_the_evaluation_has_the_averages_beside_it():
    found = charts(["eval/wins", "eval/best/8", "eval/ema/wins", "eval/ema/odd"])[FURTHER]
    assert [(chart.title, chart.lines) for chart in found] == [
        ("eval/wins", {"eval/wins": "policy", "eval/ema/wins": "its average (EMA)"}),
        ("eval/best/8", {"eval/best/8": ""}),
        ("eval/ema/odd", {"eval/ema/odd": ""}),
    ]


def test_each_judge_has_a_frontier_where_the_kl_is_known():
    names = ["eval/score", "eval/gold_score", "eval/kl", "eval/ema/score", "eval/ema/kl", "eval/score/part", "eval/x"]
    one, gold = frontiers(names)
    assert (one.title, gold.title) == ("KL–reward frontier", "KL–reward frontier by the judge “gold”")
    assert one.against == {"eval/score": "eval/kl", "eval/ema/score": "eval/ema/kl"}
    assert gold.lines == {"eval/gold_score": "policy"}
    assert frontiers(["eval/score"]) == frontiers(["eval/kl"]) == []


def test_a_frontier_has_a_point_for_each_evaluation(tmp_path):
    config(tmp_path, {"ppo": {"class_path": "rlhf.PPO", "init_args": {}}})
    rows = [
        {"step": 0, "iteration": 0, "eval/score": 1.0, "eval/kl": -1e-9},
        {"step": 1, "iteration": 1, "loss": 1.0},
        {"step": 2, "iteration": 1, "eval/score": 2.0, "eval/kl": 4.0, "eval/ema/score": 1.5, "eval/ema/kl": 1.0},
        {"step": 4, "iteration": 2, "eval/score": 3.0, "eval/kl": None, "eval/ema/score": 2.5, "eval/ema/kl": 9.0},
    ]
    stage(tmp_path / "ppo", rows)
    run = read_runs([tmp_path])[0]
    (chart,) = frontiers(run.stages[0].names)
    policy, average = traces(chart, [(run, run.stages[0])], [run])
    assert (policy["x"], policy["y"], policy["steps"]) == ([0.0, 2.0], [1.0, 2.0], [0, 2])
    assert (average["x"], average["y"], average["name"]) == ([1.0, 3.0], [1.5, 2.5], "its average (EMA)")


def test_the_sources_of_a_figure_are_one_chart():
    names = ["loss", "loss/source/a", "eval/loss/source/a", "loss/source/b/c", "mine/own"]
    found = charts(names)
    assert list(found) == ["Losses", BY_SOURCE, FURTHER]
    one, other = found[BY_SOURCE]
    assert (one.title, one.lines) == ("loss, by source", {"loss/source/a": "a", "loss/source/b/c": "b/c"})
    assert (other.title, other.lines) == ("eval/loss, by source", {"eval/loss/source/a": "a"})


def test_no_figure_is_drawn_twice():
    names = [name.replace("*", "x") for group in GROUPS.values() for chart in group for name in chart.lines]
    drawn = [name for group in charts(names).values() for chart in group for name in chart.lines]
    assert sorted(drawn) == sorted(set(names))


def test_lines_of_one_run_differ_in_colour_and_those_of_several_in_dashes(tmp_path):
    one, other = read_runs([simple(tmp_path / "one"), simple(tmp_path / "other")])
    (chart,) = charts(["kl/sequence", "eval/kl"])["Distance from the reference"]
    (line,) = traces(chart, [(one, one.stages[1])], [one])
    assert line["x"] == [1, 2] and line["y"] == [1, 2] and line["name"] == "rollouts" and line["steps"] == [1, 2]
    lines = traces(chart, [(run, run.stages[1]) for run in (one, other)], [one, other])
    assert [(line["name"], line["colour"], line["dash"]) for line in lines] == [
        ("one · rollouts", 0, 0),
        ("other · rollouts", 1, 0),
    ]


def test_what_has_iterations_is_drawn_over_them(tmp_path):
    """A step within one at its part of it; beside a run without any, all by their steps."""
    config(tmp_path, {"ppo": {"class_path": "rlhf.PPO", "init_args": {}}, "sft": {"class_path": "rlhf.SFT"}})
    steps = [(1, 1), (2, 1), (3, 2), (4, 2)]
    stage(tmp_path / "ppo", [{"step": step, "iteration": iteration, "loss": 1.0} for step, iteration in steps])
    stage(tmp_path / "sft", [{"step": step, "loss": 1.0} for step in (1, 2)])
    run = read_runs([tmp_path])[0]
    (chart,) = charts(["loss"])["Losses"]
    ppo, sft = ((run, one) for one in run.stages)
    (line,) = traces(chart, [ppo], [run])
    assert (line["x"], line["steps"]) == ([0.5, 1, 1.5, 2], [1, 2, 3, 4])
    assert [(line["x"], line["steps"]) for line in traces(chart, [ppo, sft], [run])] == [
        ([1, 2, 3, 4], None),
        ([1, 2], None),
    ]


@pytest.mark.parametrize(("lines", "still"), [
    ([[1.0, 1.0, 1.0]], True),
    ([[1.0, 1.0], [1.0, 2.0]], False),
    ([[0.05, 0.05], [0.1, 0.1]], False),  # two runs of different settings
    ([[3.0]], True),
    ([[1e-9, -1e-9]], True),
    ([[100.0, 100.05]], True),
    ([[5000.0, 5004.0]], False),
    ([], True),
])  # fmt: skip
def test_what_does_not_move_is_no_curve(lines, still):
    assert steady([{"y": values} for values in lines]) is still


def test_long_curves_are_drawn_by_means_at_their_last_step():
    series = Series([1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 3.0, 5.0, 7.0, 100.0], [None] * 5)
    assert thinned(series, most=5) == series
    assert thinned(series, most=3) == ([2.0, 4.0, 5.0], [2.0, 6.0, 100.0], [None] * 3)
    assert thinned(series, most=3, largest=True).values == [3.0, 7.0, 100.0]


@pytest.mark.parametrize("count", [799, 800, 801, 12345])
def test_no_curve_is_longer_than_its_limit(count):
    numbers = [float(n) for n in range(count)]
    found = thinned(Series(numbers, numbers, [None] * count))
    assert len(found.steps) == len(found.values) <= 800 and found.steps[-1] == numbers[-1]
