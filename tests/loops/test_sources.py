"""Figures by source: means of each source's own tokens, pairs or responses, however a batch is cut."""

import pytest
import tiny_runs
import torch

from rlhf.algorithms.ppo import Evaluation
from rlhf.data.collate import collate_comparisons, collate_labelled, collate_packed
from rlhf.data.dataset import Data
from rlhf.data.examples import ComparisonExample, DemonstrationExample
from rlhf.interfaces import LiveEngine
from rlhf.loops.evaluation import Evaluator
from rlhf.loops.offline import OfflineTrainer
from rlhf.loops.online import OnlineTrainer
from rlhf.loops.sources import by_source, mean_by_source
from rlhf.types import Outputs, Tally


def demo(response: list[int], source: str) -> DemonstrationExample:
    return DemonstrationExample(prompt_ids=[9], response_ids=response, source=source)


EXAMPLES = [demo([1, 2, 3], "a"), demo([5], "b"), demo([7, 7], "b"), demo([4], "a")]


def outputs_of(batch) -> Outputs:
    """A token's loss is its id."""
    return Outputs(logprobs=-batch.sequences.response_ids.float().requires_grad_())


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("packed", [False, True])
def test_losses_by_source_are_means_over_their_tokens(size: int, packed: bool) -> None:
    rows = [EXAMPLES[:3], EXAMPLES[3:]]
    whole = collate_packed(rows, pad_id=0) if packed else collate_labelled(EXAMPLES, pad_id=0)
    tally = Tally()
    for batch in whole.split(size):
        terms, figures = by_source(tiny_runs.sft().loss)(outputs_of(batch), batch)
        assert [term.name for term in terms] == ["sft"] and terms[0].values.requires_grad
        tally.merge(figures)
    assert tally.compute() == pytest.approx(
        {"loss": 29 / 7, "loss/source/a": (1 + 2 + 3 + 4) / 4, "loss/source/b": (5 + 7 + 7) / 3}
    )


def test_comparisons_by_source_keep_their_weights() -> None:
    pairs = [
        ComparisonExample(prompt_ids=[9], chosen_ids=[1], rejected_ids=[2], weight=weight, source=source)
        for source, weight in (("a", 1.0), ("b", 0.5), ("b", 0.25))
    ]
    batch = collate_comparisons(pairs, pad_id=0)
    outputs = Outputs(scores=torch.tensor([1.0, 0.0, 0.0, 2.0, 3.0, 0.0]))
    figures = by_source(tiny_runs.reward_modelling().loss)(outputs, batch)[1].compute()
    assert figures["accuracy/source/a"] == 1.0
    assert figures["accuracy/source/b"] == pytest.approx(0.25 / 0.75)
    assert figures["margin/source/b"] == pytest.approx((-2 * 0.5 + 3 * 0.25) / 0.75)
    assert figures["accuracy"] == pytest.approx(1.25 / 1.75)


def test_responses_by_source() -> None:
    tally = Tally()
    mean_by_source(tally, "score", torch.tensor([1.0, 2.0, 4.0]), ["a", "b", "a"])
    assert tally.compute() == {"score/source/a": 2.5, "score/source/b": 2.0}


def two(form: str, **settings) -> Data:
    sources = {"a": tiny_runs.source(form, 20), "b": tiny_runs.source(form, 8)}
    return Data(sources=sources, **{"eval_rows": 4, "max_tokens": 32, **settings})


@pytest.mark.parametrize(
    ("algorithm", "names"),
    [
        (tiny_runs.sft(data=two("demonstration"), packing=True), {"loss"}),
        (tiny_runs.reward_modelling(data=two("comparison")), {"loss", "accuracy", "ties", "margin"}),
    ],
)
def test_training_and_evaluation_tell_of_each_source(algorithm, names: set[str], tmp_path) -> None:
    trainer = OfflineTrainer(algorithm, tiny_runs.context(tmp_path))
    step, held = trainer.train_step(trainer.next_batch()), trainer.evaluate()
    assert names <= step.keys() and {f"eval/{name}" for name in names} <= held.keys()
    for figures, prefix in ((step, ""), (held, "eval/")):
        assert {name for name in figures if "/source/" in name} == {
            f"{prefix}{name}/source/{source}" for name in names for source in "ab"
        }


def test_one_source_needs_no_figures_of_its_own(tmp_path) -> None:
    trainer = OfflineTrainer(tiny_runs.sft(), tiny_runs.context(tmp_path))
    assert not [name for name in {**trainer.train_step(trainer.next_batch()), **trainer.evaluate()} if "source" in name]


def test_figures_by_source_change_no_weight(tmp_path) -> None:
    runs = {"two": two("demonstration"), "one": tiny_runs.data("demonstration")}
    batch = collate_labelled([demo([5, 6], "a"), demo([7], "b")], pad_id=0)
    shards: list[list[torch.Tensor]] = []
    for name, data in runs.items():
        policy = tiny_runs.SameTokenizer(
            config=tiny_runs.policy().config, vocab_size=tiny_runs.policy().vocab_size, form="demonstration"
        )
        trainer = OfflineTrainer(tiny_runs.sft(policy=policy, data=data), tiny_runs.context(tmp_path / name))
        trainer.train_step(batch)
        engine: LiveEngine = trainer.engine
        shards.append(engine.master())
    assert all(torch.equal(one, other) for one, other in zip(*shards, strict=True))


def test_scores_by_source_in_rollouts_and_evaluations(tmp_path) -> None:
    algorithm = tiny_runs.ppo(data=two("prompt"), evaluation=Evaluation(every=1, prompts=8))
    trainer = OnlineTrainer(algorithm, tiny_runs.context(tmp_path))
    experience = trainer.generate_experience()
    figures, sources = experience.metrics.compute(), experience.rollout.prompts.source
    for source in set(sources):
        own = [float(score) for score, name in zip(experience.scored.scores, sources, strict=True) if name == source]
        assert figures[f"reward/score/source/{source}"] == pytest.approx(sum(own) / len(own))
    evaluated = Evaluator(trainer)()
    assert {name for name in evaluated if "/source/" in name} == {"eval/score/source/a", "eval/score/source/b"}
