"""Golden curves: see tests/golden_curves.py, which also says how to write them anew.

Compared to 1e-5: the sums of another processor, or another build of torch, differ in the last digits.
"""

import golden_curves
import pytest
import torch


@pytest.mark.parametrize("name", golden_curves.CURVES)
def test_ten_steps_have_not_moved(name, tmp_path):
    assert torch.get_num_threads() == 1
    found, stored = golden_curves.curve(name, tmp_path), golden_curves.read(name)
    assert len(found) == len(stored) == 10
    for number, (step, expected) in enumerate(zip(found, stored, strict=True)):
        # processors differ in the last bit of a sum, which ten steps of Adam make more of
        assert step == pytest.approx(expected, rel=1e-4, abs=1e-5, nan_ok=True), f"step {number + 1}"
