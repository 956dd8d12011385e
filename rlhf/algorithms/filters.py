"""Which of the sampled responses an iteration learns from."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rlhf.algorithms.functional.filters import best_of_group, spread_of_group
from rlhf.errors import require
from rlhf.interfaces import RolloutFilter


@dataclass(frozen=True, kw_only=True)
class InformativeGroups(RolloutFilter):
    """Dynamic sampling: groups whose responses all score the same teach nothing, and others are drawn in their place.

    Keep a group where max s − min s > tolerance.   Source: arXiv:2503.14476, eq. 11.

    Prompts are drawn up to ``max_attempts`` times in an iteration. What is missing then stays missing: an iteration
    learns from fewer responses (``rollout/kept_fraction``), and where nothing was kept, its advantages are all 0.

    Args:
        tolerance: Scores that differ by no more count as the same, in units of the (normalised) score.
        max_attempts: How often a batch of prompts is drawn at most.
    """

    tolerance: float = 1e-6
    max_attempts: int = 4

    def __post_init__(self) -> None:
        require(at_least=0, tolerance=self.tolerance)
        require(at_least=1, max_attempts=self.max_attempts)

    def attempts(self) -> int:
        return self.max_attempts

    def check(self, group: int) -> str | None:
        return None if group > 1 else "a single response always scores the same as its group; set at least 2"

    def __call__(self, scores: Tensor, groups: Tensor) -> Tensor:
        return spread_of_group(scores, groups) > self.tolerance


@dataclass(frozen=True, kw_only=True)
class BestOfGroup(RolloutFilter):
    """Rejection sampling: only the responses of highest score to each prompt are learnt from.

    Source: arXiv:2112.09332 (best of n); arXiv:2304.06767, algorithm 1 (RAFT).

    Args:
        keep: How many of each group.
    """

    keep: int = 1

    def __post_init__(self) -> None:
        require(at_least=1, keep=self.keep)

    def kept(self, responses: int, group: int) -> int:
        return responses // group * self.keep

    def check(self, group: int) -> str | None:
        if group > self.keep:
            return None
        return f"the best {self.keep} of {group} are all of them; set more than {self.keep}"

    def __call__(self, scores: Tensor, groups: Tensor) -> Tensor:
        return best_of_group(scores, groups, keep=self.keep)


@dataclass(frozen=True, kw_only=True)
class ScoresAbove(RolloutFilter):
    """Only responses above a score are learnt from: a filter by a verifier, or by a reward model's opinion.

    Source: arXiv:2308.08998, the filtering step of ReST.

    Args:
        threshold: In units of the (normalised) score.
        max_attempts: How often a batch of prompts is drawn at most, to fill an iteration.
    """

    threshold: float = 0.0
    max_attempts: int = 4

    def __post_init__(self) -> None:
        require(at_least=1, max_attempts=self.max_attempts)

    def attempts(self) -> int:
        return self.max_attempts

    def __call__(self, scores: Tensor, groups: Tensor) -> Tensor:
        return scores > self.threshold
