"""The mixture's and the entropy's terms."""

import dataclasses

import pytest
import tiny_runs
import torch

from rlhf.algorithms.objectives import Entropy, Imitation, Mixture
from rlhf.types import Batch, Labelled, Outputs

SEQUENCES, MASK = tiny_runs.right_padded([[1, 2, 3], [4, 5]])
BATCH = Labelled(sequences=SEQUENCES, mask=MASK)
FIGURES = torch.tensor([[-1.0, -2.0], [-3.0, 0.0]])


def test_mixture_is_the_negative_log_likelihood():
    term = Mixture(data=tiny_runs.data("text"), coef=0.5).term(Outputs(logprobs=FIGURES), BATCH)
    assert (term.name, term.coef, term.mode) == ("mixture", 0.5, "token")
    assert term.values.tolist() == [[1.0, 2.0], [3.0, 0.0]] and term.mask is BATCH.mask


def test_entropy_is_a_bonus():
    term = Entropy(coef=0.1).term(Outputs(entropy=-FIGURES), BATCH)
    assert (term.name, term.coef) == ("entropy", 0.1)
    assert term.values.tolist() == [[-1.0, -2.0], [-3.0, 0.0]]


def test_only_good_responses_are_imitated():
    zeros = torch.zeros(2, 2)
    batch = Batch(
        sequences=SEQUENCES,
        mask=MASK,
        rollout_logprobs=zeros,
        old_logprobs=zeros,
        ref_logprobs=None,
        advantages=zeros,
        returns=None,
        values=None,
        scores=torch.tensor([0.5, 0.4]),
    )
    imitation = Imitation(coef=0.2, above=0.4)
    term = imitation.term(Outputs(logprobs=FIGURES), batch)
    assert (term.name, term.coef, term.mode) == ("imitation", 0.2, "token")
    assert term.mask.tolist() == imitation.mask(batch).tolist() == [[True, True], [False, False]]
    assert term.values[0].tolist() == [1.0, 2.0]
    settings = tiny_runs.ppo(imitation=imitation)
    assert settings.denominators(batch)["imitation"] == 2
    none = dataclasses.replace(batch, scores=torch.zeros(2))
    assert settings.denominators(none)["imitation"] == 1  # nothing is divided by 0


def test_mixture_batch_size_is_checked():
    with pytest.raises(ValueError, match="batch_size is 0"):
        Mixture(data=tiny_runs.data("text"), batch_size=0)
