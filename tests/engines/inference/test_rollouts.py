"""Rollouts of several processes as one, by hand."""

import torch
from spelling import prompts_of

from rlhf.engines.inference.rollouts import join_rollouts
from rlhf.types import Rollout, Sequences


def part(prompts: list[list[int]], prompt_width: int, ids: list[list[int]], mask: list[list[bool]], text: list[str]):
    attention, real = torch.tensor(ids).ne(0), torch.tensor(mask)
    numbers = torch.where(real, -torch.tensor(ids)[:, prompt_width:].float(), 0.0)
    return Rollout(
        prompts_of(prompts), Sequences(torch.tensor(ids), attention, prompt_width), real, numbers, 2 * numbers,
        real.sum(1) == 1, torch.arange(len(ids)), text,
    )  # fmt: skip


def test_parts_of_other_widths_are_laid_out_alike_and_rows_that_do_not_count_are_left_out():
    one = part([[5, 6], [9]], 2, [[5, 6, 1, 2, 0], [0, 9, 9, 9, 9]], [[True, True, False], [True] * 3], ["1 2", "9"])
    other = part([[7], [8]], 3, [[0, 0, 7, 3], [0, 0, 8, 4]], [[True], [True]], ["3", "4"])
    found = join_rollouts(prompts_of([[5, 6], [7], [8]]), [(one, 1), (other, 2)], pad_id=99)
    # The longest prompt has 2 tokens, the longest response that counts 2; what is filled up is the pad.
    assert found.sequences.prompt_width == 2
    assert found.sequences.ids.tolist() == [[5, 6, 1, 2], [0, 7, 3, 99], [0, 8, 4, 99]]
    assert found.sequences.attention_mask.long().tolist() == [[1, 1, 1, 1], [0, 1, 1, 0], [0, 1, 1, 0]]
    assert found.mask.tolist() == [[True, True], [True, False], [True, False]]
    assert found.rollout_logprobs.tolist() == [[-1, -2], [-3, 0], [-4, 0]]
    assert found.behaviour_logprobs.tolist() == [[-2, -4], [-6, 0], [-8, 0]]
    assert found.ended.tolist() == [False, True, True] and found.groups.tolist() == [0, 1, 2]
    assert list(found.text) == ["1 2", "3", "4"] and found.prompts.ids == [[5, 6], [7], [8]]


def test_a_process_without_rows_adds_nothing():
    own = part([[5]], 1, [[5, 1]], [[True]], ["1"])
    other = part([[7]], 2, [[0, 7, 3, 3, 3]], [[True] * 3], ["3 3 3"])
    found = join_rollouts(prompts_of([[5]]), [(other, 0), (own, 1)], pad_id=99)
    assert found.sequences.ids.tolist() == [[5, 1]] and list(found.text) == ["1"]
