"""Ready-made judges for ``FunctionReward``: what a policy was not trained on should agree that it got better."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from rlhf.errors import UserError


@functools.cache
def _polarity() -> Callable[[str], dict[str, float]]:
    try:
        from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer
    except ImportError:
        raise UserError("vader: vaderSentiment is not installed; pip install 'rlhf[demo]'") from None
    return SentimentIntensityAnalyzer().polarity_scores


def vader(prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
    """Sentiment of each prompt with its response by a fixed lexicon and a few rules, from −1 to 1.

    Source: Hutto and Gilbert, VADER, ICWSM 2014.
    """
    return [_polarity()(prompt + response)["compound"] for prompt, response in zip(prompts, responses, strict=True)]
