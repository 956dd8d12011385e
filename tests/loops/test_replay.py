"""Learning from stored rollouts: the same figures and weights as the run that stored them, without sampling."""

import dataclasses

import pytest
import tiny_runs

from rlhf.algorithms.advantages import GroupNorm
from rlhf.algorithms.averaging import EMA
from rlhf.algorithms.critics import OwnTrunk
from rlhf.algorithms.kl import KL, Adaptive
from rlhf.algorithms.normalization import ScoreNormalization
from rlhf.algorithms.objectives import Mixture
from rlhf.algorithms.ppo import Evaluation
from rlhf.errors import UserError
from rlhf.experiment import Experiment
from rlhf.loops.stage import OnlineStage


def settings(**changes):
    """Three iterations, with everything that has state."""
    usual = {
        "mixture": Mixture(data=tiny_runs.data("text", eval_rows=0)),
        "averaging": EMA(decay=0.9),
        "kl": KL(controller=Adaptive(target=1.0, horizon=50)),
        "score_normalization": ScoreNormalization(samples=16),
        "samples_per_prompt": 2,
        "save_rollouts": "all",
    }
    return tiny_runs.ppo(**{**usual, **changes})


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    directory = tmp_path_factory.mktemp("stored")
    OnlineStage(settings(), tiny_runs.context(directory)).fit()
    return directory


def replay(stored, directory, **changes):
    changed = settings(**{"replay": str(stored / "rollouts"), **changes})
    stage = OnlineStage(changed, tiny_runs.context(directory))
    stage.fit()
    return stage


def no_sampling(monkeypatch):
    monkeypatch.setattr("rlhf.engines.local.LocalEngine.generate", lambda *_, **__: pytest.fail("sampled"))


def test_the_same_numbers_without_sampling(stored, tmp_path, monkeypatch):
    no_sampling(monkeypatch)
    replay(stored, tmp_path)
    assert tiny_runs.metrics(tmp_path) == tiny_runs.metrics(stored)
    for name in ("model", "ema"):
        assert tiny_runs.same_weights(tmp_path / name, stored / name)
    for file in (stored / "rollouts").iterdir():
        assert (tmp_path / "rollouts" / file.name).read_text() == file.read_text()


def test_the_samplers_logprobs_are_exact(tmp_path, monkeypatch):
    exact = settings(rescore=False, mixture=None, iterations=2)
    OnlineStage(exact, tiny_runs.context(tmp_path / "a")).fit()
    no_sampling(monkeypatch)
    again = dataclasses.replace(exact, replay=str(tmp_path / "a" / "rollouts"))
    OnlineStage(again, tiny_runs.context(tmp_path / "b")).fit()
    assert tiny_runs.metrics(tmp_path / "a") == tiny_runs.metrics(tmp_path / "b")


def test_another_algorithm_learns_from_the_same_rollouts(stored, tmp_path, monkeypatch):
    no_sampling(monkeypatch)
    stage = replay(stored, tmp_path, advantage=GroupNorm(), mixture=None, iterations=2)
    lines = [line for line in tiny_runs.metrics(tmp_path) if "reward/score" in line]
    original = [line for line in tiny_runs.metrics(stored) if "reward/score" in line]
    assert [line["reward/score"] for line in lines] == [line["reward/score"] for line in original[:2]]
    assert stage.trainer.critic is None and lines[0]["loss/policy"] != original[0]["loss/policy"]


def test_evaluations_sample_as_they_would(stored, tmp_path):
    evaluation = Evaluation(every=1, prompts=4)
    replay(stored, tmp_path, evaluation=evaluation, iterations=1)
    assert [line["iteration"] for line in tiny_runs.metrics(tmp_path) if "eval/score" in line] == [0, 1]


def test_a_stopped_replay_continues_to_the_same_numbers(stored, tmp_path):
    killed = settings(replay=str(stored / "rollouts"), save_every=1)
    with pytest.raises(tiny_runs.Killed):
        OnlineStage(killed, tiny_runs.context(tmp_path, sinks=(tiny_runs.KillAt(step=5),))).fit()
    OnlineStage(killed, tiny_runs.context(tmp_path)).fit()
    assert tiny_runs.metrics(tmp_path) == tiny_runs.metrics(stored)


def test_a_few_rows_are_not_enough(tmp_path):
    few = tiny_runs.ppo(iterations=1, save_rollouts=4)
    OnlineStage(few, tiny_runs.context(tmp_path / "few")).fit()
    with pytest.raises(UserError, match=r"has 4 rows, but batch_size is 8; .* must have had save_rollouts: all"):
        OnlineStage(
            dataclasses.replace(few, replay=str(tmp_path / "few/rollouts")), tiny_runs.context(tmp_path / "a")
        ).fit()


def test_too_few_iterations_are_refused_before_the_first_stage(stored, tmp_path):
    stages = {"sft": tiny_runs.sft(), "ppo": settings(replay=str(stored / "rollouts"), iterations=4)}
    with pytest.raises(
        UserError, match=r"stages\.ppo: replay: .* has the rollouts of 3 iterations, but iterations is 4"
    ):
        Experiment(name="x", output_dir=str(tmp_path), stages=stages).run()
    assert not (tmp_path / "x" / "sft").exists()


def test_a_stage_does_not_replay_itself(stored):
    with pytest.raises(UserError, match="is in this stage's own folder, which begins empty; change --name"):
        OnlineStage(settings(replay=str(stored / "rollouts")), tiny_runs.context(stored))


def test_a_critic_that_starts_as_the_reward_model_is_brought_to_the_same_units(tmp_path, monkeypatch):
    stages = {
        "reward": tiny_runs.reward_modelling(
            model=tiny_runs.SameTokenizer(form="comparison", config=tiny_runs.policy().config), steps=1
        ),
        "ppo": settings(
            policy=tiny_runs.SameTokenizer(form="comparison", config=tiny_runs.policy().config),
            critic=OwnTrunk(path="@reward"),
            iterations=1,
        ),
    }
    first = Experiment(name="first", output_dir=str(tmp_path), stages=stages)
    first.run()
    no_sampling(monkeypatch)
    stages = {**stages, "ppo": dataclasses.replace(stages["ppo"], replay=str(tmp_path / "first/ppo/rollouts"))}
    dataclasses.replace(first, name="second", stages=stages).run()
    assert tiny_runs.metrics(tmp_path / "first/ppo") == tiny_runs.metrics(tmp_path / "second/ppo")


def test_another_size_of_groups_is_refused(stored, tmp_path):
    with pytest.raises(UserError, match=r"2 responses each, but samples_per_prompt is 4; set it to"):
        replay(stored, tmp_path, samples_per_prompt=4, advantage=GroupNorm())
