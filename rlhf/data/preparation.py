"""From sources to examples on disk: every row is read, dealt out and tokenised once, a shard at a time.

Memory holds a shard, and of every row 16 bytes of hash and one of where it belongs. A build that is killed goes on
behind its last finished shard. The same settings over the same rows find what is there already (``rlhf.data.cache``).
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from rlhf.data import fingerprint, forms, split
from rlhf.data.cache import Entry
from rlhf.data.duplicates import find_duplicates
from rlhf.data.examples import Example, Examples
from rlhf.data.stored import Shard, Stored, read_note, write_shard
from rlhf.errors import UserError, telling
from rlhf.interfaces import Source
from rlhf.types import Form, Phase

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

    from rlhf.data.dataset import Data

PHASES: tuple[Phase, ...] = get_args(Phase)
ELSEWHERE, TRAIN, HELDOUT = range(3)
"""Where a row belongs: to another phase or nowhere, to training, to evaluation."""
SHARD_BYTES = 8 << 20
"""Bytes of rows in a shard: its tokens, as Python holds them for a moment, take some hundred megabytes."""
MOST_SHARDS = 8192
"""Of one source; beyond them shards grow. Every shard is a memory map, of which a process may have some 65 thousand."""
BLOCK_ROWS = 10_000
"""Rows looked at together where nothing is kept of them."""
TELL_EVERY = 15.0
"""Seconds between two lines on how far a build is."""


class Part(NamedTuple):
    """A source and where its rows belong.

    Attributes:
        dataset: All rows.
        places: [N] uint8, ``ELSEWHERE``, ``TRAIN`` or ``HELDOUT``.
    """

    dataset: datasets.Dataset
    places: np.ndarray


def blocks(size: int, length: int) -> Iterator[range]:
    """The numbers below ``size`` in ranges of a length."""
    return (range(start, min(start + length, size)) for start in range(0, size, length))


def prompt_hashes(dataset: datasets.Dataset, where: str, salt: str) -> np.ndarray:
    """[N, 2] hash of what each row is dealt out by."""
    parts = [
        fingerprint.of_texts(forms.keys(dataset.select(rows), where, rows.start), salt)
        for rows in blocks(len(dataset), BLOCK_ROWS)
    ]
    return np.concatenate([np.zeros((0, 2), dtype=np.uint64), *parts])


def deal(data: Data, loaded: Mapping[str, datasets.Dataset], phase: Phase) -> dict[str, np.ndarray]:
    """Where each source's rows belong, for a phase.

    The split is made per source, so a source is dealt out alike in every stage whatever stands beside it; held-out
    prompts are chosen over all sources together, so none of them is trained on by way of another source.
    """
    number = PHASES.index(phase)
    mine, hashes = {}, []
    for name, dataset in loaded.items():
        where = f"sources.{name}"
        mine[name] = np.ones(len(dataset), dtype=bool)
        if data.split is not None:
            mine[name] = split.assign(prompt_hashes(dataset, where, split.PHASE), data.split) == number
        hashes.append(prompt_hashes(dataset, where, split.HOLDOUT)[mine[name]])
    rows_held = 0 if data.eval_sources else data.eval_rows
    held = split.holdout(np.concatenate(hashes), fraction=data.eval_fraction, rows=rows_held)
    places = {}
    for (name, chosen), part in zip(
        mine.items(), np.split(held, np.cumsum([len(h) for h in hashes])[:-1]), strict=True
    ):
        places[name] = np.full(len(chosen), ELSEWHERE, dtype=np.uint8)
        places[name][chosen] = np.where(part, HELDOUT, TRAIN)
    return places


@dataclass(frozen=True)
class Prepared:
    """Tokenised data of one stage.

    Attributes:
        train: What is learned from.
        heldout: What is evaluated on: other prompts, or the evaluation's own sources.
        drops: Examples dropped from both, by ``"source/reason"``; reasons in ``rlhf.data.encoding`` and ``forms``.
        notes: Examples kept but cut or empty, by ``"source/reason"``.
        remarks: What the sources say of themselves, by source.
        findings: What was found out about the rows as a whole, such as duplicates: lines for the log.
        origin: Whether they were tokenised now or before, and where they are kept: a line for the log.
    """

    train: Examples[Any]
    heldout: Examples[Any]
    drops: Mapping[str, int]
    notes: Mapping[str, int]
    remarks: Mapping[str, str]
    findings: tuple[str, ...] = ()
    origin: str = ""

    @property
    def rows_dropped(self) -> int:
        """All drops together: the metric ``data/rows_dropped``."""
        return sum(self.drops.values())

    def summary(self) -> dict[str, dict[str, Any]]:
        """By source: rows that train and that are held out, drops and notes by reason, and its remark."""
        trained, held = self.train.sizes, self.heldout.sizes
        names = dict.fromkeys([*trained, *held])

        def of(name: str, counts: Mapping[str, int]) -> dict[str, int]:
            return {key.removeprefix(f"{name}/"): n for key, n in counts.items() if key.rpartition("/")[0] == name}

        return {
            name: {
                "train": trained.get(name, 0),
                "heldout": held.get(name, 0),
                "dropped": of(name, self.drops),
                "notes": of(name, self.notes),
                "remark": self.remarks.get(name, ""),
            }
            for name in names
        }

    def describe(self) -> list[str]:
        """A line per source for the log, one per finding, and one where nothing is held out."""
        lines = []
        for name, part in self.summary().items():
            line = f"{name}: {part['train']} for training, {part['heldout']} held out"
            for verb, counts in (("dropped", part["dropped"]), ("kept but cut or empty", part["notes"])):
                if counts:
                    reasons = ", ".join(f"{reason} {n}" for reason, n in counts.items())
                    line += f"; {sum(counts.values())} {verb} ({reasons})"
            lines.append(f"{line}; {part['remark']}" if part["remark"] else line)
        lines += self.findings
        if not len(self.heldout):
            lines.append("nothing is held out: there will be no evaluation on unseen rows")
        return lines


class Preparation:
    """The work of ``Data.prepare``: the key of its result, the build, and the opening of what was built."""

    def __init__(self, data: Data, tokenizer: PreTrainedTokenizerBase, form: Form, phase: Phase) -> None:
        self.data, self.tokenizer = data, tokenizer
        self.form: Form = form
        self.phase: Phase = phase
        self.shards_found = 0
        """Finished shards that a killed build had left."""
        self.rows_read = 0
        self._loaded: dict[tuple[str, str], datasets.Dataset] = {}

    # -------------------------------------------------------------------------------------------------------- the key

    def key(self) -> str:
        """Of everything that decides the examples: rows, tokenizer, settings, form, phase and code."""
        data = self.data
        settings = [
            f"{item.name} {fingerprint.of_settings(getattr(data, item.name))}"
            for item in dataclasses.fields(data)
            if item.name not in ("sources", "eval_sources", "blender", "phase")
        ]
        rows = [
            f"{group} {name} {self._of_source(group, name, source)}"
            for group in ("sources", "eval_sources")
            for name, source in getattr(data, group).items()
        ]
        tokenizer = fingerprint.of_tokenizer(self.tokenizer)
        return fingerprint.of(fingerprint.of_code(), tokenizer, self.form, self.phase, *settings, *rows)

    def _of_source(self, group: str, name: str, source: Source) -> str:
        known = source.fingerprint()
        if known is None:
            return fingerprint.of_rows(self._load(group, name))
        return fingerprint.of(fingerprint.of_settings(type(source).__qualname__), known)

    def _load(self, group: str, name: str) -> datasets.Dataset:
        if (group, name) not in self._loaded:
            with telling(f"data.{group}.{name}"):
                self._loaded[group, name] = getattr(self.data, group)[name].load()
        return self._loaded[group, name]

    # ------------------------------------------------------------------------------------------------------ the build

    def build(self, folder: Path) -> dict[str, Any]:
        """Writes all shards that are not there yet; answers what the folder holds."""
        data = self.data
        loaded = {name: self._load("sources", name) for name in data.sources}
        places = deal(data, loaded, self.phase)
        tests = {name: self._load("eval_sources", name) for name in data.eval_sources}
        parts = {("sources", name): Part(loaded[name], places[name]) for name in loaded}
        for name, dataset in tests.items():
            parts["eval_sources", name] = Part(dataset, np.full(len(dataset), HELDOUT, dtype=np.uint8))
        found = find_duplicates(parts, self.form, exact=data.duplicates, near=data.near_duplicates)
        written = []
        for number, ((group, name), part) in enumerate(parts.items()):
            dropped = found.dropped.get((group, name), 0)
            written.append(self._write_source(folder, number, group, name, part, dropped))
        return {"sources": written, "findings": found.lines}

    def _write_source(
        self, folder: Path, number: int, group: str, name: str, part: Part, duplicates: int
    ) -> dict[str, Any]:
        """The shards of one source; a source that nothing is left of is an error."""
        where = f"{group}.{name}"
        drops: Counter[str] = Counter({"duplicate": duplicates} if duplicates else {})
        notes: Counter[str] = Counter()
        shards: list[dict[str, Any]] = []
        forms.made_of(part.dataset.column_names, self.form, where)
        forms.check_labels(part.dataset, self.form, where)
        start = time.monotonic()
        for at, rows in enumerate(blocks(len(part.dataset), _shard_rows(part.dataset))):
            file = folder / f"{number:03d}-{at:05d}.arrow"
            note = read_note(file)
            if note is None:
                note = self._write_shard(file, name, where, part, rows)
            else:
                self.shards_found += 1
            drops.update(note["drops"])
            notes.update(note["notes"])
            shards.append({"file": file.name, **note})
            if time.monotonic() - start > TELL_EVERY:
                print(f"{where}: {rows.stop} of {len(part.dataset)} rows tokenised", flush=True)
                start = time.monotonic()
        self._check_left(where, group, part, shards, drops)
        return {"group": group, "name": name, "shards": shards, "drops": dict(drops), "notes": dict(notes)}

    def _write_shard(self, file: Path, name: str, where: str, part: Part, rows: range) -> dict[str, Any]:
        """The examples of some rows: those for training, then those held out."""
        encoder = self.data.encoder(name, self.tokenizer, self.form)
        chosen = np.flatnonzero(part.places[rows.start : rows.stop]) + rows.start
        made: dict[int, list[Example]] = {TRAIN: [], HELDOUT: []}
        if len(chosen):
            records = list(forms.records(part.dataset, chosen.tolist(), self.form, encoder.drops, where))
            encoder.read_ahead(records)
            for row, record in zip(chosen.tolist(), records, strict=True):
                made[int(part.places[row])] += encoder(record)
        self.rows_read += len(chosen)
        both = [*made[TRAIN], *made[HELDOUT]]
        note = {
            "kind": type(both[0]).__name__ if both else "",
            "train": len(made[TRAIN]),
            "heldout": len(made[HELDOUT]),
            "longest": [max((example.length for example in made[place]), default=0) for place in (TRAIN, HELDOUT)],
            "drops": dict(encoder.drops),
            "notes": dict(encoder.notes),
        }
        write_shard(file, both, note)
        return note

    def _check_left(
        self, where: str, group: str, part: Part, shards: list[dict[str, Any]], drops: Mapping[str, int]
    ) -> None:
        kept = "train" if group == "sources" else "heldout"
        if any(shard[kept] for shard in shards):
            return
        rows = int((part.places == (TRAIN if group == "sources" else HELDOUT)).sum())
        reasons = ", ".join(f"{reason} {count}" for reason, count in drops.items()) or "it gets none"
        counted = "dropped, held out ones included: " if drops else ""
        raise UserError(
            f"{where}: of its {rows} {'training rows' if group == 'sources' else 'rows'} none is left "
            f"({counted}{reasons}); {_remedy(drops)}, or leave the source out"
        )

    # ---------------------------------------------------------------------------------------------------- the opening

    def open(self, entry: Entry, seconds: float) -> Prepared:
        """What a folder holds, mapped into memory."""
        train: dict[str, Stored[Any]] = {}
        heldout: dict[str, Stored[Any]] = {}
        drops: Counter[str] = Counter()
        notes: Counter[str] = Counter()
        for source in entry.content["sources"]:
            name, tests = source["name"], source["group"] == "eval_sources"
            first, second = _open_source(entry.folder, source["shards"])
            if not tests:
                train[name] = first
            if tests or not self.data.eval_sources:
                heldout[name] = second
            drops.update({f"{name}/{reason}": count for reason, count in source["drops"].items()})
            notes.update({f"{name}/{reason}": count for reason, count in source["notes"].items()})
        sources = {**self.data.sources, **self.data.eval_sources}
        return Prepared(
            Examples(train),
            Examples(heldout),
            dict(drops),
            dict(notes),
            {name: source.remark() for name, source in sources.items()},
            tuple(entry.content["findings"]),
            self._origin(entry, seconds),
        )

    def _origin(self, entry: Entry, seconds: float) -> str:
        if not entry.built:
            return f"tokenised before, read from {entry.folder}"
        resumed = f" ({self.shards_found} shards were there from a run that was cut short)" if self.shards_found else ""
        kept = f"kept in {entry.folder}" if entry.kept else "not kept for other runs"
        return f"{self.rows_read} rows tokenised in {seconds:.1f} s{resumed}, {kept}"


_REMEDIES = {
    ("long_prompt", "identical_after_truncation"): "see max_tokens, max_prompt_tokens and long_prompts",
    ("identical_pair", "tie", "single_response"): "a pair needs two different responses, scored differently",
    ("missing_value", "no_response"): "map the columns that hold a value in every row (a choice has none where its "
    "column says something else; null and NaN are none)",
    ("bad_label",): "take rows whose label is true or 1",
    ("empty_prompt", "empty_text"): "map columns that hold text",
    ("refused_conversation",): "the chat template refuses them; take another template",
    ("duplicate",): "set duplicates: keep",
}


def _remedy(drops: Mapping[str, int]) -> str:
    """What helps where nothing was left, by the commonest reason."""
    most = max(drops, key=drops.__getitem__, default=None)
    usual = "see split, phase, eval_fraction and eval_rows"
    return next((text for reasons, text in _REMEDIES.items() if most in reasons), usual)


def _shard_rows(dataset: datasets.Dataset) -> int:
    """Rows of a shard; the same whenever the rows are the same."""
    per_row = max(dataset.data.nbytes / max(len(dataset.data), 1), 1.0)
    return max(int(max(SHARD_BYTES, per_row * len(dataset) / MOST_SHARDS) / per_row), 1)


def _open_source(folder: Path, shards: list[dict[str, Any]]) -> tuple[Stored[Any], Stored[Any]]:
    """The training examples of a source and its held-out ones."""
    kinds = {kind.__name__: kind for kind in get_args(Example)}
    used = [shard for shard in shards if shard["kind"]]
    kind = kinds[used[0]["kind"]] if used else get_args(Example)[0]
    files = [Shard(folder / shard["file"], kind) for shard in used]
    train = [(0, shard["train"]) for shard in used]
    heldout = [(shard["train"], shard["train"] + shard["heldout"]) for shard in used]
    first, second = (max((shard["longest"][at] for shard in used), default=0) for at in (0, 1))
    return Stored(kind, files, train, first), Stored(kind, files, heldout, second)
