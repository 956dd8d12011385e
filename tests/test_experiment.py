"""Experiments: references, which stages run, and what is never deleted."""

import dataclasses
import json
from typing import Any

import pytest
import tiny_runs

import rlhf.loops
from rlhf.algorithms.averaging import EMA
from rlhf.algorithms.critics import OwnTrunk
from rlhf.algorithms.optimizers import SGD, AdamW
from rlhf.config import load
from rlhf.data.dataset import Data
from rlhf.data.sources import Files
from rlhf.errors import UserError
from rlhf.experiment import Experiment
from rlhf.interfaces import ModelPath
from rlhf.models.policy import FromScratch, Pretrained
from rlhf.models.rewards import FunctionReward, ScalarReward, Weighted
from rlhf.stages.settings import differences, references, resolve, settings_tree


def pipeline(tmp_path, **changes: Any) -> Experiment:
    """The three phases, one or two steps each; ``changes`` are settings of stages."""
    stages = {
        "sft": tiny_runs.sft(steps=2),
        "reward": tiny_runs.reward_modelling(model=Pretrained(path="@sft"), steps=2),
        "ppo": tiny_runs.ppo(
            policy=Pretrained(path="@sft"),
            reward=ScalarReward(path="@reward"),
            critic=OwnTrunk(path="@reward"),
            averaging=EMA(),
            iterations=1,
            save_every=0,
        ),
    }
    for name, settings in changes.items():
        stages[name] = dataclasses.replace(stages[name], **settings)
    return Experiment(name="toy", output_dir=str(tmp_path), stages=stages)


# ------------------------------------------------------------------------------------------------------- references


def test_references_are_found_and_resolved(tmp_path):
    experiment = pipeline(tmp_path)
    found = list(references(experiment.stages["ppo"]))
    assert found == [("policy.path", "@sft"), ("reward.path", "@reward"), ("critic.path", "@reward")]
    resolved = resolve(experiment.stages["ppo"], experiment.folders())
    assert resolved.policy.path == str(tmp_path / "toy" / "sft" / "model")
    assert resolved.critic.path == str(tmp_path / "toy" / "reward" / "model")
    assert experiment.stages["ppo"].policy.path == "@sft"
    assert experiment.folders()["@ppo/ema"] == str(tmp_path / "toy" / "ppo" / "ema")
    assert experiment.check() == []


def test_references_inside_dicts(tmp_path):
    reward = Weighted(models={"a": ScalarReward(path="@reward")}, weights={"a": 1.0})
    experiment = pipeline(tmp_path, ppo={"reward": reward})
    assert ("reward.models.a.path", "@reward") in list(references(experiment.stages["ppo"]))
    resolved = resolve(experiment.stages["ppo"], experiment.folders())
    assert resolved.reward.models["a"].path == str(tmp_path / "toy" / "reward" / "model")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Taught(FunctionReward):
    """A reward of a user's own that reads an earlier stage's model under a name of its own."""

    teacher: ModelPath
    assistant: ModelPath | None = None
    note: str = "@sft is only a word here"


def test_any_setting_that_is_a_model_path_may_refer_to_a_stage(tmp_path):
    reward = Taught(function="tiny_runs.letters", teacher="@sft", assistant="@reward")
    experiment = pipeline(tmp_path, ppo={"reward": Weighted(models={"a": reward}, weights={"a": 1.0})})
    assert ("reward.models.a.teacher", "@sft") in references(experiment.stages["ppo"])
    resolved: Any = resolve(experiment.stages["ppo"], experiment.folders())
    taught = resolved.reward.models["a"]
    assert taught.teacher == str(tmp_path / "toy" / "sft" / "model")
    assert taught.assistant == str(tmp_path / "toy" / "reward" / "model")
    assert taught.note == "@sft is only a word here"
    (problem,) = pipeline(tmp_path, ppo={"reward": dataclasses.replace(reward, teacher="@stf")}).check()
    assert problem.startswith("stages.ppo.reward.teacher: no earlier stage leaves '@stf'; did you mean @sft?")


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("@stf", "no earlier stage leaves '@stf'; did you mean @sft? Known: @sft, @reward"),
        ("@sft/ema", "no earlier stage leaves '@sft/ema'; did you mean @sft? Known: @sft, @reward"),
        ("@ppo", "no earlier stage leaves '@ppo'; Known: @sft, @reward"),
    ],
)
def test_unknown_references(tmp_path, path, problem):
    experiment = pipeline(tmp_path, ppo={"policy": Pretrained(path=path)})
    assert experiment.check() == [f"stages.ppo.policy.path: {problem}"]
    with pytest.raises(UserError, match=r"stages\.ppo\.policy\.path"):
        experiment.run()
    assert not (tmp_path / "toy").exists()


def test_an_average_is_known_only_where_there_is_one(tmp_path):
    def after(**settings):
        experiment = pipeline(tmp_path, ppo=settings)
        again = tiny_runs.ppo(policy=Pretrained(path="@ppo/ema"))
        return dataclasses.replace(experiment, stages={**experiment.stages, "again": again})

    assert after(averaging=EMA()).check() == []
    (problem,) = after(averaging=None).check()
    assert problem.startswith("stages.again.policy.path: no earlier stage leaves '@ppo/ema'; did you mean @ppo?")


def test_the_first_stage_has_nothing_to_refer_to(tmp_path):
    (problem,) = pipeline(tmp_path, sft={"policy": Pretrained(path="@ppo")}).check()
    assert problem.endswith("Known: none, this is the first stage")
    assert "no earlier stage leaves '@ppo'; that stage comes later, and stages run in the order" in problem


def test_checks_of_stages_and_names(tmp_path):
    problems = pipeline(tmp_path, ppo={"mini_batch_size": 3}).check()  # case H4
    assert problems == ["stages.ppo.batch_size: 8 % 3 = 2, not 0; make batch_size a multiple of mini_batch_size"]
    assert "name: is 'a/b'; must be a plain folder name" in dataclasses.replace(pipeline(tmp_path), name="a/b").check()
    assert Experiment(name="x", stages={}).check() == ["stages: there is none; name at least one"]
    (problem,) = Experiment(name="x", stages={"@a": tiny_runs.sft()}).check()
    assert problem == "stages.@a: a stage's name must be a plain folder name"


def test_settings_and_differences():
    tree = settings_tree(tiny_runs.sft())
    assert tree["class_path"] == "rlhf.algorithms.sft.SFT" and tree["optimizer"]["lr"] == 1e-2
    other = settings_tree(tiny_runs.sft(optimizer=AdamW(lr=2e-2), steps=3))
    assert differences(tree, other) == ["steps: None → 3", "optimizer.lr: 0.01 → 0.02"]
    assert differences({"a": 1}, {"b": {"c": 2}}) == ["a: 1 → absent", "b: absent → {'c': 2}"]


# -------------------------------------------------------------------------------------------------------------- runs


@pytest.fixture
def ran(monkeypatch):
    """Names of the stages that were really run."""
    names = []
    build = rlhf.loops.build_stage

    def counting(algorithm, context):
        names.append(context.name)
        return build(algorithm, context)

    monkeypatch.setattr(rlhf.loops, "build_stage", counting)
    return names


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("finished")
    return directory, pipeline(directory).run()


@pytest.fixture
def copied(finished, tmp_path):
    import shutil

    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_what_a_run_leaves(finished):
    directory, results = finished
    run = directory / "toy"
    assert load([run / "config.yaml"]) == pipeline(directory)
    for stage in ("sft", "reward", "ppo"):
        assert (run / stage / "metrics.jsonl").exists() and (run / stage / "model" / "config.json").exists()
    assert (run / "ppo" / "ema" / "model.safetensors").exists() and (run / "ppo" / "rollouts").is_dir()
    assert results.keys() == {"sft", "reward", "ppo"} and results["sft"]["step"] == 2


def test_finished_stages_are_kept(finished, copied, ran, capsys):
    weights = copied / "toy" / "sft" / "model" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    assert pipeline(copied).run() == finished[1]
    assert ran == [] and weights.stat().st_mtime_ns == before
    assert "sft: finished before, kept" in capsys.readouterr().out


def test_the_folder_may_be_moved(finished, copied, ran):
    pipeline(copied).run()  # results are known by their settings, not by where they lie
    assert ran == []


def test_other_settings_are_refused_and_named(copied, ran):
    changed = pipeline(copied, ppo={"epochs": 2, "optimizer": AdamW(lr=5e-3)})
    with pytest.raises(UserError) as error:
        changed.run()
    text = str(error.value)
    assert "ppo holds a stage that was run otherwise" in text and "--overwrite" in text
    assert "epochs: 1 → 2" in text and "optimizer.lr: 0.01 → 0.005" in text
    with pytest.raises(UserError, match="seed: 1 → 2"):
        dataclasses.replace(pipeline(copied), seed=2).run()
    assert ran == []


def test_overwriting_runs_the_stage_and_those_that_use_it(copied, ran):
    pipeline(copied, ppo={"epochs": 2}).run(overwrite=True)
    assert ran == ["ppo"]
    ran.clear()
    pipeline(copied, ppo={"epochs": 2}, reward={"steps": 3}).run(overwrite=True)
    assert ran == ["reward", "ppo"]
    ran.clear()
    pipeline(copied, ppo={"epochs": 2}, reward={"steps": 3}).run()
    assert ran == []


def test_a_stage_made_from_a_former_run_is_not_taken_for_new(copied, ran, monkeypatch):
    """The run is killed after the stage that was overwritten, before the one that uses it."""
    changed = pipeline(copied, sft={"steps": 3})
    only_sft = dataclasses.replace(changed, stages={"sft": changed.stages["sft"]})
    only_sft.run(overwrite=True)
    assert ran == ["sft"]
    with pytest.raises(UserError, match="@sft: has been run anew since"):
        changed.run()
    changed.run(overwrite=True)
    assert ran == ["sft", "reward", "ppo"]


def test_a_lost_stage_does_not_cost_those_that_used_it(copied, ran):
    (copied / "toy" / "sft" / "stage.json").unlink()
    with pytest.raises(UserError, match="holds files that no run left"):
        pipeline(copied).run()
    import shutil

    shutil.rmtree(copied / "toy" / "sft")
    with pytest.raises(UserError, match="@sft: is to be run first"):
        pipeline(copied).run()
    assert ran == [] and (copied / "toy" / "ppo" / "model").exists()


def test_foreign_files_are_refused_and_stay(tmp_path, ran):
    mine = tmp_path / "toy" / "sft" / "thesis.tex"
    mine.parent.mkdir(parents=True)
    mine.write_text("everything")
    for overwrite in (False, True):
        with pytest.raises(UserError, match=r"sft holds files that no run left; move them"):
            pipeline(tmp_path).run(overwrite=overwrite)
    assert mine.read_text() == "everything" and ran == []


def test_an_interrupted_stage_goes_on(tmp_path, ran):
    def experiment(*sinks):
        return Experiment(
            name="toy",
            output_dir=str(tmp_path),
            stages={"sft": tiny_runs.sft(steps=4, save_every=1, policy=tiny_runs.policy(dropout=0.1))},
            sinks=list(sinks),
        )

    with pytest.raises(tiny_runs.Killed):
        experiment(tiny_runs.KillAt(step=3)).run()
    record = (tmp_path / "toy" / "sft" / "stage.json").read_text()
    (tmp_path / "toy" / "sft" / "checkpoints" / ".step_3.partial").mkdir()  # case F6
    assert not (tmp_path / "toy" / "sft" / "done.json").exists()
    results = experiment().run()
    assert ran == ["sft", "sft"] and results["sft"]["step"] == 4
    assert (tmp_path / "toy" / "sft" / "stage.json").read_text() == record
    lines = tiny_runs.metrics(tmp_path / "toy" / "sft")
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4]


def test_a_kill_while_clearing_leaves_nothing_half(copied, monkeypatch):
    def kill(*_, **__):
        raise tiny_runs.Killed

    before = sorted((copied / "toy" / "sft").rglob("*"))
    changed = pipeline(copied, sft={"steps": 3})
    with monkeypatch.context() as patch, pytest.raises(tiny_runs.Killed):
        patch.setattr("rlhf.stages.folder.put_in_place", kill)
        changed.run(overwrite=True)
    assert sorted((copied / "toy" / "sft").rglob("*")) == before
    assert changed.run(overwrite=True)["sft"]["step"] == 3


def test_a_former_stage_stays_until_its_successor_stands(copied):
    weights = copied / "toy" / "sft" / "model" / "model.safetensors"
    before = weights.read_bytes()
    small = {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 4}
    too_long = tiny_runs.sft(policy=FromScratch(config=small, vocab_size=280))
    with pytest.raises(UserError, match=r"stage sft: data\.max_tokens"):
        dataclasses.replace(pipeline(copied), stages={"sft": too_long}).run(overwrite=True)
    assert weights.read_bytes() == before
    assert pipeline(copied).run()["sft"]["step"] == 2


def test_stages_have_their_own_seeds(tmp_path):
    one, other = pipeline(tmp_path), dataclasses.replace(pipeline(tmp_path), seed=2)
    seeds = {run.stage_seed(stage) for run in (one, other) for stage in ("sft", "ppo")}
    assert len(seeds) == 4


def test_figures_are_kept_with_the_stage(finished):
    done = json.loads((finished[0] / "toy" / "ppo" / "done.json").read_text())
    assert done["figures"] == finished[1]["ppo"] and done["seconds"] > 0


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a\\b", "@x", ""])
def test_names_are_plain_folder_names(name, tmp_path):
    stage = tiny_runs.sft()
    assert any("plain folder name" in problem for problem in Experiment(name=name, stages={"sft": stage}).check())
    assert any("plain folder name" in problem for problem in Experiment(name="x", stages={name: stage}).check())


def test_threads_and_an_occupied_output_dir_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    bad = Experiment(name="x", stages={"sft": tiny_runs.sft()}, threads=0, output_dir=str(tmp_path / "file"))
    assert [problem.split(":")[0] for problem in bad.check()] == ["threads", "output_dir"]


def test_what_a_later_stage_lacks_is_told_before_the_first_runs(tmp_path):
    late = tiny_runs.sft(data=Data(sources={"x": Files(path=str(tmp_path / "nope.jsonl"))}))
    experiment = Experiment(name="x", output_dir=str(tmp_path), stages={"first": tiny_runs.sft(), "late": late})
    with pytest.raises(UserError, match=r"stages\.late\.data\.sources\.x: .*nope\.jsonl"):
        experiment.run()
    assert not (tmp_path / "x" / "first").exists()


def test_an_error_names_its_stage(tmp_path):
    few = tiny_runs.sft(optimizer=SGD(lr=1e30), steps=3)
    with pytest.raises(UserError, match="stage sft: "):
        Experiment(name="x", output_dir=str(tmp_path), stages={"sft": few}).run()


def test_a_stage_knows_how_it_ended(tmp_path):
    def experiment(**settings):
        stages = {"sft": tiny_runs.sft(steps=3, **settings)}
        return Experiment(name="x", output_dir=str(tmp_path), stages=stages)

    told = tmp_path / "x" / "sft" / "stopped.json"
    with pytest.raises(UserError) as error:
        experiment(optimizer=SGD(lr=1e30)).run()
    assert f"stage sft: {json.loads(told.read_text())['error']}" == str(error.value)
    with pytest.raises(KeyboardInterrupt):
        dataclasses.replace(experiment(), sinks=[tiny_runs.SignalAt(stage="sft", step=1, number=2)]).run(overwrite=True)
    assert json.loads(told.read_text()) == {"error": ""}
    experiment().run()
    assert not told.exists()


# ------------------------------------------------------------------------------------------------------------ the cache


def test_a_second_run_finds_its_data_tokenised(tmp_path, capsys):  # case G1
    def run(name: str, cache_dir: str | None) -> str:
        stages = {"sft": tiny_runs.sft(steps=1), "ppo": tiny_runs.ppo(policy=Pretrained(path="@sft"), iterations=1)}
        Experiment(name=name, output_dir=str(tmp_path), stages=stages, cache_dir=cache_dir).run()
        return " ".join(capsys.readouterr().out.split())

    cache = str(tmp_path / "cache")
    first, second, third = run("a", cache), run("b", cache), run("c", None)
    assert first.count("24 rows tokenised in") == 2 and first.count(f"kept in {cache}") == 2
    assert second.count(f"tokenised before, read from {cache}") == 2
    assert third.count("not kept for other runs") == 2


def test_where_data_are_kept_is_no_setting_of_a_stage(tmp_path):
    def experiment(cache_dir: str | None) -> Experiment:
        return Experiment(
            name="a", output_dir=str(tmp_path), stages={"sft": tiny_runs.sft(steps=1)}, cache_dir=cache_dir
        )

    experiment(None).run()
    written = (tmp_path / "a" / "sft" / "stage.json").read_text()
    experiment(str(tmp_path / "cache")).run()  # kept, not refused as a stage of other settings
    assert (tmp_path / "a" / "sft" / "stage.json").read_text() == written


def test_a_stage_may_have_a_seed_of_its_own(tmp_path):
    one = pipeline(tmp_path)
    own = dataclasses.replace(one, stage_seeds={"ppo": 2})
    other = dataclasses.replace(one, seed=2)
    assert (own.stage_seed("sft"), own.stage_seed("ppo")) == (one.stage_seed("sft"), other.stage_seed("ppo"))
    assert dataclasses.replace(one, stage_seeds={"ppo": one.seed}).stage_seed("ppo") == one.stage_seed("ppo")
    wrong = dataclasses.replace(one, stage_seeds={"pppo": 2})
    (problem,) = wrong.check()
    assert problem == "stage_seeds.pppo: no stage is called 'pppo'. Did you mean ppo? There are: sft, reward, ppo"
