"""VADER as a judge: signs and order by common sense, one value of its paper's rules by hand."""

import sys

import pytest

from rlhf.models import judges
from rlhf.models.judges import vader
from rlhf.models.rewards import FunctionReward


def test_prompt_and_response_are_judged_as_one_text() -> None:
    pytest.importorskip("vaderSentiment")
    # lexicon: good 1.9; compound = s / √(s² + 15) = 1.9 / √18.61 = 0.4404; "not" before it: s · −0.74 = −1.406
    assert vader(prompts=["It is", "It is not"], responses=[" good", " good"]) == [0.4404, -0.3412]
    assert vader(prompts=["A table"], responses=[""]) == [0.0]


def test_one_score_per_response_or_an_error() -> None:
    pytest.importorskip("vaderSentiment")
    with pytest.raises(ValueError, match="shorter"):
        vader(prompts=["a", "b"], responses=["c"])


def test_it_serves_as_a_function_reward() -> None:
    scorer = FunctionReward(function="rlhf.models.judges.vader").build(None, None)  # pyright: ignore
    assert scorer.function.required == {"prompts", "responses"}


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch) -> None:
    judges._polarity.cache_clear()
    monkeypatch.setitem(sys.modules, "vaderSentiment.vaderSentiment", None)
    with pytest.raises(ValueError, match=r"vaderSentiment is not installed; pip install 'rlhf\[demo\]'"):
        vader(prompts=["a"], responses=["b"])
