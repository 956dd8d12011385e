"""A packed matrix answers what the matrix does."""

import pytest
import torch

from rlhf.engines.inference.packing import pack, packed_linear


def test_by_hand():
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    packed = pack(weight)
    if not torch.backends.mkldnn.is_available():
        assert packed is None
        return
    assert packed is not None
    x = torch.tensor([[1.0, 1.0], [0.0, -1.0]])
    assert packed_linear(x, packed, None).tolist() == [[3.0, 7.0, 11.0], [-2.0, -4.0, -6.0]]
    assert packed_linear(x, packed, torch.tensor([0.0, 0.0, 1.0])).tolist() == [[3.0, 7.0, 12.0], [-2.0, -4.0, -5.0]]
    weight.zero_()
    assert packed_linear(x, packed, None)[0].tolist() == [3.0, 7.0, 11.0]  # a copy


def test_what_is_not_on_the_cpu_stays_as_it_is():
    assert pack(torch.empty(2, 2, device="meta")) is None


@pytest.mark.parametrize("rows", [1, 16, 40])
def test_any_number_of_rows(rows):
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(24, 48, generator=generator), torch.randn(rows, 48, generator=generator)
    packed = pack(weight)
    if packed is not None:
        torch.testing.assert_close(packed_linear(x, packed, None), x @ weight.T)
