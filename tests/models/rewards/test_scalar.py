import dataclasses
import logging
import sys
from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
from tiny_models import ForwardEngine, language_model, rollout

from rlhf.data.templates import Chat, Plain
from rlhf.errors import UserError
from rlhf.interfaces import LanguageModel
from rlhf.models.heads import Linear
from rlhf.models.rewards import ScalarReward
from rlhf.models.rewards.scalar import ScalarScorer
from rlhf.models.storage import save_language_model, save_usage, save_value_model, value_model_from
from rlhf.models.tokenizer import train_bpe
from rlhf.types import Message, Sequences, joined

TOKENIZER = train_bpe(["the screen is great"] * 4, 270)
ENGINE = ForwardEngine()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    lm = language_model("gpt2")
    lm.resize_token_embeddings(len(TOKENIZER), mean_resizing=False)
    model = value_model_from(LanguageModel(lm, TOKENIZER), Linear(init_std=1.0), 3)
    model.set_normalisation(1.0, 2.0)
    path = tmp_path_factory.mktemp("reward") / "model"
    save_value_model(path, model, TOKENIZER, Linear(init_std=1.0))
    return path, model.eval()


def test_scores_are_read_at_the_last_real_token_of_the_sampled_ids(trained):
    path, model = trained
    scorer = ScalarReward(path=str(path)).build(ENGINE, TOKENIZER)
    answer = scorer(rollout(["a", "b", "c", "d", "e"]))
    assert answer.total.shape == (5,)
    assert not answer.total.requires_grad
    assert cast(Any, scorer).engine.batch_sizes == [2, 2, 1]
    for row in range(5):  # prompt 5 6, then row + 1 tokens 7, 8, 9 …
        ids = torch.tensor([[5, 6, *range(7, 8 + row)]])
        alone = model(Sequences(ids, torch.ones_like(ids, dtype=torch.bool), 2), want=("scores",)).scores
        raw = model.head(model.trunk(input_ids=ids).last_hidden_state[:, -1])
        assert answer.total[row].item() == pytest.approx(alone.item(), abs=1e-5)
        assert answer.total[row].item() == pytest.approx((raw.item() - 1.0) / 2.0, abs=1e-5)


def test_another_vocabulary_needs_the_template_of_the_training(trained):
    other = train_bpe(["something else entirely"] * 4, 270)
    with pytest.raises(UserError, match=r"another vocabulary than the policy, and no .*rlhf\.json says how"):
        ScalarReward(path=str(trained[0])).build(ENGINE, other)


@dataclass(frozen=True, kw_only=True)
class Shouting(Plain):
    """A researcher's own template.

    Args:
        mark: Ends a prompt.
    """

    mark: str = "!"

    def prompt_text(self, text):
        return super().prompt_text(text) + self.mark


@pytest.mark.parametrize("template", [
    Plain(), Plain(prompt_format="Human: {prompt}\nAssistant:", response_format=" {response}"), Shouting(mark="?"),
    Chat(system="Brief"),
], ids=["bare", "format", "own", "chat"])  # fmt: skip
def test_a_model_with_another_tokenizer_reads_the_texts(trained, template, tmp_path, caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, Shouting.__module__, sys.modules[__name__])
    _, model = trained
    own = train_bpe(["the screen is great"] * 4, 270)
    own.chat_template = "{% for m in messages %}{{ m.content }}?{% endfor %}:"
    save_value_model(tmp_path / "rm", model, own, Linear(init_std=1.0))
    save_usage(tmp_path / "rm", template)
    others = train_bpe(["something else entirely"] * 4, 300)
    responses = [" great", "the screen is poor", " naïve", "", " the end"]
    given = rollout(responses, prompt="the screen is")
    given = dataclasses.replace(given, ended=torch.tensor([True, True, True, True, False]))
    with caplog.at_level(logging.WARNING):
        scorer = ScalarReward(path=str(tmp_path / "rm")).build(ENGINE, others)
        answer, again = scorer(given).total, scorer(given).total
    assert torch.equal(answer, again) and answer.shape == (5,)
    assert caplog.text.count("has another vocabulary than the policy") == 1 and str(tmp_path / "rm") in caplog.text
    for row, response in enumerate(responses):  # by the reward model alone, from what a source would have
        bare = response.removeprefix(" ") if "format" in str(template) and " {" in str(template) else response
        ids = template.prompt("the screen is", own) + template.response(bare, own)
        ids = torch.tensor([ids if given.ended[row] else ids[:-1]])
        alone = model(Sequences(ids, torch.ones_like(ids, dtype=torch.bool), 1), want=("scores",)).scores
        assert answer[row].item() == pytest.approx(alone.item(), abs=1e-5), response


TALK = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]


@pytest.mark.parametrize("template", [Plain(prompt_format="<{prompt}>"), Chat(), Chat(targets="last")],
                         ids=["plain", "chat", "one text"])  # fmt: skip
def test_a_model_with_another_tokenizer_reads_the_turns_of_a_conversation(trained, template, tmp_path):
    _, model = trained
    own = train_bpe(["the screen is great"] * 4, 270)
    assistant = "{{ eos_token if m.role == 'assistant' }}"
    own.chat_template = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}" + assistant + "{% endfor %}a:"
    save_value_model(tmp_path / "rm", model, own, Linear(init_std=1.0))
    save_usage(tmp_path / "rm", template)
    scorer = ScalarReward(path=str(tmp_path / "rm")).build(ENGINE, train_bpe(["something else entirely"] * 4, 300))
    given = rollout(["great", "poor", "the end"], prompt="user: a\n\nassistant: b\n\nuser: c")
    talks = [TALK, None, [TALK[0]]]  # as data give them: a conversation, a text, a conversation of one message
    texts = [given.prompts.text[0], "the screen", "a"]
    prompts = dataclasses.replace(given.prompts, text=texts, columns={"messages": talks})
    answer = scorer(dataclasses.replace(given, prompts=prompts)).total
    turns = template.turns(tuple(Message(**message) for message in TALK), own)
    asked = [joined(turns), template.prompt("the screen", own), template.prompt("a", own)]
    assert asked[0] != template.prompt(texts[0], own)
    for row, response in enumerate(given.text):
        ids = torch.tensor([asked[row] + template.response(response, own)[: None if given.ended[row] else -1]])
        alone = model(Sequences(ids, torch.ones_like(ids, dtype=torch.bool), 1), want=("scores",)).scores
        assert answer[row].item() == pytest.approx(alone.item(), abs=1e-5)


def test_a_conversation_that_the_models_template_refuses_is_an_error(trained, tmp_path):
    _, model = trained
    own = train_bpe(["the screen is great"] * 4, 270)
    own.chat_template = "{{ raise_exception('one turn only') if messages | length > 1 }}{{ messages[0].content }}"
    save_value_model(tmp_path / "rm", model, own, Linear(init_std=1.0))
    save_usage(tmp_path / "rm", Chat())
    scorer = ScalarReward(path=str(tmp_path / "rm")).build(ENGINE, train_bpe(["something else entirely"] * 4, 300))
    given = rollout(["great"])
    prompts = dataclasses.replace(given.prompts, columns={"messages": [TALK]})
    with pytest.raises(UserError, match=r"path: the reward model cannot read a conversation as a prompt: .*one turn"):
        scorer(dataclasses.replace(given, prompts=prompts))


def test_the_ids_of_the_same_tokenizer_are_not_decoded(trained, tmp_path, caplog):
    _, model = trained
    save_value_model(tmp_path / "rm", model, TOKENIZER, Linear(init_std=1.0))
    save_usage(tmp_path / "rm", Plain())
    with caplog.at_level(logging.WARNING):
        scorer = ScalarReward(path=str(tmp_path / "rm")).build(ENGINE, train_bpe(["the screen is great"] * 4, 270))
    assert type(scorer) is ScalarScorer and not caplog.text
    texts = ["a", "b"]
    answer = scorer(rollout(texts)).total
    assert torch.equal(answer, scorer(dataclasses.replace(rollout(texts), text=["other", "texts"])).total)


def test_a_folder_without_a_head_is_refused(tmp_path):  # case H3
    save_language_model(tmp_path / "m", language_model("gpt2"), TOKENIZER)
    with pytest.raises(UserError, match=r"has no value_head\.json"):
        ScalarReward(path=str(tmp_path / "m")).build(ENGINE, TOKENIZER)
    with pytest.raises(ValueError, match="path: it is empty"):
        ScalarReward(path="")
