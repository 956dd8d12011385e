"""The ``data:`` block of every algorithm: sources, template, split and limits; and what is prepared from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlhf.data import conversations, forms, split
from rlhf.data.blenders import Proportional
from rlhf.data.cache import AUTO, Cache
from rlhf.data.duplicates import DuplicatePolicy
from rlhf.data.encoding import Encoder, LongPrompts
from rlhf.data.preparation import BLOCK_ROWS, PHASES, TRAIN, Preparation, Prepared, blocks, deal
from rlhf.data.templates import Plain
from rlhf.errors import UserError, telling
from rlhf.interfaces import Blender, Source, Template
from rlhf.types import Form, Phase

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedTokenizerBase


def _shape(template: Template) -> dict[str, Callable[[str], str]]:
    """What a template writes around texts, by column or role; of a chat template that is the tokenizer's own."""
    if not isinstance(template, Plain):
        return {}
    prompt, response = template.prompt_text, template.response_text
    return {"prompt": prompt, "user": prompt, "assistant": response, **dict.fromkeys(forms.RESPONSES, response)}


@dataclass(frozen=True, kw_only=True)
class Data:
    """Data of a stage: where rows come from, which of them, and how they become tokens.

    Args:
        sources: Where rows come from, by names of your choice; blenders and metrics use these names.
        blender: In which order rows of several sources are drawn.
        template: How prompts and responses become token ids.
        templates: Templates of single sources, by their names, in the place of ``template``.
        split: Shares of the phases sft, reward and ppo, such as [2, 4, 4]: each source's distinct prompts are dealt
            out, so that no phase sees another's. None gives every row to every phase.
        phase: Whose share this is; None takes the algorithm's own.
        eval_fraction: Share of the distinct prompts that is held out for evaluation.
        eval_rows: Instead of a share: hold out whole prompts until there are at least this many rows of them.
        eval_sources: Evaluate on all rows of these sources, such as a test file, and hold out none of ``sources``.
        max_tokens: Most tokens of prompt and response together. A longer response is cut (and has no end token then),
            a longer text is cut into pieces.
        max_prompt_tokens: Most tokens of a prompt; None lets it fill ``max_tokens`` but for one token of the response.
        long_prompts: What happens to a longer prompt: ``drop`` the row, or cut the prompt and ``keep_end`` or
            ``keep_start``. All are counted.
        duplicates: Rows of equal prompt and response, but for case, white space and Unicode variants: ``keep`` them,
            ``report`` how many there are, or ``drop`` all but the first. ``eval_sources`` count as first, and a row
            of another phase counts too.
        near_duplicates: Reports rows that are nearly the same: least share of five-word sequences that two rows have
            in common, such as 0.8. None looks for none.
    """

    sources: dict[str, Source]
    blender: Blender = Proportional()
    template: Template = Plain()
    templates: dict[str, Template] = field(default_factory=dict)
    split: list[float] | None = None
    phase: Phase | None = None
    eval_fraction: float = 0.05
    eval_rows: int | None = None
    eval_sources: dict[str, Source] = field(default_factory=dict)
    max_tokens: int = 512
    max_prompt_tokens: int | None = None
    long_prompts: LongPrompts = "drop"
    duplicates: DuplicatePolicy = "keep"
    near_duplicates: float | None = None

    def __post_init__(self) -> None:
        if not self.sources:
            raise UserError("sources: none; name at least one source")
        if unknown := sorted(set(self.templates) - {*self.sources, *self.eval_sources}):
            known = ", ".join({**self.sources, **self.eval_sources})
            raise UserError(f"templates.{unknown[0]}: no source has this name; known: {known}")
        with telling("blender"):
            self.blender.check_sources(self.sources)
        if self.split is not None:
            if len(self.split) != len(PHASES):
                raise UserError(f"split: {self.split}; give one share for each of {', '.join(PHASES)}")
            split.check(self.split)
        if not 0 <= self.eval_fraction < 1:
            raise UserError(f"eval_fraction: {self.eval_fraction}; must be at least 0 and below 1")
        if self.eval_rows is not None and self.eval_rows < 0:
            raise UserError(f"eval_rows: {self.eval_rows}; must not be negative")
        if self.eval_rows and self.eval_sources:
            raise UserError(f"eval_rows: {self.eval_rows}, but eval_sources are evaluated on whole; leave one out")
        if self.max_tokens < 3:
            raise UserError(f"max_tokens: {self.max_tokens}; must be at least 3")
        if self.max_prompt_tokens is not None and self.max_prompt_tokens < 1:
            raise UserError(f"max_prompt_tokens: {self.max_prompt_tokens}; must be at least 1")
        if self.near_duplicates is not None and not 0 < self.near_duplicates <= 1:
            raise UserError(f"near_duplicates: {self.near_duplicates}; must be above 0 and at most 1")

    @property
    def holds_out(self) -> bool:
        """Whether the settings keep any row for evaluation."""
        share = self.eval_fraction if self.eval_rows is None else self.eval_rows
        return bool(self.eval_sources) or share > 0

    def template_of(self, source: str) -> Template:
        """The template of a source's rows."""
        return self.templates.get(source, self.template)

    def end_ids(self, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """The ids that end a response to a prompt of any source, each once."""
        return list(dict.fromkeys(self.template_of(source).end_id(tokenizer) for source in self.sources))

    def corpus(self, phase: Phase) -> Iterator[str]:
        """All texts of the phase's training rows, for training a tokenizer: nothing held out is among them."""
        loaded = {}
        for name, source in self.sources.items():
            with telling(f"data.sources.{name}"):
                loaded[name] = source.load()
        places = deal(self, loaded, self.phase or phase)
        for source, dataset in loaded.items():
            shape = _shape(self.template_of(source))
            rows: np.ndarray = (places[source] == TRAIN).nonzero()[0]
            for name in (name for name in dataset.column_names if name in forms.TEXTS):
                column = dataset.select_columns([name])
                for block in blocks(len(rows), BLOCK_ROWS):
                    for value in column.select(rows[block.start : block.stop])[:][name]:
                        for role, text in conversations.contents(value, f"sources.{source}: {name}"):
                            yield shape.get(role or name, str)(text)

    def prepare(
        self, tokenizer: PreTrainedTokenizerBase, *, form: Form, phase: Phase, cache_dir: str | None = AUTO
    ) -> Prepared:
        """Reads, splits and tokenises the rows, or finds that this has been done before.

        Args:
            tokenizer: The policy's.
            form: What the algorithm learns from.
            phase: The algorithm's own phase, used unless ``phase`` is set here.
            cache_dir: Where the examples are kept, see :class:`rlhf.Experiment`.

        Raises:
            UserError: a source cannot be read or cannot give the form, or no row of one is left to train on.
        """
        start = time.perf_counter()
        cache = Cache.at(cache_dir)
        with cache.scratch():
            work = Preparation(self, tokenizer, form, self.phase or phase)
            with cache.folder(work.key() if cache.root else "", work.build) as entry:
                return work.open(entry, time.perf_counter() - start)

    def encoder(self, source: str, tokenizer: PreTrainedTokenizerBase, form: Form) -> Encoder:
        """What turns a source's rows into examples."""
        return Encoder(
            self.template_of(source),
            tokenizer,
            form=form,
            source=source,
            max_tokens=self.max_tokens,
            max_prompt_tokens=self.max_prompt_tokens,
            long_prompts=self.long_prompts,
        )
