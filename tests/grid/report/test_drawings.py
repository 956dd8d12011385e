"""What the figures show: means over seeds, intervals, frontiers."""

import finished
import pytest

from rlhf.grid.report.analysis import analyse
from rlhf.grid.report.drawings import COMPARED, MOST_PLACES, drawings
from rlhf.grid.report.results import collect
from rlhf.grid.settings import Metric
from rlhf.report.curves import FRONTIER


def drawn(grid, cells, without=()):
    results = collect(grid, cells, [cell.name for cell in cells if cell.name not in without])
    groups = drawings(results, analyse(results))
    return {drawing.key: (group, drawing) for group, members in groups.items() for drawing in members}


def test_a_curve_is_the_mean_over_seeds_with_its_interval(tmp_path):
    group, drawing = drawn(*finished.whole(tmp_path))["eval_gold_score"]
    on, off = drawing.traces
    assert group == COMPARED and (on.name, on.colour, off.name, off.colour) == ("clip=on", 0, "clip=off", 1)
    assert on.x == [0, 1] and on.y == [0.0, 2.0] and off.y == pytest.approx([0.0, 2.55])
    # 1, 2, 3: deviation 1, so 4.3027 / √3 to each side; before training all are 0 and the band has no height
    assert on.low == pytest.approx([0.0, 2 - 4.302653 / 3**0.5], abs=1e-5) and on.high[0] == 0.0
    assert drawing.across == "iteration"


def test_what_a_seed_does_to_both_is_not_in_the_paired_curve(tmp_path):
    group, drawing = drawn(*finished.whole(tmp_path))["paired_eval_gold_score"]
    (line,) = drawing.traces
    assert group == COMPARED and (line.name, line.colour, line.x) == ("clip=off", 1, [0, 1])
    # 0.5, 0.25, 0.9: mean 0.55, deviation 0.327872
    assert line.y == pytest.approx([0.0, 0.55])
    assert line.low == pytest.approx([0.0, 0.55 - 4.302653 * 0.327872 / 3**0.5], abs=1e-5)


def test_a_seed_without_the_baseline_is_in_no_pair(tmp_path):
    _, drawing = drawn(*finished.whole(tmp_path), without=["clip=on,seed=1"])["paired_eval_gold_score"]
    assert drawing.traces[0].y == pytest.approx([0.0, (0.25 + 0.9) / 2])


def test_one_seed_has_no_band(tmp_path):
    _, drawing = drawn(*finished.whole(tmp_path, seeds=[1]))["eval_gold_score"]
    assert drawing.traces[0].low == [] and drawing.traces[0].y == [0.0, 1.0]


def test_differences_stand_below_each_other_with_their_intervals(tmp_path):
    group, drawing = drawn(*finished.whole(tmp_path))["differences_gold"]
    (line,) = drawing.traces
    assert (group, drawing.kind, drawing.across) == (COMPARED, "forest", "difference from clip=on")
    assert line.x == pytest.approx([0.55]) and line.low[0] < 0.55 < line.high[0] and line.colour == 1


def test_one_variant_shows_its_runs(tmp_path):
    found = drawn(*finished.whole(tmp_path, {"base": [1.0, 2.0, 4.0]}, axes={}))
    _, drawing = found["runs_gold"]
    mean, runs = drawing.traces
    assert mean.x == pytest.approx([7 / 3]) and runs.x == [1.0, 2.0, 4.0] and runs.points
    assert "profile_gold" not in found


def test_the_frontier_goes_by_the_root_of_the_kl_and_ends_in_its_runs(tmp_path):
    group, drawing = drawn(*finished.whole(tmp_path))["frontier_eval_gold_score"]
    on, off, on_ends, off_ends = drawing.traces
    assert group == FRONTIER and on.x == [0.0, 2.0] and on.y == [0.0, 2.0]
    assert on_ends.points and on_ends.x == [2.0] * 3 and off_ends.y == [1.5, 2.25, 3.9] and off.name == off_ends.name


def test_a_place_that_some_seeds_lack_is_left_out(tmp_path):
    grid, cells = finished.whole(tmp_path)
    finished.finish(cells[0], {"eval/gold_score": 0.0}, {"eval/gold_score": None}, {"eval/gold_score": 9.0})
    _, drawing = drawn(grid, cells)["eval_gold_score"]
    assert drawing.traces[0].x == [0] and drawing.traces[1].x == [0, 1]


def test_a_figure_of_every_step_is_averaged_over_its_iteration(tmp_path):
    grid, cells = finished.grid(tmp_path)
    for cell in cells:
        finished.finish(cell, {"eval/gold_score": 0.0}, {"eval/gold_score": 1.0})
        path = cell.experiment.directory / "ppo/metrics.jsonl"
        with path.open("a") as file:
            for step, loss in ((3, 1.0), (4, 2.0), (5, 7.0)):
                file.write(f'{{"step": {step}, "iteration": {3 if step == 5 else 2}, "loss/policy": {loss}}}\n')
    _, drawing = drawn(grid, cells)["loss_policy"]
    assert drawing.traces[0].x == [2, 3] and drawing.traces[0].y == [1.5, 7.0]


def test_long_curves_are_thinned(tmp_path):
    grid, cells = finished.grid(tmp_path)
    for cell in cells:
        finished.finish(cell, *({"eval/gold_score": float(at)} for at in range(3 * MOST_PLACES)))
    line = drawn(grid, cells)["eval_gold_score"][1].traces[0]
    assert len(line.x) == MOST_PLACES and line.x[:2] == [2, 5] and line.y[:2] == [1.0, 4.0]


def test_what_does_not_move_is_not_drawn(tmp_path):
    grid, cells = finished.grid(tmp_path)
    for cell in cells:
        finished.finish(cell, {"eval/gold_score": 0.0, "kl/coef": 0.05}, {"eval/gold_score": 1.0, "kl/coef": 0.05})
    found = drawn(grid, cells)
    assert "kl_coef" not in found and "eval_gold_score" in found


def test_metrics_of_two_stages_are_told_apart(tmp_path):
    metrics = {"gold": Metric(name="eval/gold_score"), "loss": Metric(name="loss", stage="sft")}
    grid, cells = finished.whole(tmp_path, metrics=metrics)
    for cell in cells:
        path = cell.experiment.directory / "sft/metrics.jsonl"
        path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n')
    found = drawn(grid, cells)
    assert found["ppo_eval_gold_score"][1].title.startswith("ppo · ")
    assert found["sft_loss"][1].across == "optimiser step"
