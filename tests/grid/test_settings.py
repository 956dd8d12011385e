"""A grid as it is read: where its base is, and what is wrong before an experiment is looked at."""

import pytest
from tiny_runs import LETTERS, ppo, sft

from rlhf.algorithms.evaluation import Evaluation
from rlhf.errors import ConfigError
from rlhf.grid.executors.local import LocalPool
from rlhf.grid.settings import Grid, Metric, load_grid


def grid(**settings):
    return Grid(**{"name": "g", "base": "b.yaml", **settings})


def test_a_grid_is_read_and_its_base_found_beside_it(tmp_path, monkeypatch):
    (tmp_path / "grids").mkdir()
    file = tmp_path / "grids" / "one.yaml"
    file.write_text("name: one\nbase: ../exp.yaml\naxes: {clip: {on: {a.b: 1}, off: {a.b: null}}, a.c: [1, 1e-5]}\n")
    found = load_grid([file])
    assert found.base == [str(tmp_path / "grids" / ".." / "exp.yaml")]
    assert found.axes == {"clip": {"on": {"a.b": 1}, "off": {"a.b": None}}, "a.c": [1, 1e-5]}
    assert found.executor == LocalPool() and found.directory.as_posix() == "runs/one"
    changed = load_grid([file], [("seeds", "[3, 4]"), ("executor.at_once", "7"), ("base", "here.yaml")])
    assert changed.seeds == [3, 4] and changed.executor == LocalPool(at_once=7) and changed.base == "here.yaml"
    more = tmp_path / "more.yaml"
    more.write_text("axes: {clip: {half: {a.b: 0.5}}}\nbase: [/exp.yaml, extra.yaml]\n")
    both = load_grid([file, more])
    assert list(both.axes["clip"]) == ["on", "off", "half"]  # merged key by key
    assert both.files == ["/exp.yaml", str(tmp_path / "extra.yaml")]


def test_a_misspelt_setting_is_refused_with_the_nearest(tmp_path):
    file = tmp_path / "grid.yaml"
    file.write_text("name: g\nbase: b.yaml\nseedz: [1]\nmetrics: {gold: {name: x, att: last}}\nexecutor: LocalPol\n")
    with pytest.raises(ConfigError) as error:
        load_grid([file])
    text = str(error.value)
    assert "seedz: Grid has no setting 'seedz'. Did you mean seeds?" in text
    assert "metrics.gold.att: Metric has no setting 'att'. Did you mean at?" in text
    assert "executor: No Executor is called 'LocalPol'. Did you mean LocalPool?" in text


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"name": "a/b"}, "name: is 'a/b'; must be a plain folder name"),
        ({"seeds": []}, "seeds: is empty; leave it out, or give at least one"),
        ({"seeds": [1, 2, 1]}, "seeds: 1 is given twice; name each once"),
        (
            {"axes": {"seed": {"a": {}}}},
            "axes.seed: 'seed' is a column that every table of results has; rename this one",
        ),
        (
            {"axes": {"gold": {"a": {}}}, "metrics": {"gold": Metric(name="loss")}},
            "metrics.gold: 'gold' is the column of axes.gold, too; rename this one",
        ),
        ({"metrics": {"variant": Metric(name="loss")}}, "metrics.variant: 'variant' is a column that every table"),
        ({"seed_stages": []}, "seed_stages: is empty; leave it out, or give at least one"),
        ({"metrics": {"m": Metric(name="")}}, "metrics.m.name: is empty; name a figure of metrics.jsonl"),
        ({"metrics": {"m": Metric(name="x", by="y")}}, "metrics.m.by: is 'y', but only at: best looks for a best"),
    ],
)
def test_what_can_be_seen_without_the_experiment(settings, text):
    (problem,) = grid(**settings).problems()
    assert problem.startswith(text)
    assert grid(metrics={"m": Metric(name="x", at="best", by="y")}).problems() == []


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "runs").write_text("")
    (problem,) = grid(output_dir=str(tmp_path / "runs")).problems()
    assert problem == f"output_dir: {tmp_path / 'runs'} is a file, so no folder can be made there; give another"


def test_metrics_and_seeds_name_stages_that_there_are():
    stages = {"sft": sft(), "ppo": ppo(evaluation=Evaluation(every=1, rewards={"gold": LETTERS}))}
    wrong = grid(seed_stages=["ppp"], metrics={"m": Metric(name="loss", stage="stf")})
    assert wrong.check_stages(stages) == [
        "metrics.m.stage: no stage is called 'stf'. Did you mean sft? There are: sft, ppo",
        "seed_stages: no stage is called 'ppp'. Did you mean ppo? There are: sft, ppo",
    ]
    right = {"a": Metric(name="eval/gold_score"), "b": Metric(name="eval/loss", stage="sft"), "c": Metric(name="own")}
    assert grid(metrics=right, seed_stages=["ppo"]).check_stages(stages) == []


def test_a_figure_that_no_evaluation_has_is_refused():
    stages = {"ppo": ppo(evaluation=Evaluation(every=1, rewards={"gold": LETTERS}))}
    named = grid(metrics={"m": Metric(name="eval/gold_scor", at="best", by="eval/ema/score")})
    first, second = named.check_stages(stages)
    assert first.startswith("metrics.m.name: no evaluation has the figure 'gold_scor'") and "gold_score" in first
    assert second.startswith("metrics.m.by: is 'ema/score', but averaging is null")
    (never,) = grid(metrics={"m": Metric(name="eval/score")}).check_stages({"ppo": ppo()})
    assert never == (
        "metrics.m.name: is 'eval/score', but evaluation.every of the stage is 0, so that nothing is evaluated; set it"
    )
