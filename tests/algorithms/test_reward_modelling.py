"""Reward modelling: its loss and figures, its normalisation, and that it learns."""

import json
import math

import pytest
import tiny_runs
import torch

from rlhf.algorithms.reward_modelling import RewardModelling
from rlhf.data.examples import ComparisonExample
from rlhf.data.templates import Plain
from rlhf.engines.inference.sampling import Sampling
from rlhf.engines.local import Local
from rlhf.loops.offline import OfflineTrainer
from rlhf.loops.online import OnlineTrainer
from rlhf.models.rewards import ScalarReward
from rlhf.models.storage import load_value_model
from rlhf.types import Outputs, Sequences


def pairs(n, weights=None, margins=None):
    return [
        ComparisonExample(
            prompt_ids=[1, 2],
            chosen_ids=[3, 4],
            rejected_ids=[5],
            margin=margins[i] if margins else 0.0,
            weight=weights[i] if weights else 1.0,
        )
        for i in range(n)
    ]


def scores(chosen, rejected):
    return Outputs(scores=torch.tensor([chosen, rejected]).T.flatten())


def test_ties_are_not_correct_and_reported_apart():  # case D6
    model = tiny_runs.reward_modelling()
    outputs = scores([10.03, 3.2, -1.0, 7.0], [10.01, 1.1, 0.5, 7.0])
    figures = model.loss(outputs, model.collate(pairs(4), pad_id=0))[1].compute()
    assert figures["accuracy"] == 0.5 and figures["ties"] == 0.25
    assert figures["margin"] == pytest.approx((0.02 + 2.1 - 1.5 + 0) / 4, abs=1e-6)


def test_identical_scores_cost_ln_2():  # case D1
    model = tiny_runs.reward_modelling()
    (term,), tally = model.loss(scores([1.0], [1.0]), model.collate(pairs(1), pad_id=0))
    assert term.values.item() == pytest.approx(math.log(2))
    assert tally.compute()["accuracy"] == 0


def test_loss_by_hand_and_duplicates_change_nothing():  # case D4
    model = tiny_runs.reward_modelling()
    # log(1 + e^−z) = .8, .4, 1.2, .6
    wanted = [0.8, 0.4, 1.2, 0.6]
    differences = [-math.log(math.expm1(loss)) for loss in wanted]
    for times in (1, 2):
        batch = model.collate(pairs(4 * times), pad_id=0)
        (term,), tally = model.loss(scores(differences * times, [0.0] * 4 * times), batch)
        assert tally.compute()["loss"] == pytest.approx(0.75, abs=1e-6)
        assert float(term.values.sum()) / model.denominators(batch)["reward"] == pytest.approx(0.75, abs=1e-6)


def test_all_pairs_of_a_prompt_together_weigh_1():
    model = tiny_runs.reward_modelling()
    batch = model.collate(pairs(3, weights=[0.5, 0.5, 1.0]), pad_id=0)
    _, tally = model.loss(scores([0.0, 0.0, 40.0], [0.0, 0.0, 0.0]), batch)
    assert model.denominators(batch) == {"reward": 2.0}
    assert tally.compute()["loss"] == pytest.approx(math.log(2) / 2)
    assert tally.compute()["accuracy"] == 0.5


def test_margin_and_smoothing_by_hand():
    batch = tiny_runs.reward_modelling().collate(pairs(1, margins=[2.0]), pad_id=0)
    outputs = scores([3.0], [0.0])
    plain = tiny_runs.reward_modelling().loss(outputs, batch)[1].compute()["loss"]
    assert plain == pytest.approx(math.log1p(math.exp(-3)))
    weighted = RewardModelling(model=tiny_runs.policy(), data=tiny_runs.data("comparison"), margin=0.5)
    margin = weighted.loss(outputs, batch)[1].compute()["loss"]
    assert margin == pytest.approx(math.log1p(math.exp(-2)))
    smooth = tiny_runs.reward_modelling(label_smoothing=0.1).loss(outputs, batch)[1].compute()["loss"]
    assert smooth == pytest.approx(math.log1p(math.exp(-3)) + 0.1 * 3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("reward")
    settings = tiny_runs.reward_modelling(steps=25)
    trainer = OfflineTrainer(settings, tiny_runs.context(directory))
    return trainer, trainer.fit(), directory


def test_it_learns_a_separable_toy(trained):
    _, figures, _ = trained
    assert figures["eval/accuracy"] == 1 and figures["eval/loss"] < 0.1 and figures["eval/margin"] > 2


def test_normalisation_is_stored_and_read_back(trained):  # case D7
    trainer, _, directory = trained
    last = json.loads((directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["normalisation/std"] > 0
    model, _ = load_value_model(directory / "model")
    with torch.no_grad():
        kept, read = (
            torch.cat([m(b.sequences, want=("scores",)).scores for b in trainer.heldout])
            for m in (trainer.model, model)
        )
    torch.testing.assert_close(read, kept)
    assert read.mean().item() == pytest.approx(0, abs=1e-5) and read.std().item() == pytest.approx(1, abs=1e-5)
    assert float(model.mean) == pytest.approx(last["normalisation/mean"])


def test_training_and_ppo_read_the_same_score(trained, tmp_path):  # case D2
    _, _, directory = trained
    model, _ = load_value_model(directory / "model")

    settings = tiny_runs.ppo(
        policy=tiny_runs.SameTokenizer(config=tiny_runs.policy().config, vocab_size=280, form="comparison"),
        reward=ScalarReward(path=str(directory / "model")),
        engine=Local(micro_batch_size=2),
        sampling=Sampling(max_new_tokens=9, stop_tokens=tiny_runs.STOPS),
        data=tiny_runs.data("prompt", 40),
        batch_size=32,
    )
    trainer = OnlineTrainer(settings, tiny_runs.context(tmp_path))
    rollout = trainer.generate_experience().rollout
    lengths = rollout.mask.sum(1).tolist()
    assert len(set(lengths)) > 1
    found = trainer.scorer(rollout).total
    training = tiny_runs.reward_modelling()
    for row, length in enumerate(lengths):
        response = rollout.sequences.response_ids[row, :length].tolist()
        pair = ComparisonExample(prompt_ids=rollout.prompts.ids[row], chosen_ids=response, rejected_ids=[9] * 12)
        with torch.no_grad():
            score = model(training.collate([pair], pad_id=5).sequences, want=("scores",)).scores[0]
        assert score.item() == pytest.approx(found[row].item(), abs=1e-5)


def test_ppo_of_a_policy_with_another_tokenizer_reads_the_score_of_the_text(tmp_path, caplog):
    """Of the whole way: the stage keeps its template with the model, and the sampled texts go through it."""
    template = Plain(prompt_format="Q{prompt}", response_format=" {response}")
    stage = tiny_runs.reward_modelling(steps=2, data=tiny_runs.data("comparison", template=template))
    OfflineTrainer(stage, tiny_runs.context(tmp_path / "rm")).fit()
    model, tokenizer = load_value_model(tmp_path / "rm" / "model")
    settings = tiny_runs.ppo(
        policy=tiny_runs.SameTokenizer(config=tiny_runs.policy().config, vocab_size=265, form="text"),
        reward=ScalarReward(path=str(tmp_path / "rm" / "model")),
        data=tiny_runs.data("prompt", template=template),
        score_normalization=None,
    )
    trainer = OnlineTrainer(settings, tiny_runs.context(tmp_path / "ppo"))
    experience = trainer.generate_experience()
    assert caplog.text.count("has another vocabulary than the policy") == 1
    rollout = experience.rollout
    assert 0 < int(rollout.ended.sum()) < len(rollout)
    for row, text in enumerate(rollout.text):
        response = template.response(text.removeprefix(" "), tokenizer)
        ids = template.prompt(rollout.prompts.text[row], tokenizer) + response[: None if rollout.ended[row] else -1]
        whole = Sequences(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.bool), 1)
        with torch.no_grad():
            score = model(whole, want=("scores",)).scores[0]
        assert score.item() == pytest.approx(experience.scored.scores[row].item(), abs=1e-5)
    assert math.isfinite(trainer.train_rlhf(experience)["loss/policy"])


def test_a_model_that_cannot_tell_is_refused(tmp_path):
    trainer = OfflineTrainer(tiny_runs.reward_modelling(), tiny_runs.context(tmp_path))
    with torch.no_grad():
        for parameter in trainer.model.head.parameters():
            parameter.zero_()
    with pytest.raises(ValueError, match=r"every held-out response the score 0\.0"):
        trainer.algorithm.conclude(trainer.engine, trainer.heldout)


def test_normalisation_can_be_left_out(tmp_path):
    trainer = OfflineTrainer(tiny_runs.reward_modelling(normalize=False), tiny_runs.context(tmp_path))
    assert trainer.algorithm.conclude(trainer.engine, trainer.heldout) == {}
    assert float(trainer.model.std) == 1
