"""What ranks tell one another, by hand, and what it is counted as."""

import decoders
import torch

from rlhf.engines.inference.collectives import Collectives


def test_alone_nothing_is_said_and_nothing_counted():
    alone, given = Collectives(), torch.tensor([[1.0, 2.0]])
    assert alone.all_reduce(given) is given and alone.all_gather(given) is given
    assert (alone.size, alone.rank, alone.calls, alone.bytes) == (1, 0, 0, 0)


def test_two_hear_the_sum_and_the_parts_in_order_of_ranks(two_processes):
    for rank, (total, gathered, calls, sent, own) in enumerate(two_processes.run(decoders.spoken)):
        assert total == [3.0, 30.0]  # 1 + 2, 10 + 20
        assert gathered == [[1.0, 2.0], [-1.0, -2.0]]
        assert (calls, sent, own) == (2, 2 * (2 * 4), rank)  # two numbers of four bytes each time
