"""How drawn tokens are noted, and the rollout that comes of them, by hand."""

from typing import Any

import pytest
import torch
from spelling import Numbers, prompts_of

from rlhf.engines.inference.responses import Request, Responses, left_padded
from rlhf.engines.inference.sampling import Sampling
from rlhf.errors import NonFiniteError

CPU = torch.device("cpu")


def request(ids: list[list[int]], **settings: Any) -> Request:
    tokenizer: Any = Numbers(5)
    sampling = Sampling(greedy=True, **{"max_new_tokens": 3, **settings})
    return Request(prompts_of(ids), sampling, tokenizer, 1, [10 * row for row in range(len(ids))], [2])


def drawn(responses: Responses, ids: list[int], rows: list[int], at: list[int]) -> list[bool]:
    """Draws these ids, by logits that leave no choice; which responses are complete then."""
    logits = 1e4 * torch.nn.functional.one_hot(torch.tensor(ids), 5)
    found, complete = responses.draw(logits, torch.tensor(rows), torch.tensor(at))
    assert found.tolist() == ids
    return complete.tolist()


def test_prompts_end_where_responses_begin():
    ids, mask = left_padded([[5], [6, 7, 8], []], 9, CPU)
    assert ids.tolist() == [[9, 9, 5], [6, 7, 8], [9, 9, 9]]
    assert mask.long().tolist() == [[0, 0, 1], [1, 1, 1], [0, 0, 0]]
    assert [x.shape for x in left_padded([], 9, CPU)] == [(0, 1), (0, 1)]


def test_a_choice_of_prompts_keeps_their_counters():
    some = request([[1], [1, 1], [1, 1, 1]]).select([2, 0])
    assert some.prompts.ids == [[1, 1, 1], [1]] and some.counters == [20, 0] and len(some) == 2


def test_an_end_is_noted_once_and_what_is_drawn_behind_it_means_nothing():
    responses = Responses(request([[1], [3, 4]]), 5, CPU)
    assert drawn(responses, [2, 1], [0, 1], [0, 0]) == [True, False]
    assert drawn(responses, [2, 3], [0, 1], [1, 1]) == [True, False]  # the first one's second end
    assert drawn(responses, [4], [1], [2]) == [True]  # as long as may be, and no end
    rollout = responses.rollout()
    assert responses.lengths.tolist() == [1, 3] and rollout.ended.tolist() == [True, False]
    assert rollout.sequences.ids.tolist() == [[0, 1, 2, 0, 0], [3, 4, 1, 3, 4]]
    assert rollout.mask.tolist() == [[True, False, False], [True, True, True]]
    assert list(rollout.text) == ["", "1 3 4"] and rollout.groups.tolist() == [0, 1]


def test_an_end_string_counts_in_the_text_of_the_response_only():
    responses = Responses(request([[3, 4]], stop_strings=["3 4"]), 5, CPU)
    assert drawn(responses, [4], [0], [0]) == [False]  # "3" and "4" stand on two sides of the seam
    assert drawn(responses, [3], [0], [1]) == [False]
    assert drawn(responses, [4], [0], [2]) == [True]
    assert list(responses.rollout().text) == ["4 "] and responses.ended.tolist() == [True]


def test_before_the_shortest_length_an_end_is_not_drawn():
    responses = Responses(request([[1]], min_new_tokens=1), 5, CPU)
    logits = torch.tensor([[0.0, 0.0, 9.0, 1.0, 0.0]])
    assert [responses.draw(logits, torch.tensor([0]), torch.tensor([at]))[0].item() for at in (0, 1)] == [3, 2]


def test_the_row_whose_logits_were_not_finite_is_named():
    responses = Responses(request([[1], [1]]), 5, CPU)
    responses.draw(torch.tensor([[0.0] * 5, [torch.nan] * 5]), torch.tensor([0, 1]), torch.tensor([0, 0]))
    with pytest.raises(NonFiniteError, match=r"logits of row 1: not finite \(1 of 2 rows\)"):
        responses.rollout()
