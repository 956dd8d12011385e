"""What to look at: rules that go over a stage's figures and answers and say, with the number, what is odd.

A rule names a symptom, not its cause. The bounds are those at which people have found such runs worth a look; they are
listed in ``docs/after-a-run.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from rlhf.report import paid, samples
from rlhf.report.runs import StageRecord
from rlhf.report.trends import Ends, deviation, either, gain, late, number, peak, score_name, score_text, trend

RISE = 0.25
"""A score has risen, or fallen, by this many deviations of the first evaluation's scores."""
ALIKE = 0.75
"""distinct-2 below this share of its start."""
REPEATED = 0.2
"""Share of a text's word pairs that it has had before: more than this above the start."""
ONE_WORD = 0.15
"""One word is this share of all words, and three times as frequent as at the start."""
SHORTER = 0.5
KL = 20.0
"""Nats per response."""
CUT = 0.3
"""Share of responses cut by the length limit."""
ENTROPY = 0.3
"""Share of the entropy at the start."""
RATIO = 10.0
CLIPPED = 0.4
GAP = 0.1
"""Nats per token between trainer and sampler."""
DROPPED = 0.1
"""Share of a source's rows."""
OVERFIT = 1.05
"""Held-out loss at the end over its least."""
GUESSING = 0.6
"""Accuracy of a reward model."""


PAID = "what the score goes with"
ANSWERS = "the answers"
"""Places of the page that show a finding, where no curve does."""


class Finding(NamedTuple):
    """Something odd.

    Attributes:
        title: What it is.
        text: The numbers, and what they may mean.
        figure: Name of a figure whose curve shows it, or another place of the page; "" where none does.
        grave: Whether the result should not be used before it is understood.
    """

    title: str
    text: str
    figure: str = ""
    grave: bool = True


# ---------------------------------------------------------------------------------------------------- rules: answers


def over_optimised(stage: StageRecord) -> Iterator[Finding]:
    """The score rises, and a judge that is not trained on falls from its best."""
    if not _rises(stage):
        return
    for name in stage.names:
        if not (name.startswith("eval/") and name.endswith("_score")) or name.startswith("eval/ema/"):
            continue
        ends, best = trend(stage, name), peak(stage, name)
        if ends is None or best is None or (best[0] - ends.last) / deviation(stage, name) <= RISE:
            continue
        judge = name.removeprefix("eval/").removesuffix("_score")
        text = (
            f"{score_text(stage)}; the judge “{judge}”, which is not trained on, falls from {number(best[0])} at "
            f"{best[1]} to {number(ends.last)}. The policy learns the reward, not what it stands for."
        )
        yield Finding(f"The score rises while “{judge}” falls", text, name)


def said_to_be_paid(stage: StageRecord) -> list[paid.Trait]:
    """What the score pays for, from the clearest; nothing where the score has not risen."""
    return paid.paid_for(stage) if _rises(stage) else []


def paid_for(stage: StageRecord) -> Iterator[Finding]:
    """The score goes with repetition, a word, a way of writing or length, and no other judge's does."""
    suspects = said_to_be_paid(stage)
    if not suspects:
        return
    most = suspects[0]
    others = [f"{who} {number(round(r, 2))}" for who, r in most.correlations.items() if who != "score"]
    judges = f" (other judges: {', '.join(others)})" if others else ""
    first, last = (f"{v:.0%}" if most.share else number(round(v, 1)) for v in (most.first, most.last))
    which = f" (“{most.word}” in most of the last ones)" if most.kind == "commonest" else ""
    text = (
        f"Among answers of the same evaluation, those with {'more' if most.own > 0 else 'fewer'} {most.name}{which} "
        f"score higher: rank correlation {number(round(abs(most.own), 2))}{judges}. On average, {most.name}: "
        f"{first} at the start, {last} at the end. {score_text(stage)}."
    )
    if further := {trait.name: trait for trait in suspects[1:]}:
        text += (
            f" Less closely, it goes with {', '.join(f'{n} ({number(round(t.own, 2))})' for n, t in further.items())}."
        )
    yield Finding(f"The score pays for {_what_is_paid(most)}", text, PAID)


def _rises(stage: StageRecord) -> bool:
    return bool(score_name(stage)) and (gain(stage, score_name(stage)) or 0.0) > RISE


def _what_is_paid(trait: paid.Trait) -> str:
    if trait.kind == "length":
        return "length" if trait.own > 0 else "short answers"
    if trait.kind == "commonest":
        return f"saying one word over and over: “{trait.word}”"
    return {"repetition": "repetition", "word": f"the word “{trait.word}”"}.get(trait.kind, trait.name)


def alike(stage: StageRecord) -> Iterator[Finding]:
    """Fewer and fewer of the token pairs in all answers are different."""
    ends = trend(stage, "eval/distinct_2")
    if ends is None or ends.first <= 0 or ends.last >= ALIKE * ends.first:
        return
    rises = _rises(stage)
    title = "The score rises while the answers become alike" if rises else "The answers become alike"
    what = f"{score_text(stage)} while distinct-2" if rises else "Distinct-2"
    text = (
        f"{what} falls from {ends.first:.0%} to {ends.last:.0%}, which is the share of different ones among all token "
        "pairs in the answers to the held-out prompts: answers repeat themselves, or each other."
    )
    yield Finding(title, text, "eval/distinct_2")


def repetitive(stage: StageRecord) -> Iterator[Finding]:
    """Answers repeat themselves, or one word."""
    found = samples.evaluations(stage)
    if len(found) < 2:
        return
    numbers = list(found)
    first, last = ([str(row["response"]) for row in found[number]] for number in (numbers[0], numbers[-1]))
    before, after = samples.repetition(first), samples.repetition(last)
    if after - before > REPEATED:
        text = (
            f"At iteration {numbers[-1]}, {after:.0%} of an answer's word pairs are repeated; at iteration "
            f"{numbers[0]}, {before:.0%}."
        )
        yield Finding("The answers repeat themselves", text, ANSWERS)
    word, share = samples.commonest(last)
    earlier = samples.share_of(word, first)
    if share > ONE_WORD and share > 3 * earlier:
        text = (
            f"At iteration {numbers[-1]}, “{word}” is {share:.0%} of all words in the answers; at iteration "
            f"{numbers[0]}, it was {earlier:.1%}. {score_text(stage) or 'The score is not known'}."
        )
        yield Finding(f"One word takes over: “{word}”", text, ANSWERS)


def lengths(stage: StageRecord) -> Iterator[Finding]:
    """Answers become much longer or shorter, or do not end."""
    name = either(stage, "eval/length", "rollout/length")
    ends = trend(stage, name) if name else None
    if ends is not None and ends.first > 0 and not SHORTER < ends.last / ends.first < paid.LONGER:
        title = "The answers grow" if ends.last > ends.first else "The answers shrink"
        text = f"From {number(ends.first)} to {number(ends.last)} tokens. {score_text(stage)}".rstrip() + "."
        yield Finding(title, text.replace("..", "."), name)
    name = either(stage, "eval/truncated_fraction", "rollout/truncated_fraction")
    ends = trend(stage, name) if name else None
    if ends is not None and ends.last > CUT:
        text = f"{ends.last:.0%} of the responses are cut at the end of training, {ends.first:.0%} at its start. "
        yield Finding("Many answers are cut by the length limit", text + _about_the_limit(stage, ends), name)


def _about_the_limit(stage: StageRecord, cut: Ends) -> str:
    """What to do about answers that are cut: more room is no help where it is paid to fill it."""
    if longer := paid.longer_is_paid(stage):
        by = ", ".join(f"{trait.name} {number(round(trait.own, 2))}" for trait in longer[:2])
        return (
            f"Longer answers are paid more (the score goes with: {by}), so a higher sampling.max_new_tokens would be "
            f"filled as well. Mend the reward, or {_more_penalty(stage)}."
        )
    if cut.first < cut.last / 2:
        return (
            "They have grown into the limit during training: see what the longer ones are paid for before you raise "
            f"sampling.max_new_tokens. To take more off those that do not end, {_more_penalty(stage)}."
        )
    return f"Raise sampling.max_new_tokens, or {_more_penalty(stage)}."


def _more_penalty(stage: StageRecord) -> str:
    """What to do to the charge for an answer that does not end."""
    charged = (stage.settings.get("init_args") or {}).get("missing_end_penalty") or 0.0
    return f"raise missing_end_penalty, which is {number(charged)}" if charged else "set missing_end_penalty"


# ----------------------------------------------------------------------------------------------------- rules: policy


def far(stage: StageRecord) -> Iterator[Finding]:
    """The policy is far from the reference."""
    name = either(stage, "kl/sequence", "eval/kl")
    top = peak(stage, name) if name else None
    if top is not None and top[0] > KL:
        ends = trend(stage, name)
        text = f"{number(top[0])} nats per response at most, at {top[1]}"
        text += f"; {number(stage.series(name).values[-1])} at the end. " if ends is not None else ". "
        if any(use.setting.startswith("reward.") for use in stage.uses):
            text += "The reward model has seen little of what the policy writes there."
        else:
            text += "The policy writes there what the reference hardly ever would."
        yield Finding("The policy is far from the reference", text, name)


def certain(stage: StageRecord) -> Iterator[Finding]:
    """The entropy has collapsed."""
    ends = trend(stage, "policy/entropy")
    if ends is not None and ends.first > 0 and ends.last < ENTROPY * ends.first:
        text = f"From {number(ends.first)} to {number(ends.last)} nats per token: the policy hardly explores any more."
        yield Finding("The entropy has collapsed", text, "policy/entropy")


def updates(stage: StageRecord) -> Iterator[Finding]:
    """Steps that are too large, or measured against the wrong log-probabilities."""
    top = peak(stage, "policy/ratio_max")
    if top is not None and top[0] > RATIO:
        text = f"A token became {number(top[0])} times as probable within one update, at {top[1]}: the steps are large."
        yield Finding("Large probability ratios", text, "policy/ratio_max", grave=False)
    share = late(stage, "policy/clip_fraction")
    if share is not None and share > CLIPPED:
        text = f"{share:.0%} of the tokens have no gradient any more, in the last quarter of training."
        yield Finding("Most of the update is clipped", text, "policy/clip_fraction", grave=False)
    top = peak(stage, "rollout/logprob_gap")
    if top is not None and top[0] > GAP:
        text = (
            f"{number(top[0])} nats per token at {top[1]}. The ratios are measured against probabilities that nothing "
            "was drawn from."
        )
        yield Finding("Trainer and sampler disagree", text, "rollout/logprob_gap")


def critic(stage: StageRecord) -> Iterator[Finding]:
    """The critic does harm."""
    share = late(stage, "value/explained_variance")
    if share is not None and share < 0:
        text = f"{number(share)} in the last quarter of training: the returns' mean would predict them better."
        yield Finding("The critic explains less than nothing", text, "value/explained_variance")


def signal(stage: StageRecord) -> Iterator[Finding]:
    """There is nothing to learn from, or nothing is learnt."""
    share = late(stage, "advantage/std")
    if share is not None and share < 1e-3:
        text = f"The advantages' deviation is {number(share)} in the last quarter of training."
        yield Finding("The advantages carry no signal", text, "advantage/std")
    name = score_name(stage)
    rise = gain(stage, name) if name and len(stage.series(name).values) > 2 else None
    if rise is not None and rise < RISE and "policy/entropy" in stage.names:
        yield Finding("The score has not risen", f"{score_text(stage)}.", name, grave=False)


# ------------------------------------------------------------------------------------------------------ rules: data


def learning(stage: StageRecord) -> Iterator[Finding]:
    """A loss that does not fall, or falls on the training rows alone; a reward model that guesses."""
    heldout = stage.series("eval/loss").values
    if len(heldout) > 1 and heldout[-1] > OVERFIT * min(heldout):
        text = f"{number(heldout[-1])} at the end, {number(min(heldout))} at its best: fewer epochs would do better."
        yield Finding("The held-out loss rises again", text, "eval/loss")
    ends = trend(stage, "loss")
    learnt = len(heldout) > 1 and heldout[-1] < 0.99 * heldout[0]  # lessons may begin with the easy ones
    if ends is not None and len(stage.series("loss").values) >= 10 and ends.last > 0.99 * ends.first and not learnt:
        text = f"{number(ends.first)} at the start, {number(ends.last)} at the end."
        yield Finding("The loss does not fall", text, "loss")
    accuracy = stage.series("eval/accuracy").values
    if accuracy and accuracy[-1] < GUESSING:
        text = f"{accuracy[-1]:.1%} of the held-out pairs are ordered rightly; guessing gives 50%."
        yield Finding("The reward model is little better than guessing", text, "eval/accuracy")


def data(stage: StageRecord) -> Iterator[Finding]:
    """Rows that were dropped, and evaluations that are missing."""
    for part in stage.data.values():
        for source, counts in part.items():
            dropped = sum(counts["dropped"].values())
            total = dropped + counts["train"] + counts["heldout"]
            if dropped > DROPPED * total:
                reasons = ", ".join(f"{reason} {count}" for reason, count in counts["dropped"].items())
                text = f"{dropped} of {total} rows ({dropped / total:.0%}) of “{source}” were not used: {reasons}."
                yield Finding("Many rows were dropped", text, grave=False)
    if stage.metrics and not any(name.startswith("eval/") for name in stage.names):
        text = "There are no figures on held-out rows: hold some out, and set evaluation.every in an on-policy stage."
        yield Finding("Nothing was evaluated", text, grave=False)


def numbers(stage: StageRecord) -> Iterator[Finding]:
    """Figures that were not finite."""
    bad = {name: [row for row in stage.metrics if name in row and row[name] is None] for name in stage.names}
    if bad := {name: rows for name, rows in bad.items() if rows}:
        places = [f"{name} in {len(rows)} lines, first at step {rows[0].get('step')}" for name, rows in bad.items()]
        yield Finding("Figures that are no numbers", "; ".join(places[:5]) + ".", grave=False)


def unfinished(stage: StageRecord) -> Iterator[Finding]:
    """A stage that has not ended."""
    if stage.state in ("finished", "not started"):
        return
    last = stage.metrics[-1] if stage.metrics else {}
    where = f"iteration {last['iteration']:g}" if "iteration" in last else f"step {last.get('step', 0):g}"
    its = f"Its figures end at {where}."
    again = "The same command continues it from its newest checkpoint, or begins it anew where there is none."
    if stage.state == "failed":
        yield Finding("The stage ended by an error", f"{stage.ended_by}. {its} {again}".replace("..", "."))
    elif stage.state == "interrupted":
        yield Finding("The stage was interrupted", f"It was asked to stop. {its} {again}")
    else:
        text = f"It is still running, or was killed so that it could leave no word. {its} If it was killed: "
        text += again[0].lower() + again[1:]
        yield Finding("The stage is not finished", text)


RULES: tuple[Callable[[StageRecord], Iterator[Finding]], ...] = (
    unfinished,
    paid_for,
    over_optimised,
    alike,
    repetitive,
    lengths,
    far,
    certain,
    critic,
    signal,
    learning,
    updates,
    numbers,
    data,
)


def findings(stage: StageRecord) -> list[Finding]:
    """All that the rules find in a stage, grave ones first."""
    found = [finding for rule in RULES for finding in rule(stage)]
    return sorted(found, key=lambda finding: not finding.grave)
