"""New tokens get embeddings of their own, and ids without a token are known as such."""

import pytest
import torch
from tiny_models import FAMILIES, language_model, sequences
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf.models.modules import PolicyModel
from rlhf.models.storage import save_language_model
from rlhf.models.tokenizer import check_tokenizer, pad_id, train_bpe
from rlhf.models.vocabulary import extend_vocabulary, unknown_ids

TEXTS = ["the screen is great", "the battery is poor"] * 4


def pair(family: str, rows: int | None = None):
    """A model and a tokenizer of its size, or a model with more embedding rows than tokens."""
    tokenizer, lm = train_bpe(TEXTS, 270), language_model(family)
    torch.manual_seed(1)
    lm.resize_token_embeddings(rows or len(tokenizer), mean_resizing=False)
    return lm, tokenizer


@pytest.mark.parametrize("family", FAMILIES)
def test_new_rows_are_the_mean_ties_stay_and_all_survives_a_save(family, tmp_path):
    lm, tokenizer = pair(family)
    old, size = lm.get_input_embeddings().weight.detach().clone(), len(tokenizer)
    head = lm.get_output_embeddings().weight.detach().clone()
    tied = lm.get_output_embeddings().weight is lm.get_input_embeddings().weight
    batch = sequences([[5, 6, 7, 8, 9]], 2)
    before = lm(input_ids=batch.ids).logits

    new = extend_vocabulary(lm, tokenizer, eos_token="<|stop|>", add_tokens=["<|user|>", "<|stop|>"])

    assert new == ["<|stop|>", "<|user|>"] and (tokenizer.eos_token_id, len(tokenizer)) == (size, size + 2)
    assert tokenizer.encode("<|user|>great<|stop|>")[0] == size + 1
    assert tokenizer.encode("<|user|>great<|stop|>")[-1] == size
    weights, output = lm.get_input_embeddings().weight, lm.get_output_embeddings().weight
    assert weights.shape[0] == output.shape[0] == lm.config.vocab_size == size + 2
    assert (output is weights) is tied is (family != "llama")
    assert torch.equal(weights[:size], old)
    torch.testing.assert_close(weights[size:], old.mean(0).expand(2, -1))
    torch.testing.assert_close(output[size:], head.mean(0).expand(2, -1))
    after = lm(input_ids=batch.ids).logits
    torch.testing.assert_close(after[..., :size], before, atol=1e-5, rtol=0)  # old tokens as before
    assert lm.config.eos_token_id == lm.generation_config.eos_token_id == size

    save_language_model(tmp_path / "m", lm, tokenizer)
    again, its = AutoModelForCausalLM.from_pretrained(tmp_path / "m"), AutoTokenizer.from_pretrained(tmp_path / "m")
    torch.testing.assert_close(again(input_ids=batch.ids).logits, after, atol=1e-6, rtol=0)
    assert (again.get_output_embeddings().weight is again.get_input_embeddings().weight) is tied
    assert (its.get_vocab(), its.eos_token) == (tokenizer.get_vocab(), "<|stop|>")
    assert again.generation_config.eos_token_id == size


def test_a_tied_new_row_learns_as_one(tmp_path):
    lm, tokenizer = pair("gpt2")
    extend_vocabulary(lm, tokenizer, add_tokens=["<|user|>"])
    id = tokenizer.convert_tokens_to_ids("<|user|>")
    model = PolicyModel(lm)
    (-model(sequences([[5, id, 7, id]], 1)).logprobs.sum()).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    save_language_model(tmp_path / "m", model, tokenizer)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert torch.equal(again.transformer.wte.weight, lm.transformer.wte.weight)
    assert torch.equal(again.lm_head.weight, lm.transformer.wte.weight)


def test_rows_of_the_random_numbers_of_others_are_left_alone():
    lm, tokenizer = pair("llama")
    torch.manual_seed(4)
    expected = torch.rand(2)
    torch.manual_seed(4)
    extend_vocabulary(lm, tokenizer, add_tokens=["<a>"])
    assert torch.equal(torch.rand(2), expected)


def test_a_filled_up_vocabulary_takes_new_tokens_without_growing():
    lm, tokenizer = pair("llama", rows=288)
    size = len(tokenizer)
    with torch.no_grad():
        lm.get_input_embeddings().weight[size:] = torch.nan  # what stands there is nobody's
    assert extend_vocabulary(lm, tokenizer, add_tokens=["<a>"]) == ["<a>"]
    weights = lm.get_input_embeddings().weight
    assert weights.shape[0] == 288
    torch.testing.assert_close(weights[size], weights[:size].mean(0))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_row_that_waits_for_its_token_is_set_to_the_mean_of_real_ones(family):
    lm, tokenizer = pair(family, rows=300)
    size = len(tokenizer)
    with torch.no_grad():
        lm.get_input_embeddings().weight[size:] = 1e6
    tokenizer.add_tokens(["<a>"])  # in the tokenizer, its row in the filling
    assert extend_vocabulary(lm, tokenizer, add_tokens=["<b>"]) == ["<b>"]
    weights = lm.get_input_embeddings().weight
    torch.testing.assert_close(weights[size + 1], weights[: size + 1].mean(0))  # <a> has a row, so it counts


def test_tokens_that_are_there_change_nothing():
    lm, tokenizer = pair("gpt2")
    before = lm.get_input_embeddings().weight.detach().clone()
    known = tokenizer.get_vocab()
    assert extend_vocabulary(lm, tokenizer, pad_token="<|end|>", add_tokens=["<|end|>"]) == []
    assert torch.equal(lm.get_input_embeddings().weight, before) and tokenizer.get_vocab() == known
    assert tokenizer.pad_token_id == lm.config.pad_token_id == tokenizer.eos_token_id


def test_a_tokenizer_larger_than_the_embedding_is_mended_by_naming_its_tokens():
    lm, tokenizer = pair("gpt2")
    tokenizer.add_tokens(["<a>", "<b>"])
    with pytest.raises(ValueError, match=r"2 tokens have none: .* name them in the policy's add_tokens"):
        check_tokenizer(tokenizer, lm)
    assert extend_vocabulary(lm, tokenizer, add_tokens=["<a>"]) == ["<a>"]
    with pytest.raises(ValueError, match="1 tokens have none"):
        check_tokenizer(tokenizer, lm)
    assert extend_vocabulary(lm, tokenizer, add_tokens=["<a>", "<b>"]) == ["<b>"]
    check_tokenizer(tokenizer, lm)


def test_a_tokenizer_without_pad_and_end_is_given_both():
    lm, tokenizer = pair("llama")
    tokenizer.pad_token = tokenizer.eos_token = None
    with pytest.raises(ValueError, match="set the policy's pad_token or eos_token"):
        pad_id(tokenizer)
    extend_vocabulary(lm, tokenizer, pad_token="<p>", eos_token="<e>")
    assert pad_id(tokenizer) == tokenizer.convert_tokens_to_ids("<p>") != tokenizer.eos_token_id
    assert lm.config.pad_token_id == tokenizer.pad_token_id


def test_unknown_ids_are_those_without_a_token():
    _, tokenizer = pair("gpt2")
    size = len(tokenizer)
    assert unknown_ids(tokenizer, size) is None
    assert unknown_ids(tokenizer, size - 1) is None  # the embedding's size is another check's
    padded = unknown_ids(tokenizer, size + 3)
    assert padded.tolist() == [False] * size + [True] * 3
