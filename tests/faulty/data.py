"""Templates, blenders, sources and reward models that say one thing here and another there."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from faulty.parts import _COUNT, component, rows
from rlhf.data.templates import Plain
from rlhf.interfaces import Blender, RewardModel, Scorer, Source
from rlhf.types import Scores


@component
class _TwoEnds(Plain):
    """Ends a response twice."""

    def responses(self, texts: Any, tokenizer: Any) -> list[list[int]]:
        return [[*ids, ids[-1]] for ids in super().responses(texts, tokenizer)]


@component
class _OtherInTalk(Plain):
    """Writes a prompt otherwise where it stands in a conversation."""

    def turns(self, conversation: Any, tokenizer: Any) -> Any:
        changed = tuple(message._replace(content=message.content + " ") for message in conversation)
        return super().turns(changed, tokenizer)


@component
class _OtherInMany(Plain):
    """Strips texts only where there are many."""

    def prompts(self, texts: Any, tokenizer: Any) -> list[list[int]]:
        return super().prompts([text.upper() if len(texts) > 1 else text for text in texts], tokenizer)


@component
class _NotBare(Plain):
    """Loses a character of what was said."""

    def bare(self, text: str) -> str:
        return text[:-1]


class _Order(Blender):
    """Rows of source a, in an order of their own."""

    def epoch(self, sizes: Any, *, seed: int, epoch: int) -> np.ndarray:
        order = np.random.default_rng((seed, epoch)).permutation(sizes["a"])
        return np.stack([np.zeros_like(order), order], 1)


@component
class _Unseeded(_Order):
    """Draws by itself."""

    def epoch(self, sizes: Any, *, seed: int, epoch: int) -> np.ndarray:
        return super().epoch(sizes, seed=seed + next(_COUNT), epoch=epoch)


@component
class _OneOrder(_Order):
    """Is the same in every epoch."""

    def epoch(self, sizes: Any, *, seed: int, epoch: int) -> np.ndarray:
        return super().epoch(sizes, seed=seed, epoch=0)


@component
class _BehindTheEnd(_Order):
    """Counts rows from 1."""

    def epoch(self, sizes: Any, *, seed: int, epoch: int) -> np.ndarray:
        return super().epoch(sizes, seed=seed, epoch=epoch) + np.array([[0, 1]])


class _Made(Source):
    """Rows made on the spot."""

    def load(self) -> Any:
        import datasets

        return datasets.Dataset.from_list(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        return list(rows())


@component
class _Formless(_Made):
    """Has columns that nobody knows."""

    def rows(self) -> list[dict[str, Any]]:
        return [{"question": "q", "answer": "a"}]


@component
class _OtherRows(_Made):
    """Makes other rows each time."""

    def rows(self) -> list[dict[str, Any]]:
        return [{"text": f"t{next(_COUNT)}"}]


@component
class _Untold(_Made):
    """Has another fingerprint each time."""

    def fingerprint(self) -> str:
        return str(next(_COUNT))


class _Judge(RewardModel):
    """Scores by some numbers."""

    def build(self, engine: Any, tokenizer: Any) -> Scorer:
        judge = self

        class Live(Scorer):
            def __call__(self, rollout: Any) -> Scores:
                return Scores(judge.score(rollout))

        return Live()

    def score(self, rollout: Any) -> torch.Tensor:
        return torch.tensor([float(len(text)) for text in rollout.text])


@component
class _Ranking(_Judge):
    """Compares the responses with each other."""

    def score(self, rollout: Any) -> torch.Tensor:
        return super().score(rollout) - super().score(rollout).mean()


@component
class _Widening(_Judge):
    """Counts pads."""

    def score(self, rollout: Any) -> torch.Tensor:
        return super().score(rollout) + rollout.mask.shape[1] * 0 + (~rollout.mask).sum(1)


@component
class _Undefined(_Judge):
    """Has no score for a short response."""

    def score(self, rollout: Any) -> torch.Tensor:
        return (super().score(rollout) - 1.5).log()


@component
class _OneScore(_Judge):
    """One score for all."""

    def score(self, rollout: Any) -> torch.Tensor:
        return super().score(rollout).mean()


@component
class _Moody(_Judge):
    """Judges otherwise when it is asked again."""

    def score(self, rollout: Any) -> torch.Tensor:
        return super().score(rollout) + next(_COUNT)


CAUGHT: list[tuple[type, str]] = [
    (_TwoEnds, r"the response 'What is new\?' must end in exactly one 1, it has 2"),
    (_OtherInTalk, r"the prompt 'What is new\?' is \[.*\] alone, and \[.*\] as the only message"),
    (_OtherInMany, r"prompts differs from prompt of 'What is new\?'"),
    (_NotBare, r"bare: the response 'What is new\?' comes back as 'What is new'"),
    (_Unseeded, "the same seed and epoch give two orders"),
    (_OneOrder, "epochs 0 and 1 have the same order"),
    (_BehindTheEnd, r"1 draws are out of range, such as \[\[0, 7\]\] of"),
    (_Formless, "columns: of question, answer no form is made"),
    (_OtherRows, r"loaded twice, its rows differ: row \[0\] of 1 and 1"),
    (_Untold, "its fingerprint is another each time"),
    (_Ranking, "what stands beside a response must change nothing, but '12' alone: number 0 is 0, not"),
    (_Widening, "padding must change nothing, but with 2 more columns the score: number 0 is"),
    (_Undefined, "the score of number 2 is nan, not finite"),
    (_OneScore, r"shape: the score must be a tensor \[4\] of floats, it is \[\]"),
    (_Moody, "asked twice, the score: number 0 is"),
]
