"""Evaluation on fixed prompts, with the same random numbers every time."""

import json
import random

import numpy as np
import pytest
import tiny_runs
import torch

from rlhf.algorithms.averaging import EMA
from rlhf.algorithms.evaluation import Evaluation
from rlhf.algorithms.evaluation_metrics import BestAtK
from rlhf.algorithms.objectives import Mixture
from rlhf.engines.inference.sampling import Sampling
from rlhf.errors import UserError
from rlhf.interfaces import EvaluationMetric, LiveMetric
from rlhf.loops.evaluation import Evaluator
from rlhf.loops.online import OnlineTrainer
from rlhf.models.rewards import Ensemble, LengthPenalty, Weighted


def evaluator(directory, **settings):
    usual = {"evaluation": Evaluation(every=2, prompts=4)}
    trainer = OnlineTrainer(tiny_runs.ppo(**{**usual, **settings}), tiny_runs.context(directory))
    return trainer, Evaluator(trainer)


def test_evaluations_are_paired_and_move_nothing(tmp_path):
    trainer, evaluate = evaluator(tmp_path)
    first, second = evaluate(tmp_path / "a.jsonl"), evaluate(tmp_path / "b.jsonl")
    assert first == second and (tmp_path / "a.jsonl").read_text() == (tmp_path / "b.jsonl").read_text()
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert len(rows) == 4 and {"prompt", "response", "ended", "score"} <= rows[0].keys()
    assert first["eval/score"] == pytest.approx(sum(row["score"] for row in rows) / 4)
    assert first["eval/kl"] == pytest.approx(0, abs=1e-5) and trainer.responses == 0
    assert first["step"] == first["iteration"] == 0
    held = {example.prompt for example in trainer.data.heldout}
    assert {row["prompt"] for row in rows} <= held


def test_the_average_is_evaluated_beside(tmp_path):
    trainer, evaluate = evaluator(tmp_path, averaging=EMA(decay=1.0))
    before = evaluate()
    trainer.train_rlhf(trainer.generate_experience())
    figures = evaluate(tmp_path / "a.jsonl")
    assert "eval/ema/score" not in before
    # decay 1 never moves: the average is the start, and nothing of it stays in the policy
    assert figures["eval/ema/score"] == before["eval/score"] and figures["eval/ema/kl"] == pytest.approx(0, abs=1e-5)
    assert figures["eval/kl"] != pytest.approx(0, abs=1e-4)
    assert (tmp_path / "a_ema.jsonl").exists()


def test_other_sampling_is_used_for_samples_stops_and_kl(tmp_path):
    short = Sampling(max_new_tokens=3, greedy=True)
    trainer, evaluate = evaluator(tmp_path, evaluation=Evaluation(every=1, prompts=4, sampling=short))
    figures = evaluate()
    assert figures["eval/length"] == 3 and figures["eval/truncated_fraction"] == 1
    trainer.train_rlhf(trainer.generate_experience())
    cold = Sampling(max_new_tokens=8, temperature=0.2)
    object.__setattr__(evaluate.settings, "sampling", cold)
    found = evaluate()["eval/kl"]
    rollout = trainer.sample(evaluate.prompts, seed=trainer.context.seed_for("evaluation"), sampling=cold)
    policy, reference = (
        trainer.infer(engine, rollout, ("logprobs",), temperature=0.2)["logprobs"]
        for engine in (trainer.policy, trainer.reference)
    )
    assert found == pytest.approx(float((policy - reference).sum(1).mean()), rel=1e-5)


def test_parts_of_the_reward_and_of_judges(tmp_path):
    penalty = LengthPenalty(target=2, per_token=1.0)
    summed = Weighted(models={"letters": tiny_runs.LETTERS, "length": penalty}, weights={"letters": 1.0, "length": 0.5})
    judges = {"both": Ensemble(models={"a": tiny_runs.LETTERS, "b": penalty})}
    settings = Evaluation(every=1, prompts=4, rewards=judges)
    figures = evaluator(tmp_path, reward=summed, evaluation=settings)[1](tmp_path / "a.jsonl")
    assert figures["eval/score/letters"] + 0.5 * figures["eval/score/length"] == pytest.approx(figures["eval/score"])
    assert figures["eval/both_score/a"] == figures["eval/score/letters"]
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    spread = [abs(row["both_score/a"] - row["both_score/b"]) / 2 for row in rows]
    assert [row["both_score/disagreement"] for row in rows] == pytest.approx(spread)
    assert figures["eval/both_score/disagreement"] == pytest.approx(sum(spread) / 4)


def test_the_held_out_texts_of_a_mixture_are_evaluated_on(tmp_path):
    mixture = Mixture(data=tiny_runs.data("text", 10, eval_rows=6))
    trainer, evaluate = evaluator(tmp_path, mixture=mixture, evaluation=Evaluation(every=1, prompts=4))
    assert evaluate.texts is not None and len(evaluate.texts) == 4
    (output,) = trainer.policy.evaluate([evaluate.texts], want=("logprobs",))
    expected = float(-output.logprobs[evaluate.texts.mask].mean())
    assert evaluate()["eval/mixture_loss"] == pytest.approx(expected) and expected > 1
    none = evaluator(tmp_path, mixture=Mixture(data=tiny_runs.data("text", 10, eval_rows=0)))[1]
    assert "eval/mixture_loss" not in none()


def test_when_it_is_due(tmp_path):
    trainer, evaluate = evaluator(tmp_path, iterations=3)
    due = []
    for trainer.iteration in range(4):
        due.append(evaluate.due())
    assert due == [True, False, True, True]
    assert not evaluator(tmp_path, evaluation=Evaluation())[1].due()


def test_without_held_out_prompts_it_cannot_be_asked_for(tmp_path):
    with pytest.raises(ValueError, match=r"evaluation\.every: 2, but data holds out no prompt"):
        evaluator(tmp_path, data=tiny_runs.data("prompt", eval_rows=0))


class Drawing(EvaluationMetric, LiveMetric):
    """Draws from every generator there is, when it is built and when it measures."""

    figures = ("",)

    def build(self, setup):
        return self(setup) and self

    def __call__(self, evaluated):
        return {"": float(torch.rand(1)) + random.random() + float(np.random.rand())}


def test_metrics_leave_all_other_figures_and_the_training_as_they_are(tmp_path):
    dropout = {"policy": tiny_runs.policy(dropout=0.1), "averaging": EMA(decay=0.5)}
    found = []
    for name, metrics in (("without", {}), ("with", {"drawn": Drawing(), "best": BestAtK(samples=3, k=[3])})):
        settings = Evaluation(every=1, prompts=4, metrics=metrics)
        trainer, evaluate = evaluator(tmp_path / name, evaluation=settings, **dropout)
        figures = evaluate()
        figures |= {f"trained {key}": v for key, v in trainer.train_rlhf(trainer.generate_experience()).items()}
        found.append((figures | {f"later {key}": value for key, value in evaluate().items()}, torch.rand(1)))
    (without, drawn), (with_metrics, drawn_too) = found
    assert drawn == drawn_too
    timed = ("trained time/", "trained throughput/", "trained memory/")
    assert {k: v for k, v in without.items() if not k.startswith(timed)} == {
        key: value
        for key, value in with_metrics.items()
        if not key.startswith(timed) and not key.endswith(("/drawn", "/best"))
    }
    added = {key.removeprefix("later ") for key in with_metrics} - {key.removeprefix("later ") for key in without}
    assert added == {"eval/drawn", "eval/best", "eval/ema/drawn", "eval/ema/best"}


def test_a_metric_that_cannot_be_built_is_told_with_its_place(tmp_path):
    class Refusing(Drawing):
        def build(self, setup):
            raise UserError("never")

    with pytest.raises(UserError, match=r"evaluation\.metrics\.mine: never"):
        evaluator(tmp_path, evaluation=Evaluation(every=1, metrics={"mine": Refusing()}))


def test_metrics_are_not_built_where_nothing_is_evaluated(tmp_path):
    assert evaluator(tmp_path, evaluation=Evaluation(metrics={"best": BestAtK()}))[1].metrics == {}
