"""The on-policy loop: what an iteration samples and measures."""

import dataclasses
import itertools

import pytest
import tiny_runs
import torch
from online_runs import same_tokenizer, trainer

from rlhf.algorithms.advantages import GroupNorm
from rlhf.algorithms.critics import SharedTrunk
from rlhf.algorithms.kl import KL, Fixed
from rlhf.algorithms.optimizers import SGD, AdamW
from rlhf.engines.inference.sampling import Sampling
from rlhf.engines.local import Local
from rlhf.types import Sequences


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


def test_a_reference_of_another_vocabulary_is_refused(tmp_path):
    with pytest.raises(ValueError, match="reference: its model has another vocabulary"):
        trainer(tmp_path, reference=same_tokenizer("comparison"))


def test_a_reference_of_its_own(tmp_path):
    figures = trainer(tmp_path, reference=same_tokenizer("prompt")).generate_experience().metrics.compute()
    assert figures["kl/sequence"] > 0.1  # it is not the policy's start
