"""On-policy trainers on tiny models, and the comparison of their weights."""

from __future__ import annotations

import tiny_runs
import torch

from rlhf.algorithms.objectives import Mixture
from rlhf.loops.online import OnlineTrainer


def trainer(directory, **settings) -> OnlineTrainer:
    return OnlineTrainer(tiny_runs.ppo(**settings), tiny_runs.context(directory))


def weights(engine):
    return {name: tensor.clone() for name, tensor in engine.full_state().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def mixture(**settings):
    return Mixture(data=tiny_runs.data("text", eval_rows=0), batch_size=8, gradient_every=1, **settings)


def same_tokenizer(form, **settings):
    return tiny_runs.SameTokenizer(config=tiny_runs.policy().config, vocab_size=280, form=form, **settings)
