"""Where a sampled response begins and ends, by hand, on a model that says what comes next."""

import pytest
import torch
from sampled import MODELS, PROMPTS, run, scripted
from spelling import responses


def test_layout_by_hand():  # case A4
    rollout = scripted([[20, 7], [11], [1, 1, 8]], stop_ids=[9, 13], pad_id=39, max_new_tokens=3)
    # Row 0 counts 8, 9 (stop), row 1 12, 13 (the second stop id), row 2 only 9.
    assert rollout.sequences.ids.tolist() == [[39, 20, 7, 8, 9], [39, 39, 11, 12, 13], [1, 1, 8, 9, 39]]
    assert rollout.sequences.attention_mask.long().tolist() == [[0, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert rollout.sequences.prompt_width == 3
    assert rollout.mask.tolist() == [[True, True], [True, True], [True, False]]
    assert rollout.ended.tolist() == [True, True, True]
    assert rollout.text == ["8", "12", ""]
    assert rollout.groups.tolist() == [0, 1, 2]
    assert rollout.rollout_logprobs.tolist() == [[0.0, 0.0]] * 3
    assert rollout.rollout_logprobs.dtype == torch.float32


def test_the_length_limit_is_not_an_end():
    rollout = scripted([[5], [7], [8]], stop_ids=[10], max_new_tokens=3)
    assert responses(rollout) == [[6, 7, 8], [8, 9, 10], [9, 10]]
    assert rollout.ended.tolist() == [False, True, True]
    assert rollout.text == ["6 7 8", "8 9", "9"]


@pytest.mark.parametrize("pad_id", [9, 0])
def test_a_pad_that_is_a_stop_id_takes_nothing_from_the_mask(pad_id: int):  # case A3
    rollout = scripted([[7], [3]], stop_ids=[9], pad_id=pad_id, max_new_tokens=4)
    assert responses(rollout) == [[8, 9], [4, 5, 6, 7]]
    assert rollout.mask.sum(1).tolist() == [2, 4]
    assert rollout.sequences.ids[0].tolist() == [7, 8, 9, pad_id, pad_id]
    assert rollout.ended.tolist() == [True, False]


def test_minimum_length_forbids_every_stop_id_before_it():
    rollout = run(MODELS["gpt2"], PROMPTS.repeat(4), stop_ids=list(range(20)), min_new_tokens=4)
    found = responses(rollout)
    assert all(token >= 20 for response in found for token in response[:4])
    assert any(len(response) == 5 for response in found)


def test_a_stop_string_ends_with_the_token_that_completes_it():
    rollout = scripted([[5], [17], [30]], stop_ids=[], stop_strings=["8 9", "1 2"], max_new_tokens=6)
    # "6 7 8 9"; "18 19 20 21 2…": the string is found inside of "21 22"; the third row counts on.
    assert responses(rollout) == [[6, 7, 8, 9], [18, 19, 20, 21, 22], [31, 32, 33, 34, 35, 36]]
    assert rollout.text == ["6 7 ", "18 19 20 2", "31 32 33 34 35 36"]
    assert rollout.ended.tolist() == [True, True, False]
    late = scripted([[5]], stop_ids=[], stop_strings=["8 9"], min_new_tokens=6, max_new_tokens=8)
    assert responses(late) == [[6, 7, 8, 9, 10, 11]] and late.text == ["6 7 "]


def test_a_stop_string_may_be_long_and_made_of_many_tokens():
    string = " ".join(str(i) for i in range(10, 30))
    rollout = scripted([[5]], stop_ids=[], stop_strings=[string], max_new_tokens=40)
    assert responses(rollout) == [list(range(6, 30))]


def test_no_prompts_give_an_empty_rollout():
    rollout = scripted([])
    assert len(rollout) == 0
    assert rollout.sequences.ids.shape == (0, 1)
    assert rollout.mask.shape == rollout.rollout_logprobs.shape == (0, 0)
    assert rollout.text == []
