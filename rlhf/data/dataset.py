"""The ``data:`` block of every algorithm: sources, template, split and limits; and what is prepared from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from rlhf.data import conversations, forms, split
from rlhf.data.blenders import Proportional
from rlhf.data.encoding import Encoder, LongPrompts
from rlhf.data.examples import Example, Examples
from rlhf.data.templates import Plain
from rlhf.errors import UserError
from rlhf.interfaces import Blender, Source, Template
from rlhf.types import Form, Phase

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

PHASES: tuple[Phase, ...] = get_args(Phase)


class _Part(NamedTuple):
    """What one source gives to a phase: its rows, and which of them train and which are held out."""

    dataset: datasets.Dataset
    train: list[int]
    heldout: list[int]


@dataclass(frozen=True)
class Prepared:
    """Tokenised data of one stage.

    Attributes:
        train: What is learned from.
        heldout: What is evaluated on: other prompts, or the evaluation's own sources.
        drops: Examples dropped from both, by ``"source/reason"``; reasons in ``rlhf.data.encoding`` and ``forms``.
        notes: Examples kept but cut or empty, by ``"source/reason"``.
        remarks: What the sources say of themselves, by source.
    """

    train: Examples[Any]
    heldout: Examples[Any]
    drops: Mapping[str, int]
    notes: Mapping[str, int]
    remarks: Mapping[str, str]

    @property
    def rows_dropped(self) -> int:
        """All drops together: the metric ``data/rows_dropped``."""
        return sum(self.drops.values())

    def describe(self) -> list[str]:
        """A line per source for the log, and one where nothing is held out."""
        lines = []
        trained, held = self.train.sizes, self.heldout.sizes
        for name in dict.fromkeys([*trained, *held]):
            line = f"{name}: {trained.get(name, 0)} for training, {held.get(name, 0)} held out"
            for verb, counts in (("dropped", self.drops), ("kept but cut or empty", self.notes)):
                own = [(key.removeprefix(f"{name}/"), n) for key, n in counts.items() if key.rpartition("/")[0] == name]
                if own:
                    line += f"; {sum(n for _, n in own)} {verb} ({', '.join(f'{reason} {n}' for reason, n in own)})"
            lines.append(f"{line}; {self.remarks[name]}" if self.remarks.get(name) else line)
        if not len(self.heldout):
            lines.append("nothing is held out: there will be no evaluation on unseen prompts")
        return lines


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

    def __post_init__(self) -> None:
        if not self.sources:
            raise UserError("sources: none; name at least one source")
        if unknown := sorted(set(self.templates) - {*self.sources, *self.eval_sources}):
            known = ", ".join({**self.sources, **self.eval_sources})
            raise UserError(f"templates.{unknown[0]}: no source has this name; known: {known}")
        if self.split is not None:
            if len(self.split) != len(PHASES):
                raise UserError(f"split: {self.split}; give one share for each of {', '.join(PHASES)}")
            split.assign([], self.split)
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

    def template_of(self, source: str) -> Template:
        """The template of a source's rows."""
        return self.templates.get(source, self.template)

    def end_ids(self, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """The ids that end a response to a prompt of any source, each once."""
        return list(dict.fromkeys(self.template_of(source).end_id(tokenizer) for source in self.sources))

    def corpus(self, phase: Phase) -> Iterator[str]:
        """All texts of the phase's training rows, for training a tokenizer: nothing held out is among them."""
        for source, part in self._parts(phase).items():
            template = self.template_of(source)
            shape: dict[str, Callable[[str], str]] = {}
            if isinstance(template, Plain):  # what a chat template writes around the texts is the tokenizer's own
                sides = {"user": template.prompt_text, "assistant": template.response_text}
                columns = {"prompt": template.prompt_text, **dict.fromkeys(forms.RESPONSES, template.response_text)}
                shape = {**sides, **columns}
            rows = part.dataset.select(part.train)
            for name in (name for name in rows.column_names if name in forms.TEXTS):
                for value in rows[name][:]:
                    for role, text in conversations.contents(value, f"sources.{source}: {name}"):
                        yield shape.get(role or name, str)(text)

    def prepare(self, tokenizer: PreTrainedTokenizerBase, *, form: Form, phase: Phase) -> Prepared:
        """Reads, splits and tokenises the rows.

        Args:
            tokenizer: The policy's.
            form: What the algorithm learns from.
            phase: The algorithm's own phase, used unless ``phase`` is set here.

        Raises:
            UserError: a source cannot be read or cannot give the form, or no row of one is left to train on.
        """
        train: dict[str, list[Example]] = {}
        heldout: dict[str, list[Example]] = {}
        drops: Counter[str] = Counter()
        notes: Counter[str] = Counter()

        def examples(name: str, where: str, dataset: datasets.Dataset, *parts: Sequence[int]) -> list[list[Example]]:
            """The examples of several parts of a source; the first must not be empty."""
            encoder = self._encoder(name, tokenizer, form)
            made = [
                [e for row in forms.records(dataset, rows, form, encoder.drops, where) for e in encoder(row)]
                for rows in parts
            ]
            if not made[0]:
                reasons = ", ".join(f"{reason} {count}" for reason, count in encoder.drops.items()) or "it gets none"
                raise UserError(
                    f"{where}: of its {len(parts[0])} {'rows' if len(parts) == 1 else 'training rows'} none is left "
                    f"({reasons}); see max_tokens, max_prompt_tokens, long_prompts and split, or leave the source out"
                )
            drops.update({f"{name}/{reason}": count for reason, count in encoder.drops.items()})
            notes.update({f"{name}/{reason}": count for reason, count in encoder.notes.items()})
            return made

        for name, part in self._parts(phase).items():
            train[name], held = examples(name, f"sources.{name}", part.dataset, part.train, part.heldout)
            if not self.eval_sources:
                heldout[name] = held
        for name, source in self.eval_sources.items():
            dataset = source.load()
            (heldout[name],) = examples(name, f"eval_sources.{name}", dataset, range(len(dataset)))
        remarks = {name: source.remark() for name, source in {**self.sources, **self.eval_sources}.items()}
        return Prepared(Examples(train), Examples(heldout), dict(drops), dict(notes), remarks)

    def _encoder(self, source: str, tokenizer: PreTrainedTokenizerBase, form: Form) -> Encoder:
        return Encoder(
            self.template_of(source),
            tokenizer,
            form=form,
            source=source,
            max_tokens=self.max_tokens,
            max_prompt_tokens=self.max_prompt_tokens,
            long_prompts=self.long_prompts,
        )

    def _parts(self, phase: Phase) -> dict[str, _Part]:
        """The phase's rows of every source.

        The split is made per source, so a source is dealt out alike in every stage whatever stands beside it; held-out
        prompts are chosen over all sources together, so none of them is trained on by way of another source.
        """
        number = PHASES.index(self.phase or phase)
        loaded = {name: source.load() for name, source in self.sources.items()}
        keys: dict[str, np.ndarray] = {}
        rows: dict[str, np.ndarray] = {}
        for name, dataset in loaded.items():
            texts = forms.keys(dataset, f"sources.{name}")
            mine = np.ones(len(texts), dtype=bool) if self.split is None else split.assign(texts, self.split) == number
            rows[name] = np.flatnonzero(mine)
            keys[name] = np.array(texts, dtype=object)[rows[name]]
        everything = [text for texts in keys.values() for text in texts]
        rows_held = 0 if self.eval_sources else self.eval_rows
        held = split.holdout(everything, fraction=self.eval_fraction, rows=rows_held)
        ends = np.cumsum([len(texts) for texts in keys.values()])[:-1]
        return {
            name: _Part(dataset, rows[name][~mask].tolist(), rows[name][mask].tolist())
            for (name, dataset), mask in zip(loaded.items(), np.split(held, ends), strict=True)
        }
