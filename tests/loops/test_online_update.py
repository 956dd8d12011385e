"""The on-policy loop: what an update moves, how far, with the mixture or without, and that it goes on from a state."""

import copy
import dataclasses
import math

import pytest
import tiny_runs
import torch
from online_runs import mixture, same, trainer, weights

from rlhf.algorithms.advantages import GroupNorm
from rlhf.algorithms.averaging import EMA
from rlhf.algorithms.critics import OwnTrunk, SharedTrunk
from rlhf.algorithms.kl import KL, Adaptive
from rlhf.algorithms.normalization import ScoreNormalization
from rlhf.algorithms.optimizers import AdamW
from rlhf.algorithms.schedules import LinearDecay
from rlhf.data.collate import collate_labelled


def test_a_critic_with_its_own_trunk_warms_up_alone(tmp_path):
    run = trainer(
        tmp_path, critic=OwnTrunk(warmup_iterations=1), averaging=EMA(decay=0.5), schedule=LinearDecay(), iterations=3
    )
    policy, critic = weights(run.policy), weights(run.critic)
    figures = run.train_rlhf(run.generate_experience())
    assert same(policy, weights(run.policy)) and not same(critic, weights(run.critic))
    assert (run.steps, run.policy.steps, run.critic.steps, run.average.live.updates) == (2, 0, 2, 0)
    assert "loss/policy" not in figures and "lr/policy" not in figures and figures["lr/value"] > 0
    rates = [run.train_rlhf(run.generate_experience())["lr/policy"] for _ in range(2)]
    assert not same(policy, weights(run.policy))
    # four steps are the policy's: factors 1, ¾, ½, ¼, two an iteration
    assert rates == [pytest.approx(0.01 * 0.875), pytest.approx(0.01 * 0.375)]


def test_a_shared_critic_warms_up_without_moving_the_policy(tmp_path):
    run = trainer(tmp_path, critic=SharedTrunk(warmup_iterations=1), optimizer=AdamW(lr=0.01, weight_decay=0.1))
    before = weights(run.policy)
    figures = run.train_rlhf(run.generate_experience())
    after = weights(run.policy)
    moved = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"head"}
    assert figures["loss/value"] > 0 and "loss/policy" not in figures
    run.train_rlhf(run.generate_experience())
    later = weights(run.policy)
    assert {name.split(".")[0] for name in after if not torch.equal(after[name], later[name])} == {"head", "lm"}


def test_an_update_stops_early_on_kl(tmp_path):
    run = trainer(tmp_path, target_kl=1e-6, epochs=3)
    figures = run.train_rlhf(run.generate_experience())
    assert figures["update/steps"] == 2  # the first step sees no KL, the second does
    assert (run.steps, run.iteration) == (2, 1)
    free = trainer(tmp_path, epochs=3)
    assert free.train_rlhf(free.generate_experience())["update/steps"] == 6


def test_the_kl_coefficient_follows_what_was_measured(tmp_path):  # case F3
    run = trainer(tmp_path, kl=KL(controller=Adaptive(coef=0.2, target=6.0, horizon=100)))
    figures = run.train_rlhf(run.generate_experience())
    assert figures["kl/coef"] == 0.2  # the one that was used
    # no KL yet: the error is cut at −0.2, and the iteration had 8 responses of a horizon of 100
    assert run.kl_coef == pytest.approx(0.2 * (1 - 0.2 * 8 / 100))


def test_order_of_mini_batches_is_another_in_every_epoch(tmp_path):
    run = trainer(tmp_path, epochs=2)
    orders = [rows.tolist() for rows in run._mini_batches(8)]
    assert sorted(orders[0] + orders[1]) == sorted(orders[2] + orders[3]) == list(range(8))
    assert orders[:2] != orders[2:]


def test_gradients_of_policy_and_mixture_by_themselves(tmp_path):
    run = trainer(tmp_path, mixture=mixture(coef=0.5), critic=None, advantage=GroupNorm(), samples_per_prompt=4)
    batch = run.generate_experience().batch
    reference = copy.deepcopy(run.policy)
    state = run.mixture.state_dict()
    figures = run._optimiser_step(batch)
    run.mixture.load_state_dict(state)
    texts = collate_labelled(run.mixture.next(8), pad_id=run.pad_id)

    def alone(loss):
        reference.model.zero_grad()
        loss.backward()
        return torch.cat([shard.flatten() for shard in reference.gradient()])

    def logprobs(part):
        return reference.model(part.sequences, mask=part.mask).logprobs

    mix = alone(-0.5 * logprobs(texts).sum() / texts.mask.sum())
    policy = alone((run.algorithm.policy_loss(logprobs(batch), batch)).sum() / batch.mask.sum())
    assert figures["gradient/mixture_norm"] == pytest.approx(mix.norm().item(), rel=1e-4)
    assert figures["gradient/policy_norm"] == pytest.approx(policy.norm().item(), rel=1e-4)
    cosine = torch.nn.functional.cosine_similarity(mix, policy, dim=0).item()
    assert figures["gradient/cosine"] == pytest.approx(cosine, abs=1e-4)
    assert figures["grad_norm/policy"] == pytest.approx((mix + policy).norm().item(), rel=1e-4)
    assert figures["loss/mixture"] > 3


def test_parallel_gradients_have_cosine_1(tmp_path):
    run = trainer(tmp_path, mixture=mixture())
    state = run.mixture.state_dict()
    run._accumulate_mixture(run.generate_experience().metrics)  # stands for the policy's gradient
    run.mixture.load_state_dict(state)
    figures = run._accumulate_mixture(run.generate_experience().metrics)
    assert figures["gradient/cosine"] == pytest.approx(1, abs=1e-6)
    assert figures["gradient/policy_norm"] == pytest.approx(figures["gradient/mixture_norm"], rel=1e-5)


def test_gradients_are_compared_every_so_many_steps(tmp_path):
    settings = dataclasses.replace(mixture(), gradient_every=2, batch_size=None)
    run = trainer(tmp_path, mixture=settings, batch_size=16)
    told = []
    run.train_rlhf(run.generate_experience(), told.append)
    assert ["gradient/cosine" in step for step in told] == [True, False, True, False]
    assert run.mixture.state_dict()["position"] == 16  # as many texts as responses


def test_another_run_continues_from_the_state(tmp_path):
    def fresh():
        return trainer(
            tmp_path,
            mixture=mixture(),
            averaging=EMA(decay=0.9),
            kl=KL(controller=Adaptive(horizon=100)),
            score_normalization=ScoreNormalization(samples=16),
        )

    run = fresh()
    run.train_rlhf(run.generate_experience())
    other = fresh()
    other.load_state_dict(copy.deepcopy(run.state_dict()))
    one, two = (r.train_rlhf(r.generate_experience()) for r in (run, other))
    for figures in (one, two):
        for name in [name for name in figures if name.startswith(tiny_runs.TIMED)]:
            del figures[name]
    assert one == two
    assert same(weights(run.policy), weights(other.policy)) and same(weights(run.critic), weights(other.critic))
    assert all(torch.equal(a, b) for a, b in zip(run.average.shards, other.average.shards, strict=True))
    assert math.isfinite(one["loss/total"])
