"""Scores per step."""

import sys
from dataclasses import replace
from typing import cast

import pytest
import torch
from tiny_models import ForwardEngine, language_model

from rlhf.interfaces import LanguageModel
from rlhf.models.heads import Linear
from rlhf.models.rewards import ScalarReward, StepFunctionReward, StepScalarReward
from rlhf.models.storage import save_value_model, value_model_from
from rlhf.models.tokenizer import train_bpe
from rlhf.types import Prompts, Rollout, Sequences

TOKENIZER = train_bpe(["one\ntwo three\n"] * 4, 264)
END = cast(int, TOKENIZER.eos_token_id)
ENGINE = ForwardEngine()


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setitem(sys.modules, "my_steps", sys.modules[__name__])


def rollout(texts: list[str], *, left: int = 0, right: int = 0) -> Rollout:
    """Responses that ended, to prompts of two tokens, between pads."""
    rows = [[*TOKENIZER.encode(text), END] for text in texts]
    width = max(map(len, rows)) + right
    mask = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows])
    ids = torch.tensor([[0] * left + [5, 6] + row + [0] * (width - len(row)) for row in rows])
    before = torch.tensor([[False] * left + [True] * 2] * len(rows))
    sequences = Sequences(ids, torch.cat([before, mask], 1), 2 + left)
    prompts = Prompts([[5, 6]] * len(rows), ["p"] * len(rows), ["s"] * len(rows), {"bonus": [10.0] * len(rows)})
    zeros, ones = torch.zeros(mask.shape), torch.ones(len(rows), dtype=torch.bool)
    return Rollout(prompts, sequences, mask, zeros, zeros, ones, torch.arange(len(rows)), texts)


# --------------------------------------------------------------------------------------------------- StepFunctionReward


def lengths(prompts, steps, bonus, scale=1.0):
    return [[scale * len(step) + b for step in row] for row, b in zip(steps, bonus, strict=True)]


def fixed(prompts, steps, answer):
    return answer


def at(total: torch.Tensor, row: int) -> dict[int, float]:
    return {int(column): float(total[row, column]) for column in total[row].nonzero().flatten()}


def column(text: str) -> int:
    """The column in which a text's last token stands."""
    return len(TOKENIZER.encode(text)) - 1


def test_each_step_has_its_score_on_its_last_token():
    texts = ["one\ntwo three\nx", "", "one\n"]
    scorer = StepFunctionReward(function="my_steps.lengths", arguments={"scale": 2.0}).build(ENGINE, TOKENIZER)
    found = scorer(rollout(texts))
    assert found.total.shape == rollout(texts).mask.shape
    one, two, end = column("one\n"), column("one\ntwo three\n"), column(texts[0]) + 1
    assert at(found.total, 0) == {one: 16.0, two: 28.0, end: 12.0}
    assert at(found.total, 1) == {0: 10.0} and at(found.total, 2) == {column("one\n") + 1: 16.0}
    assert found.parts["steps"].tolist() == [3.0, 1.0, 1.0]
    padded = scorer(rollout(texts, left=3, right=2)).total  # pads on either side move nothing
    assert torch.equal(padded[:, : found.total.shape[1]], found.total) and padded[:, -2:].eq(0).all()


def test_masks_with_holes_are_stepped_over():
    base = rollout(["one\ntwo"])
    plain = StepFunctionReward(function="my_steps.lengths").build(ENGINE, TOKENIZER)
    ends = sorted(at(plain(base).total, 0))
    hole = ends[0]  # a column between the first step's tokens, as of a tool's output
    mask = torch.ones(1, base.mask.shape[1] + 1, dtype=torch.bool)
    mask[0, hole] = False
    ids = base.sequences.ids
    wide = torch.cat([ids[:, : 2 + hole], torch.tensor([[9]]), ids[:, 2 + hole :]], 1)
    sequences = Sequences(wide, torch.ones_like(wide, dtype=torch.bool), 2)
    assert sorted(at(plain(replace(base, sequences=sequences, mask=mask)).total, 0)) == [end + 1 for end in ends]


@pytest.mark.parametrize(("answer", "message"), [
    ([[1.0]], "my_steps.fixed answered 1 scores for 2 steps"), ([1.0], "answered 1.0; it must be 2 numbers"),
    ([], r"answered \[\]; it must be a list of numbers for each of 1"), (3, "answered 3; it must be a list"),
    ([[1.0, float("nan")]], "answered nan, no finite number, for 'two'"),
])  # fmt: skip
def test_wrong_answers_name_the_step(answer, message):
    scorer = StepFunctionReward(function="my_steps.fixed", arguments={"answer": answer}).build(ENGINE, TOKENIZER)
    with pytest.raises(ValueError, match=message):
        scorer(rollout(["one\ntwo"]))


@pytest.mark.parametrize(("settings", "message"), [
    ({"function": "f"}, "'f' is no import path"), ({"function": "a.f", "separator": ""}, "separator: it is empty"),
    ({"function": "a.f", "arguments": {"steps": 1}}, "steps is given by the rollout"),
])  # fmt: skip
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ValueError, match=message):
        StepFunctionReward(**settings)


def test_a_function_that_takes_no_steps_is_known_before_anything_runs():
    with pytest.raises(ValueError, match=r"my_steps\.column takes no argument prompts"):
        StepFunctionReward(function="my_steps.column").check_inputs()


# ----------------------------------------------------------------------------------------------------- StepScalarReward


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    lm = language_model("gpt2")
    lm.resize_token_embeddings(len(TOKENIZER), mean_resizing=False)
    model = value_model_from(LanguageModel(lm, TOKENIZER), Linear(init_std=1.0), 3)
    model.set_normalisation(0.5, 2.0)
    path = tmp_path_factory.mktemp("reward") / "model"
    save_value_model(path, model, TOKENIZER, Linear(init_std=1.0))
    return str(path)


def score_of(path: str, texts: list[str]) -> torch.Tensor:
    """What the reward model says of responses that stop there, without an end token."""
    rows = [rollout([text]) for text in texts]
    scorer = ScalarReward(path=path).build(ENGINE, TOKENIZER)
    scores = []
    for row in rows:
        ids, real = row.sequences.ids[:, :-1], row.sequences.attention_mask[:, :-1]
        cut = replace(row, sequences=Sequences(ids, real, 2), mask=row.mask[:, :-1])
        scores.append(scorer(cut).total)
    return torch.cat(scores)


def test_the_model_is_read_at_the_end_of_each_step(trained):
    texts = ["one\ntwo three\nx", "two", "one\ntwo"]  # more rows than the engine takes at once
    rows = rollout(texts, left=1, right=1)
    scores = StepScalarReward(path=trained, gains=False).build(ENGINE, TOKENIZER)(rows).total
    gains = StepScalarReward(path=trained).build(ENGINE, TOKENIZER)(rows).total
    whole = ScalarReward(path=trained).build(ENGINE, TOKENIZER)(rollout(texts)).total
    for row, prefixes in enumerate([["one\n", "one\ntwo three\n"], [], ["one\n"]]):
        expected = [*(score_of(trained, prefixes).tolist() if prefixes else []), float(whole[row])]
        found = at(scores, row)
        assert sorted(found) == [*map(column, prefixes), column(texts[row]) + 1]
        assert [found[end] for end in sorted(found)] == pytest.approx(expected, abs=1e-5)
        differences = [b - a for a, b in zip([0.0, *expected], expected, strict=False)]
        assert [at(gains, row)[end] for end in sorted(found)] == pytest.approx(differences, abs=1e-5)
    torch.testing.assert_close(gains.sum(1), whole, atol=1e-5, rtol=0)  # gains sum to what ScalarReward says


def test_a_path_and_a_separator_must_be_there():
    with pytest.raises(ValueError, match="path: it is empty"):
        StepScalarReward(path="")
    with pytest.raises(ValueError, match="separator: it is empty"):
        StepScalarReward(path="x", separator="")


def test_an_argument_that_is_nowhere_is_named():
    with pytest.raises(ValueError, match="needs answer, which is neither in arguments nor a column"):
        StepFunctionReward(function="my_steps.fixed").build(ENGINE, TOKENIZER)(rollout(["x"]))
