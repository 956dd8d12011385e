import pytest
from hypothesis import given, settings, strategies as st
from tiny_models import language_model
from transformers import PreTrainedTokenizerFast

from rlhf.models.tokenizer import UNDECODABLE, TextStream, check_tokenizer, pad_id, train_bpe

TEXTS = ["the screen is great, the battery is poor", "the camera is great"] * 5
TOKENIZER = train_bpe(TEXTS, 300)


@settings(deadline=None, max_examples=200)
@given(st.text())
def test_any_unicode_text_comes_back(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text), skip_special_tokens=False) == text


@pytest.mark.parametrize(
    "text", ["", " ", "  two  spaces ", "tab\tnew\nline ", "naïve 日本 🙂", " ,. ' n't", "\x00\x7f"]
)
def test_awkward_text_comes_back(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_special_tokens_are_two_distinct_ids_and_encode_adds_none():
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id, TOKENIZER.bos_token_id) == (0, 1, None)
    assert TOKENIZER.encode("great") == TOKENIZER.encode("great", add_special_tokens=False)
    assert not {0, 1} & set(TOKENIZER.encode("great"))


def test_the_end_marker_in_text_is_one_id():  # case A6
    assert TOKENIZER.encode("<|end|>") == [1]


def test_training_merges_frequent_pairs_and_is_repeatable():
    assert len(TOKENIZER.encode(" great")) == 1
    assert train_bpe(iter(TEXTS), 300).get_vocab() == TOKENIZER.get_vocab()


def test_a_small_corpus_gives_fewer_tokens_and_the_size_is_an_upper_limit():
    assert 258 < len(train_bpe(TEXTS, 270)) <= 270
    assert len(train_bpe(["ab"], 1000)) == 259


def test_too_small_a_vocabulary_and_no_text_are_refused():
    with pytest.raises(ValueError, match=r"vocab_size: 257; .* need 258"):
        train_bpe(TEXTS, 257)
    with pytest.raises(ValueError, match="no text"):
        train_bpe([], 300)


def test_pad_id_is_the_pad_else_the_end_token_else_an_error():
    tokenizer = train_bpe(TEXTS, 300)
    assert pad_id(tokenizer) == 0
    tokenizer.pad_token = None
    assert pad_id(tokenizer) == 1
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="neither a pad nor an end token"):
        pad_id(tokenizer)


def test_ids_beyond_the_embedding_are_refused():
    with pytest.raises(ValueError, match=rf"id {len(TOKENIZER) - 1} .* 61 embedding rows"):
        check_tokenizer(TOKENIZER, language_model("gpt2"))


@settings(deadline=None, max_examples=100)
@given(st.text())
def test_a_stream_gives_the_text_in_whole_characters(text):
    ids = TOKENIZER.encode(text)
    stream = TextStream(TOKENIZER)
    pieces = [stream.push(token) for token in ids]
    assert text.startswith("".join(pieces)) and (UNDECODABLE in text or "".join(pieces) == text)
    assert UNDECODABLE in text or not any(UNDECODABLE in piece for piece in pieces)


def test_a_character_comes_with_its_last_byte_and_bytes_that_are_none_with_what_follows():
    ids = TOKENIZER.encode("é🙂")
    assert len(ids) == 6
    stream = TextStream(TOKENIZER)
    assert [stream.push(token) for token in ids] == ["", "é", "", "", "", "🙂"]
    stray = TOKENIZER.encode("é")[:1]
    stream = TextStream(TOKENIZER)
    assert "".join(stream.push(token) for token in [*stray, *TOKENIZER.encode(" the")]) == f"{UNDECODABLE} the"


def test_a_stream_keeps_the_spaces_that_a_tokenizer_writes_between_words():
    from tokenizers import Tokenizer, decoders, models

    words = {"<unk>": 0, "▁a": 1, "▁b": 2, "c": 3}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.decoder = decoders.Metaspace()  # drops the space of the first word of what it is given
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    stream = TextStream(tokenizer)
    assert [stream.push(token) for token in (1, 2, 3, 1)] == ["a", " b", "c", " a"]
