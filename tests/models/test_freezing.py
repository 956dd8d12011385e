"""Training the last blocks: what is frozen stays bit-identical, what is trained learns as if nothing were frozen."""

import pytest
import torch
from tiny_models import FAMILIES, language_model, sequences

from rlhf.interfaces import LanguageModel
from rlhf.models.freezing import freeze_below
from rlhf.models.heads import Linear
from rlhf.models.modules import PolicyModel
from rlhf.models.storage import value_model_from
from rlhf.models.tokenizer import train_bpe

BATCH = sequences([[5, 6, 7, 8, 9], [20, 3, 41, 17, 2]], 2)
BEHIND = {
    "gpt2": {"transformer.ln_f.weight", "transformer.ln_f.bias"},
    "opt": {"model.decoder.final_layer_norm.weight", "model.decoder.final_layer_norm.bias"}
    | {"model.decoder.project_out.weight"},
    "llama": {"model.norm.weight", "lm_head.weight"},
    "gemma2": {"model.norm.weight"},
}
"""What stands behind the blocks: registered before them in OPT, which has a projection on either side."""


def trained(module) -> set[str]:
    return {name for name, p in module.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layers", [0, 1, 2])
def test_what_is_left_to_train(family, layers):
    lm = language_model(family)
    freeze_below(lm, layers)
    blocks = {
        name
        for name, _ in lm.named_parameters()
        for part in (".0.", ".1.")[2 - layers :]
        if part in name and ("layers" in name or ".h." in name)
    }
    assert trained(lm) == BEHIND[family] | blocks
    assert (len(blocks) > 0) is (layers > 0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layers", [0, 1, 2])
def test_gradients_are_those_of_full_training_and_nothing_runs_below(family, layers):
    whole, part = (language_model(family, dtype=torch.float64) for _ in range(2))
    freeze_below(part, layers)
    for lm in (whole, part):
        PolicyModel(lm)(BATCH).logprobs.sum().backward()
    for (name, a), (_, b) in zip(whole.named_parameters(), part.named_parameters(), strict=True):
        if name in trained(part):
            assert torch.equal(a.grad, b.grad), name
        else:
            assert b.grad is None and a.grad is not None, name
    embedded = part.base_model(input_ids=BATCH.ids, output_hidden_states=True).hidden_states
    assert [h.requires_grad for h in embedded[:-1]] == [2 - layers < number for number in range(2)]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_value_model_inherits_it_and_trains_its_head(family):
    tokenizer, lm = train_bpe(["ab"] * 4, 260), language_model(family)
    lm.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    freeze_below(lm, 1)
    model = value_model_from(LanguageModel(lm, tokenizer), Linear(), 1)
    names = {name.removeprefix("trunk.") for name in trained(model)}
    own = {name.split(".", 1)[1] for name in trained(lm) if name != "lm_head.weight"}
    assert names == own | {"head.layers.0.weight", "head.layers.0.bias"}
    model(BATCH).values.sum().backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == trained(model)


def test_it_can_be_set_again_and_leaves_the_model_as_it_was():
    lm = language_model("gpt2")
    before = lm(input_ids=BATCH.ids).logits
    freeze_below(lm, 0)
    freeze_below(lm, 2)
    again = language_model("gpt2")
    freeze_below(again, 2)
    assert trained(lm) == trained(again)
    assert torch.equal(lm(input_ids=BATCH.ids).logits, before)
    assert all(p.grad is None for p in lm.parameters())
    assert not lm.transformer.h[-1]._forward_hooks


def test_more_layers_than_blocks_are_refused():
    with pytest.raises(ValueError, match="trainable_layers: 3, but GPT2LMHeadModel has 2 blocks"):
        freeze_below(language_model("gpt2"), 3)


def test_a_model_whose_blocks_cannot_be_told_is_refused():
    lm = language_model("gpt2")
    lm.config.num_hidden_layers = 5
    with pytest.raises(ValueError, match="has no list of 5 blocks"):
        freeze_below(lm, 1)
