from typing import Any, cast

import numpy as np
import pytest
import torch
from tiny_models import ForwardEngine, rollout

from rlhf.models.rewards import FunctionReward
from rlhf.types import Scores

ANSWER = 42


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
    import sys

    monkeypatch.setitem(sys.modules, "my_rewards", sys.modules[__name__])


def score(function: str, texts: list[str], given: dict[str, Any] | None = None, **arguments) -> Scores:
    scorer = FunctionReward(function=f"my_rewards.{function}", arguments=arguments).build(
        ForwardEngine(), cast(Any, None)
    )
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
    ("my_rewards.ANSWER", {}, "give something that can be called"),
    ("my_rewards.columns", {"scael": 2.0}, "takes no argument scael; did you mean scale?"),
    ("my_rewards.test_a_function_scores_texts", {}, "takes no argument prompts; it takes none"),
])  # fmt: skip
def test_functions_that_cannot_be_called_are_refused_when_built(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        FunctionReward(function=function, arguments=arguments).build(ForwardEngine(), cast(Any, None))
