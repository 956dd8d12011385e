import logging
from typing import Any, cast

import pytest
import torch
from tiny_models import FAMILIES, VOCAB, language_model, sequences
from torch import nn

from rlhf.models.heads import Linear
from rlhf.models.modules import PolicyModel, ValueModel, predicted, seeded
from rlhf.models.trunk import run_whole
from rlhf.types import Sequences

ROWS = [[5, 6, 7, 8, 9], [20, 3, 41, 17, 2]]


def value_model(family: str, dtype: torch.dtype = torch.float32) -> ValueModel:
    trunk = language_model(family, dtype=dtype).base_model
    with seeded(7):
        return ValueModel(cast(Any, trunk), Linear(init_std=1.0).build(trunk.get_input_embeddings().weight.shape[1]))


def plain_logprobs(lm, batch: Sequences, temperature: float = 1.0) -> torch.Tensor:
    """Log-softmax of Hugging Face logits, of unpadded rows."""
    logits = lm(input_ids=batch.ids).logits[:, batch.prompt_width - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(-1, batch.response_ids.unsqueeze(-1)).squeeze(-1)


# --------------------------------------------------------------------------------------------------- log-probabilities


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logprobs_are_hugging_faces(family, temperature):
    lm = language_model(family)
    batch = sequences(ROWS, 2)
    found = PolicyModel(lm)(batch, temperature=temperature).logprobs
    torch.testing.assert_close(found, plain_logprobs(lm, batch, temperature), atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pads", [(1, 0), (4, 3)])
def test_padding_changes_nothing(family, pads):  # case A1
    policy, values = PolicyModel(language_model(family)), value_model(family)
    bare, padded = sequences(ROWS, 2), sequences(ROWS, 2, left=pads[0], right=pads[1])
    for model, want in ((policy, ("logprobs", "entropy")), (values, ("values", "scores"))):
        alone, beside = model(bare, want=want), model(padded, want=want)
        for name in want:
            a, b = getattr(alone, name), getattr(beside, name)
            torch.testing.assert_close(a, b[:, : a.shape[1]] if b.ndim == 2 else b, atol=1e-5, rtol=0)
            if b.ndim == 2 and pads[1]:
                assert (b[:, a.shape[1] :] == 0).all()


def test_without_position_ids_padding_would_change_gpt2():  # the test above can fail
    lm = language_model("gpt2")
    padded = sequences(ROWS, 2, left=4)
    logits = lm(input_ids=padded.ids, attention_mask=padded.attention_mask.long()).logits[:, 5:-1]
    wrong = logits.log_softmax(-1).gather(-1, padded.response_ids.unsqueeze(-1)).squeeze(-1)
    assert (wrong - plain_logprobs(lm, sequences(ROWS, 2))).abs().max() > 0.1


def test_rows_of_different_prompt_lengths_in_one_batch():
    policy = PolicyModel(language_model("gpt2"))
    ids = torch.tensor([[0, 0, 5, 7, 8, 9], [5, 6, 7, 8, 9, 0]])
    batch = Sequences(ids, torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]]).bool(), 3)
    found = policy(batch).logprobs
    torch.testing.assert_close(found[:1], policy(sequences([[5, 7, 8, 9]], 1)).logprobs, atol=1e-5, rtol=0)
    torch.testing.assert_close(found[1:, :2], policy(sequences([[5, 6, 7, 8, 9]], 3)).logprobs, atol=1e-5, rtol=0)
    assert found[1, 2] == 0


def test_the_first_token_after_left_pads_is_nobodys_prediction():
    batch = Sequences(torch.tensor([[0, 0, 5, 6], [5, 6, 7, 8]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]).bool(), 1)
    assert predicted(batch).tolist() == [[False, False, True], [True, True, True]]
    found = PolicyModel(language_model("gpt2"))(batch).logprobs
    assert (found != 0).tolist() == predicted(batch).tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_packing_equals_separate_rows(family):
    policy = PolicyModel(language_model(family))
    segments = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2]])
    ids = torch.tensor([[5, 6, 7, 20, 3, 41, 17, 0]])
    found = policy(Sequences(ids, segments < 2, 1, segments)).logprobs
    first, second = policy(sequences([[5, 6, 7]], 1)).logprobs, policy(sequences([[20, 3, 41, 17]], 1)).logprobs
    torch.testing.assert_close(found[0, :2], first[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(found[0, 3:6], second[0], atol=1e-5, rtol=0)
    assert found[0, 2] == 0  # the second example's first token is nobody's prediction
    assert found[0, 6] == 0  # pad


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk", [2**22, 3 * VOCAB])
def test_gradients_are_hugging_faces(family, chunk):
    ours, theirs = (language_model(family, dtype=torch.float64) for _ in range(2))
    batch = sequences(ROWS, 2)
    policy = PolicyModel(ours)
    policy.chunk_elements = chunk  # 6 positions: one chunk, or two that are computed again backward
    policy(batch).logprobs.sum().backward()
    plain_logprobs(theirs, batch).sum().backward()
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-10, rtol=1e-8, msg=name)


@pytest.mark.parametrize("elements", [1, 2 * VOCAB, 5 * VOCAB])
def test_chunks_change_nothing(elements):
    policy = PolicyModel(language_model("gpt2"))
    whole = policy(sequences(ROWS, 2), want=("logprobs", "entropy"))
    policy.chunk_elements = elements
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            cut = policy(sequences(ROWS, 2), want=("logprobs", "entropy"))
        torch.testing.assert_close(cut.logprobs, whole.logprobs, atol=1e-6, rtol=0)
        torch.testing.assert_close(cut.entropy, whole.entropy, atol=1e-6, rtol=0)


def test_entropy_is_of_the_tempered_distribution_and_only_when_wanted():
    lm = language_model("llama")
    batch = sequences(ROWS, 2)
    logits = lm(input_ids=batch.ids).logits[:, 1:-1] / 0.7
    p = logits.softmax(-1)
    outputs = PolicyModel(lm)(batch, temperature=0.7, want=("entropy",))
    torch.testing.assert_close(outputs.entropy, -(p * p.log()).sum(-1), atol=1e-5, rtol=0)
    assert outputs.logprobs is None
    assert outputs.values is None


def test_collision_and_distribution_are_of_the_tempered_distribution():
    lm = language_model("llama")
    batch = sequences(ROWS, 2)
    p = (lm(input_ids=batch.ids).logits[:, 1:-1] / 0.7).softmax(-1)
    policy, want = PolicyModel(lm), ("distribution", "collision", "logprobs")
    outputs = policy(batch, temperature=0.7, want=want)
    torch.testing.assert_close(outputs.collision, p.square().sum(-1), atol=1e-5, rtol=0)
    torch.testing.assert_close(outputs.distribution, p.log(), atol=1e-5, rtol=0)
    torch.testing.assert_close(outputs.logprobs, p.log().gather(-1, batch.response_ids[..., None])[..., 0])
    policy.chunk_elements = 1
    in_chunks = policy(batch, temperature=0.7, want=want)
    torch.testing.assert_close(in_chunks.distribution, outputs.distribution)
    assert outputs.entropy is None


def test_a_mask_limits_values_and_gradients_to_its_slots():
    policy = PolicyModel(language_model("gpt2", dtype=torch.float64))
    batch = sequences(ROWS, 2)
    mask = torch.tensor([[True, False, True], [False, False, False]])
    full, part = policy(batch).logprobs, policy(batch, mask=mask).logprobs
    torch.testing.assert_close(part, torch.where(mask, full, 0.0))
    (part * torch.tensor([[0.0, 1.0, 0.0], [1.0, 1.0, 1.0]])).sum().backward()
    assert all(p.grad is None or (p.grad == 0).all() for p in policy.parameters())


def test_an_empty_mask_runs_backward_to_zero_gradients():
    policy = PolicyModel(language_model("llama"))
    mask = torch.zeros(2, 3, dtype=torch.bool)
    outputs = policy(sequences(ROWS, 2), mask=mask, want=("logprobs", "entropy"))
    (outputs.logprobs.sum() + outputs.entropy.sum()).backward()
    assert all((p.grad == 0).all() for p in policy.parameters())


def test_nothing_to_predict_gives_empty_columns():
    assert PolicyModel(language_model("gpt2"))(sequences(ROWS, 5)).logprobs.shape == (2, 0)


def test_pad_equal_to_end_keeps_the_end_token():  # case A3
    ids = torch.tensor([[7, 0, 8, 5, 6, 0, 0, 0, 0]])
    batch = Sequences(ids, torch.tensor([[True] * 6 + [False] * 3]), 3)
    assert predicted(batch).tolist() == [[True, True, True, False, False, False]]
    assert (PolicyModel(language_model("gpt2"))(batch).logprobs != 0).tolist() == predicted(batch).tolist()


def test_bf16_trunk_gives_fp32_logprobs_from_fp32_log_softmax():  # case E8
    lm = language_model("llama", dtype=torch.bfloat16)
    batch = sequences(ROWS, 2)
    found = PolicyModel(lm)(batch).logprobs
    logits = run_whole(lm, batch)[:, 1:-1].float()
    right = logits.log_softmax(-1).gather(-1, batch.response_ids.unsqueeze(-1)).squeeze(-1)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, right, atol=1e-5, rtol=0)


def test_an_unknown_head_runs_the_models_own_forward_and_says_so(caplog):
    lm = language_model("llama")
    plain = lm.forward

    def forward(**inputs):
        output = plain(**inputs)
        output.logits = output.logits * 2
        return output

    lm.forward = forward
    with caplog.at_level(logging.WARNING):
        policy = PolicyModel(lm, Linear().build(16))
    assert caplog.text.count("LlamaForCausalLM does more after its trunk") == 1
    found = policy(sequences(ROWS, 2, left=2), want=("logprobs", "values"))
    right = plain_logprobs(lm, sequences(ROWS, 2))
    torch.testing.assert_close(found.logprobs, right, atol=1e-5, rtol=0)
    assert found.values.shape == (2, 3)


# --------------------------------------------------------------------------------------------------------- shared trunk


def test_a_shared_trunk_answers_values_and_scores_beside_logprobs():
    lm = language_model("gpt2")
    model = PolicyModel(lm, Linear(init_std=1.0).build(16))
    batch = sequences(ROWS, 2, left=1, right=2)
    outputs = model(batch, want=("logprobs", "values", "scores"))
    raw = model.head(lm.transformer(input_ids=torch.tensor(ROWS)).last_hidden_state)
    torch.testing.assert_close(outputs.values[:, :3], raw[:, 1:4], atol=1e-5, rtol=0)
    torch.testing.assert_close(outputs.scores, raw[:, 4], atol=1e-5, rtol=0)
    torch.testing.assert_close(outputs.logprobs[:, :3], plain_logprobs(lm, sequences(ROWS, 2)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("detach", [False, True])
def test_detach_trunk_stops_the_heads_gradient(detach):
    model = PolicyModel(language_model("gpt2"), Linear().build(16), detach_trunk=detach)
    model(sequences(ROWS, 2), want=("values",)).values.sum().backward()
    assert any(p.grad is not None and p.grad.any() for p in model.head.parameters())
    assert any(p.grad is not None and p.grad.any() for p in model.lm.parameters()) is not detach


def test_fields_a_model_cannot_answer_are_refused():
    batch = sequences(ROWS, 2)
    with pytest.raises(ValueError, match="PolicyModel answers logprobs, entropy, collision, distribution, not values"):
        PolicyModel(language_model("gpt2"))(batch, want=("values",))
    with pytest.raises(ValueError, match="ValueModel answers values, scores, not logprobs"):
        value_model("gpt2")(batch, want=("logprobs",))
    with pytest.raises(ValueError, match=r"it must be bool \[2, 3\]"):
        PolicyModel(language_model("gpt2"))(batch, mask=torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match="packed"):
        value_model("gpt2")(
            Sequences(batch.ids, batch.attention_mask, 1, torch.zeros_like(batch.ids)), want=("scores",)
        )
    with pytest.raises(ValueError, match="GPT2Model has no trunk"):
        PolicyModel(cast(Any, language_model("gpt2").base_model))


# --------------------------------------------------------------------------------------------------------- value models


class Positions(nn.Module):
    """A trunk whose only feature is the column."""

    def forward(self, input_ids, attention_mask, position_ids, use_cache):
        return (torch.arange(input_ids.shape[1]).expand(input_ids.shape).unsqueeze(-1).float(),)


class First(nn.Module):
    def forward(self, hidden):
        return hidden[..., 0]


@pytest.mark.parametrize("left", [0, 2])
def test_values_are_of_the_state_before_each_token(left):  # case A7
    model = ValueModel(cast(Any, Positions()), First())
    batch = sequences([[5, 6, 7, 8, 9, 10, 11]], 4, left=left)
    outputs = model(batch, want=("values", "scores"))
    assert outputs.values.tolist() == [[3.0 + left, 4.0 + left, 5.0 + left]]
    assert outputs.scores.tolist() == [6.0 + left]
    short = sequences([[5, 6, 7, 8, 9, 10]], 4, left=left, right=1)  # two tokens answered, padded to three
    outputs = model(short, want=("values", "scores"))
    assert outputs.values.tolist() == [[3.0 + left, 4.0 + left, 0.0]]
    assert predicted(short).tolist() == [[True, True, False]]
    assert outputs.scores.tolist() == [5.0 + left]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_normalisation_survives_the_state_dict_and_bf16(dtype):  # case D7
    class Constant(nn.Module):
        def forward(self, hidden):
            return torch.full(hidden.shape[:-1], 2.5)

    saved = ValueModel(cast(Any, Positions()), Constant(), mean=1.25, std=0.8).to(dtype).state_dict()
    model = ValueModel(cast(Any, Positions()), Constant()).to(dtype)
    assert set(saved) == {"mean", "std"}
    model.load_state_dict(saved)
    outputs = model(sequences([[5, 6, 7]], 1), want=("values", "scores"))
    assert outputs.scores.tolist() == pytest.approx([1.5625], abs=1e-6)
    assert outputs.values.tolist() == [pytest.approx([1.5625, 1.5625], abs=1e-6)]
    assert model.mean.dtype == torch.float32


def test_normalisation_follows_double_and_refuses_nonsense():
    model = ValueModel(cast(Any, Positions()), First())
    assert model.double().mean.dtype == torch.float64
    for mean, std in ((0.0, 0.0), (float("nan"), 1.0), (0.0, -1.0)):
        with pytest.raises(ValueError, match="normalisation: mean"):
            model.set_normalisation(mean, std)


def test_a_bf16_trunk_gives_fp32_values():  # case D6
    outputs = value_model("llama", torch.bfloat16)(sequences(ROWS, 2), want=("values", "scores"))
    assert (outputs.values.dtype, outputs.scores.dtype) == (torch.float32, torch.float32)


def test_seeded_weights_leave_the_random_numbers_alone():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with seeded(5):
        first = torch.rand(2)
    assert torch.equal(torch.rand(2), expected)
    with seeded(5):
        assert torch.equal(torch.rand(2), first)
