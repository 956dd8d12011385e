import pytest

from rlhf.data.encoding import Encoder, pieces
from rlhf.data.examples import ComparisonExample, DemonstrationExample, PromptExample, TextExample, UnpairedExample
from rlhf.data.forms import Record
from rlhf.data.templates import Chat, Plain
from rlhf.types import Message


@pytest.fixture
def encoder(words):
    def make(
        form, *, max_tokens=20, max_prompt_tokens=None, long_prompts="drop", bos=False, eos=True, **plain
    ) -> Encoder:
        return Encoder(
            Plain(**plain),
            words(bos=bos, eos=eos),
            form=form,
            source="s",
            max_tokens=max_tokens,
            max_prompt_tokens=max_prompt_tokens,
            long_prompts=long_prompts,
        )

    return make


def test_truncation_never_eats_a_whole_response(encoder, text) -> None:  # case G3
    encode = encoder("demonstration")
    rows = [encode([Record(text(p), (text(r, start=50),))]) for p, r in [(4, 5), (30, 5), (18, 5), (6, 0), (10, 5)]]
    assert [[(len(e.prompt_ids), e.response_ids) for e in row] for row in rows] == [
        [(4, [60, 61, 62, 63, 64, 1])],
        [],  # no room for a response token
        [(18, [60, 61])],  # cut: it does not end here, so there is no end id
        [(6, [1])],  # empty: the end is what is learned
        [(10, [60, 61, 62, 63, 64, 1])],
    ]
    assert encode.drops == {"long_prompt": 1}
    assert encode.notes == {"truncated_response": 1, "empty_response": 1}


def test_a_prompt_that_fills_all_but_one_token(encoder, text) -> None:
    encode = encoder("demonstration")
    assert encode([Record(text(19), ("w7 w8",))])[0].response_ids == [17]
    assert encode([Record(text(20), ("w7 w8",))]) == []


@pytest.mark.parametrize("limit", [{"max_prompt_tokens": 16, "max_tokens": 64}, {"max_tokens": 16}])
def test_over_long_prompts_are_dropped_and_counted(encoder, text, limit) -> None:  # case G4
    encode = encoder("prompt", **limit)
    kept = [encode([Record(text(n))]) for n in (5, 16, 17, 40)]
    assert [len(row) for row in kept] == [1, 1, 0, 0]
    assert encode.drops == {"long_prompt": 2}


def test_over_long_prompts_cut_on_the_named_side(encoder, text) -> None:  # case G4
    encode = encoder("prompt", max_prompt_tokens=3, long_prompts="keep_end")
    assert encode([Record(text(5))])[0].prompt_ids == [12, 13, 14]
    assert encode.notes == {"truncated_prompt": 1} and not encode.drops
    assert encoder("prompt", max_prompt_tokens=3, long_prompts="keep_start")([Record(text(5))])[0].prompt_ids == [
        10,
        11,
        12,
    ]
    with_bos = encoder("prompt", max_prompt_tokens=3, long_prompts="keep_end", bos=True)
    assert with_bos([Record(text(5))])[0].prompt_ids == [2, 13, 14]


def test_prompts_keep_text_and_columns(encoder) -> None:
    made = encoder("prompt")([Record("w0", columns={"rating": 4})])
    assert made == [PromptExample(prompt_ids=[10], prompt="w0", source="s", columns={"rating": 4})]


def test_an_empty_prompt_is_dropped_unless_there_is_a_bos(encoder) -> None:
    encode = encoder("demonstration")
    assert encode([Record("", ("w0",))]) == [] and encode.drops == {"empty_prompt": 1}
    assert encoder("demonstration", bos=True)([Record("", ("w0",))])[0].prompt_ids == [2]


def test_the_prompt_is_the_same_in_every_form(encoder, text) -> None:  # case A5
    prompt = text(4)
    demonstration = encoder("demonstration", bos=True)([Record(prompt, ("w8",))])[0]
    comparison = encoder("comparison", bos=True)([Record(prompt, ("w8", "w9"))])[0]
    rollout = encoder("prompt", bos=True)([Record(prompt)])[0]
    assert demonstration.prompt_ids == comparison.prompt_ids == rollout.prompt_ids == [2, 10, 11, 12, 13]


def test_pairs_that_cannot_be_told_apart_are_dropped(encoder) -> None:  # case D1
    encode = encoder("comparison", max_tokens=8)
    prompt, same = "w0 w1", "w5 w5 w5 w5 w5 w5"
    normal = encode([Record(prompt, ("w5", "w6"))])
    identical = encode([Record(prompt, ("w5", "w5"))])
    differ_after_8 = encode([Record(prompt, (f"{same} w8", f"{same} w9"))])
    differ_at_last_kept = encode([Record(prompt, ("w5 w5 w5 w5 w5 w8", "w5 w5 w5 w5 w5 w9"))])
    assert normal == [ComparisonExample(prompt_ids=[10, 11], chosen_ids=[15, 1], rejected_ids=[16, 1], source="s")]
    assert identical == [] and differ_after_8 == []
    assert differ_at_last_kept[0].chosen_ids == [15, 15, 15, 15, 15, 18]
    assert differ_at_last_kept[0].rejected_ids == [15, 15, 15, 15, 15, 19]
    assert encode.drops == {"identical_pair": 1, "identical_after_truncation": 1}
    assert encode.notes == {"truncated_response": 2}


def test_a_pair_is_dropped_whole(encoder, text) -> None:  # case G3
    encode = encoder("comparison", max_tokens=8)
    assert encode([Record(text(8), ("w5", "w6"))]) == [] and encode.drops == {"long_prompt": 1}
    assert encode([Record("w0", ("", "w6"))])[0].chosen_ids == [1] and encode.notes == {"empty_response": 1}


def test_pairs_left_of_a_row_weigh_one_together(encoder) -> None:
    encode = encoder("comparison")
    row = encode([Record("w0", ("w1", "w2"), 2.0), Record("w0", ("w1", "w3"), 1.0), Record("w0", ("w2", "w2"), 1.0)])
    assert [(e.weight, e.margin) for e in row] == [(0.5, 2.0), (0.5, 1.0)]


def test_long_texts_are_cut_and_none_is_lost(encoder, text) -> None:
    encode = encoder("text", max_tokens=4, bos=True)
    made = encode([Record(text(6))])
    assert [e.ids for e in made] == [[2, 10, 11, 12], [13, 14, 15, 1]]
    assert encode.notes == {"long_text": 1}
    assert encode([Record("w0", ("w1",))]) == [TextExample(ids=[2, 10, 11, 1], source="s")]
    assert encoder("text", eos=False)([Record("w0 w1")]) == [TextExample(ids=[10, 11], source="s")]


def test_texts_without_a_token_to_learn_are_dropped(encoder) -> None:
    encode = encoder("text", bos=True)
    assert encode([Record("")]) == [] and encode.drops == {"empty_text": 1}
    single = encoder("text", eos=False)
    assert single([Record("w0")]) == [] and single.drops == {"empty_text": 1}


def test_no_piece_is_a_single_token() -> None:
    assert pieces([1, 2, 3, 4, 5, 6, 7], 3) == [[1, 2, 3], [4, 5], [6, 7]]
    assert pieces([1, 2, 3], 3) == [[1, 2, 3]]
    assert pieces([1, 2, 3, 4], 3) == [[1, 2], [3, 4]]


def test_demonstrations_are_plain_data(encoder) -> None:
    made = encoder("demonstration")([Record("w0", ("w1",))])
    assert made == [DemonstrationExample(prompt_ids=[10], response_ids=[11, 1], source="s")]


def test_a_comparison_of_whole_texts_needs_no_prompt(encoder) -> None:
    encode = encoder("comparison", max_tokens=2)
    assert encode([Record("", ("w0", "w1"), margin=2.0)]) == [
        ComparisonExample(prompt_ids=[], chosen_ids=[10, 1], rejected_ids=[11, 1], margin=2.0, source="s")
    ]
    assert encode([Record("", ("w0", "w0"))]) == [] and encode.drops == {"identical_pair": 1}
    assert encoder("comparison", bos=True)([Record("", ("w0", "w1"))])[0].prompt_ids == [2]


TALK = (Message("user", "w0 w1"), Message("assistant", "w2"), Message("user", "w3"))


def test_every_assistant_turn_of_a_conversation_is_a_target(encoder) -> None:
    assert encoder("demonstration", bos=True)([Record(TALK, ("w4 w5",))]) == [
        DemonstrationExample(
            prompt_ids=[2, 10, 11],
            response_ids=[12, 1, 13, 14, 15, 1],
            targets=[True, True, False, True, True, True],
            source="s",
        )
    ]
    assert encoder("demonstration", targets="last")([Record(TALK, ("w4",))]) == [
        DemonstrationExample(prompt_ids=[10, 11, 12, 1, 13], response_ids=[14, 1], source="s")
    ]


def test_a_conversation_is_cut_at_its_end(encoder) -> None:  # case G3
    encode = encoder("demonstration", max_tokens=7)
    (example,) = encode([Record(TALK, ("w4 w5 w6",))])
    assert example.response_ids == [12, 1, 13, 14, 15] and example.targets == [True, True, False, True, True]
    assert encode.notes == {"truncated_response": 1} and not encode.drops
    encode = encoder("demonstration", max_tokens=5)  # the last turn is gone, the first one is still learned
    (example,) = encode([Record(TALK, ("w4",))])
    assert example.response_ids == [12, 1, 13] and example.targets == [True, True, False]
    assert encode.notes == {"truncated_response": 1}
    encode = encoder("demonstration", max_tokens=2)
    assert encode([Record(TALK, ("w4",))]) == [] and encode.drops == {"long_prompt": 1}


def test_a_conversation_is_one_prompt_everywhere_else(encoder) -> None:  # case A5
    ids = [10, 11, 12, 1, 13]
    assert encoder("comparison")([Record(TALK, ("w4", "w5"))]) == [
        ComparisonExample(prompt_ids=ids, chosen_ids=[14, 1], rejected_ids=[15, 1], source="s")
    ]
    (prompt,) = encoder("prompt")([Record(TALK)])
    assert prompt.prompt_ids == ids and prompt.prompt == "user: w0 w1\n\nassistant: w2\n\nuser: w3"
    assert encoder("text")([Record(TALK, ("w4",))]) == [TextExample(ids=[*ids, 14, 1], source="s")]
    assert encoder("comparison", max_prompt_tokens=4)([Record(TALK, ("w4", "w5"))]) == []


def test_judged_responses(encoder) -> None:
    encode = encoder("unpaired", max_tokens=3)
    assert encode([Record("w0", ("w1",), label=False), Record("w0", ("w1 w2",), label=True)]) == [
        UnpairedExample(prompt_ids=[10], response_ids=[11, 1], label=False, source="s"),
        UnpairedExample(prompt_ids=[10], response_ids=[11, 12], label=True, source="s"),
    ]
    assert encode([Record("w0 w1 w2", ("w1",))]) == []
    assert encode.notes == {"truncated_response": 1} and encode.drops == {"long_prompt": 1}


def test_conversations_that_the_template_refuses_are_dropped_and_counted(words) -> None:
    tokenizer = words()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system message') }}{% endif %}"
        "{{ m.content }} {{ '<eos> ' if m.role == 'assistant' }}{% endfor %}"
    )
    refused = Record((Message("system", "w9"), *TALK), ("w4", "w5"))
    for ahead in (False, True):
        encode = Encoder(
            Chat(), tokenizer, form="comparison", source="s", max_tokens=9, max_prompt_tokens=None, long_prompts="drop"
        )
        rows = [[refused], [Record(TALK, ("w4", "w5")), refused]]
        if ahead:
            encode.read_ahead(rows)
        made = [example for row in rows for example in encode(row)]
        assert [(example.length, example.weight) for example in made] == [(7, 1.0)]
        assert encode.drops == {"refused_conversation": 2}


def test_a_conversation_that_cannot_be_told_apart_is_named(words) -> None:
    tokenizer = words()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"  # says nowhere who speaks
    encode = Encoder(
        Chat(), tokenizer, form="prompt", source="s", max_tokens=9, max_prompt_tokens=None, long_prompts="drop"
    )
    named = r"source s: conversation 'user: w0 w1.*: the chat template does not write"
    with pytest.raises(ValueError, match=named):
        encode([Record(TALK)])
    with pytest.raises(ValueError, match=named):
        encode.read_ahead([[Record((Message("system", "w5"),))], [Record("w0"), Record(TALK)]])


@pytest.mark.parametrize("bos", [False, True])
def test_reading_ahead_changes_nothing(encoder, text, bos) -> None:
    rows = [[Record(text(n % 5), (text(n), text(n % 3)), float(n))] for n in range(8)]
    rows.append([Record("", (text(2), text(3))), Record("w1", ("w2", "w3"))])
    texts = [[Record(text(n))] for n in range(8)]
    longer = (*TALK, Message("assistant", "w7"), Message("system", "w8"))
    talks = [[Record(TALK, ("w4", "w5")), Record("w0", ("w1", "w1"))], [], [Record(longer, ("w4 w6", ""))]]
    for form, given in (
        *((form, talks) for form in ("comparison", "demonstration", "unpaired", "prompt", "text")),
        ("comparison", rows),
        ("demonstration", rows),
        ("prompt", rows),
        ("text", rows),
        ("text", texts),
    ):
        ahead, plain = encoder(form, bos=bos, max_tokens=6), encoder(form, bos=bos, max_tokens=6)
        ahead.read_ahead(given)
        assert [ahead(row) for row in given] == [plain(row) for row in given]
        assert ahead.drops == plain.drops and ahead.notes == plain.notes
