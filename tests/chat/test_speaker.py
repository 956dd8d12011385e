"""One model in a conversation."""

import dataclasses

import pytest
import torch

from rlhf.chat.speaker import Answer, Turn
from rlhf.data.templates import Chat
from rlhf.engines.inference import Sampling, sample
from rlhf.errors import UserError
from rlhf.models.tokenizer import UNDECODABLE
from rlhf.types import Prompts, Scores


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
    rollout = sample(
        speaker.model.module,
        prompts,
        speaker.sampling,
        seed=1,
        counters=[0, 1, 2],
        stop_ids=stops,
        pad_id=0,
        decode=tokenizer.decode,
    )
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


def test_the_history_is_the_ids_that_were_seen_and_drawn(speaker):
    first = say(speaker, "ab")
    say(speaker, "cd", 1)
    tokenizer = speaker.model.tokenizer
    asked = [speaker.template.prompt(text, tokenizer) for text in ("ab", "cd", "ef")]
    second = speaker.turns[1].answer
    assert speaker.prompt("ef") == [*asked[0], *first.ids, *asked[1], *second.ids, *asked[2]]
    assert speaker.prompt() == speaker.prompt("ef")[: -len(asked[2])]


# case A6
def test_the_beginning_of_the_sequence_stands_once(speaker, monkeypatch):
    begin = [7]
    plain = speaker.template

    class WithBegin(type(plain)):
        def prompt(self, text, tokenizer):
            return [*begin, *plain.prompt(text, tokenizer)]

    speaker.template = WithBegin()
    monkeypatch.setattr("rlhf.chat.speaker.with_bos", lambda ids, _: ids if ids[:1] == begin else [*begin, *ids])
    say(speaker, "ab")
    assert speaker.prompt("cd").count(7) == 1


def test_the_tokenizers_own_template_sees_all_messages(speaker):
    speaker.template = Chat()
    speaker.model.tokenizer.chat_template = (
        "{% for m in messages %}[{{ m['role'][0] }}:{{ m['content'] }}]{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}"
    )
    speaker.system = "be"
    speaker.turns.append(Turn("hi", Answer("yo", [3], True)))
    decode = speaker.model.tokenizer.decode
    assert decode(speaker.prompt("so")) == "[s:be][u:hi][a:yo][u:so]>"
    assert decode(speaker.prompt()) == "[s:be][u:hi][a:yo]"
    alone = dataclasses.replace(speaker, turns=[], system=None)
    assert alone.prompt("so") == Chat().prompt("so", speaker.model.tokenizer)  # as in training


def test_a_template_without_system_text_puts_it_before_the_first_turn(speaker):
    speaker.system = "be"
    say(speaker, "ab")
    assert speaker.model.tokenizer.decode(speaker.prompt("cd")).startswith("Qbe\nabA")


def test_the_oldest_turns_are_forgotten_when_there_is_no_room(speaker):
    for number in range(12):  # 64 positions, at most 6 of them for an answer
        say(speaker, f"abcdef{number}", number)
    assert 0 < speaker.forgotten < 11 and len(speaker.turns) == 12
    assert len(speaker.prompt()) <= 64
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
    assert speaker.turns == [Turn("ab", answer)]


def test_a_scorer_is_given_the_rollout(speaker):
    speaker.scorer = lambda rollout: Scores(torch.tensor([float(rollout.mask.sum())]))
    answer = say(speaker, "ab")
    assert answer.score == len(answer.ids)


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
    end = speaker.template.end_id(speaker.model.tokenizer)
    assert all(turn.answer.ids[-1] == end for turn in speaker.turns)


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
