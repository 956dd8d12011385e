"""The mixture's and the entropy's terms."""

import pytest
import tiny_runs
import torch

from rlhf.algorithms.objectives import Entropy, Mixture
from rlhf.types import Labelled, Outputs

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


def test_mixture_batch_size_is_checked():
    with pytest.raises(ValueError, match="batch_size is 0"):
        Mixture(data=tiny_runs.data("text"), batch_size=0)
