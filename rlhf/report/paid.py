"""What a score goes with: whether answers that repeat themselves, or are long, or say a certain word, are paid more.

Everything is measured within one evaluation, among answers of the same policy, and then averaged over the evaluations:
what merely changes during training, as the score does, correlates with nothing here.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from rlhf.report.measures import MEASURES, Kind, Measure, Text, of_word, rank_correlation, risen
from rlhf.report.runs import StageRecord
from rlhf.report.samples import evaluations, judged

LEAST_ANSWERS = 8
"""Fewer in an evaluation correlate by chance."""
GOES_WITH = 0.5
"""Rank correlation of a score with something about the answers, at least twice that of every other judge."""
ALONE = 0.8
"""The same of a word or a way of writing where there is no other judge: to say a good word may well be good."""
CHANCE = 4.0
"""Deviations of a correlation of nothing, by Fisher's transformation: of many words, the luckiest is to stay below."""
MORE = 0.1
"""A share has risen by this much."""
LONGER = 1.5
"""Something has become so many times as much."""
RARE = 0.05
"""A share below it has not grown, however many times."""
CANDIDATES = 8
"""Words that are looked at, of those that rose most."""


class Trait(NamedTuple):
    """Something about answers, and how it goes with what they are paid.

    Attributes:
        kind: What it is about.
        name: What is measured.
        share: Whether it is a share, rather than a number.
        first: Its mean in the first evaluation.
        last: Its mean in the last one.
        correlations: By judge, ``score`` being the reward: rank correlation within an evaluation, mean over the
            evaluations. A judge for whom no evaluation has one is missing.
        chance: Largest correlation with the score that chance may give.
        word: The word it is about, or that most answers of the last evaluation say most; "" for none.
    """

    kind: Kind
    name: str
    share: bool
    first: float
    last: float
    correlations: dict[str, float]
    chance: float
    word: str

    @property
    def own(self) -> float:
        """Its correlation with the score."""
        return self.correlations.get("score", 0.0)

    @property
    def goes_with_the_score(self) -> bool:
        """Whether the score goes with it, up or down, by more than chance."""
        return abs(self.own) > max(GOES_WITH, self.chance)


class _Evaluation(NamedTuple):
    """Answers, what each judge said of them, and whether most of them were cut."""

    texts: list[Text]
    scores: dict[str, list[float]]
    cut: bool


@functools.lru_cache(maxsize=16)
def traits(stage: StageRecord) -> tuple[Trait, ...]:
    """The traits of a stage's answers, those first that go with the score most.

    None where fewer than two evaluations were kept. What no answer has is left out.
    """
    found = [_evaluation(rows) for rows in evaluations(stage).values() if len(rows) >= LEAST_ANSWERS]
    if len(found) < 2:
        return ()
    about = [
        [_trait(measure, found) for measure in of_word(word)]
        for word in risen(found[0].texts, found[-1].texts, CANDIDATES)
    ]
    # Of the words, the one that rose most and the one that goes with the score most; of equals the first.
    best = max(about, key=lambda pair: max(trait.own for trait in pair), default=[])
    shown = [*best, *(about[0] if about and about[0] is not best else [])]
    shown += [_trait(measure, found) for measure in MEASURES]
    return tuple(sorted((one for one in shown if one.first or one.last), key=lambda one: -round(abs(one.own), 6)))


def paid_for(stage: StageRecord) -> list[Trait]:
    """What the score seems to pay for: it goes with it, no other judge's does as much, and there is more of it.

    From the clearest.
    """
    return [trait for trait in traits(stage) if _suspicious(trait)]


def longer_is_paid(stage: StageRecord) -> list[Trait]:
    """The traits by which longer answers are paid more: their length, and what is counted and not divided by it."""
    suspects = paid_for(stage)
    return [
        trait
        for trait in traits(stage)
        if trait.own > 0 and trait.goes_with_the_score and not trait.share
        if trait.kind == "length" or trait in suspects
    ]


def _suspicious(trait: Trait) -> bool:
    others = [r for who, r in trait.correlations.items() if who != "score"]
    if not trait.goes_with_the_score:
        return False
    if trait.own < 0:  # what is paid is less of it, which says something for lengths alone
        shrunk = trait.kind == "length" and trait.first > LONGER * trait.last
        return shrunk and all(r > trait.own / 2 for r in others)
    alone = trait.kind in ("word", "writing") and not others
    return trait.own > (ALONE if alone else GOES_WITH) and _grew(trait) and all(r < trait.own / 2 for r in others)


def _grew(trait: Trait) -> bool:
    times = trait.last > LONGER * trait.first
    return trait.last - trait.first > MORE or (times and trait.last > RARE) if trait.share else times


def _evaluation(rows: Sequence[dict[str, Any]]) -> _Evaluation:
    each = [judged(row) for row in rows]  # of the judges that every row has
    scores = {name: [one[name] for one in each] for name in each[0] if all(name in one for one in each)}
    cut = sum(not row.get("ended", True) for row in rows) > len(rows) / 2
    return _Evaluation([Text.of(str(row["response"])) for row in rows], scores, cut)


def _trait(measure: Measure, found: Sequence[_Evaluation]) -> Trait:
    """A measure among the answers.

    Lengths are compared in evaluations where most answers ended by themselves, if there are any: those that the limit
    cuts are all of one length.
    """
    values = [[measure.of(text) for text in one.texts] for one in found]
    means = [statistics.fmean(some) for some in values]
    pairs = list(zip(values, found, strict=True))
    if measure.kind == "length":
        pairs = [pair for pair in pairs if not pair[1].cut] or pairs
    correlations: dict[str, float] = {}
    chance = 1.0
    for judge in dict.fromkeys(name for _, one in pairs for name in one.scores):
        each = [(rank_correlation(some, one.scores[judge]), len(some)) for some, one in pairs if judge in one.scores]
        known = [(r, count) for r, count in each if r is not None]
        if known:
            correlations[judge] = statistics.fmean(r for r, _ in known)
        if known and judge == "score":
            chance = math.tanh(CHANCE / sum(count - 3 for _, count in known) ** 0.5)
    word = measure.word
    if measure.kind == "commonest":
        word = Counter(text.commonest for text in found[-1].texts).most_common(1)[0][0]
    return Trait(measure.kind, measure.name, measure.share, means[0], means[-1], correlations, chance, word)
