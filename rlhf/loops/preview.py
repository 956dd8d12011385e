"""The first batch of a stage as people read it: which tokens of each row are targets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from rich.console import Console
from rich.text import Text

from rlhf.algorithms.base import Offline
from rlhf.algorithms.ppo import PPO
from rlhf.interfaces import Algorithm
from rlhf.loops.context import StageContext
from rlhf.types import Comparisons, Form, Prompts, Selectable, Unpaired

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARKS = ("⟦", "⟧")
"""Around targets, where there are no colours."""


class Piece(NamedTuple):
    """Neighbouring tokens of one kind."""

    text: str
    target: bool


class Row(NamedTuple):
    """A sequence of a batch.

    Attributes:
        kind: ``chosen``, ``rejected``, ``good`` or ``bad``; nothing where there is one kind only.
        source: Its data source, or those packed into it.
        tokens: How many, pads aside.
        targets: How many of them are targets.
        pieces: What it says.
    """

    kind: str
    source: str
    tokens: int
    targets: int
    pieces: list[Piece]


class Preview(NamedTuple):
    """The first batch of a stage, and the form of its rows."""

    form: Form
    rows: list[Row]


@singledispatch
def preview(algorithm: Algorithm, context: StageContext) -> Preview:
    """The first batch that a stage would learn from, or the first prompts that it would answer.

    A new family of algorithms registers its own: ``@preview.register``.
    """
    raise TypeError(f"no preview is registered for {type(algorithm).__name__}; see rlhf.loops.preview")


@preview.register
def _(algorithm: Offline, context: StageContext) -> Preview:
    from rlhf.loops.offline import OfflineTrainer

    trainer: OfflineTrainer[Any] = OfflineTrainer(algorithm, context)
    return Preview(algorithm.form, list(_batch_rows(trainer.next_batch(), trainer.tokenizer)))


@preview.register
def _(algorithm: PPO, context: StageContext) -> Preview:
    from rlhf.loops.prompts import next_prompts, prompt_stream

    phase = algorithm.data.phase or algorithm.phase
    tokenizer = algorithm.policy.build(lambda: algorithm.data.corpus(phase), seed=context.seed_for("weights")).tokenizer
    data = algorithm.data.prepare(tokenizer, form="prompt", phase=phase, cache_dir=context.cache_dir)
    prompts = next_prompts(algorithm, prompt_stream(algorithm, data, seed=context.seed_for("order")))
    return Preview("prompt", list(_prompt_rows(prompts, tokenizer)))


def needed(algorithm: Algorithm) -> Any:
    """What of an algorithm's settings its preview builds: of PPO the policy, as prompts are not judged yet."""
    return algorithm.policy if isinstance(algorithm, PPO) else algorithm


def _text(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    return cast(str, tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _prompt_rows(prompts: Prompts, tokenizer: PreTrainedTokenizerBase) -> Iterator[Row]:
    for ids, source in zip(prompts.ids, prompts.source, strict=True):
        yield Row("", source, len(ids), 0, [Piece(_text(ids, tokenizer), False)])


def _batch_rows(batch: Selectable, tokenizer: PreTrainedTokenizerBase) -> Iterator[Row]:
    width = batch.sequences.prompt_width
    for number in range(len(batch)):
        real = batch.sequences.attention_mask[number]
        ids = batch.sequences.ids[number][real].tolist()
        targets = [False] * int(real[:width].sum()) + batch.mask[number][real[width:]].tolist()
        runs = itertools.groupby(zip(ids, targets, strict=True), key=lambda token: token[1])
        pieces = [Piece(_text([id for id, _ in run], tokenizer), target) for target, run in runs]
        yield Row(_kind(batch, number), _source(batch, number), len(ids), sum(targets), pieces)


def _kind(batch: Selectable, number: int) -> str:
    if isinstance(batch, Comparisons):
        return ("chosen", "rejected")[number % 2]
    if isinstance(batch, Unpaired):
        return "good" if batch.label[number] else "bad"
    return ""


def _source(batch: Selectable, number: int) -> str:
    if batch.sources is None:
        return "unknown"
    real = batch.sequences.attention_mask[number, batch.sequences.prompt_width :]
    found = batch.sources[number] if batch.sources.ndim == 1 else batch.sources[number][real]
    return " + ".join(batch.source_names[source] for source in found.unique().tolist())


def show(stage: str, found: Preview, console: Console) -> None:
    """Prints a preview, targets in colour in a terminal and between marks elsewhere."""
    before, behind = ("", "") if console.is_terminal else MARKS
    marked = "in colour" if console.is_terminal else f"between {before} and {behind}"
    targets = f"targets {marked}" if any(row.targets for row in found.rows) else "nothing is a target yet"
    title = f"{stage}: the first batch, {len(found.rows)} rows of the form {found.form}, {targets}"
    _line(console, Text(title, "bold"))
    for number, row in enumerate(found.rows, 1):
        kind = f"{row.kind}, " if row.kind else ""
        head = f"--- {stage} row {number}: {kind}source {row.source}, {row.tokens} tokens, {row.targets} targets"
        _line(console, Text(head, "dim"))
        shown = [(f"{before}{text}{behind}", "bold green") if target else (text, "") for text, target in row.pieces]
        _line(console, Text.assemble(*shown))


def _line(console: Console, text: Text) -> None:
    if console.is_terminal:
        console.print(text, soft_wrap=True)
    else:  # as it is: a console would turn tabs into spaces
        console.file.write(f"{text.plain}\n")
