"""What flows between the parts: selections, positions, tallies."""

import pytest
import torch

from rlhf.types import Batch, Comparisons, Labelled, Prompts, Sequences, Tally

NAN = float("nan")


def sequences() -> Sequences:
    ids = torch.tensor([[0, 0, 5, 6, 7, 0, 0], [0, 4, 5, 6, 7, 8, 0], [0, 0, 5, 6, 0, 0, 0]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1, 0], [0, 0, 1, 1, 0, 0, 0]]).bool()
    return Sequences(ids, mask, 3)


def test_positions_and_last_tokens():  # case A1
    rows = sequences()
    assert rows.position_ids.tolist() == [[0, 0, 0, 1, 2, 0, 0], [0, 0, 1, 2, 3, 4, 0], [0, 0, 0, 1, 0, 0, 0]]
    assert rows.last_index().tolist() == [4, 5, 3]
    assert rows.response_width == 4 and rows.response_ids[1].tolist() == [6, 7, 8, 0] and len(rows) == 3


def test_positions_restart_in_each_segment():
    ids = torch.tensor([[1, 2, 3, 4, 5, 0]])
    packed = Sequences(ids, ids != 0, 1, torch.tensor([[1, 1, 2, 2, 2, 0]]))
    assert packed.position_ids.tolist() == [[0, 1, 0, 1, 2, 0]]


def test_common_padding_is_cut_on_both_sides():
    cut = sequences().select(torch.tensor([2, 0]))
    assert cut.ids.tolist() == [[5, 6, 0], [5, 6, 7]] and cut.prompt_width == 1
    assert sequences().select(torch.tensor([1])).ids.tolist() == [[4, 5, 6, 7, 8]]


def test_a_column_is_left_before_the_response():
    ids = torch.tensor([[0, 0, 7, 8]])
    cut = Sequences(ids, ids != 0, 2).select(torch.tensor([0]))  # a prompt of nothing but pads
    assert cut.ids.tolist() == [[0, 7, 8]] and cut.prompt_width == 1 and cut.response_width == 2


def test_every_field_of_a_batch_is_cut_with_it():
    wide = torch.arange(12.0).view(3, 4)
    mask = sequences().attention_mask[:, 3:]
    batch = Batch(sequences(), mask, wide, wide + 1, None, wide + 2, wide + 3, None)
    part = batch.select(torch.tensor([2, 0]))
    assert part.mask.tolist() == [[True, False], [True, True]]
    assert part.rollout_logprobs.tolist() == [[8, 9], [0, 1]] and part.advantages.tolist() == [[10, 11], [2, 3]]
    assert part.ref_logprobs is None and part.values is None and part.returns is not None
    assert [len(piece) for piece in batch.split(2)] == [2, 1]


def test_pairs_are_never_parted():
    ids = torch.ones(6, 2, dtype=torch.long)
    rows = Sequences(ids, ids.bool(), 1)
    pairs = Comparisons(rows, ids[:, 1:].bool(), torch.arange(6.0), torch.ones(6))
    assert [len(part) for part in pairs.split(1)] == [2, 2, 2]
    assert [len(part) for part in pairs.split(5)] == [4, 2]
    assert [part.margin.tolist() for part in pairs.split(4)] == [[0, 1, 2, 3], [4, 5]]
    assert [len(part) for part in Labelled(rows, ids[:, 1:].bool()).split(4)] == [4, 2]


def test_prompts():
    prompts = Prompts([[1], [2, 3]], ["a", "b"], ["s", "t"], {"answer": [10, 20]})
    assert prompts.repeat(2).text == ["a", "a", "b", "b"] and len(prompts.repeat(3)) == 6
    picked = prompts.select([1, 0, 1])
    assert picked.ids == [[2, 3], [1], [2, 3]] and picked.columns == {"answer": [20, 10, 20]}
    assert picked.source == ["t", "s", "t"]


def test_a_tally_never_averages_averages():  # cases I2, I4
    one, other = Tally(), Tally()
    one.mean("loss", torch.tensor([1.0, NAN]), torch.tensor([True, False]))
    other.mean("loss", torch.tensor([3.0, 3.0, 3.0]))
    one.ratio("share", 1, 2)
    other.ratio("share", 5, 6)
    one.sum("count", 2)
    other.sum("count", 3)
    one.max("largest", 2)
    other.max("largest", 1)
    one.merge(other)
    assert one.compute() == {"loss": 2.5, "share": 0.75, "count": 5.0, "largest": 2.0}
    assert other.compute()["loss"] == 3.0


def test_a_mean_over_nothing_is_left_out():
    tally = Tally()
    tally.mean("loss", torch.ones(2), torch.zeros(2, dtype=torch.bool))
    assert tally.compute() == {}


def test_means_are_summed_in_float64():
    tally = Tally()
    for _ in range(1000):
        tally.mean("x", torch.tensor([1e8, 1.0]))
    assert tally.compute()["x"] == pytest.approx(50000000.5, abs=1e-6)
