"""What is worked out of a table of results. The tests themselves have theirs in tests/grid/statistics."""

import finished
import pytest

from rlhf.grid.report.analysis import analyse, claims
from rlhf.grid.report.results import collect
from rlhf.grid.settings import Metric


def analysed(folder, gold=None, without=(), **settings):
    grid, cells = finished.whole(folder, gold, **settings)
    return analyse(collect(grid, cells, [cell.name for cell in cells if cell.name not in without]))


def test_differences_are_from_the_baseline_and_paired(tmp_path):
    found = analysed(tmp_path)
    (row,) = found.differences.itertuples()
    assert (row.metric, row.variant, row.baseline, row.n, row.family) == ("gold", "clip=off", "clip=on", 3, 1)
    # 0.5, 0.25, 0.9: mean 0.55, deviation √(0.0025 + 0.09 + 0.1225)/2 = 0.3279, t(2) = 4.3027
    assert row.difference == pytest.approx(0.55) and row.std == pytest.approx(0.327872, abs=1e-6)
    assert row.low == pytest.approx(0.55 - 4.302653 * 0.327872 / 3**0.5, abs=1e-5)
    assert found.means.set_index("variant")["mean"].to_dict() == pytest.approx({"clip=on": 2.0, "clip=off": 2.55})
    assert found.remarks == ["3 seeds are few: intervals are wide, and normality cannot be looked at; better 5"]
    assert set(found.tables()) == {"means", "differences", "power", "iqm", "improvement", "profiles"}


def test_each_metric_is_a_family_of_its_own(tmp_path):
    metrics = {"gold": Metric(name="eval/gold_score"), "score": Metric(name="eval/score")}
    found = analysed(tmp_path, metrics=metrics)
    assert found.differences[["metric", "family"]].to_numpy().tolist() == [["gold", 1], ["score", 1]]
    assert found.profiles["metric"].unique().tolist() == ["gold"]


def test_crossed_axes_have_effects(tmp_path):
    axes = {**finished.AXES, "stages.ppo.epochs": [1, 2]}
    gold = {"clip=on,epochs=1": [1.0, 2.0, 3.0], "clip=on,epochs=2": [2.0, 3.5, 4.0]}
    gold |= {"clip=off,epochs=1": [1.5, 2.5, 3.0], "clip=off,epochs=2": [3.5, 4.5, 6.0]}
    found = analysed(tmp_path, gold, axes=axes)
    effects = found.effects.set_index("contrast")["estimate"]
    # clip: per seed means over epochs, off − on: (2.5 − 1.5), (3.5 − 2.75), (4.5 − 3.5)
    assert effects["off − on"] == pytest.approx((1.0 + 0.75 + 1.0) / 3)
    assert effects["2 − 1"] == pytest.approx((1.5 + 1.75 + 2.0) / 3)
    assert set(found.terms["term"]) == {"clip", "epochs", "clip × epochs"}


def test_combinations_that_were_not_run_are_told_and_no_effect_is_made_up(tmp_path):
    axes = {**finished.AXES, "stages.ppo.epochs": [1, 2]}
    gold = {name: [1.0, 2.0, 3.0] for name in ("clip=on,epochs=1", "clip=on,epochs=2", "clip=off,epochs=1")}
    found = analysed(tmp_path, gold, axes=axes, exclude=[{"clip": "off", "stages.ppo.epochs": 2}])
    assert not len(found.effects) and "effects" not in found.tables()
    assert any(remark.startswith("effects of gold are not worked out: ") for remark in found.remarks)


def test_one_variant_has_means_and_nothing_to_compare(tmp_path):
    found = analysed(tmp_path, {"base": [1.0, 2.0, 3.0]}, axes={})
    assert set(found.tables()) == {"means", "iqm", "profiles"} and claims(found, "gold") == []


def test_a_missing_cell_is_said(tmp_path):
    found = analysed(tmp_path, without=["clip=off,seed=3"])
    assert found.differences["n"].tolist() == [2]
    (told,) = [remark for remark in found.remarks if "cells have no gold" in remark]
    assert told == "1 of 6 cells have no gold, and the rest may flatter their variants: clip=off,seed=3"


@pytest.mark.parametrize(("seeds", "told"), [([1], "1 seed: no difference"), ([1, 2], "2 seeds: no difference")])
def test_too_few_seeds_are_said(tmp_path, seeds, told):
    assert analysed(tmp_path, seeds=seeds).remarks[0].startswith(told)


def test_enough_seeds_are_not(tmp_path):
    gold = {"clip=on": [1.0, 2.0, 3.0, 4.0, 5.0], "clip=off": [2.0, 2.5, 4.0, 5.5, 5.0]}
    assert analysed(tmp_path, gold, seeds=[1, 2, 3, 4, 5]).remarks == []


def test_claims_say_the_family_first(tmp_path):
    head, *rest = claims(analysed(tmp_path), "gold")
    assert head.startswith("1 comparison, corrected by Holm") and rest[0].startswith("clip=off − clip=on = 0.55 [")


def test_a_metric_that_no_cell_has_is_told_with_the_nearest(tmp_path):
    metrics = {"gold": Metric(name="eval/gold_score"), "kl": Metric(name="kl/sequenc")}
    grid, cells = finished.whole(tmp_path, metrics=metrics)
    for cell in cells:
        path = cell.experiment.directory / "ppo/metrics.jsonl"
        path.write_text(path.read_text() + '{"step": 9, "iteration": 9, "kl/sequence": 1.0}\n')
    names = [cell.name for cell in cells]
    for done in (names, names[:-1]):  # the last not finished yet
        remarks = analyse(collect(grid, cells, done)).remarks
        assert remarks[-1] == "kl: no cell has a number. no line has kl/sequenc. Did you mean kl/sequence?"


def test_how_many_cells_rest_on_the_line_from_the_start_is_told(tmp_path):
    metrics = {"gold": Metric(name="eval/gold_score", at="equal_kl")}
    grid, cells = finished.whole(tmp_path, metrics=metrics)
    finished.finish(cells[0], {"eval/gold_score": 0.0, "eval/kl": 0.0}, {"eval/gold_score": 1.0, "eval/kl": 1.0})
    remarks = analyse(collect(grid, cells, [cell.name for cell in cells])).remarks
    assert remarks[-1].startswith("gold: 1 of 6 cells are read between the start and the first evaluation after it")
