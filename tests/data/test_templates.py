import pytest

from rlhf.data.templates import Chat, Plain
from rlhf.data.tokens import marker_id
from rlhf.interfaces import Template
from rlhf.models.tokenizer import CHAT_TEMPLATES, train_bpe
from rlhf.types import Message, Turn

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


@pytest.mark.parametrize(("template", "sampled", "bare"), [
    (Plain(response_format=" {response}."), " good.", "good"), (Plain(response_format=" {response}."), "good", "good"),
    (Plain(response_format=" {response}."), " cut o", "cut o"), (Plain(), " good.", " good."), (Chat(), " x ", " x "),
])  # fmt: skip
def test_a_sampled_response_without_what_the_template_puts_around_it(template, sampled: str, bare: str) -> None:
    assert template.bare(sampled) == bare


def test_a_missing_end_marker_names_both_remedies(words) -> None:  # case A6
    tokenizer = words()
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match=r"name one of its tokens as template.end, or give the policy an eos_token"):
        marker_id(None, tokenizer)
    with pytest.raises(ValueError, match="add the marker with the policy's add_tokens"):
        marker_id("w0 w1 w2", tokenizer)


# -------------------------------------------------------------------------------------------------- conversations

CHATML = (
    "{% for m in messages %}<im_start>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<im_start>assistant\n{% endif %}"
)
TRIMMING = CHATML.replace("m.content", "m.content | trim")
SPACED = (  # texts set apart by white space, no generation prompt
    "{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }} <|end|>{% else %}"
    "[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}"
)
THINKING = (  # takes thoughts out of all turns but the last
    "{% for m in messages %}{{ m.role }}: {% if loop.last %}{{ m.content }}{% else %}"
    "{{ m.content.split('</think>')[-1] }}{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
OTHER_END = CHATML.replace("<|end|>", "<over>")
STRICT = (
    "{% if messages[0].role != 'user' %}{{ raise_exception('users begin') }}{% endif %}" + CHATML
)  # refuses, as Mistral's does
TALK = (
    Message("user", "Hi there"),
    Message("assistant", "Hello!\nWhat is it?"),
    Message("user", "Nothing."),
    Message("assistant", ""),
    Message("user", "Bye"),
)


@pytest.fixture(scope="module")
def bpe():
    def make(chat_template: str):
        tokenizer = train_bpe(["Hi there", "Hello! What is it?"], 300)
        tokenizer.chat_template = chat_template
        return tokenizer

    return make


@pytest.mark.parametrize("template", [CHATML, TRIMMING, SPACED, CHAT_TEMPLATES["turns"]])
@pytest.mark.parametrize("first", ["Hello!\nWhat is it?", "Hello! <|end|> or not <|end|>", "  spaced \n"])
def test_what_the_assistant_says_is_its_text_and_the_end(bpe, template: str, first: str) -> None:  # case A5
    tokenizer = bpe(template)
    talk = (TALK[0], Message("assistant", first), *TALK[2:])
    turns = Chat().turns(talk, tokenizer)
    said = [tokenizer.decode(turn.response) for turn in turns]
    assert said == [first.removesuffix("<|end|>") + "<|end|>", "<|end|>", ""]
    assert [turn.response[-1:] for turn in turns] == [[tokenizer.eos_token_id]] * 2 + [[]]
    assert turns[0].context == Chat().prompt("Hi there", tokenizer)
    if template in (CHATML, CHAT_TEMPLATES["turns"]):  # they write texts as they are
        messages = [{"role": m.role, "content": m.content.removesuffix("<|end|>")} for m in talk]
        whole = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert tokenizer.decode([i for turn in turns for i in turn.context + turn.response]) == whole


def test_with_the_last_turn_only_all_before_it_is_one_text(bpe) -> None:
    tokenizer = bpe(CHATML)
    (turn,) = Chat(targets="last").turns(TALK, tokenizer)
    messages = [m._asdict() for m in TALK]
    whole = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert turn == (tokenizer(whole)["input_ids"], [])


def test_a_template_that_changes_earlier_turns_is_refused_for_all_of_them(bpe) -> None:
    tokenizer = bpe(THINKING)
    talk = (TALK[0], Message("assistant", "<think>hm</think>Hello"), TALK[2])
    with pytest.raises(ValueError, match=r"as its text and '<\|end\|>' but as 'Hello.*targets to last"):
        Chat().turns(talk, tokenizer)
    assert tokenizer.decode(Chat(targets="last").turns(talk, tokenizer)[0].context).endswith(
        "Hello<|end|>\nuser: Nothing.<|end|>\nassistant: "
    )
    forgetting = "{% for m in messages[-2:] %}{{ m.role }} {{ m.content }}<|end|>{% endfor %}"
    with pytest.raises(ValueError, match=r"writes earlier turns otherwise once others follow .*targets to last"):
        Chat().turns(TALK, bpe(forgetting))


def test_an_end_that_the_template_does_not_write_is_named(bpe) -> None:
    tokenizer = bpe(OTHER_END)
    with pytest.raises(ValueError, match=r"as its text and '<\|end\|>' but as 'Hello!.*<over>.*name its end token"):
        Chat().turns(TALK, tokenizer)


def test_a_conversation_that_the_template_refuses_is_an_error(bpe) -> None:
    with pytest.raises(ValueError, match=r"refuses assistant, user \(users begin\)"):
        Chat(targets="last").turns((TALK[1], TALK[0]), bpe(STRICT))
    with pytest.raises(ValueError, match="refuses no message"):
        Chat().turns((TALK[1], TALK[0]), bpe(STRICT))


def test_a_system_message_of_its_own_wins(bpe) -> None:
    tokenizer = bpe(CHATML)
    own = (Message("system", "own"), TALK[0])
    texts = [tokenizer.decode(Chat(system="usual").turns(talk, tokenizer)[0].context) for talk in (own, TALK[:1])]
    assert "own" in texts[0] and "usual" not in texts[0] and texts[1].startswith("<im_start>system\nusual<|end|>")


@pytest.mark.parametrize("bos", [True, False])
def test_a_conversation_has_one_bos(words, bos: bool) -> None:  # case A6
    tokenizer = words(bos=bos)
    tokenizer.chat_template = (
        "{% for m in messages %} {{ m.content }} {% if m.role == 'assistant' %}<eos>{% endif %}{% endfor %}"
    )
    talk = tuple(Message(role, text) for role, text in [("user", "w0"), ("assistant", "w1 w2"), ("user", "w3")])
    first = [2, 10] if bos else [10]
    assert Chat().turns(talk, tokenizer) == [(first, [11, 12, 1]), ([13], [])]
    assert Plain().turns(talk, tokenizer) == [(first, [11, 12, 1]), ([13], [])]
    assert Plain(targets="last").turns(talk, tokenizer) == [([*first, 11, 12, 1, 13], [])]


def test_plain_joins_what_stands_before_an_answer(words) -> None:
    talk = (
        Message("system", "w9"),
        Message("user", "w0"),
        Message("assistant", "w1 <eos>"),
        Message("assistant", "w2"),
        Message("user", "w3"),
    )
    template = Plain(prompt_format="User: {prompt} Bot:", response_format="{response} .")
    assert template.turns(talk, words()) == [
        ([110, 19, 10, 111], [11, 112, 1]),
        ([], [12, 112, 1]),
        ([110, 13, 111], []),
    ]
    assert template.turns(talk[1:2], words())[0].context == template.prompt("w0", words())


@pytest.mark.parametrize("template", [Plain(), Plain(targets="last"), Chat(), Chat(targets="last")], ids=repr)
def test_many_conversations_at_once_are_the_same_as_one_by_one(bpe, template) -> None:
    tokenizer = bpe(CHATML)
    talks = [TALK, TALK[:1], TALK[:3], (Message("system", "s"), *TALK), TALK[2:]]
    assert template.all_turns(talks, tokenizer) == [template.turns(one, tokenizer) for one in talks]
    assert template.all_turns([], tokenizer) == []
    assert template.prompts(["Hi"], tokenizer)[0] == template.turns((Message("user", "Hi"),), tokenizer)[0].context


class OneByOne(Template):
    """A template that knows nothing of many texts at once."""

    def prompt(self, text, tokenizer):
        return [len(text)]

    def response(self, text, tokenizer):
        return [len(text), 1]

    def turns(self, conversation, tokenizer):
        return [Turn([len(conversation)], [])]

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
    assert OneByOne().all_turns([TALK[:1], TALK], tokenizer) == [[([1], [])], [([5], [])]]
    assert Plain().prompts([], tokenizer) == []
