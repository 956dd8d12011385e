"""The table of results: which number of which cell stands where, and why one is missing."""

import math

import finished
import pytest

from rlhf.errors import UserError
from rlhf.grid.report.results import collect
from rlhf.grid.settings import Metric


def names(cells):
    return [cell.name for cell in cells]


def test_a_row_per_cell_a_column_per_axis_and_metric(tmp_path):
    grid, cells = finished.whole(tmp_path)
    results = collect(grid, cells, names(cells))
    assert list(results.table.columns) == ["cell", "variant", "clip", "seed", "gold"]
    assert results.table.to_numpy().tolist() == [
        ["clip=on,seed=1", "clip=on", "on", 1, 1.0],
        ["clip=on,seed=2", "clip=on", "on", 2, 2.0],
        ["clip=on,seed=3", "clip=on", "on", 3, 3.0],
        ["clip=off,seed=1", "clip=off", "off", 1, 1.5],
        ["clip=off,seed=2", "clip=off", "off", 2, 2.25],
        ["clip=off,seed=3", "clip=off", "off", 3, 3.9],
    ]
    assert (results.variants, results.baseline, results.axes) == (
        ["clip=on", "clip=off"],
        "clip=on",
        {"clip": ["on", "off"]},
    )
    assert not len(results.remarks)
    assert results.cells_of("clip=off") == ["clip=off,seed=1", "clip=off,seed=2", "clip=off,seed=3"]


def test_a_cell_that_is_not_finished_has_no_number_and_the_others_are_read_without_it(tmp_path):
    grid, cells = finished.whole(tmp_path)
    done = [name for name in names(cells) if name != "clip=off,seed=2"]
    results = collect(grid, cells, done)
    table = results.table.set_index("cell")["gold"]
    assert math.isnan(table["clip=off,seed=2"]) and table["clip=off,seed=3"] == 3.9
    assert results.remarks.to_numpy().tolist() == [["gold", "clip=off,seed=2", "not finished"]]
    assert "clip=off,seed=2" not in results.runs


@pytest.mark.parametrize("content", [None, "", "a: {"])
def test_the_settings_of_a_cell_are_known_without_its_config(tmp_path, content):
    grid, cells = finished.whole(tmp_path)
    expected = collect(grid, cells, names(cells))
    path = cells[-1].experiment.directory / "config.yaml"
    path.unlink() if content is None else path.write_text(content)
    found = collect(grid, cells, names(cells))
    assert found.table.equals(expected.table)
    last = found.runs[cells[-1].name]
    assert [stage.settings for stage in last.stages] == [stage.settings for stage in expected.runs[last.name].stages]


def test_nothing_finished_is_nothing_to_report(tmp_path):
    grid, cells = finished.grid(tmp_path)
    with pytest.raises(UserError, match="no cell is finished"):
        collect(grid, cells, [])


def test_cells_of_one_seed_are_read_together(tmp_path):
    metrics = {"gold": Metric(name="eval/gold_score", at="equal_kl")}
    grid, cells = finished.grid(tmp_path, metrics=metrics, seeds=[1, 2])
    for cell in cells:
        far = 2.0 if cell.name == "clip=on,seed=1" else 8.0  # nats at the end
        finished.finish(cell, {"eval/gold_score": 0.0, "eval/kl": 0.0}, {"eval/gold_score": 4.0, "eval/kl": far})
    table = collect(grid, cells, names(cells)).table.set_index("cell")["gold"]
    # at √2, half of the way to √8 of the other of the seed; seed 2 is compared at 8
    assert table.to_dict() == {
        "clip=on,seed=1": 4.0,
        "clip=on,seed=2": 4.0,
        "clip=off,seed=1": pytest.approx(2.0),
        "clip=off,seed=2": 4.0,
    }


def test_without_metrics_a_judge_is_compared_and_else_the_score(tmp_path):
    grid, cells = finished.whole(tmp_path, metrics={})
    assert list(collect(grid, cells, names(cells)).metrics) == ["eval/gold_score"]
    for cell in cells:
        finished.finish(cell, {"loss": 2.0}, {"loss": 1.0})
    (metric,) = collect(grid, cells, names(cells)).metrics.values()
    assert (metric.name, metric.higher_is_better) == ("loss", False)
    for cell in cells:
        finished.finish(cell, {"strange": 2.0})
    with pytest.raises(UserError, match=r"metrics: none is named, and the last stage, ppo, has none of eval/score"):
        collect(grid, cells, names(cells))


def test_the_baselines_choice_comes_first_and_an_axis_of_one_choice_is_none(tmp_path):
    axes = {**finished.AXES, "stages.ppo.epochs": [1]}
    grid, cells = finished.grid(tmp_path, axes=axes, baseline={"clip": "off"})
    for cell in cells:
        finished.finish(cell, {"eval/gold_score": 1.0})
    results = collect(grid, cells, names(cells))
    assert results.axes == {"clip": ["off", "on"]}
    assert results.table["epochs"].unique().tolist() == ["1"]
    assert results.variants[0] == results.baseline == "clip=off,epochs=1"


def test_a_named_variant_has_no_choices(tmp_path):
    gold = {**finished.GOLD, "long": [1.0, 1.0, 1.0]}
    grid, cells = finished.whole(tmp_path, gold, variants={"long": {"stages.ppo.iterations": 5}})
    table = collect(grid, cells, names(cells)).table
    assert table.loc[table["variant"] == "long", "clip"].tolist() == ["", "", ""]
