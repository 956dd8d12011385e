import pytest
import torch
from tiny_models import FAMILIES, language_model, sequences

from rlhf.models.trunk import apply_head, head_is_known, run_trunk, run_whole
from rlhf.types import Sequences


@pytest.mark.parametrize("family", FAMILIES)
def test_head_on_trunk_is_the_models_own_forward(family):
    lm = language_model(family)
    batch = sequences([[5, 6, 7, 8, 9], [9, 8, 7, 6, 5]], 2)
    logits = apply_head(lm, run_trunk(lm.base_model, batch))
    torch.testing.assert_close(logits, run_whole(lm, batch), atol=1e-5, rtol=0)
    assert logits.std() > 0.3  # a model whose logits are all alike would pass anything
    assert head_is_known(lm)


def test_a_head_that_does_more_is_noticed_and_the_training_flag_kept():
    lm = language_model("llama").train()
    plain = lm.forward
    lm.forward = lambda **inputs: _scaled(plain(**inputs))
    assert not head_is_known(lm)
    assert lm.training


def _scaled(output):
    output.logits = output.logits * 1.01
    return output


@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_head_is_known_too(family):
    assert head_is_known(language_model(family, dtype=torch.bfloat16))


def test_logits_of_a_bf16_model_are_capped_in_fp32():
    lm = language_model("gemma2", dtype=torch.bfloat16)
    logits = apply_head(lm, torch.ones(1, 16, dtype=torch.bfloat16))
    assert logits.dtype == torch.float32
    assert not torch.equal(logits, logits.bfloat16().float())


def test_gemmas_softcap_bounds_the_logits():
    lm = language_model("gemma2")
    hidden = 1e3 * torch.ones(1, 16)
    assert apply_head(lm, hidden).abs().max().item() == pytest.approx(3.0)


def packed(rows, lengths, pads=0):
    """Two examples in each row, then pads that belong to no example."""
    real = torch.tensor([[True] * sum(lengths) + [False] * pads] * len(rows))
    segments = torch.tensor([[n for n, length in enumerate(lengths) for _ in range(length)] + [9] * pads] * len(rows))
    return Sequences(torch.tensor([row + [0] * pads for row in rows]), real, 1, segments)


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_examples_do_not_see_each_other(family):
    lm = language_model(family)
    with torch.no_grad():
        together = run_trunk(lm.base_model, packed([[5, 6, 7, 8, 9, 10, 11]], [3, 4], pads=2))[0]
        first = run_trunk(lm.base_model, sequences([[5, 6, 7]], 1))[0]
        second = run_trunk(lm.base_model, sequences([[8, 9, 10, 11]], 1))[0]
    torch.testing.assert_close(together[:3], first, atol=1e-5, rtol=0)
    torch.testing.assert_close(together[3:7], second, atol=1e-5, rtol=0)
    assert together.isfinite().all()


def test_packing_beyond_a_sliding_window_is_refused():
    lm = language_model("gemma2")  # window 16
    with torch.no_grad():
        run_trunk(lm.base_model, packed([[5] * 26], [16, 10]))
    with pytest.raises(ValueError, match=r"an example of 17 tokens .* attends to 16 at a time .sliding_window."):
        run_trunk(lm.base_model, packed([[5] * 26], [17, 9]))


def test_packing_needs_a_model_with_position_ids_and_a_mask_per_pair():
    class NoPositions(torch.nn.Module):
        def forward(self, input_ids, attention_mask, use_cache):
            raise AssertionError("not reached")

    with pytest.raises(ValueError, match="NoPositions takes no position ids"):
        run_trunk(NoPositions(), packed([[5, 6]], [1, 1]))
    lm = language_model("llama")
    lm.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="flash_attention_2"):
        run_trunk(lm.base_model, packed([[5, 6]], [1, 1]))


def test_more_tokens_than_positions_are_refused_but_pads_do_not_count():
    lm = language_model("gpt2")  # 32 positions
    with torch.no_grad():
        run_trunk(lm.base_model, sequences([[5] * 32], 4, left=3))
    with pytest.raises(ValueError, match="33 tokens but GPT2Model has max_position_embeddings 32"):
        run_trunk(lm.base_model, sequences([[5] * 33], 4))
