"""Which weights become ``model/``: chosen, kept, and found again whatever cuts the run."""

import dataclasses
import json
import math
import shutil

import pytest
import tiny_runs
from transformers import AutoModelForCausalLM

from rlhf import EMA, Averaged, Best, Evaluation, Experiment, Last
from rlhf.errors import UserError
from rlhf.interruption import Stopped
from rlhf.loops.evaluation import Evaluator
from rlhf.loops.selection import Selector
from rlhf.loops.stage import OnlineStage
from rlhf.metrics import read_metrics
from rlhf.models.storage import load_usage


def algorithm(**settings):
    """Four iterations of two steps, each evaluated."""
    usual = {
        "evaluation": Evaluation(every=1, prompts=4),
        "averaging": EMA(decay=0.7),
        "iterations": 4,
        "save_every": 1,
        "select": Best(),
    }
    return tiny_runs.ppo(**{**usual, **settings})


SCORES = {0: 1.0, 1: 3.0, 2: 2.0, 3: 5.0, 4: 4.0}
AVERAGES = {1: 1.0, 2: 7.0, 3: 0.0, 4: 6.0}


def telling(patch, scores):
    """Evaluations say these scores."""
    honest = Evaluator.__call__

    def told(self, samples_to=None):
        figures, iteration = honest(self, samples_to), self.trainer.iteration
        averages = {"eval/ema/score": AVERAGES[iteration]} if "eval/ema/score" in figures else {}
        return {**figures, "eval/score": scores[iteration], **averages}

    patch.setattr(Evaluator, "__call__", told)


def staged(directory, patch, *, scores=SCORES, sinks=(), context=None, **settings):
    telling(patch, scores)
    return OnlineStage(algorithm(**settings), context or tiny_runs.context(directory, sinks=sinks))


def fit(directory, monkeypatch, **settings):
    with monkeypatch.context() as patch:
        stage = staged(directory, patch, **settings)
        return stage, stage.fit()


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """The policy and its average after each iteration of the run, as models on disk."""
    folder = tmp_path_factory.mktemp("weights")
    stage = OnlineStage(algorithm(select=Last()), tiny_runs.context(folder))
    for iteration in range(5):
        stage._export(f"policy_{iteration}")
        stage._export(f"average_{iteration}", averaged=True)
        if iteration < 4:
            stage.trainer.train_rlhf(stage.trainer.generate_experience())
    return folder


def said(stage):
    return " ".join(stage.context.console.file.getvalue().split())


# ------------------------------------------------------------------------------------------------------------- chosen


def test_the_last_weights_are_the_default(tmp_path, monkeypatch, weights):
    stage, figures = fit(tmp_path, monkeypatch, select=Last())
    assert tiny_runs.same_weights(tmp_path / "model", weights / "policy_4")
    assert not (tmp_path / "best").exists() and "model/ has" not in said(stage)
    assert not any(name.startswith("select/") for name in figures)


def test_the_averages_weights(tmp_path, monkeypatch, weights):
    stage, _ = fit(tmp_path, monkeypatch, select=Averaged())
    assert tiny_runs.same_weights(tmp_path / "model", weights / "average_4")
    assert tiny_runs.same_weights(tmp_path / "model", tmp_path / "ema")
    assert "model/ has the average's weights" in said(stage)


def test_the_best_evaluations_weights(tmp_path, monkeypatch, weights):
    stage, figures = fit(tmp_path, monkeypatch)
    assert tiny_runs.same_weights(tmp_path / "model", weights / "policy_3")
    assert tiny_runs.same_weights(tmp_path / "ema", weights / "average_4")  # stays the last average
    assert "model/ has the weights of iteration 3 of 4 (step 6), the best evaluation: eval/score 5" in said(stage)
    assert (figures["select/step"], figures["select/iteration"]) == (6, 3)
    chosen = [line["select/iteration"] for line in read_metrics(tmp_path) if "select/iteration" in line]
    assert chosen == [0, 1, 1, 3, 3]
    AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert load_usage(tmp_path / "model")[1]["max_new_tokens"] == 8


@pytest.mark.parametrize(("select", "name"), [
    (Best(metric="ema/score"), "average_2"),
    (Best(metric="ema/score", higher_is_better=False), "average_3"),
    (Best(higher_is_better=False), "policy_0"),
])  # fmt: skip
def test_of_the_average_and_the_least(tmp_path, monkeypatch, weights, select, name):
    fit(tmp_path, monkeypatch, select=select)
    assert tiny_runs.same_weights(tmp_path / "model", weights / name)


def test_of_equal_ones_the_first_and_nothing_that_is_no_number(tmp_path, monkeypatch, weights):
    fit(tmp_path, monkeypatch, scores={0: math.nan, 1: 2.0, 2: 2.0, 3: math.nan, 4: 1.0})
    assert tiny_runs.same_weights(tmp_path / "model", weights / "policy_1")
    assert "select/step" not in read_metrics(tmp_path)[0]


def test_without_any_number_the_last_weights_are_taken_and_it_is_said(tmp_path, monkeypatch, weights):
    stage, _ = fit(tmp_path, monkeypatch, scores=dict.fromkeys(range(5), math.nan))
    assert tiny_runs.same_weights(tmp_path / "model", weights / "policy_4")
    assert "no evaluation had a number to select by, so model/ has the last weights" in said(stage)


def test_a_figure_that_no_evaluation_has_is_refused_at_the_first(tmp_path, monkeypatch):
    with pytest.raises(
        UserError, match=r"select\.metric: an evaluation has no figure 'score/part'; .*Known: distinct_2"
    ):
        fit(tmp_path, monkeypatch, select=Best(metric="score/part"))
    assert read_metrics(tmp_path) == []


# --------------------------------------------------------------------------------------------------------------- kept


def test_only_what_is_still_needed_is_kept(tmp_path, monkeypatch):
    fit(tmp_path, monkeypatch)  # the checkpoints that are left are of iterations 2 and 3
    named = {
        path.name: json.loads((path / "manifest.json").read_text())["about"]["best"]
        for path in (tmp_path / "checkpoints").glob("step_*")
    }
    assert named == {"step_4": "iteration_1", "step_6": "iteration_3"}
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == ["iteration_1", "iteration_3"]


def test_without_checkpoints_only_the_best_is_kept(tmp_path, monkeypatch):
    fit(tmp_path, monkeypatch, save_every=0)
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["iteration_3"]


@pytest.mark.parametrize("background", [False, True])
def test_a_checkpoint_on_its_way_to_the_disk_keeps_its_best(tmp_path, monkeypatch, background):
    context = dataclasses.replace(tiny_runs.context(tmp_path), save_in_background=background)
    with monkeypatch.context() as patch:
        stage = staged(tmp_path, patch, scores={0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0, 4: 5.0}, context=context)
        stage.fit()
    for path in (tmp_path / "checkpoints").glob("step_*"):
        best = json.loads((path / "manifest.json").read_text())["about"]["best"]
        assert (tmp_path / "best" / best).is_dir()
    assert len(list((tmp_path / "best").iterdir())) == 3


# ---------------------------------------------------------------------------------------------------- stop and resume


@pytest.mark.parametrize("step", [1, 4, 7])
def test_killed_in_the_middle_of_any_step(tmp_path, monkeypatch, weights, step):
    with pytest.raises(tiny_runs.Killed):
        fit(tmp_path, monkeypatch, sinks=(tiny_runs.KillAt(step=step),))
    fit(tmp_path, monkeypatch)
    assert tiny_runs.same_weights(tmp_path / "model", weights / "policy_3")
    assert [line["select/iteration"] for line in read_metrics(tmp_path) if "eval/score" in line] == [0, 1, 1, 3, 3]


def test_weights_of_what_was_lost_are_not_counted(tmp_path, monkeypatch, weights):
    """Killed after a better evaluation than the checkpoint knows, and it does not come again."""
    with pytest.raises(tiny_runs.Killed):
        fit(tmp_path, monkeypatch, sinks=(tiny_runs.KillAt(step=7),), save_every=2)  # the checkpoint is iteration 2's
    assert (tmp_path / "best" / "iteration_3").is_dir()
    fit(tmp_path, monkeypatch, scores={**SCORES, 3: 0.0, 4: 0.0}, save_every=2)
    assert tiny_runs.same_weights(tmp_path / "model", weights / "policy_1")


def test_stopped_and_continued(tmp_path, monkeypatch, weights):
    with monkeypatch.context() as patch:
        stage = staged(tmp_path, patch, save_every=0)
        tiny_runs.stop_after(stage.trainer, 5, patch, "_optimiser_step")
        with pytest.raises(Stopped):
            stage.fit()
    fit(tmp_path, monkeypatch, save_every=0)
    assert tiny_runs.same_weights(tmp_path / "model", weights / "policy_3")


def test_a_best_that_has_gone_is_told(tmp_path, monkeypatch):
    with pytest.raises(tiny_runs.Killed):
        fit(tmp_path, monkeypatch, sinks=(tiny_runs.KillAt(step=7),))
    shutil.rmtree(tmp_path / "best")
    with pytest.raises(
        UserError, match=r"best/iteration_3 is not there, and the checkpoint counts on it .*eval/score 5"
    ):
        fit(tmp_path, monkeypatch)


def test_a_checkpoint_of_another_selection_says_nothing_of_the_best(tmp_path, monkeypatch, weights):
    with pytest.raises(tiny_runs.Killed):
        fit(tmp_path, monkeypatch, sinks=(tiny_runs.KillAt(step=7),), select=Last())
    stage, _ = fit(tmp_path, monkeypatch)
    assert tiny_runs.same_weights(tmp_path / "model", weights / "policy_4")
    assert "made with another select, so evaluations before it do not count" in said(stage)


def test_a_state_from_before_there_were_selections(tmp_path):
    stage = OnlineStage(algorithm(), tiny_runs.context(tmp_path))
    selector = Selector(stage.trainer, stage._export)
    selector.load_state_dict(None)
    assert selector.best is None and "another select" in selector.notes()[0]


def test_a_run_goes_on_from_a_checkpoint_of_another_run_with_its_best(tmp_path, monkeypatch):
    def experiment(name, **settings):
        stages = {"ppo": algorithm(**settings)}
        return Experiment(name=name, output_dir=str(tmp_path), stages=stages, stage_cache=str(tmp_path / "kept"))

    with monkeypatch.context() as patch:
        telling(patch, SCORES)
        experiment("one").run()
        (kept,) = (tmp_path / "kept").glob("ppo-*")
        assert (kept / "model").is_dir() and not (kept / "best").exists()
        # every evaluation after the checkpoint is worse than the best before it
        experiment("two", evaluation=Evaluation(every=1, prompts=3)).run(resume=tmp_path / "one/ppo/checkpoints/step_6")
    assert tiny_runs.same_weights(tmp_path / "two/ppo/model", tmp_path / "one/ppo/model")
    assert (tmp_path / "two/ppo/best/iteration_3").is_dir()
