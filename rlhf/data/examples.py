"""One example of each form as token ids, and the examples of several sources together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptExample:
    """A prompt to be answered.

    Attributes:
        prompt_ids: Its ids, template included.
        prompt: Its text as the source had it.
        source: Name of its source.
        columns: The source's other columns.
    """

    prompt_ids: list[int]
    prompt: str
    source: str
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Tokens of the longest sequence it makes."""
        return len(self.prompt_ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class DemonstrationExample:
    """A prompt and its response; the response ends in the end id unless it was cut.

    Attributes:
        prompt_ids: Of a conversation, all before the first assistant turn that is learned.
        response_ids: Of a conversation, all from there on.
        targets: Which of the response's ids the assistant says; None means all.
        source: Name of its source.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    targets: list[bool] | None = None
    source: str = ""

    @property
    def length(self) -> int:
        """Tokens of the longest sequence it makes."""
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonExample:
    """Two responses to a prompt, the better one and the worse one.

    Attributes:
        prompt_ids: Shared by both.
        chosen_ids: The better response.
        rejected_ids: The worse response; never equal to the better one.
        margin: By how much the better one is better; 0 where unknown.
        weight: 1 over the number of pairs made of its row: a row with K responses weighs as much as one with two.
        source: Name of its source.
    """

    prompt_ids: list[int]
    chosen_ids: list[int]
    rejected_ids: list[int]
    margin: float = 0.0
    weight: float = 1.0
    source: str = ""

    @property
    def length(self) -> int:
        """Tokens of the longest sequence it makes."""
        return len(self.prompt_ids) + max(len(self.chosen_ids), len(self.rejected_ids))


@dataclass(frozen=True, kw_only=True, slots=True)
class UnpairedExample:
    """A response that was judged by itself.

    Attributes:
        prompt_ids: Ids of the prompt.
        response_ids: Ids of the response; it ends in the end id unless it was cut.
        label: Whether it is a good one.
        source: Name of its source.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    label: bool
    source: str = ""

    @property
    def length(self) -> int:
        """Tokens of the longest sequence it makes."""
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextExample:
    """A piece of running text, at least two tokens of it."""

    ids: list[int]
    source: str = ""

    @property
    def length(self) -> int:
        """Tokens of the longest sequence it makes."""
        return len(self.ids)


Example = PromptExample | DemonstrationExample | ComparisonExample | UnpairedExample | TextExample
E = TypeVar("E", bound=Example)


def _longest(rows: Sequence[Any]) -> int:
    """Stored examples were measured once; others are measured here."""
    known = getattr(rows, "longest", None)
    return max((example.length for example in rows), default=0) if known is None else known


@dataclass(frozen=True)
class Examples(Generic[E]):
    """Examples of several sources: ``examples["reviews", 3]`` or, by the source's number, ``examples[0, 3]``.

    Attributes:
        rows: Examples of each source by name, in config order.
    """

    rows: Mapping[str, Sequence[E]]

    @property
    def sizes(self) -> dict[str, int]:
        """Number of examples of each source."""
        return {name: len(rows) for name, rows in self.rows.items()}

    @property
    def longest(self) -> int:
        """Tokens of the longest example; 0 where there is none."""
        return max(map(_longest, self.rows.values()), default=0)

    def __len__(self) -> int:
        return sum(self.sizes.values())

    def __iter__(self) -> Iterator[E]:
        """All examples, source by source, in the order of the files."""
        for rows in self.rows.values():
            yield from rows

    def __getitem__(self, place: tuple[str | int, int]) -> E:
        source, row = place
        return self.rows[source if isinstance(source, str) else list(self.rows)[source]][row]
