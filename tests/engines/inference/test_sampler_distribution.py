"""What the sampler draws from: the model's own distribution, and what settings leave of it."""

import pytest
import torch
from sampled import MODELS, PAD, PROMPTS, STOPS, VOCAB, largest_gap, plain_logits, run
from spelling import prompts_of, responses
from torch import Tensor
from transformers import PreTrainedModel


def test_greedy_is_the_plain_forward_loop_and_the_librarys_own(lm: PreTrainedModel):
    found = responses(run(lm, greedy=True))
    for prompt, response in zip(PROMPTS.ids, found, strict=True):
        expected: list[int] = []
        while len(expected) < 20 and not (expected and expected[-1] in STOPS):
            expected.append(int(plain_logits(lm, prompt, [*expected, 0])[-1].argmax()))
        assert response == expected
        theirs = lm.generate(  # pyright: ignore[reportCallIssue]
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=20,
            eos_token_id=STOPS,
            pad_token_id=PAD,
        )
        assert response == theirs[0, len(prompt) :].tolist()


def test_logprobs_are_the_models_before_and_after_an_update(lm: PreTrainedModel):  # case E5
    before = run(lm)
    assert largest_gap(lm, before) < 1e-4
    assert torch.equal(before.behaviour_logprobs, before.rollout_logprobs)
    weight = next(p for name, p in lm.named_parameters() if "mlp" in name or "fc1" in name)
    original = weight.detach().clone()
    with torch.no_grad():
        weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    try:
        after = run(lm)
        assert largest_gap(lm, after) < 1e-4
        assert largest_gap(lm, before) > 1e-2  # the update shows
    finally:
        weight.data.copy_(original)
    assert responses(run(lm)) == responses(before)


def test_full_and_filtered_logprobs_of_a_filtered_rollout(lm: PreTrainedModel):  # case A2
    rollout = run(lm, temperature=0.7, top_k=5, min_new_tokens=3)
    assert largest_gap(lm, rollout, temperature=0.7) < 1e-4
    for row, response in enumerate(responses(rollout)):
        logits = plain_logits(lm, PROMPTS.ids[row], response) / 0.7
        for t, token in enumerate(response):
            allowed = [i for i in range(VOCAB) if t >= 3 or i not in STOPS]
            best = sorted(allowed, key=lambda i: -float(logits[t, i]))[:5]
            assert token in best
            expected = logits[t, token] - logits[t, best].logsumexp(0)
            assert float((rollout.behaviour_logprobs[row, t] - expected).abs()) < 1e-4


def test_first_and_second_token_follow_the_softmax():
    lm, n = MODELS["gpt2"], 4000
    rollout = run(lm, prompts_of([[5, 6, 7]]).repeat(n), stop_ids=[], max_new_tokens=2, top_k=8, max_rows=1500)
    ids = rollout.sequences.response_ids

    def statistic(tokens: Tensor, logits: Tensor) -> float:
        top = logits.topk(8)
        expected = len(tokens) * top.values.softmax(0)
        observed = torch.tensor([int((tokens == i).sum()) for i in top.indices])
        assert int(observed.sum()) == len(tokens)
        return float(((observed - expected) ** 2 / expected).sum())

    # χ² with 7 degrees of freedom exceeds 24.3 once in a thousand.
    assert statistic(ids[:, 0], plain_logits(lm, [5, 6, 7], [0])[0]) < 24.3
    likeliest = int(ids[:, 0].mode().values)
    after = ids[ids[:, 0] == likeliest, 1]
    assert len(after) > 500
    assert statistic(after, plain_logits(lm, [5, 6, 7], [likeliest, 0])[1]) < 24.3


@pytest.mark.parametrize("settings", [{}, {"top_k": 3}, {"top_p": 0.5}, {"greedy": True}, {"min_new_tokens": 4}])
def test_forbidden_ids_are_never_drawn_and_keep_their_share(lm: PreTrainedModel, settings):
    forbidden = torch.arange(VOCAB) >= 20
    rollout = run(lm, PROMPTS.repeat(4), forbidden=forbidden, **settings)
    assert all(token < 20 for response in responses(rollout) for token in response)
    assert any(token >= 20 for response in responses(run(lm, PROMPTS.repeat(4), **settings)) for token in response)
    assert largest_gap(lm, rollout) < 1e-4  # of the full softmax, the one that ratios are taken of
    if not settings:
        gap = (rollout.behaviour_logprobs - rollout.rollout_logprobs)[rollout.mask]
        assert (gap > 0).all()


def test_only_allowed_tokens_and_those_that_end_are_drawn(lm: PreTrainedModel):
    rollout = run(lm, PROMPTS.repeat(4), allowed_tokens=["7", "8", "9"])
    drawn = {token for response in responses(rollout) for token in response}
    assert {7, 8, 9} <= drawn <= {7, 8, 9, *STOPS} and drawn & set(STOPS)
    assert largest_gap(lm, rollout) < 1e-4


def test_a_repetition_penalty_counts_the_prompt_and_the_response(lm: PreTrainedModel):
    found = run(lm, repetition_penalty=1.3, greedy=True, stop_ids=[])
    for prompt, response in zip(PROMPTS.ids, responses(found), strict=True):
        ids = torch.tensor([prompt])
        theirs = lm.generate(  # pyright: ignore[reportCallIssue]
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20, repetition_penalty=1.3,
            eos_token_id=None, pad_token_id=PAD,
        )  # fmt: skip
        assert response == theirs[0, len(prompt) :].tolist()
    assert responses(found) != responses(run(lm, greedy=True, stop_ids=[]))


def test_nothing_left_to_draw_is_refused(lm: PreTrainedModel):
    forbidden = torch.arange(VOCAB) >= 5
    with pytest.raises(ValueError, match=r"stop_ids: .* leave a token that can be drawn"):
        run(lm, stop_ids=range(5), forbidden=forbidden, min_new_tokens=1)
