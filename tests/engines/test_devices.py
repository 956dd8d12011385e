"""What crosses the border of an engine: every tensor, and nothing else is touched."""

import tiny_runs
import torch

from rlhf.engines.devices import CPU, moved
from rlhf.types import Labelled

META = torch.device("meta")


def test_every_tensor_of_a_batch_moves():
    sequences, mask = tiny_runs.right_padded([[5, 6, 7], [8, 9]])
    batch = Labelled(sequences, mask, sources=torch.zeros(2, dtype=torch.int64), source_names=("a",))
    there = moved(batch, META)
    tensors = [there.sequences.ids, there.sequences.attention_mask, there.mask, there.sources]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert type(there) is Labelled and there.source_names == ("a",) and there.sequences.prompt_width == 1
    assert batch.mask.device == CPU  # what is moved is a copy


def test_what_holds_no_tensor_stays():
    assert moved(None, META) is None and moved("text", META) == "text"
    here = torch.ones(2)
    assert moved(here, CPU) is here
