"""A run that meets NaN stops, leaves the weights, and saves what shows it again."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import tiny_runs
import torch

from rlhf.algorithms.advantages import Returns
from rlhf.algorithms.normalization import ScoreNormalization
from rlhf.algorithms.optimizers import SGD
from rlhf.errors import NonFiniteError
from rlhf.interfaces import Engine, LiveSink, MetricSink, RewardModel, Scorer
from rlhf.loops.nan_dump import DUMP, nan_dumped
from rlhf.loops.offline import OfflineTrainer
from rlhf.loops.stage import OnlineStage
from rlhf.types import Rollout, Scores

NAN = float("nan")


def load(directory):
    return torch.load(directory / DUMP, weights_only=False)


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(a, b):
    return all(torch.equal(a[name].nan_to_num(7.0), b[name].nan_to_num(7.0)) for name in a)


@dataclass(frozen=True, kw_only=True)
class Sabotage(MetricSink):
    """Calls something when a step is written: stands for whatever breaks a model in the middle of a run."""

    step: int
    calls: list

    def open(self, directory) -> LiveSink:
        settings = self

        class Sink(LiveSink):
            def write(self, metrics: Mapping[str, float]) -> None:
                if metrics["step"] == settings.step:
                    settings.calls[0]()

            def close(self) -> None:
                pass

        return Sink()


def broken_after(step, parameter):
    """A sink that breaks a weight after a step; the weight is told later, when there is a model."""
    return Sabotage(step=step, calls=[lambda: parameter().data.view(-1)[:2].fill_(NAN)])


def test_a_weight_that_breaks_in_supervised_fine_tuning(tmp_path):
    trainer = None
    sink = broken_after(2, lambda: trainer.model.lm.transformer.h[1].ln_1.weight)
    trainer = OfflineTrainer(tiny_runs.sft(steps=5), tiny_runs.context(tmp_path, sinks=(sink,)))
    with pytest.raises(NonFiniteError) as error:
        trainer.fit()
    found = "weight lm.transformer.h.1.ln_1.weight (2 of 16 numbers)"
    assert str(error.value).startswith(
        f"the loss is nan at optimiser step 3; no weight was changed. First not finite: {found}"
    )
    assert str(error.value).endswith(f"all that shows it again is in {tmp_path / DUMP}")
    assert trainer.engine.steps == 2 and not (tmp_path / "model").exists()
    dump = load(tmp_path)
    assert dump["step"] == 3 and dump["first"] == found and dump["algorithm"] == trainer.algorithm
    assert len(dump["pass"].batch) == 4 and same(weights(dump["model"]), weights(trainer.model))
    assert dump["pass"].find(dump["model"]) == found


def test_a_learning_rate_that_explodes(tmp_path):
    settings = tiny_runs.reward_modelling(optimizer=SGD(lr=1e30), max_grad_norm=None, steps=6)
    trainer = OfflineTrainer(settings, tiny_runs.context(tmp_path))
    with pytest.raises(NonFiniteError, match=r"at optimiser step \d+; no weight was changed\. First not finite: \w+"):
        trainer.fit()
    dump = load(tmp_path)
    assert dump["pass"].find(dump["model"]) == dump["first"]
    before = weights(trainer.model)
    with pytest.raises(NonFiniteError):  # by hand, on the batch of the dump
        trainer.train_step(dump["pass"].batch)
    assert same(before, weights(trainer.model))


def test_a_perplexity_too_large_for_a_float_does_not_end_the_run(tmp_path):
    trainer = OfflineTrainer(
        tiny_runs.sft(optimizer=SGD(lr=1e4), max_grad_norm=None, steps=1), tiny_runs.context(tmp_path)
    )
    figures = trainer.fit()
    assert figures["eval/loss"] > 710 and math.isinf(figures["eval/perplexity"])
    assert tiny_runs.metrics(tmp_path)[-1]["eval/perplexity"] is None


def test_a_policy_weight_that_breaks_is_found_while_sampling(tmp_path):
    stage = None
    sink = broken_after(2, lambda: stage.trainer.policy.model.lm.transformer.wpe.weight)
    stage = OnlineStage(tiny_runs.ppo(), tiny_runs.context(tmp_path, sinks=(sink,)))
    with pytest.raises(NonFiniteError, match=r"First not finite: weight lm\.transformer\.wpe\.weight \(2 of"):
        stage.fit()
    dump = load(tmp_path)
    assert dump["pass"].find(dump["model"]) == dump["first"] and len(dump["pass"].request) == 8


def test_a_critic_weight_that_breaks_is_found_in_its_step(tmp_path):
    stage = None
    sink = broken_after(2, lambda: stage.trainer.critic.model.trunk.h[0].attn.c_attn.weight)
    stage = OnlineStage(tiny_runs.ppo(), tiny_runs.context(tmp_path, sinks=(sink,)))
    with pytest.raises(NonFiniteError, match=r"First not finite: weight trunk\.h\.0\.attn\.c_attn\.weight") as error:
        stage.fit()
    assert error.value.evidence["model"] is stage.trainer.critic.model
    assert load(tmp_path)["pass"].batch.advantages.isnan().any()


def test_reference_logprobs_that_break_are_found_in_the_batch(tmp_path):
    stage = OnlineStage(tiny_runs.ppo(advantage=Returns()), tiny_runs.context(tmp_path))
    stage.trainer.reference.model.lm.transformer.ln_f.bias.data.fill_(NAN)
    with pytest.raises(NonFiniteError, match=r"First not finite: the batch's ref_logprobs"):
        stage.fit()


@dataclass(frozen=True, kw_only=True)
class Broken(RewardModel):
    """Answers NaN for the second response, or a wrong shape."""

    per_token: bool = False
    width: int | None = None

    def build(self, engine: Engine, tokenizer) -> Scorer:
        settings = self

        class BrokenScorer(Scorer):
            def __call__(self, rollout: Rollout) -> Scores:
                if settings.width is not None:
                    return Scores(torch.zeros(settings.width))
                total = torch.zeros(rollout.mask.shape if settings.per_token else len(rollout))
                total[~rollout.mask if settings.per_token else []] = NAN  # at pads: does not matter
                total[1] = NAN
                return Scores(total)

        return BrokenScorer()


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("normalization", [None, ScoreNormalization(samples=8)])
def test_a_reward_that_is_nan(tmp_path, per_token, normalization):
    settings = tiny_runs.ppo(reward=Broken(per_token=per_token), score_normalization=normalization)
    stage = OnlineStage(settings, tiny_runs.context(tmp_path))
    before = weights(stage.trainer.policy.model)
    message = (
        r"reward: the score is nan for 1 of 8 responses, first for '.*' to the prompt '.*='; no weight was changed"
    )
    with pytest.raises(NonFiniteError, match=message):
        stage.fit()
    assert same(before, weights(stage.trainer.policy.model))
    dump = load(tmp_path)
    assert dump["scores"].total[1].isnan().all() and len(dump["rollout"]) == 8


def test_rewards_of_a_wrong_count(tmp_path):
    stage = OnlineStage(tiny_runs.ppo(reward=Broken(width=3)), tiny_runs.context(tmp_path))
    with pytest.raises(
        ValueError, match=r"reward: scores of shape \[3\] for 8 responses; a reward model answers \[8\]"
    ):
        stage.fit()


def raise_inside(directory):
    with nan_dumped(directory, tiny_runs.sft()):
        raise NonFiniteError("the loss is nan", {"model": lambda: None})


def test_what_cannot_be_saved_hides_no_nan(tmp_path):
    with pytest.raises(NonFiniteError, match=r"the loss is nan; what shows it could not be saved \("):
        raise_inside(tmp_path)
    assert list(tmp_path.iterdir()) == []
