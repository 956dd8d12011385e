"""Expansion, counted by hand, and the experiments that come of it."""

import dataclasses

import forked_cells
import pytest

from rlhf.algorithms.grpo import GRPO
from rlhf.errors import ConfigError
from rlhf.grid.axes import labels
from rlhf.grid.cells import baseline_name, cells, check_expansion, combinations, expand
from rlhf.grid.settings import Grid, Metric
from rlhf.yaml_files import parse

AXES = {
    "clip": {"on": {"stages.ppo.score_clip": 1.0}, "off": {"stages.ppo.score_clip": None}},
    "size": {"small": {"stages.ppo.batch_size": 4}, "large": {"stages.ppo.batch_size": 8}},
    "stages.ppo.epochs": [1, 2],
}


def grid(**settings):
    return Grid(**{"name": "g", "base": "base.yaml", "axes": AXES, **settings})


def found(**settings):
    return [",".join(choices.values()) for choices in combinations(grid(**settings))]


def names(**settings):
    return [variant.name for variant in expand(grid(**settings))]


def test_axes_are_combined_in_every_way_the_last_fastest():
    assert found() == [
        "on,small,1", "on,small,2", "on,large,1", "on,large,2",
        "off,small,1", "off,small,2", "off,large,1", "off,large,2",
    ]  # fmt: skip
    assert found(axes={}) == [""] and names(axes={}) == ["base"]


def test_zipped_axes_move_together():
    assert found(zip=[["clip", "stages.ppo.epochs"]]) == ["on,1,small", "on,1,large", "off,2,small", "off,2,large"]
    assert found(zip=[["clip", "size", "stages.ppo.epochs"]]) == ["on,small,1", "off,large,2"]


def test_an_axis_varies_only_where_others_let_it():
    only = {"clip": {"size": "small"}}
    assert found(only_if=only) == ["on,small,1", "on,small,2", "large,1", "large,2", "off,small,1", "off,small,2"]
    # clip only where size is small, size only with 1 epoch: with 2 there is neither
    only["size"] = {"stages.ppo.epochs": 1}
    assert found(only_if=only) == ["on,small,1", "2", "large,1", "off,small,1"]
    assert found(only_if={"clip": {"size": ["small", "large"]}}) == found()


def test_an_axis_that_varies_nowhere_else_sets_nothing_there():
    variants = {variant.name: variant for variant in expand(grid(only_if={"clip": {"size": "small"}}))}
    large = variants["size=large,epochs=1"]
    assert large.choices == {"size": "large", "stages.ppo.epochs": "1"}
    assert [(change.key, change.value) for change in large.overrides] == [
        ("stages.ppo.batch_size", 8),
        ("stages.ppo.epochs", 1),
    ]


def test_combinations_are_left_out():
    assert found(exclude=[{"clip": False, "size": "small"}, {"stages.ppo.epochs": 2, "size": ["small", "large"]}]) == [
        "on,small,1",
        "on,large,1",
        "off,large,1",
    ]


def test_variants_are_the_baseline_and_more():
    settings = {"variants": {"long": {"stages.ppo.iterations": 9}}, "baseline": {"clip": False}}
    variants = {variant.name: variant for variant in expand(grid(**settings, overrides={"threads": 1}))}
    assert len(variants) == 9 and next(iter(variants)) == "clip=off,size=small,epochs=1"
    long = variants["long"]
    assert long.choices == {}
    assert [(change.key, change.value, change.origin) for change in long.overrides] == [
        ("threads", 1, "overrides"),
        ("stages.ppo.score_clip", None, "axes.clip.off"),
        ("stages.ppo.batch_size", 4, "axes.size.small"),
        ("stages.ppo.epochs", 1, "axes.stages.ppo.epochs.1"),
        ("stages.ppo.iterations", 9, "variants.long"),
    ]


def test_the_baseline_is_first():
    assert names()[0] == baseline_name(grid()) == "clip=on,size=small,epochs=1"
    assert names(baseline={"stages.ppo.epochs": 2})[0] == "clip=on,size=small,epochs=2"
    assert names(variants={"long": {"seed": 3}}, baseline="long")[0] == "long"


def test_paths_go_by_their_last_word_where_that_is_enough():
    assert labels(["a", "x.lr", "y.lr", "z.b"]) == {"a": "a", "x.lr": "x.lr", "y.lr": "y.lr", "z.b": "b"}


# -------------------------------------------------------------------------------------------------------- experiments


@pytest.fixture
def base(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RLHF_CACHE_DIR")
    (tmp_path / "base.yaml").write_text(forked_cells.BASE)
    return tmp_path


def problems(**settings):
    with pytest.raises(ConfigError) as error:
        cells(grid(**settings))
    return error.value.problems


def test_a_cell_is_an_experiment(base):
    made = cells(grid(seeds=[5, 6], overrides={"stages.ppo.iterations": "7"}, axes={"s": AXES["size"]}))
    assert [cell.name for cell in made] == [
        "s=small,seed=5", "s=small,seed=6", "s=large,seed=5", "s=large,seed=6",
    ]  # fmt: skip
    cell = made[-1]
    assert (cell.variant, cell.choices, cell.seed) == ("s=large", {"s": "large"}, 6)
    experiment = cell.experiment
    assert experiment.directory.as_posix() == "runs/g/s=large,seed=6" and experiment.seed == 6
    assert experiment.stages["ppo"].batch_size == 8 and experiment.stages["ppo"].iterations == 7
    assert experiment.stage_cache == "runs/.stages" and experiment.threads == 1  # the pool's
    assert [cell.seed for cell in cells(grid(axes={}))] == [1]  # the experiment's own


def test_seeds_may_be_for_some_stages_only(base):
    one, two = cells(grid(axes={}, seeds=[5, 6], seed_stages=["ppo"]))
    assert (one.experiment.seed, one.experiment.stage_seeds) == (1, {"ppo": 5})
    assert one.experiment.stage_seed("sft") == two.experiment.stage_seed("sft")
    assert one.experiment.stage_seed("ppo") != two.experiment.stage_seed("ppo")


def test_a_choice_is_spelt_as_on_the_command_line(base):
    (only,) = [
        cell.experiment.stages["ppo"]
        for cell in cells(
            grid(
                axes={
                    "a": {
                        "x": {
                            "stages.ppo": "GRPO",
                            "stages.ppo.samples_per_prompt": 4,
                            "stages.ppo.kl": None,
                            "stages.ppo.averaging": {"class_path": "EMA", "decay": 0.5},
                            "stages.ppo.optimizer.lr": "1e-3",
                        }
                    }
                }
            )
        )
    ]
    assert type(only) is GRPO and only.kl is None and only.averaging.decay == 0.5 and only.optimizer.lr == 1e-3


def test_a_variant_made_quickly_is_what_the_command_makes(base):
    from rlhf.config import dump, load

    (cell,) = cells(grid(axes={"a": {"x": {"stages.ppo.advantage.lam": 0.9}}}, seeds=[3]))
    (base / "cell.yaml").write_text(dump(cell.experiment))
    assert load(["cell.yaml"]) == cell.experiment


def test_every_mistake_is_told_with_the_cells_it_is_in(base):
    axes = {
        "clip": {"on": {"stages.ppo.score_clipp": 1.0}, "off": {"stages.ppo.score_clip": -1}},
        "stages.ppo.batch_size": [8, 9, "many"],
    }
    found = problems(axes=axes, overrides={"name": "x"}, metrics={"m": Metric(name="", stage="ppo")})
    assert found == [
        "metrics.m.name: is empty; name a figure of metrics.jsonl",
        "overrides: name is that of the cell's folder; rename the choice",
        "axes.clip.on: stages.ppo.score_clipp: PPO has no setting 'score_clipp'. Did you mean score_clip? (in "
        "clip=on,batch_size=8; clip=on,batch_size=9; clip=on,batch_size=many)",
        "stages.ppo (PPO): score_clip is -1.0; must be above 0 (in clip=off,batch_size=8; clip=off,batch_size=9)",
        "axes.stages.ppo.batch_size.many: stages.ppo.batch_size: 'many' is not of type int. Give a whole number. (in "
        "clip=off,batch_size=many)",
    ]


def test_a_problem_of_the_base_is_told_once_and_of_an_experiment_with_its_cells(base):
    (base / "base.yaml").write_text(forked_cells.BASE.replace("iterations", "iterationz"))
    (found,) = problems()
    assert found.startswith(
        "base.yaml: stages.ppo.iterationz: PPO has no setting 'iterationz'. Did you mean iterations"
    )
    assert "(in " not in found
    (base / "base.yaml").write_text(forked_cells.BASE)
    (found,) = problems(axes={"stages.ppo.batch_size": [8, 9]})
    assert found.startswith("stages.ppo.batch_size: 9 % 4 = 1, not 0") and found.endswith(" (in batch_size=9)")


def test_what_is_not_there_is_found_before_anything_runs(base):
    (found,) = problems(axes={"f": {"a": {}, "b": {"stages.ppo.reward.function": "tiny_runs.lettrs"}}})
    assert found.startswith("stages.ppo.reward: ") and "lettrs" in found and found.endswith(" (in f=b)")
    layers = {"whole": {}, "some": {"stages.ppo.policy.trainable_layers": 3}}
    (found,) = problems(axes={"layers": layers})
    assert "trainable_layers: 3, but" in found and found.endswith(" (in layers=some)")


def test_equal_cells_are_refused(base):
    (found,) = problems(axes={"clip": {"usual": {}, "five": {"stages.ppo.score_clip": 5.0}}})
    assert found == (
        "axes: clip=usual and clip=five are the same experiment; leave one out (exclude, only_if), or mend what it sets"
    )


def test_choices_that_have_no_cell_or_the_same_folder_are_refused(base):
    assert problems(zip=[["clip", "size"]], exclude=[{"clip": True, "size": "large"}]) == [
        "exclude.0: no cell has these choices, so that nothing is excluded; mend it, or leave it out"
    ]
    (found,) = problems(zip=[["clip", "size"]], baseline={"size": "large"})
    assert found == "baseline: clip=on,size=large,epochs=1 is not among the cells (zip, exclude); choose another"
    data = {"a/b": {"stages.ppo.epochs": 1}, "a@b": {"stages.ppo.epochs": 2}}
    (found,) = problems(axes={"data": data})
    assert found == "axes: 'data=a@b' and 'data=a/b' would be in one folder, data=a_b; rename a choice or variant"
    (found,) = problems(axes={"a": {"x" * 300: {}}})
    assert "has a name of 302 characters; give shorter names to choices" in found


def test_files_of_the_base_are_merged(base):
    (base / "more.yaml").write_text("stages: {ppo: {init_args: {iterations: 9}}}")
    (cell,) = cells(grid(base=["base.yaml", "more.yaml"], axes={}))
    assert cell.experiment.stages["ppo"].iterations == 9
    assert "no such file" in problems(base="nowhere.yaml", axes={})[0]


def test_grids_of_the_tests_are_right(base):
    assert len(cells(dataclasses.replace(Grid(**{**parse(forked_cells.GRID), "executor": forked_cells.Forked()})))) == 8


def test_what_every_choice_of_an_axis_sets_is_no_override():
    one = grid(overrides={"stages.ppo.score_clip": 3.0, "stages.ppo.iterations": 2})
    (problem,) = check_expansion(one, expand(one))
    assert problem.startswith("overrides.stages.ppo.score_clip: every cell sets it by an axis or a variant")
    some = grid(
        axes={"clip": {"on": {"stages.ppo.score_clip": 1.0}, "as it is": {}}}, overrides={"stages.ppo.score_clip": 3.0}
    )
    assert check_expansion(some, expand(some)) == []
