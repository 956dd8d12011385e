"""The on-policy loop: what an iteration measures and does."""

import copy
import dataclasses
import itertools
import math
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tiny_runs
import torch

from rlhf.algorithms.advantages import GroupNorm
from rlhf.algorithms.averaging import EMA
from rlhf.algorithms.critics import OwnTrunk, SharedTrunk
from rlhf.algorithms.kl import KL, Adaptive, Fixed
from rlhf.algorithms.normalization import ScoreNormalization
from rlhf.algorithms.objectives import Mixture
from rlhf.algorithms.optimizers import SGD, AdamW
from rlhf.algorithms.schedules import LinearDecay
from rlhf.data.collate import collate_labelled, collate_prompts
from rlhf.data.sources import Generator
from rlhf.engines.inference.sampling import Sampling
from rlhf.engines.local import Local
from rlhf.interfaces import RewardModel, Scorer
from rlhf.loops.offline import OfflineTrainer
from rlhf.loops.online import OnlineTrainer
from rlhf.models.rewards import ArithmeticReward, StepFunctionReward
from rlhf.types import Scores, Sequences


def trainer(directory, **settings) -> OnlineTrainer:
    return OnlineTrainer(tiny_runs.ppo(**settings), tiny_runs.context(directory))


def weights(engine):
    return {name: tensor.clone() for name, tensor in engine.full_state().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# ------------------------------------------------------------------------------------- before the policy has moved


@pytest.mark.parametrize("optimizer", [SGD(lr=0.0), AdamW(lr=0.0)], ids=["SGD", "AdamW"])
@pytest.mark.parametrize("rescore", [True, False])
@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_a_policy_that_stands_still(tmp_path, optimizer, rescore, temperature):  # cases A2, E6
    run = trainer(
        tmp_path,
        policy=tiny_runs.policy(dropout=0.1),
        optimizer=optimizer,
        rescore=rescore,
        epochs=2,
        sampling=Sampling(max_new_tokens=8, temperature=temperature, top_k=50, stop_tokens=tiny_runs.STOPS),
    )
    for _ in range(2):
        figures = run.train_rlhf(run.generate_experience())
        assert figures["policy/ratio_max"] == pytest.approx(1, abs=1e-5)
        assert figures["policy/clip_fraction"] == 0
        for name in ("policy/approx_kl", "kl/ref_k1", "kl/ref_k3", "kl/sequence"):
            assert abs(figures[name]) < 1e-5, name
        assert ("rollout/logprob_gap" in figures) == rescore
        if rescore:
            assert figures["rollout/logprob_gap"] < 1e-5


def test_scoring_twice_is_bit_equal(tmp_path):  # case E6
    run = trainer(tmp_path, policy=tiny_runs.policy(dropout=0.1))
    rollout = run.generate_experience().rollout
    first, second = (run.infer(run.policy, rollout, ("logprobs", "entropy")) for _ in range(2))
    assert torch.equal(first["logprobs"], second["logprobs"]) and torch.equal(first["entropy"], second["entropy"])


# ---------------------------------------------------------------------------------------------------------- figures


def test_kl_logged_is_the_kl_penalised(tmp_path):  # case I1
    figures = {}
    for estimator in ("k1", "k2", "k3"):
        run = trainer(tmp_path, kl=KL(estimator=estimator, controller=Fixed(coef=0.5)), score_clip=None)
        run.train_rlhf(run.generate_experience())  # moves the policy away from the reference
        experience = run.generate_experience()
        figures = experience.metrics.compute()
        length = figures["rollout/length"]
        penalty = figures["reward/score"] - figures["reward/total"]  # both are sums of a response
        assert penalty == pytest.approx(0.5 * figures[f"kl/ref_{estimator}"] * length, rel=1e-4)
        assert penalty != pytest.approx(0, abs=1e-3)
        assert figures["kl/sequence"] == pytest.approx(figures["kl/ref_k1"] * length, rel=1e-5)


def test_kl_is_positive_where_the_policy_is_above_the_reference(tmp_path):  # case I1: the sign
    run = trainer(tmp_path, optimizer=SGD(lr=0.0))
    experience = run.generate_experience()
    tokens = experience.rollout.sequences.response_ids[experience.rollout.mask]
    with torch.no_grad():  # the reference now likes the sampled tokens less
        run.reference.model.lm.lm_head.weight.data = run.reference.model.lm.lm_head.weight.data.clone()
        run.reference.model.lm.lm_head.weight[tokens.unique()] *= 0.5
    figures = run.assess(experience.rollout).metrics.compute()
    assert figures["kl/ref_k3"] > 0.001 and figures["kl/ref_k1"] != 0
    rewards = run.assess(experience.rollout).scored.rewards
    ratios = run.infer(run.policy, experience.rollout, ("logprobs",))["logprobs"]
    ratios = ratios - run.infer(run.reference, experience.rollout, ("logprobs",))["logprobs"]
    inner = experience.rollout.mask.clone()
    inner[torch.arange(len(inner)), experience.rollout.mask.sum(1) - 1] = False  # the last token has the score too
    torch.testing.assert_close(rewards[inner], -0.05 * ratios[inner])


def test_padding_changes_no_figure(tmp_path):  # cases A7, B1, I1
    run = trainer(tmp_path)
    run.train_rlhf(run.generate_experience())
    rollout = run.generate_experience().rollout
    wide = dataclasses.replace(
        rollout,
        sequences=Sequences(
            torch.nn.functional.pad(rollout.sequences.ids, (3, 9), value=77),
            torch.nn.functional.pad(rollout.sequences.attention_mask, (3, 9), value=False),
            rollout.sequences.prompt_width + 3,
        ),
        mask=torch.nn.functional.pad(rollout.mask, (0, 9), value=False),
        rollout_logprobs=torch.nn.functional.pad(rollout.rollout_logprobs, (0, 9), value=5.0),
        behaviour_logprobs=torch.nn.functional.pad(rollout.behaviour_logprobs, (0, 9), value=5.0),
    )
    narrow, padded = run.assess(rollout), run.assess(wide)
    plain, other = ({k: v for k, v in e.metrics.compute().items() if "time" not in k} for e in (narrow, padded))
    assert other == pytest.approx(plain, rel=1e-5, abs=1e-6)
    width = rollout.mask.shape[1]
    for name in ("old_logprobs", "ref_logprobs", "values", "advantages", "returns"):
        torch.testing.assert_close(getattr(padded.batch, name)[:, :width], getattr(narrow.batch, name))
        assert getattr(padded.batch, name)[:, width:].eq(0).all()


def test_micro_batches_change_nothing(tmp_path):  # case C1
    found = []
    for size in (1, 4, None):
        run = trainer(tmp_path, engine=Local(micro_batch_size=size), critic=SharedTrunk())
        found.append(run.train_rlhf(run.generate_experience()))
        found[-1] = {k: v for k, v in found[-1].items() if not k.startswith(tiny_runs.TIMED)}
    assert found[0] == pytest.approx(found[2], rel=1e-4, abs=1e-5)
    assert found[1] == pytest.approx(found[2], rel=1e-4, abs=1e-5)


def test_throughput_counts_the_steps_really_made(tmp_path, monkeypatch):  # case I5
    run = trainer(tmp_path, target_kl=1e-9, epochs=4)
    experience = run.generate_experience()
    clock = itertools.count(0.0, 0.5)  # asked before and after each step
    monkeypatch.setattr("rlhf.loops.online.time.perf_counter", lambda: next(clock))
    trained = []
    select = type(experience.batch).select

    def counting(batch, rows):
        part = select(batch, rows)
        if len(batch) == 8:
            trained.append(int(part.sequences.attention_mask.sum()))
        return part

    monkeypatch.setattr(type(experience.batch), "select", counting)
    figures = run.train_rlhf(experience)
    assert figures["update/steps"] == len(trained) < 8 and figures["update/samples"] == 4 * len(trained)
    assert figures["throughput/train_tokens_per_s"] == sum(trained) / (0.5 * len(trained))
    assert figures["time/train"] == 0.5 * len(trained)


# ----------------------------------------------------------------------------------------------------------- scores


@dataclasses.dataclass(frozen=True, kw_only=True)
class PerToken(RewardModel):
    """One for every token."""

    def build(self, engine, tokenizer) -> Scorer:
        return _PerToken()


class _PerToken(Scorer):
    def __call__(self, rollout) -> Scores:
        return Scores(torch.ones(rollout.mask.shape), {"tokens": rollout.mask.sum(1)})


def test_a_response_without_its_end_loses_the_penalty(tmp_path):
    for reward in (tiny_runs.LETTERS, PerToken()):
        plain = trainer(tmp_path, reward=reward).generate_experience()
        run = trainer(tmp_path, reward=reward, missing_end_penalty=1.5)
        experience = run.generate_experience()
        ended = experience.rollout.ended
        assert ended.any() and not ended.all()
        taken = plain.scored.scores - experience.scored.scores
        torch.testing.assert_close(taken, torch.where(ended, 0.0, 1.5))
        # logged as the reward model gave it
        assert experience.metrics.compute()["reward/score"] == plain.metrics.compute()["reward/score"]
        torch.testing.assert_close(plain.scored.rewards.sum(1) - experience.scored.rewards.sum(1), taken)


def test_scores_per_token(tmp_path):
    run = trainer(tmp_path, reward=PerToken(), kl=None)
    experience = run.generate_experience()
    mask = experience.rollout.mask
    assert torch.equal(experience.scored.rewards, mask.float())
    assert torch.equal(experience.scored.scores, mask.sum(1).float())
    figures = experience.metrics.compute()
    assert figures["reward/tokens"] == figures["reward/score"] == figures["rollout/length"]


def test_scores_are_measured_in_the_starting_policys(tmp_path):
    run = trainer(tmp_path, score_normalization=ScoreNormalization(samples=64), score_clip=None)
    experience = run.generate_experience()
    measured = run.normalization.state_dict()
    raw = run.scorer(experience.rollout).total
    expected = (raw - run.normalization.mean) / run.normalization.std
    torch.testing.assert_close(experience.scored.scores, expected.float())
    assert experience.metrics.compute()["reward/score"] == pytest.approx(float(raw.mean()))
    run.train_rlhf(experience)
    run.generate_experience()
    assert run.normalization.state_dict() == measured  # of the start, and only once


def test_running_statistics_take_in_an_iteration_after_its_update(tmp_path):  # case D7
    run = trainer(tmp_path, score_normalization=ScoreNormalization(samples=16, running=True), missing_end_penalty=1.0)
    seen = []
    for _ in range(3):
        experience = run.generate_experience()
        if not seen:
            prompts = collate_prompts(run._stream("normalization").next(16))
            start = run.sample(prompts, seed=run.context.seed_for("normalization"))
            seen = run.scorer(start).total.tolist()
        again = run.assess(experience.rollout)  # looking twice counts nothing twice
        assert torch.equal(again.scored.scores, experience.scored.scores)
        figures = run.train_rlhf(experience)
        assert figures["normalisation/mean"] == pytest.approx(np.mean(seen))
        assert figures["normalisation/std"] == pytest.approx(np.std(seen, ddof=1))
        seen += experience.raw.total.tolist()  # as the reward model gave them, without the penalty
    assert run.normalization.moments.number == len(seen) == 16 + 3 * 8
    other = trainer(tmp_path, score_normalization=ScoreNormalization(samples=16, running=True))
    other.load_state_dict(copy.deepcopy(run.state_dict()))
    assert other.normalization.moments == run.normalization.moments


# ------------------------------------------------------------------------------------------------ scores per step


def sums(n: int) -> Iterator[dict[str, Any]]:
    for number in range(n):
        yield {"prompt": f"{number} + {number} = ", "answer": 2 * number}


def test_columns_of_the_data_reach_rules(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "my_sums", sys.modules[__name__])
    source = Generator(function="my_sums.sums", arguments={"n": 24})
    data = dataclasses.replace(tiny_runs.data("prompt"), sources={"sums": source})
    run = trainer(tmp_path, data=data, reward=ArithmeticReward(otherwise=-1.0), samples_per_prompt=2)
    rollout = run.generate_experience().rollout
    assert [f"{n // 2} + {n // 2} = " for n in rollout.prompts.columns["answer"]] == list(rollout.prompts.text)
    texts = [f"it is {n}." for n in rollout.prompts.columns["answer"][:4]] + ["it is 1."] * 4
    assert run.scorer(dataclasses.replace(rollout, text=texts)).total.tolist() == [1.0] * 4 + [-1.0] * 4


def by_letter(prompts: list[str], steps: list[list[str]]) -> list[list[float]]:
    return [[1.0 + sum("a" <= letter <= "z" for letter in step) for step in row] for row in steps]


def test_scores_per_step_go_through_two_iterations(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "my_steps", sys.modules[__name__])
    sampling = Sampling(max_new_tokens=32, stop_tokens=tiny_runs.STOPS[:6])
    probe = trainer(tmp_path, sampling=sampling)
    pieces = "".join(probe.tokenizer.decode([id]) for id in range(len(probe.tokenizer)))
    letters = Counter(letter for text in probe.generate_experience().rollout.text for letter in text[:-1])
    # the commonest that no token holds together with other letters: such a token might end two steps
    mark = next(m for m, _ in letters.most_common() if m.isascii() and m.isalnum() and pieces.count(m) == 1)
    run = trainer(
        tmp_path,
        sampling=sampling,
        reward=StepFunctionReward(function="my_steps.by_letter", separator=mark),
        score_normalization=ScoreNormalization(samples=16, running=True),
        missing_end_penalty=0.5,
        kl=None,
        score_clip=None,
    )
    counts = []
    for _ in range(2):
        experience = run.generate_experience()
        rollout, rewards = experience.rollout, experience.scored.rewards
        mean, std = run.normalization.mean, run.normalization.std
        for row, text in enumerate(rollout.text):
            ids = rollout.sequences.response_ids[row][rollout.mask[row]].tolist()
            last = len(ids) - 1
            # a step ends with a token that brings the mark, the last one with the response
            ends = {last, *(t for t, id in enumerate(ids) if mark in run.tokenizer.decode([id]))}
            assert set(experience.raw.total[row].nonzero().flatten().tolist()) <= ends
            steps = [piece for piece in text.split(mark) if piece.strip()] or [""]
            raw = sum(by_letter([], [steps])[0])
            assert float(experience.raw.total[row].sum()) == raw and experience.raw.parts["steps"][row] == len(steps)
            expected = (raw - mean) / std - (0.0 if rollout.ended[row] else 0.5)
            assert float(experience.scored.scores[row]) == pytest.approx(expected, abs=1e-5)
            assert float(rewards[row].sum()) == pytest.approx(expected, abs=1e-5)
            # the shift and the penalty are at the end; before it there is only the scale
            torch.testing.assert_close(rewards[row][:last], experience.raw.total[row][:last] / std)
        figures = run.train_rlhf(experience)
        assert math.isfinite(figures["loss/total"])
        counts.append(figures["reward/steps"])
    assert run.iteration == 2 and counts[0] > 1


def test_what_was_cut_goes_on_with_its_value_and_what_ended_does_not(tmp_path):
    run = trainer(tmp_path)
    scored = run.generate_experience().scored
    rollout = trainer(tmp_path).generate_experience().rollout
    assert scored.bootstrap[rollout.ended].eq(0).all()
    assert scored.bootstrap[~rollout.ended].ne(0).all()
    # the state after the last token is where a reward model would read
    assert torch.equal(
        scored.bootstrap[~rollout.ended],
        run.infer(run.critic, rollout, ("scores",))["scores"][~rollout.ended],
    )


def test_groups_are_the_responses_to_a_prompt(tmp_path):
    run = trainer(tmp_path, advantage=GroupNorm(), samples_per_prompt=4)
    experience = run.generate_experience()
    assert experience.rollout.groups.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert len(set(experience.rollout.prompts.text[:4])) == 1 and run.critic is None
    assert len(set(experience.rollout.text[:4])) > 1
    assert experience.batch.values is None and experience.batch.returns is None


def test_new_random_numbers_in_every_iteration(tmp_path):
    run = trainer(tmp_path, optimizer=SGD(lr=0.0))
    prompts = run.next_prompts()
    first, second = (run.generate_experience(prompts).rollout for _ in range(2))
    assert list(first.text) != list(second.text) and run.responses == 16


# ----------------------------------------------------------------------------------------------------------- update


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


# ---------------------------------------------------------------------------------------------------------- mixture


def mixture(**settings):
    return Mixture(data=tiny_runs.data("text", eval_rows=0), batch_size=8, gradient_every=1, **settings)


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


# ------------------------------------------------------------------------------------------------------------ state


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


def same_tokenizer(form, **settings):
    return tiny_runs.SameTokenizer(config=tiny_runs.policy().config, vocab_size=280, form=form, **settings)


def test_a_reference_of_another_vocabulary_is_refused(tmp_path):
    with pytest.raises(ValueError, match="reference: its model has another vocabulary"):
        trainer(tmp_path, reference=same_tokenizer("comparison"))


def test_a_reference_of_its_own(tmp_path):
    figures = trainer(tmp_path, reference=same_tokenizer("prompt")).generate_experience().metrics.compute()
    assert figures["kl/sequence"] > 0.1  # it is not the policy's start


def test_a_critic_that_was_a_reward_model_is_brought_to_the_units_of_the_scores(tmp_path):
    OfflineTrainer(tiny_runs.reward_modelling(steps=2), tiny_runs.context(tmp_path)).fit()
    run = trainer(
        tmp_path,
        policy=same_tokenizer("comparison"),
        critic=OwnTrunk(path=str(tmp_path / "model")),
        score_normalization=ScoreNormalization(samples=32),
    )
    before = float(run.critic.model.mean), float(run.critic.model.std)
    run.generate_experience()
    assert (float(run.critic.model.mean), float(run.critic.model.std)) != before
    prompts = collate_prompts(run._stream("normalization").next(32))
    rollout = run.sample(prompts, seed=run.context.seed_for("normalization"))
    answers = run.infer(run.critic, rollout, ("scores",))["scores"]
    assert answers.mean().item() == pytest.approx(0, abs=1e-4) and answers.std().item() == pytest.approx(1, abs=1e-4)
    run.train_rlhf(run.generate_experience())
    other = trainer(
        tmp_path,
        policy=same_tokenizer("comparison"),
        critic=OwnTrunk(path=str(tmp_path / "model")),
        score_normalization=ScoreNormalization(samples=32),
    )
    other.load_state_dict(copy.deepcopy(run.state_dict()))
    assert same(weights(run.critic), weights(other.critic))  # mean and deviation are in the checkpoint
