"""Sampler corrections as components."""

import pytest
import torch

from rlhf.algorithms.corrections import MaskedIS, TruncatedIS
from rlhf.types import Batch, Sequences

NAN = float("nan")


def batch(ratios) -> Batch:
    """One row a list, of tokens with these ratios of the trainer's to the sampler's probability; NaN is padding."""
    ratio = torch.tensor(ratios)
    ids = torch.zeros(len(ratio), ratio.shape[1] + 1, dtype=torch.long)
    return Batch(
        sequences=Sequences(ids, torch.ones_like(ids, dtype=torch.bool), 1),
        mask=~ratio.isnan(),
        rollout_logprobs=torch.full_like(ratio, -2.0),
        old_logprobs=ratio.log() - 2.0,
        ref_logprobs=None,
        advantages=torch.zeros_like(ratio),
        returns=None,
        values=None,
    )


ROWS = batch([[3.0, 0.5, 1.2], [6.0, 0.4, NAN]])


def test_truncated_by_hand():
    torch.testing.assert_close(TruncatedIS()(ROWS), torch.tensor([[2.0, 0.5, 1.2], [2.0, 0.4, 0.0]]))
    # products 1.8 and 2.4
    found = TruncatedIS(level="sequence")(ROWS)
    torch.testing.assert_close(found, torch.tensor([[1.8, 1.8, 1.8], [2.0, 2.0, 0.0]]))


def test_masked_by_hand():
    torch.testing.assert_close(MaskedIS()(ROWS), torch.tensor([[3.0, 0.5, 1.2], [0.0, 0.0, 0.0]]), atol=1e-6, rtol=0)
    found = MaskedIS(low=0.5, high=2.0, level="sequence")(ROWS)
    torch.testing.assert_close(found, torch.tensor([[1.8, 1.8, 1.8], [0.0, 0.0, 0.0]]))


@pytest.mark.parametrize(
    ("correction", "settings", "text"),
    [
        (TruncatedIS, {"cap": 0.0}, r"cap is 0\.0"),
        (MaskedIS, {"low": -0.1}, r"low is -0\.1"),
        (MaskedIS, {"low": 3.0, "high": 2.0}, r"low is 3\.0, above high, 2\.0"),
    ],
)
def test_settings_are_checked(correction, settings, text):
    with pytest.raises(ValueError, match=text):
        correction(**settings)
