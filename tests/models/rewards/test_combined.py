"""Weighted sums and ensembles."""

from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
from tiny_models import ForwardEngine, rollout

from rlhf.interfaces import RewardModel, Scorer
from rlhf.models.rewards import Ensemble, Weighted
from rlhf.types import Scores

ENGINE, TOKENIZER = ForwardEngine(), cast(Any, None)


@dataclass(frozen=True, kw_only=True)
class Given(RewardModel):
    """Fixed scores.

    Args:
        scores: Per response, or per token.
        part: A part to report.
    """

    scores: list[Any]
    part: str | None = None

    def build(self, engine, tokenizer):
        class Live(Scorer):
            def __call__(_, rollout):
                total = torch.tensor(self.scores)
                return Scores(total, {} if self.part is None else {self.part: torch.zeros(len(rollout))})

        return Live()


def answer(reward: RewardModel, texts=("x", "y")) -> Scores:
    """Of responses of 1 and 2 tokens."""
    return reward.build(ENGINE, TOKENIZER)(rollout(list(texts)))


def plain(parts) -> dict[str, list[float]]:
    return {name: part.tolist() for name, part in parts.items()}


# ------------------------------------------------------------------------------------------------------------- Weighted


def test_weighted_adds_and_reports_each_part():
    models: dict[str, RewardModel] = {"length": Given(scores=[11.0, 11.0]), "match": Given(scores=[1.0, 0.0])}
    found = answer(Weighted(models=models, weights={"length": 0.5, "match": -2.0}))
    assert found.total.tolist() == [3.5, 5.5]  # 0.5·11 − 2·1, 0.5·11
    assert plain(found.parts) == {"length": [11.0, 11.0], "match": [1.0, 0.0]}


def test_weighted_nests_and_sums_per_token_parts_over_real_tokens():
    one, two = (Given(scores=[[value, 99.0], [value, value]]) for value in (1.0, 2.0))
    inner = Weighted(models={"a": one, "b": two}, weights={"a": 1.0, "b": 1.0})
    found = answer(Weighted(models={"in": inner}, weights={"in": 2.0}))
    assert found.total[0, 0] == 6.0 and found.total[1].tolist() == [6.0, 6.0]
    assert plain(found.parts) == {"in": [3.0, 6.0], "in/a": [1.0, 2.0], "in/b": [2.0, 4.0]}  # rows of 1 and 2 tokens


def test_scores_of_responses_join_those_of_tokens_at_the_end():
    models: dict[str, RewardModel] = {
        "steps": Given(scores=[[1.0, 0.0], [2.0, 3.0]]),
        "size": Given(scores=[-1.0, -2.0]), "flat": Given(scores=[1, 1]),
    }  # fmt: skip
    found = answer(Weighted(models=models, weights={"steps": 1.0, "size": 0.5, "flat": 4.0}))
    assert found.total.tolist() == [[4.5, 0.0], [2.0, 6.0]]  # 1 − 0.5 + 4 on the first token; 3 − 1 + 4 on the second
    assert plain(found.parts) == {"steps": [1.0, 5.0], "size": [-1.0, -2.0], "flat": [1, 1]}


def test_weighted_refuses_what_does_not_match():
    one = Given(scores=[1.0])
    with pytest.raises(ValueError, match="b is in weights but not in models"):
        Weighted(models={"a": one}, weights={"a": 1.0, "b": 1.0})
    with pytest.raises(ValueError, match="a is in models but not in weights"):
        Weighted(models={"a": one}, weights={})
    with pytest.raises(ValueError, match="models: there is none"):
        Weighted(models={}, weights={})


# ------------------------------------------------------------------------------------------------------------- Ensemble

MEMBERS: dict[str, RewardModel] = {
    "a": Given(scores=[1.0, 0.0]), "b": Given(scores=[2.0, 0.0], part="inner"), "c": Given(scores=[6.0, 0.0])
}  # fmt: skip
VARIANCE = 14 / 3  # of 1, 2, 6 about 3: (4 + 1 + 9) / 3


@pytest.mark.parametrize(("combine", "expected"), [
    ("mean", 3.0), ("min", 1.0),
    ("mean_minus_std", 3 - 0.5 * VARIANCE**0.5), ("mean_minus_variance", 3 - 0.5 * VARIANCE),
])  # fmt: skip
def test_the_ways_of_an_ensemble(combine, expected):
    found = answer(Ensemble(models=MEMBERS, combine=combine, coef=0.5))
    assert found.total.tolist() == [pytest.approx(expected), 0.0]  # where all agree nothing is taken off
    assert found.parts["disagreement"].tolist() == [pytest.approx(VARIANCE**0.5), 0.0]
    assert found.parts["c"].tolist() == [6.0, 0.0] and "b/inner" in found.parts


def test_an_ensemble_of_token_scores_is_combined_token_by_token_and_disagrees_about_responses():
    members: dict[str, RewardModel] = {
        "a": Given(scores=[[1.0, 50.0], [0.0, 4.0]]), "b": Given(scores=[[3.0, -50.0], [4.0, 0.0]])
    }  # fmt: skip
    found = answer(Ensemble(models=members, combine="min"))
    assert found.total[0, 0] == 1.0 and found.total[1].tolist() == [0.0, 0.0]
    assert found.parts["disagreement"].tolist() == [1.0, 0.0]  # pads count for nothing; both give the second 4


def test_ensembles_that_are_none():
    with pytest.raises(ValueError, match="models: 1; an ensemble needs at least 2"):
        Ensemble(models={"a": Given(scores=[1.0])})
    with pytest.raises(ValueError, match="disagreement is the name"):
        Ensemble(models={"disagreement": Given(scores=[1.0]), "b": Given(scores=[1.0])})
    with pytest.raises(ValueError, match="coef is -1"):
        Ensemble(models=MEMBERS, coef=-1.0)
    mixed: dict[str, RewardModel] = {"a": Given(scores=[1.0, 2.0]), "b": Given(scores=[[1.0, 1.0], [1.0, 1.0]])}
    with pytest.raises(ValueError, match="some members score responses and some score tokens"):
        answer(Ensemble(models=mixed))
