"""Masked means, whitening, sums with a denominator, and response masks."""
# ruff: noqa: F722 (the shapes of jaxtyping are strings that are no Python)

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from beartype import beartype
from hypothesis import given, settings, strategies as st
from jaxtyping import Bool, Float32, Int64, Num, jaxtyped
from torch import Tensor

from rlhf.algorithms.functional import advantages
from rlhf.algorithms.functional.masking import aggregate, last_index, masked_mean, masked_whiten, response_mask

NAN, INF = float("nan"), float("inf")
POISON = [NAN, INF, -INF, 1e30]


def bits(text: str) -> Tensor:
    """ "110 100" -> two rows of bools."""
    return torch.tensor([[c == "1" for c in row] for row in text.split()])


def close(actual: Tensor, expected, atol: float = 1e-5) -> None:
    expected = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0)


# ---------------------------------------------------------------------------------------------- masked_mean


def test_mean_by_hand():
    # (1 + 2 + 6) / 3 = 3
    x = torch.tensor([[1.0, 2.0, NAN], [6.0, INF, -INF]])
    close(masked_mean(x, bits("110 100")), 3.0)


def test_mean_along_a_dimension_by_hand():
    # rows: (1 + 2) / 2 = 1.5 and 6 / 1 = 6
    x = torch.tensor([[1.0, 2.0, NAN], [6.0, INF, -INF]])
    close(masked_mean(x, bits("110 100"), dim=-1), [1.5, 6.0])


def test_mean_of_nothing_is_zero_with_zero_gradient():
    x = torch.tensor([[NAN, 3.0]], requires_grad=True)
    mean = masked_mean(x, bits("00"))
    mean.backward()
    assert mean.item() == 0.0
    assert x.grad is not None and x.grad.tolist() == [[0.0, 0.0]]


def test_masked_and_matching_metrics():  # case I1
    logprobs = torch.tensor([[-1.0, -2.0, -9.0]])
    ref = torch.tensor([[-1.5, -2.5, 0.0]])
    mask = bits("110")
    # KL per token 0.5 and 0.5; sampled entropy (1 + 2) / 2
    close(masked_mean(logprobs - ref, mask), 0.5)
    close(aggregate(logprobs - ref, mask, mode="constant", denominator=1), 1.0)
    close(-masked_mean(logprobs, mask), 1.5)
    wide = torch.nn.functional.pad(logprobs, (0, 3), value=-9.0)
    close(-masked_mean(wide, bits("110000")), 1.5)


@pytest.mark.parametrize("poison", POISON)
def test_mean_gradient(poison):
    x = torch.tensor([[1.0, poison], [3.0, poison]], requires_grad=True)
    masked_mean(x, bits("10 10")).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[0.5, 0.0], [0.5, 0.0]]


def test_a_nan_that_counts_is_not_hidden():
    assert masked_mean(torch.tensor([NAN, 1.0]), torch.tensor([True, True])).isnan()


# ------------------------------------------------------------------------------------------ masked_whiten


def test_whiten_by_hand():  # case B2
    # mean (1 + 2 + 6) / 3 = 3, variance (4 + 1 + 9) / 3 = 4.6667, deviation 2.160247
    x = torch.tensor([[1.0, 2.0, 6.0, NAN, INF, 0.0]])
    close(masked_whiten(x, bits("111000")), [[-0.925820, -0.462910, 1.388730, 0, 0, 0]])


def test_whiten_can_keep_the_mean():
    # the above plus the mean 3: keeping, not removing, is what False means
    x = torch.tensor([[1.0, 2.0, 6.0, NAN]])
    close(masked_whiten(x, bits("1110"), shift_mean=False), [[2.074180, 2.537090, 4.388730, 0]])


def test_whiten_adds_eps_to_the_variance():
    # variance of 1, 3 is 1: (1 - 2) / sqrt(1 + 3) = -0.5
    close(masked_whiten(torch.tensor([1.0, 3.0]), torch.tensor([True, True]), eps=3.0), [-0.5, 0.5])


@pytest.mark.parametrize("eps", [1e-8, 0.0])
def test_whiten_one_token_and_none(eps):  # case B2
    x = torch.tensor([[7.3, NAN]], requires_grad=True)
    one = masked_whiten(x, bits("10"), eps=eps)
    assert one.tolist() == [[0.0, 0.0]]
    one.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
    kept = masked_whiten(x.detach(), bits("10"), eps=eps, shift_mean=False)
    assert kept[0].tolist() == [x[0, 0].item(), 0.0]
    assert masked_whiten(x.detach(), bits("00"), eps=eps).tolist() == [[0.0, 0.0]]
    assert masked_whiten(x.detach(), bits("00"), eps=eps, shift_mean=False).tolist() == [[0.0, 0.0]]


@given(st.floats(-1e4, 1e4, width=32), st.integers(1, 50))
@settings(deadline=None, derandomize=True, max_examples=50)
def test_whitening_equal_values_gives_exactly_zero(value, n):
    assert (masked_whiten(torch.full((n,), value), torch.ones(n, dtype=torch.bool)) == 0).all()


def test_whiten_is_two_pass():
    # E[x²] − E[x]² in fp32 has nothing left of a variance of 1 at 10 000
    x = torch.tensor([9999.0, 10001.0])
    close(masked_whiten(x, torch.tensor([True, True])), [-1.0, 1.0])


@given(st.integers(0, 10_000), st.integers(1, 5))
@settings(deadline=None, derandomize=True, max_examples=25)
def test_whiten_ignores_padding_width_and_row_order(seed, pad):
    g = torch.Generator().manual_seed(seed)
    x, mask = torch.randn(4, 3, generator=g, dtype=torch.float64), torch.rand(4, 3, generator=g) > 0.3
    base = masked_whiten(x, mask)
    wide = torch.nn.functional.pad(x, (0, pad), value=NAN)
    close(masked_whiten(wide, torch.nn.functional.pad(mask, (0, pad)))[:, :3], base, atol=1e-12)
    order = torch.randperm(4, generator=g)
    close(masked_whiten(x[order], mask[order]), base[order], atol=1e-12)


@pytest.mark.parametrize("shift_mean", [True, False])
def test_whiten_gradient(shift_mean):
    mask = bits("1101 1010")
    x = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: masked_whiten(x, mask, shift_mean=shift_mean), (x,))
    poisoned = torch.where(mask, x.detach(), torch.tensor(NAN, dtype=x.dtype)).requires_grad_()
    masked_whiten(poisoned, mask, shift_mean=shift_mean).square().sum().backward()
    assert poisoned.grad is not None and poisoned.grad.isfinite().all()
    assert (poisoned.grad[~mask] == 0).all()


# ----------------------------------------------------------------------------------------------- aggregate

LOSS = torch.tensor([[2.0, 2.0, 2.0, NAN], [6.0, INF, NAN, 0.0], [1.0, 1.0, 1.0, 1.0], [5.0, 5.0, NAN, NAN]])
MASK = bits("1110 1000 1111 1100")


@pytest.mark.parametrize(
    ("mode", "denominator", "expected"),
    [
        ("token", 10, 2.6),  # (6 + 6 + 4 + 10) / 10
        ("sequence", 4, 3.5),  # (2 + 6 + 1 + 5) / 4
        ("constant", 16, 1.625),  # 26 / 16
        ("token", torch.tensor(10), 2.6),
        ("sequence", torch.tensor(4.0), 3.5),
    ],
)
@pytest.mark.parametrize("micro", [1, 2, 4])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 0, 2, 1]])
def test_how_a_batch_is_cut_changes_nothing(mode, denominator, expected, micro, order):  # case C1
    loss, mask = LOSS[order], MASK[order]
    parts = [
        aggregate(loss[i : i + micro], mask[i : i + micro], mode=mode, denominator=denominator)
        for i in range(0, 4, micro)
    ]
    close(torch.stack(parts).sum(), expected, atol=1e-6)


@pytest.mark.parametrize(("mode", "denominator"), [("token", 10), ("sequence", 4), ("constant", 16)])
def test_the_weight_update_does_not_depend_on_the_cut(mode, denominator):  # case C1
    features = torch.randn(4, 4, 3, generator=torch.Generator().manual_seed(1))
    updates = []
    for micro in (1, 2, 4):
        weight = torch.zeros(3, requires_grad=True)
        for i in range(0, 4, micro):
            rows = slice(i, i + micro)
            aggregate((features[rows] @ weight), MASK[rows], mode=mode, denominator=denominator).backward()
        updates.append(weight.grad)
    close(updates[0], updates[2], atol=1e-6)
    close(updates[1], updates[2], atol=1e-6)


def test_aggregate_of_pairs_divides_once():  # case D4
    pairs = torch.tensor([0.8, 0.4, 1.2, 0.6])
    mask = torch.ones(4, dtype=torch.bool)
    close(aggregate(pairs, mask, mode="token", denominator=4), 0.75)  # 3.0 / 4
    close(aggregate(pairs.repeat(2), mask.repeat(2), mode="token", denominator=8), 0.75)


def test_a_row_without_tokens_adds_nothing_to_the_sequence_mean():
    loss = torch.tensor([[2.0, 4.0], [NAN, NAN]], requires_grad=True)
    total = aggregate(loss, bits("11 00"), mode="sequence", denominator=2)
    total.backward()
    close(total, 1.5)  # (3 + 0) / 2
    assert loss.grad is not None and loss.grad.tolist() == [[0.25, 0.25], [0.0, 0.0]]


@pytest.mark.parametrize("mode", ["token", "sequence", "constant"])
def test_aggregate_gradient(mode):
    loss = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    mask = bits("1101 1000")
    assert torch.autograd.gradcheck(lambda x: aggregate(x, mask, mode=mode, denominator=3), (loss,))
    poisoned = torch.full((2, 4), NAN).masked_fill(mask, 1.0).requires_grad_()
    aggregate(poisoned, mask, mode=mode, denominator=3).backward()
    assert poisoned.grad is not None
    assert (poisoned.grad[~mask] == 0).all() and (poisoned.grad[mask] > 0).all()


def test_aggregate_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match=r"'tokens'.*token, sequence, constant"):
        aggregate(LOSS, MASK, mode="tokens", denominator=1)
    for bad in (0, -1.0, NAN, INF):
        with pytest.raises(ValueError, match="denominator"):
            aggregate(LOSS, MASK, mode="token", denominator=bad)
    with pytest.raises(ValueError, match=r"denominator .*\[4\]"):
        aggregate(LOSS, MASK, mode="token", denominator=torch.ones(4))
    with pytest.raises(ValueError, match=r"\[B, T\]"):
        aggregate(torch.ones(4), torch.ones(4, dtype=torch.bool), mode="sequence", denominator=4)


# -------------------------------------------------------------------------------- last_index, response_mask


def test_last_index_with_holes_and_without_tokens():
    assert last_index(bits("11000 10101 00000 11111 01000")).tolist() == [1, 4, -1, 4, 1]
    assert last_index(torch.zeros(2, 0, dtype=torch.bool)).tolist() == [-1, -1]


def test_response_mask():  # case A4
    tokens = torch.tensor([[5, 6, 7, 8, 0, 0], [5, 3, 9, 9, 0, 0], [5, 6, 2, 0, 0, 0], [5, 6, 7, 8, 9, 4]])
    mask, ended = response_mask(tokens, {2, 3}, pad_id=0)
    assert mask.tolist() == bits("111100 110000 111000 111111").tolist()
    assert mask.sum(1).tolist() == [4, 2, 3, 6]
    assert ended.tolist() == [False, True, True, False]


def test_the_end_token_counts_when_it_also_pads():  # case A3
    mask, ended = response_mask(torch.tensor([[5, 6, 0, 0, 0]]), [0], pad_id=0)
    assert mask.tolist() == bits("11100").tolist()
    assert ended.tolist() == [True]


def test_response_mask_strips_trailing_pads_only():
    tokens = torch.tensor([[0, 5, 0, 6, 0, 0], [0, 0, 0, 0, 0, 0]])
    assert response_mask(tokens, [2], pad_id=0)[0].tolist() == bits("111100 000000").tolist()
    assert response_mask(tokens, [2])[0].tolist() == bits("111111 111111").tolist()
    assert response_mask(tokens, [])[1].tolist() == [False, False]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(0, 4))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_response_mask_is_a_prefix_that_padding_does_not_move(ids, pads):
    mask, ended = response_mask(torch.tensor([ids]), [2, 3], pad_id=9)
    wide, wide_ended = response_mask(torch.tensor([ids + [9] * pads]), [2, 3], pad_id=9)
    n = int(mask.sum())
    assert mask[0].tolist() == [True] * n + [False] * (len(ids) - n)
    assert wide[0].tolist() == mask[0].tolist() + [False] * pads
    assert ended.item() == wide_ended.item() == (ids[n - 1] in (2, 3))
    assert not any(i in (2, 3) for i in ids[: n - 1])


# ------------------------------------------------------------------------------------------ shapes, purity


def test_shapes_and_dtypes():
    @jaxtyped(typechecker=beartype)
    def whiten(x: Num[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float32[Tensor, "B T"]:
        return masked_whiten(x, mask)

    @jaxtyped(typechecker=beartype)
    def mean(x: Num[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float32[Tensor, ""]:
        return masked_mean(x, mask)

    @jaxtyped(typechecker=beartype)
    def total(x: Num[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float32[Tensor, ""]:
        return aggregate(x, mask, mode="sequence", denominator=2)

    @jaxtyped(typechecker=beartype)
    def responses(x: Num[Tensor, "B T"]) -> tuple[Bool[Tensor, "B T"], Bool[Tensor, " B"]]:
        return response_mask(x, [1])

    @jaxtyped(typechecker=beartype)
    def last(mask: Bool[Tensor, "B T"]) -> Int64[Tensor, " B"]:
        return last_index(mask)

    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int64):
        for f in (whiten, mean, total):
            f(torch.ones(2, 3, dtype=dtype), bits("110 100"))
    responses(torch.ones(2, 3, dtype=torch.int64))
    last(bits("110 100"))
    assert masked_whiten(torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.bool)).dtype == torch.float64


@pytest.mark.parametrize(
    "call",
    [
        lambda x, m: masked_mean(x, m),
        lambda x, m: masked_whiten(x, m),
        lambda x, m: aggregate(x, m, mode="token", denominator=1),
    ],
)
def test_wrong_shapes_are_refused(call):
    with pytest.raises(ValueError, match=r"\[1, 3\].*\[1, 1\]"):
        call(torch.ones(1, 3), bits("1"))
    with pytest.raises(ValueError, match=r"\[3\].*\[1, 3\]"):
        call(torch.ones(3), bits("111"))
    with pytest.raises(ValueError, match="bool"):
        call(torch.ones(1, 3), torch.ones(1, 3))


def test_other_refusals():
    with pytest.raises(ValueError, match="eps"):
        masked_whiten(torch.ones(1, 3), bits("111"), eps=-1.0)
    with pytest.raises(ValueError, match="integer"):
        response_mask(torch.ones(1, 3), [1])
    with pytest.raises(ValueError, match=r"\[3\]"):
        response_mask(torch.ones(3, dtype=torch.int64), [1])
    with pytest.raises(ValueError, match=r"\[3\]"):
        last_index(torch.tensor([True, True, False]))
    with pytest.raises(ValueError, match="bool"):
        last_index(torch.ones(1, 3))


def test_arguments_are_not_written_to():
    x, mask = LOSS.clone(), MASK.clone()
    masked_mean(x, mask), masked_whiten(x, mask), aggregate(x, mask, mode="sequence", denominator=2), last_index(mask)
    torch.testing.assert_close(x, LOSS, equal_nan=True, rtol=0, atol=0)
    assert torch.equal(mask, MASK)


# ----------------------------------------------------------------------------------------------- two ranks


def _worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    world = dist.group.WORLD
    # Three valid tokens on rank 0, none on rank 1 in the second call.
    x = [torch.tensor([[1.0, 2.0, NAN]]), torch.tensor([[6.0, INF, 0.0]])][rank].requires_grad_()
    mask = [bits("110"), bits("100")][rank]
    whitened = masked_whiten(x, mask, group=world)
    whitened.sum().backward()
    kept = masked_whiten(x.detach(), mask, shift_mean=False, group=world)
    lopsided = masked_whiten(torch.tensor([1.0, 2.0, 6.0]) + rank * 50, torch.tensor([rank == 0] * 3), group=world)
    equal = masked_whiten(torch.full((7,), 1000.1), torch.ones(7, dtype=torch.bool), group=world)
    scores = [torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.full((4,), 5.0)][rank]
    normed = advantages.group_norm(scores, torch.zeros(4, dtype=torch.int64), scale="batch", group=world)
    result = {"whitened": whitened.detach(), "grad": x.grad, "kept": kept, "lopsided": lopsided}
    torch.save(result | {"equal": equal, "normed": normed}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_statistics_are_global_over_ranks(tmp_path, monkeypatch):  # cases B2, B8
    # the children import this module by its name
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))
    mp.spawn(_worker, args=(str(tmp_path),), nprocs=2)
    a, b = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    # the numbers of the one-process test: valid tokens 1, 2 | 6
    close(a["whitened"], [[-0.925820, -0.462910, 0.0]])
    close(b["whitened"], [[1.388730, 0.0, 0.0]])
    close(a["kept"], [[2.074180, 2.537090, 0.0]])
    close(b["kept"], [[4.388730, 0.0, 0.0]])
    # statistics are constants here: the gradient is 1 / deviation = 1 / 2.160247 where valid
    close(a["grad"], [[0.462910, 0.462910, 0.0]])
    close(b["grad"], [[0.462910, 0.0, 0.0]])
    close(a["lopsided"], [-0.925820, -0.462910, 1.388730])
    assert b["lopsided"].tolist() == [0.0, 0.0, 0.0]
    assert (a["equal"] == 0).all() and (b["equal"] == 0).all()
    # one prompt on each rank; the deviation of all eight scores is 2.434866: 0.5 / 2.434966 = 0.205342
    close(a["normed"], [0.205342, -0.205342, 0.205342, -0.205342])
    assert b["normed"].tolist() == [0.0] * 4
