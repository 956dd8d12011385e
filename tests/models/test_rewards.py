import dataclasses
import logging
import sys
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
import torch
from tiny_models import ForwardEngine, language_model, rollout

from rlhf.data.templates import Chat, Plain
from rlhf.errors import UserError
from rlhf.interfaces import LanguageModel, RewardModel, Scorer
from rlhf.models import rewards
from rlhf.models.heads import Linear
from rlhf.models.rewards import FunctionReward, ScalarReward, Weighted
from rlhf.models.storage import save_language_model, save_value_model, value_model_from
from rlhf.models.tokenizer import train_bpe
from rlhf.types import Scores, Sequences

TOKENIZER = train_bpe(["the screen is great"] * 4, 270)
ENGINE = ForwardEngine()

# --------------------------------------------------------------------------------------------------------- ScalarReward


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
    with pytest.raises(ValueError, match=r"value_head.json names no template, so texts cannot be read"):
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
    save_value_model(tmp_path / "rm", model, own, Linear(init_std=1.0), template=template)
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


def test_the_ids_of_the_same_tokenizer_are_not_decoded(trained, tmp_path, caplog):
    _, model = trained
    save_value_model(tmp_path / "rm", model, TOKENIZER, Linear(init_std=1.0), template=Plain())
    with caplog.at_level(logging.WARNING):
        scorer = ScalarReward(path=str(tmp_path / "rm")).build(ENGINE, train_bpe(["the screen is great"] * 4, 270))
    assert type(scorer) is rewards.ScalarScorer and not caplog.text
    texts = ["a", "b"]
    answer = scorer(rollout(texts)).total
    assert torch.equal(answer, scorer(dataclasses.replace(rollout(texts), text=["other", "texts"])).total)


def test_a_folder_without_a_head_is_refused(tmp_path):  # case H3
    save_language_model(tmp_path / "m", language_model("gpt2"), TOKENIZER)
    with pytest.raises(UserError, match=r"has no value_head\.json"):
        ScalarReward(path=str(tmp_path / "m")).build(ENGINE, TOKENIZER)
    with pytest.raises(ValueError, match="path: it is empty"):
        ScalarReward(path="")


# ------------------------------------------------------------------------------------------------------- FunctionReward


def length(*, prompts, responses):
    return [len(prompt) + 10 * len(response) for prompt, response in zip(prompts, responses, strict=True)]


def columns(prompts, responses, answer, scale=1.0):
    return [scale * (response == right) for response, right in zip(responses, answer, strict=True)]


def everything(**given):
    return [len(given)] * len(given["responses"])


def fixed(prompts, responses, answer):
    return answer


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """This file as the module ``my_rewards``, as if it lay where the command runs."""
    monkeypatch.setitem(sys.modules, "my_rewards", sys.modules[__name__])


def score(function: str, texts: list[str], given: dict[str, Any] | None = None, **arguments) -> Scores:
    scorer = FunctionReward(function=f"my_rewards.{function}", arguments=arguments).build(ENGINE, TOKENIZER)
    return scorer(rollout(texts, columns=given))


def test_a_function_scores_texts():
    answer = score("length", ["a", "bcd"]).total
    assert answer.tolist() == [11.0, 31.0]
    assert answer.dtype == torch.float32


def test_a_function_gets_the_columns_it_names_and_its_arguments():
    given = {"answer": ["4", "5"], "other": [1, 2]}
    assert score("columns", ["4", "4"], given).total.tolist() == [1.0, 0.0]
    assert score("columns", ["4", "4"], given, scale=3.0).total.tolist() == [3.0, 0.0]
    assert score("columns", ["4", "4"], given, answer=["x", "4"]).total.tolist() == [0.0, 1.0]  # arguments come first
    assert score("everything", ["4", "4"], given, more=1).total.tolist() == [5.0, 5.0]


@pytest.mark.parametrize("answer", [
    [1, 2.5], (1, 2.5), torch.tensor([1, 2.5]), np.array([1, 2.5]), [torch.tensor(1), np.float32(2.5)], [True, 2.5],
])  # fmt: skip
def test_numbers_of_every_kind_are_taken(answer):
    assert score("fixed", ["a", "b"], answer=answer).total.tolist() == [1.0, 2.5]


@pytest.mark.parametrize(("answer", "message"), [
    ([1.0], "my_rewards.fixed answered 1 scores for 2 responses"),
    (torch.zeros(3), "answered 3 scores for 2 responses"),
    ([1.0, float("nan")], "my_rewards.fixed answered nan, no finite number, for 'second'"),
    ([float("inf"), 1.0], "answered inf, no finite number, for 'first'"),
    ([1.0, None], "answered None, no finite number, for 'second'"),
    ([1.0, "2"], "answered '2', no finite number, for 'second'"),
    (torch.zeros(2, 3), "no finite number, for 'first'"),
    (1.0, "answered 1.0; it must be 2 numbers"), (None, "answered None; it must be 2 numbers"),
    ("ab", "answered 'ab'; it must be 2 numbers"),
])  # fmt: skip
def test_wrong_answers_name_the_function_and_a_response(answer, message):
    with pytest.raises(ValueError, match=message):
        score("fixed", ["first", "second"], answer=answer)


def test_a_column_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"my_rewards\.columns needs answer, .* columns there: other"):
        score("columns", ["a"], {"other": [1]})


@pytest.mark.parametrize(("function", "arguments", "message"), [
    ("length", {}, "is no import path"), ("my rewards.f", {}, "is no import path"),
    ("a.b", {"prompts": []}, "prompts is given by the rollout"),
    ("no_such_module.f", {}, "no_such_module.f cannot be imported"), ("my_rewards.nothing", {}, "cannot be imported"),
    ("my_rewards.ENGINE", {}, "give something that can be called"),
    ("my_rewards.columns", {"scael": 2.0}, "takes no argument scael; did you mean scale?"),
    ("my_rewards.test_a_function_scores_texts", {}, "takes no argument prompts; it takes none"),
])  # fmt: skip
def test_functions_that_cannot_be_called_are_refused_when_built(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        FunctionReward(function=function, arguments=arguments).build(ENGINE, TOKENIZER)


# ------------------------------------------------------------------------------------------------------------- Weighted


@dataclass(frozen=True, kw_only=True)
class PerToken(RewardModel):
    """One for every column, pads included.

    Args:
        value: The reward of a token.
    """

    value: float = 1.0

    def build(self, engine, tokenizer):
        class Live(Scorer):
            def __call__(_, rollout):
                return Scores(torch.full(rollout.mask.shape, self.value))

        return Live()


def test_weighted_adds_and_reports_each_part():
    models: dict[str, RewardModel] = {
        "length": FunctionReward(function="my_rewards.length"),
        "match": FunctionReward(function="my_rewards.columns", arguments={"answer": ["a", "x"]}),
    }
    answer = Weighted(models=models, weights={"length": 0.5, "match": -2.0}).build(ENGINE, TOKENIZER)(
        rollout(["a", "b"])
    )
    assert answer.total.tolist() == [3.5, 5.5]  # 0.5·11 − 2·1, 0.5·11
    assert {name: part.tolist() for name, part in answer.parts.items()} == {"length": [11.0, 11.0], "match": [1.0, 0.0]}


def test_weighted_nests_and_sums_per_token_parts_over_real_tokens():
    inner = Weighted(models={"a": PerToken(), "b": PerToken(value=2.0)}, weights={"a": 1.0, "b": 1.0})
    answer = Weighted(models={"in": inner}, weights={"in": 2.0}).build(ENGINE, TOKENIZER)(rollout(["x", "y"]))
    assert answer.total.tolist() == [[6.0, 6.0], [6.0, 6.0]]
    parts = {name: part.tolist() for name, part in answer.parts.items()}
    assert parts == {"in": [3.0, 6.0], "in/a": [1.0, 2.0], "in/b": [2.0, 4.0]}  # rows of 1 and 2 tokens


def test_weighted_refuses_what_does_not_match():
    length = FunctionReward(function="my_rewards.length")
    with pytest.raises(ValueError, match="b is in weights but not in models"):
        Weighted(models={"a": length}, weights={"a": 1.0, "b": 1.0})
    with pytest.raises(ValueError, match="a is in models but not in weights"):
        Weighted(models={"a": length}, weights={})
    with pytest.raises(ValueError, match="models: there is none"):
        Weighted(models={}, weights={})
    mixed = Weighted(models={"a": length, "b": PerToken()}, weights={"a": 1.0, "b": 1.0}).build(ENGINE, TOKENIZER)
    with pytest.raises(ValueError, match="per response and per token cannot be added"):
        mixed(rollout(["x", "y"]))
    assert issubclass(rewards.ScalarScorer, Scorer)
