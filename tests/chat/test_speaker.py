"""One model in a conversation."""

import dataclasses

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from rlhf.chat.speaker import Answer, Turn
from rlhf.data.conversations import plain
from rlhf.data.encoding import Encoder
from rlhf.data.forms import Record
from rlhf.data.templates import Chat, Plain
from rlhf.engines.inference import Request, Sampling, sample
from rlhf.errors import UserError
from rlhf.models.tokenizer import UNDECODABLE
from rlhf.models.vocabulary import extend_vocabulary
from rlhf.types import Message, Prompts, Scores


def say(speaker, text, counter=0, seed=1, **sampling):
    pieces = []
    made = dataclasses.replace(speaker.sampling, **sampling)
    answer = speaker.reply(text, made, seed=seed, counter=counter, on_text=pieces.append)
    assert "".join(pieces) == answer.text and UNDECODABLE not in answer.text
    return answer


def test_an_answer_is_the_one_of_training(speaker):
    """The same ids as a rollout of the same prompt, seed and counter."""
    tokenizer, template = speaker.model.tokenizer, speaker.template
    stops = speaker.sampling.stop_ids(tokenizer, template.end_id(tokenizer))
    prompts = Prompts([template.prompt(text, tokenizer) for text in ("ab", "cd", "ef")], ["", "", ""], ["", "", ""])
    rollout = sample(speaker.model.module, Request(prompts, speaker.sampling, tokenizer, 1, [0, 1, 2], stops))
    for row, text in enumerate(("ab", "cd", "ef")):
        speaker.clear()
        answer = say(speaker, text, counter=row)
        assert answer.ids == rollout.sequences.response_ids[row][rollout.mask[row]].tolist()
        assert answer.ended == bool(rollout.ended[row])


def test_the_same_seed_and_counter_give_the_same_answer_and_others_another(speaker):
    answers = []
    for seed, counter in ((1, 0), (1, 0), (1, 1), (2, 0)):
        speaker.clear()
        answers.append(tuple(say(speaker, "abc", counter, seed).ids))
    assert answers[0] == answers[1] and len(set(answers)) == 3


TALK = [("user", "ab"), ("assistant", "xyz"), ("user", "cd"), ("assistant", " zz y"), ("user", "ef")]
TURNS = "{% for m in messages %}[{{ m.role[0] }}:{{ m.content }}{{ '</s>' if m.role == 'assistant' }}]{% endfor %}[a:"


def trained_on(speaker, messages):
    """Ids of the conversation as data for PPO give them."""
    encoder = Encoder(speaker.template, speaker.model.tokenizer, form="prompt", source="x", max_tokens=64,
                      max_prompt_tokens=None, long_prompts="drop")  # fmt: skip
    prompt = plain(tuple(Message(*message) for message in messages))
    ((example,),) = [encoder([Record(prompt)])]
    return example.prompt_ids


@pytest.mark.parametrize("template", [
    Plain(prompt_format="Q{prompt}A"), Plain(prompt_format="Q{prompt}A", response_format=" {response}", targets="last"),
    Chat(end="</s>"), Chat(end="</s>", targets="last"),
], ids=["plain", "format", "chat", "one text"])  # fmt: skip
@pytest.mark.parametrize("system", [None, "be"])
def test_a_conversation_has_the_ids_of_the_training_data(speaker, template, system):
    extend_vocabulary(speaker.model.module, speaker.model.tokenizer, add_tokens=["</s>"])
    speaker.model.tokenizer.chat_template = TURNS
    speaker.template, speaker.system = template, system
    messages = [("system", system)] * bool(system) + TALK
    speaker.restore([{"role": role, "content": content} for role, content in messages[:-1]])
    assert speaker.prompt("ef") == trained_on(speaker, messages)
    speaker.clear()
    assert speaker.prompt("ab") == trained_on(speaker, messages[: 1 + bool(system)])


def test_what_was_seen_ends_with_the_ids_that_were_drawn(speaker):
    assert speaker.seen() == []
    say(speaker, "ab")
    asked = speaker.prompt("cd")
    answer = say(speaker, "cd", 1)
    assert speaker.seen() == [*asked, *answer.ids]


def test_what_was_drawn_is_put_into_the_format_once(speaker):
    speaker.template = Plain(prompt_format="Q{prompt}A", response_format="<{response}>")
    answer = say(speaker, "ab")
    bare = answer.text.removeprefix("<").removesuffix(">")
    assert speaker.model.tokenizer.decode(speaker.prompt("cd")).startswith(f"QabA<{bare}>")
    assert speaker.messages()[1] == {"role": "assistant", "content": bare, "ended": False}
    speaker.clear()
    speaker.restore([{"role": "user", "content": "ab"}, {"role": "assistant", "content": "<xy>"}])
    assert speaker.model.tokenizer.decode(speaker.prompt("cd")).startswith("QabA<<xy>>")  # as data would have it


# case A6
def test_the_beginning_of_the_sequence_stands_once(speaker):
    tokenizer = speaker.model.tokenizer
    extend_vocabulary(speaker.model.module, tokenizer, add_tokens=["<s>"])
    tokenizer.bos_token, begin = "<s>", tokenizer.convert_tokens_to_ids("<s>")
    adds_it = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", begin)])
    tokenizer.backend_tokenizer.post_processor = adds_it
    say(speaker, "ab")
    ids = speaker.prompt("cd")
    assert ids[0] == begin and ids.count(begin) == 1


def test_a_template_that_changes_earlier_turns_can_be_talked_to(speaker):
    """Training would refuse the conversation: it could not tell whose tokens are whose. A chat need not."""
    end = speaker.model.tokenizer.eos_token
    speaker.template = Chat()
    speaker.model.tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'user' or loop.index0 == messages | length - 2 %}"
        "({{ m.content }}){% endif %}{% endfor %}>"
    )
    speaker.turns += [Turn("a", Answer("b", [3], True), "b"), Turn("c", Answer("d", [3], True), "d")]
    assert end and speaker.model.tokenizer.decode(speaker.prompt("e")) == "(a)(c)(d)(e)>"


def test_what_the_template_refuses_is_said_and_not_kept(speaker):
    speaker.template = Chat()
    speaker.model.tokenizer.chat_template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ messages[-1].content }}"
    )
    speaker.system = "be"
    with pytest.raises(UserError, match=r"refuses system, user \(no system\)"):
        say(speaker, "ab")
    assert speaker.turns == []


def test_the_oldest_turns_are_forgotten_when_there_is_no_room(speaker):
    for number in range(12):  # 64 positions, at most 6 of them for an answer
        say(speaker, f"abcdef{number}", number)
    assert 0 < speaker.forgotten < 11 and len(speaker.turns) == 12
    assert len(speaker.seen()) <= 64
    for _ in range(12):
        speaker.undo()
    assert speaker.forgotten == 0 and speaker.undo() is None


def test_an_answer_takes_no_more_room_than_there_is(speaker):
    asked = speaker.prompt("1234567890" * 5)  # nothing of it was merged into longer tokens
    assert len(asked) == 52
    assert len(say(speaker, "1234567890" * 5, max_new_tokens=128, min_new_tokens=12, stop_tokens=[]).ids) == 12
    with pytest.raises(UserError, match=r"what you say has \d+ tokens, but the model has 64 positions"):
        say(speaker, "1234567890" * 7)


def test_ctrl_c_ends_the_answer_and_not_the_conversation(speaker):
    pieces = []

    def interrupt(piece):
        pieces.append(piece)
        raise KeyboardInterrupt

    speaker.scorer = lambda _: pytest.fail("half an answer is not scored")
    sampling = Sampling(max_new_tokens=30, min_new_tokens=29)
    answer = speaker.reply("ab", sampling, seed=0, counter=0, on_text=interrupt)
    assert not answer.ended and answer.score is None and answer.text == pieces[0]
    assert speaker.turns == [Turn("ab", answer, answer.text)]


def test_a_scorer_is_given_the_rollout(speaker):
    speaker.scorer = lambda rollout: Scores(torch.tensor([float(rollout.mask.sum())]))
    answer = say(speaker, "ab")
    assert answer.score == len(answer.ids)


def test_a_scorer_that_reads_texts_is_given_the_whole_conversation(speaker):
    given = []
    speaker.scorer = lambda rollout: given.append(rollout.prompts) or Scores(torch.zeros(1))
    speaker.system = "be"
    say(speaker, "ab")
    say(speaker, "cd", 1)
    first, second = given
    assert first.text == ["system: be\n\nuser: ab"]
    said = speaker.turns[0].answer.text
    assert second.columns["messages"] == [[
        {"role": "system", "content": "be"}, {"role": "user", "content": "ab"},
        {"role": "assistant", "content": said}, {"role": "user", "content": "cd"},
    ]]  # fmt: skip


def test_a_conversation_is_written_and_taken_up(speaker):
    speaker.system = "be"
    say(speaker, "ab")
    say(speaker, "cd", 1)
    messages = speaker.messages()
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]
    speaker.clear()
    speaker.system = None
    speaker.restore(messages)
    assert speaker.messages() == messages and speaker.system == "be"
    assert [turn.answer.ended for turn in speaker.turns] == [False, False]


def test_an_answer_that_was_cut_has_no_end_when_it_is_taken_up(speaker):
    end = speaker.template.end_id(speaker.model.tokenizer)
    said = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "xy"}]
    for ended in (None, True, False):
        speaker.restore([said[0], said[1] | ({} if ended is None else {"ended": ended})])
        (turn,) = speaker.turns
        assert turn.answer.ended == (ended is not False)
        assert (turn.answer.ids[-1] == end) == turn.answer.ended and (speaker.seen()[-1] == end) == turn.answer.ended


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        ([{"role": "assistant", "content": "x"}], "message 1: role 'assistant' out of turn"),
        ([{"role": "user", "content": "x"}] * 2, "message 2: role 'user' out of turn"),
        ([{"role": "user", "content": 3}], "message 1: content is 3"),
        ([{"role": "user", "content": "x"}, {"role": "system", "content": "x"}], "message 2: role 'system'"),
    ],
)
def test_what_is_no_conversation_changes_nothing(speaker, messages, what):
    say(speaker, "ab")
    with pytest.raises(UserError, match=what):
        speaker.restore(messages)
    assert len(speaker.turns) == 1
