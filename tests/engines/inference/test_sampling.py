import math
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from rlhf.engines.inference.random import uniform
from rlhf.engines.inference.sampling import Sampling, draw, filter_logits, penalized

PROBABILITIES = [0.1, 0.4, 0.2, 0.3]
LOGITS = torch.tensor([PROBABILITIES]).log()
INF = math.inf


def kept(logits: Tensor, **settings: Any) -> list[list[int]]:
    """Ids left in each row."""
    return [row.isfinite().nonzero().flatten().tolist() for row in filter_logits(logits, Sampling(**settings))]


# ------------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, r"temperature: 0\.0; give a positive number, or set greedy"),
        ({"temperature": INF}, "temperature: inf; "),
        ({"temperature": math.nan}, "temperature: nan; "),
        ({"top_k": 0}, "top_k: 0; give at least 1"),
        ({"top_p": 0.0}, r"top_p: 0\.0; give a number in \(0, 1\]"),
        ({"top_p": 1.5}, r"top_p: 1\.5; "),
        ({"max_new_tokens": 0}, "max_new_tokens: 0; give at least 1"),
        ({"max_new_tokens": 4, "min_new_tokens": 5}, r"min_new_tokens: 5; give 0 to max_new_tokens \(4\)"),
        ({"min_new_tokens": -1}, "min_new_tokens: -1; "),
        ({"max_rows": 0}, "max_rows: 0; give at least 1"),
        ({"min_p": 1.5}, r"min_p: 1\.5; give a number in \[0, 1\]"),
        ({"repetition_penalty": 0.0}, r"repetition_penalty: 0\.0; give a positive number, 1 for none"),
        ({"repetition_penalty": INF}, "repetition_penalty: inf; "),
        ({"stop_strings": ["a", ""]}, "stop_strings: one of them is empty"),
        ({"allowed_tokens": []}, "allowed_tokens: none; name the tokens"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        Sampling(**settings)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    words = {"[UNK]": 0, "<end>": 1, "user": 2, ":": 3, "hello": 4}
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", eos_token="<end>")
    made.add_special_tokens({"additional_special_tokens": ["<|user|>"]})
    return made


def test_stop_ids_are_the_end_and_the_named_tokens_once_each(tokenizer: PreTrainedTokenizerFast):
    assert Sampling().stop_ids(tokenizer, 1) == [1]
    # The end id need not be the smallest, nor stay alone; the repeated <end> adds nothing.
    assert Sampling(stop_tokens=["<|user|>", "<end>", ":"]).stop_ids(tokenizer, 1) == [1, 5, 3]
    assert Sampling(stop_tokens=["[UNK]"]).stop_ids(tokenizer, 1) == [1, 0]


def test_stop_tokens_that_are_not_one_token_are_refused(tokenizer: PreTrainedTokenizerFast):  # case A6
    with pytest.raises(ValueError, match=r"stop_tokens: 'user:' is 2 tokens \['user', ':'\]; name exactly one token"):
        Sampling(stop_tokens=["user:"]).stop_ids(tokenizer, 1)
    with pytest.raises(ValueError, match="stop_tokens: 'bye' is unknown to the tokenizer"):
        Sampling(stop_tokens=["bye"]).stop_ids(tokenizer, 1)
    with pytest.raises(ValueError, match="stop_tokens: '' is 0 tokens"):
        Sampling(stop_tokens=[""]).stop_ids(tokenizer, 1)


def test_allowed_tokens_are_ids_of_one_token_each(tokenizer: PreTrainedTokenizerFast):
    assert Sampling().allowed_ids(tokenizer) is None
    assert Sampling(allowed_tokens=["hello", ":"]).allowed_ids(tokenizer) == [4, 3]
    with pytest.raises(ValueError, match="allowed_tokens: 'user:' is 2 tokens"):
        Sampling(allowed_tokens=["user:"]).allowed_ids(tokenizer)


# -------------------------------------------------------------------------------------------------------------- filters


def test_top_k_by_hand():
    filtered = filter_logits(torch.tensor([[2.0, 1.0, 3.0, 0.0]]), Sampling(top_k=2))
    assert filtered.tolist() == [[2.0, -INF, 3.0, -INF]]
    assert kept(LOGITS, top_k=1) == [[1]]
    assert kept(LOGITS, top_k=99) == [[0, 1, 2, 3]]


def test_top_k_keeps_every_token_tied_with_the_kth():
    assert kept(torch.tensor([[1.0, 2.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]]), top_k=2) == [[0, 1, 2], [0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("top_p", "ids"),
    # Ordered: 0.4 (id 1), 0.3 (id 3), 0.2 (id 2), 0.1 (id 0); running sums 0.4, 0.7, 0.9, 1.0.
    [(0.01, [1]), (0.39, [1]), (0.41, [1, 3]), (0.71, [1, 2, 3]), (0.89, [1, 2, 3]), (1.0, [0, 1, 2, 3])],
)
def test_top_p_is_the_smallest_set_that_reaches_it(top_p: float, ids: list[int]):
    assert kept(LOGITS, top_p=top_p) == [ids]


def test_top_p_reached_exactly_adds_no_token():
    # Powers of two are exact: 1/2 reaches 0.5, 1/2 + 1/4 reaches 0.75.
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log2() * math.log(2)
    assert kept(logits, top_p=0.5) == [[0]]
    assert kept(logits, top_p=0.75) == [[0, 1]]


def test_top_p_takes_lower_ids_among_equals():
    assert kept(torch.zeros(2, 4), top_p=0.5) == [[0, 1], [0, 1]]


def test_top_p_counts_what_top_k_left():
    # top_k 2 leaves 0.4 and 0.3, renormalised 4/7 = 0.571 and 3/7: 0.5 is reached by the first alone.
    assert kept(LOGITS, top_p=0.5) == [[1, 3]]
    assert kept(LOGITS, top_p=0.5, top_k=2) == [[1]]


@pytest.mark.parametrize(
    ("min_p", "ids"), [(0.0, [0, 1, 2, 3]), (0.24, [0, 1, 2, 3]), (0.26, [1, 2, 3]), (0.51, [1, 3]), (1.0, [1])]
)
def test_min_p_is_a_share_of_the_largest_probability(min_p: float, ids: list[int]):
    # Of 0.4: 0.1 is a quarter of it, 0.2 half of it, 0.3 three quarters.
    assert kept(LOGITS, min_p=min_p) == [ids]
    assert kept(LOGITS + 7, min_p=min_p) == [ids]


def test_a_penalty_divides_what_is_positive_and_multiplies_what_is_negative():
    logits, seen = torch.tensor([[2.0, -1.0, 3.0, -4.0]]), torch.tensor([[True, True, False, False]])
    assert penalized(logits, seen, 2.0).tolist() == [[1.0, -2.0, 3.0, -4.0]]
    assert penalized(logits, seen, 0.5).tolist() == [[4.0, -0.5, 3.0, -4.0]]


def test_a_penalty_acts_on_the_draw_and_not_on_the_full_softmax():
    logits, seen = torch.tensor([[2.0, 1.5]]), torch.tensor([[True, False]])
    drawn = draw(logits, torch.zeros(1, dtype=torch.float64), Sampling(repetition_penalty=2.0, greedy=True), seen=seen)
    assert drawn.ids.tolist() == [1]
    drawn = draw(logits, torch.zeros(1, dtype=torch.float64), Sampling(repetition_penalty=2.0), seen=seen)
    assert drawn.ids.tolist() == [0]
    assert drawn.rollout_logprobs.item() == pytest.approx(-math.log(1 + math.exp(-0.5)))
    assert drawn.behaviour_logprobs.item() == pytest.approx(-math.log(1 + math.exp(0.5)))


def test_without_limits_the_logits_come_back_and_arguments_are_not_written_to():
    assert filter_logits(LOGITS, Sampling(top_k=4, top_p=1.0)) is LOGITS
    before = LOGITS.clone()
    filter_logits(LOGITS, Sampling(top_k=1, top_p=0.1))
    assert torch.equal(LOGITS, before)


# ---------------------------------------------------------------------------------------------------------------- draws


def drawn_ids(uniforms: list[float], forbidden: list[bool] | None = None, **settings: Any) -> list[int]:
    logits = LOGITS.expand(len(uniforms), -1)
    mask = None if forbidden is None else torch.tensor(forbidden)
    return draw(logits, torch.tensor(uniforms, dtype=torch.float64), Sampling(**settings), forbidden=mask).ids.tolist()


LAST = 1 - 2.0**-53  # the largest uniform number there is


def test_inverse_of_the_cumulative_distribution_by_hand():
    # Running sums by id: 0.1, 0.5, 0.7, 1.0.
    assert drawn_ids([0.0, 0.09, 0.11, 0.49, 0.51, 0.69, 0.71, LAST]) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_excluded_tokens_are_never_drawn_not_even_at_the_borders():
    # top_k 2 leaves ids 1 and 3 with 4/7 and 3/7.
    assert drawn_ids([0.0, 0.57, 0.572, LAST], top_k=2) == [1, 1, 3, 3]
    # top_k 2 of what is not forbidden: ids 1 and 2 with 2/3 and 1/3.
    assert drawn_ids([0.0, 0.66, 0.67, LAST], forbidden=[False, False, False, True], top_k=2) == [1, 1, 2, 2]


def test_rare_tokens_are_reached():
    # The second token has e⁻²⁰·⁸ = 9.3e-10, less than the 6e-8 that fp32 can tell from 1.
    rare = torch.tensor([[0.0, -20.8]]).expand(2, -1)
    assert draw(rare, torch.tensor([1 - 2e-9, 1 - 1e-10], dtype=torch.float64), Sampling()).ids.tolist() == [0, 1]


def test_borders_between_many_tokens_are_exact():
    # 100 003 equal tokens: u = (i + ½) / n must give i.
    n = 100_003
    wanted = torch.tensor([0, 1, 1000, 65537, n - 2, n - 1])
    found = draw(torch.zeros(6, n), (wanted.double() + 0.5) / n, Sampling()).ids
    assert torch.equal(found, wanted)
    assert int(draw(torch.zeros(1, n), torch.tensor([LAST], dtype=torch.float64), Sampling()).ids) == n - 1


def test_logprobs_of_full_and_filtered_distribution_by_hand():  # case A2
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    zero = torch.zeros(1, dtype=torch.float64)
    plain = draw(logits, zero, Sampling())
    assert plain.ids.tolist() == [0]
    assert plain.rollout_logprobs.item() == pytest.approx(-0.407606, abs=1e-6)
    assert plain.behaviour_logprobs.item() == pytest.approx(-0.407606, abs=1e-6)
    cold = draw(logits, zero, Sampling(temperature=0.5, top_k=2))
    assert cold.rollout_logprobs.item() == pytest.approx(-0.142932, abs=1e-6)
    assert cold.behaviour_logprobs.item() == pytest.approx(-0.126928, abs=1e-6)
    # Id 0 forbidden: id 1 against id 2 is 1 / (1 + e⁻¹), log −0.313262; in full it stays −1.407606.
    barred = draw(logits, zero, Sampling(), forbidden=torch.tensor([True, False, False]))
    assert barred.ids.tolist() == [1]
    assert barred.rollout_logprobs.item() == pytest.approx(-1.407606, abs=1e-6)
    assert barred.behaviour_logprobs.item() == pytest.approx(-0.313262, abs=1e-6)


def test_greedy_takes_the_largest_that_is_allowed_and_is_certain():
    greedy = draw(LOGITS, torch.tensor([LAST], dtype=torch.float64), Sampling(greedy=True, temperature=3.0))
    assert greedy.ids.tolist() == [1]
    assert greedy.behaviour_logprobs.tolist() == [0.0]
    assert greedy.rollout_logprobs.item() == pytest.approx((LOGITS / 3).log_softmax(-1)[0, 1].item(), abs=1e-6)
    assert drawn_ids([LAST], forbidden=[False, True, False, False], greedy=True) == [3]


def test_half_precision_logits_are_brought_to_fp32_first():  # case E8
    torch.manual_seed(0)
    logits = (torch.randn(64, 32_000) * 3).bfloat16()
    drawn = draw(logits, torch.rand(64, dtype=torch.float64), Sampling())
    exact = logits.double().log_softmax(-1).gather(-1, drawn.ids.unsqueeze(-1)).squeeze(-1)
    assert drawn.rollout_logprobs.dtype == torch.float32
    assert float((drawn.rollout_logprobs - exact).abs().max()) < 1e-5


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.1, 0.4, 0.2, 0.3]),
        # p² / Σp²: 0.01, 0.16, 0.04, 0.09 over 0.30.
        ({"temperature": 0.5}, [1 / 30, 16 / 30, 4 / 30, 9 / 30]),
        ({"top_k": 3}, [0, 4 / 9, 2 / 9, 3 / 9]),
        ({"top_p": 0.6}, [0, 4 / 7, 0, 3 / 7]),
        ({"temperature": 0.5, "top_k": 3, "top_p": 0.8}, [0, 16 / 25, 0, 9 / 25]),
    ],
)
def test_frequencies_follow_the_distribution(settings: dict[str, Any], expected: list[float]):
    n = 50_000
    numbers = uniform(3, torch.arange(n), 17)
    drawn = draw(LOGITS.expand(n, -1), numbers, Sampling(**settings))
    observed = torch.bincount(drawn.ids, minlength=4).double()
    expected_counts = n * torch.tensor(expected, dtype=torch.float64)
    possible = expected_counts > 0
    assert float(observed[~possible].sum()) == 0
    statistic = float(((observed - expected_counts) ** 2 / expected_counts)[possible].sum())
    assert statistic < 16.3  # χ² with 3 degrees of freedom exceeds it once in a thousand
    behaviour = drawn.behaviour_logprobs.exp().double()
    assert torch.allclose(behaviour, torch.tensor(expected, dtype=torch.float64)[drawn.ids], atol=1e-6)
