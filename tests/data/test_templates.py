import pytest

from rlhf.data.templates import Chat, Plain, marker_id
from rlhf.interfaces import Template

CHAT = (
    "<bos> {% for m in messages %}{{ 'User:' if m.role == 'user' else '.' }} {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}Bot:{% endif %}"
)


def test_no_token_straddles_the_seam(merging) -> None:  # case A5
    template = Plain()
    assert merging("a==b", add_special_tokens=False)["input_ids"] == [1, 4, 2]  # what joint encoding would do
    assert template.prompt("a=", merging) == [1, 3]
    response = template.response("=b", merging)
    assert response == [3, 2, 0]
    assert merging.decode(response).replace(" ", "") == "=b<eos>"


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("prompt_format", ["{prompt}", "<bos> {prompt}"])
def test_bos_at_most_once(words, bos: bool, prompt_format: str) -> None:  # case A6
    ids = Plain(prompt_format=prompt_format).prompt("w0 w1", words(bos=bos))
    expected = [2, 10, 11] if bos or prompt_format.startswith("<bos>") else [10, 11]
    assert ids == expected


@pytest.mark.parametrize("bos", [True, False])
def test_chat_template_with_its_own_bos(words, bos: bool) -> None:  # case A6
    tokenizer = words(bos=bos)
    tokenizer.chat_template = CHAT
    assert Chat().prompt("w0 w1", tokenizer) == [2, 110, 10, 11, 111]
    assert Chat(system="w9").prompt("w0", tokenizer) == [2, 112, 19, 110, 10, 111]
    assert Chat().response("w3", tokenizer) == [13, 1]


def test_response_never_gets_a_bos(words) -> None:
    assert Plain().response("w0", words(bos=True)) == [10, 1]


def test_end_is_one_id_and_the_stop_id(words) -> None:  # case A6
    tokenizer = words()
    assert Plain().response("w0 w1", tokenizer) == [10, 11, 1]
    assert Plain().end_id(tokenizer) == 1
    assert Plain(end=".").response("w0", tokenizer) == [10, 112]
    assert Chat(end=".").end_id(tokenizer) == 112


@pytest.mark.parametrize("text", ["w0 <eos>", "w0 <eos><eos>", "w0"])
def test_an_end_that_the_data_brings_is_not_doubled(words, text: str) -> None:
    assert Plain().response(text, words()) == [10, 1]
    assert Chat().response(text, words()) == [10, 1]
    assert Plain(response_format="{response} <eos>").response(text, words()) == [10, 1]


def test_end_that_is_no_single_token_is_refused(words, merging) -> None:  # case A6
    with pytest.raises(ValueError, match="'<|im_end|>' is not a token".replace("|", r"\|")):
        Plain(end="<|im_end|>").end_id(words())
    with pytest.raises(ValueError, match="2 pieces"):
        marker_id("ab", merging)


def test_end_written_otherwise_in_the_vocabulary() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(vocab={"Ċ": 0, "a": 1}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert Plain(end="\n").response("a\n\n", tokenizer) == [1, 0]


def test_no_end_at_all_is_an_error_with_remedy(words) -> None:
    with pytest.raises(ValueError, match=r"no eos_token; name one of its tokens as template.end"):
        Plain().response("w0", words(eos=False))


def test_chat_without_a_chat_template_is_refused(words) -> None:
    with pytest.raises(ValueError, match="no chat template; use Plain"):
        Chat().prompt("w0", words())


def test_formats_stand_around_the_texts(words) -> None:
    template = Plain(prompt_format="User: {prompt} Bot:", response_format="{response} .")
    assert template.prompt("w5", words()) == [110, 15, 111]
    assert template.response("w6", words()) == [16, 112, 1]
    assert Plain(prompt_format="{x} {prompt}").prompt_text("{y}") == "{x} {y}"  # other braces mean nothing


@pytest.mark.parametrize("settings", [{"prompt_format": "x"}, {"response_format": "x"}, {"end": ""}])
def test_impossible_settings_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        Plain(**settings)


class OneByOne(Template):
    """A template that knows nothing of many texts at once."""

    def prompt(self, text, tokenizer):
        return [len(text)]

    def response(self, text, tokenizer):
        return [len(text), 1]

    def end_id(self, tokenizer):
        return 1


@pytest.mark.parametrize("bos", [False, True])
def test_many_texts_at_once_are_the_same_as_one_by_one(words, bos) -> None:
    tokenizer = words(bos=bos)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}Bot:"
    texts = ["w1 w2", "", "w3", "w4 <eos>", *(f"w{i % 90}" for i in range(1500))]
    for template in (Plain(prompt_format="User: {prompt}"), Plain(end="."), Chat(system="w9"), OneByOne()):
        assert template.prompts(texts, tokenizer) == [template.prompt(text, tokenizer) for text in texts]
        assert template.responses(texts, tokenizer) == [template.response(text, tokenizer) for text in texts]
    assert Plain().prompts([], tokenizer) == []
