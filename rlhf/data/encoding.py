"""From texts to token ids within the length limits. Whatever is dropped or cut is counted.

What is dropped (``drops``, in examples: a row with scored responses is as many as it has pairs):

* ``long_prompt`` — longer than the limit, or no room for a response token behind it
* ``empty_prompt`` — no token at all, so nothing to answer (a comparison is then one of whole texts, and kept)
* ``refused_conversation`` — the chat template raises an error for it, such as one that the assistant begins
* ``identical_pair``, ``identical_after_truncation`` — chosen and rejected are the same: a constant in the loss
* ``empty_text`` — no token to be learned

What is kept but noteworthy (``notes``): ``truncated_prompt``, ``truncated_response`` (it has no end id then: nobody
said that the text ends there), ``empty_response`` (the end id alone is learned), ``long_text`` (cut into pieces).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, cast

from rlhf.data import conversations
from rlhf.data.examples import (
    ComparisonExample,
    DemonstrationExample,
    Example,
    PromptExample,
    TextExample,
    UnpairedExample,
)
from rlhf.data.forms import Record
from rlhf.data.templates import RefusedConversation
from rlhf.data.tokens import encode_all, with_bos
from rlhf.errors import UserError
from rlhf.interfaces import Template
from rlhf.types import Conversation, Form, Turn, joined

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LongPrompts = Literal["drop", "keep_end", "keep_start"]


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Ahead(Generic[K, V]):
    """Texts or conversations as ids: those that were read ahead from memory, others on the spot."""

    def __init__(self, encode: Callable[[Sequence[K]], list[V]]) -> None:
        self._encode = encode
        self._known: dict[K, V] = {}

    def __call__(self, said: K) -> V:
        if said not in self._known:
            self._known[said] = self._encode([said])[0]
        return self._known[said]

    def read_ahead(self, many: Iterable[K]) -> None:
        """Encodes many at once, which a tokenizer does faster, and forgets those before."""
        distinct = list(dict.fromkeys(many))
        self._known = dict(zip(distinct, self._encode(distinct) if distinct else (), strict=True))


def pieces(ids: list[int], length: int) -> list[list[int]]:
    """Cuts ids into pieces of a length, none lost, none of a single token: nothing would stand before it."""
    cuts = list(range(0, len(ids), length))
    if len(cuts) > 1 and len(ids) - cuts[-1] == 1:
        cuts[-1] -= 1
    return [ids[start:end] for start, end in zip(cuts, [*cuts[1:], len(ids)], strict=True)]


class Encoder:
    """Turns records into examples.

    Attributes:
        drops: Examples dropped, by reason.
        notes: Examples kept but cut or empty, by reason.
    """

    def __init__(
        self,
        template: Template,
        tokenizer: PreTrainedTokenizerBase,
        *,
        form: Form,
        source: str,
        max_tokens: int,
        max_prompt_tokens: int | None,
        long_prompts: LongPrompts,
    ) -> None:
        self.drops: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()
        self._template, self._tokenizer = template, tokenizer
        self._source, self._max_tokens, self._long_prompts = source, max_tokens, long_prompts
        room = 0 if form == "prompt" else 1  # a response brings at least one token
        self._prompt_limit = min(max_prompt_tokens or max_tokens, max_tokens - room)
        self._form = form
        self._prompt_ids = _Ahead[str, list[int]](lambda texts: template.prompts(texts, tokenizer))
        self._talk_turns = _Ahead[Conversation, list[Turn] | RefusedConversation](self._all_turns)
        self._response_ids = _Ahead[str, list[int]](lambda texts: template.responses(texts, tokenizer))
        self._text_ids = _Ahead[str, list[int]](lambda texts: encode_all(texts, tokenizer))
        make = {
            "prompt": self._prompt_example,
            "demonstration": self._demonstration,
            "comparison": self._comparison,
            "unpaired": self._unpaired,
            "text": self._text,
        }
        self._make = make[form]

    def read_ahead(self, rows: Sequence[Sequence[Record]]) -> None:
        """Tokenises the texts of many rows at once; the examples are the same without it."""
        records = [record for row in rows for record in row]
        bare = [record for record in records if self._form == "text" and not record.responses]
        prompts = [record.prompt for record in records if self._form != "text" or record.responses]
        self._text_ids.read_ahead(conversations.text(record.prompt) for record in bare)
        self._prompt_ids.read_ahead(prompt for prompt in prompts if isinstance(prompt, str))
        self._talk_turns.read_ahead(prompt for prompt in prompts if not isinstance(prompt, str))
        self._response_ids.read_ahead(text for record in records for text in record.responses)

    def __call__(self, row: Iterable[Record]) -> list[Example]:
        """The examples of one row of the source."""
        made = [example for record in row for example in self._examples(record)]
        return [
            dataclasses.replace(example, weight=1 / len(made)) if isinstance(example, ComparisonExample) else example
            for example in made
        ]

    def _examples(self, record: Record) -> list[Example]:
        try:
            return self._make(record)
        except RefusedConversation:
            self.drops["refused_conversation"] += 1
            return []

    def _all_turns(self, talks: Sequence[Conversation]) -> list[list[Turn] | RefusedConversation]:
        try:
            return list(self._template.all_turns(talks, self._tokenizer))
        except UserError as error:
            if len(talks) > 1:  # one by one, to say which it is
                return [self._all_turns([talk])[0] for talk in talks]
            if isinstance(error, RefusedConversation):
                return [error]
            said = conversations.text(talks[0])[:60]
            raise UserError(f"source {self._source}: conversation {said!r}: {error}") from error

    def _turns(self, prompt: str | Conversation) -> list[Turn]:
        if isinstance(prompt, str):
            return [Turn(self._prompt_ids(prompt), [])]
        turns = self._talk_turns(prompt)
        if isinstance(turns, RefusedConversation):
            raise turns
        return turns

    def _whole(self, prompt: str | Conversation) -> list[int]:
        """Ids of a prompt in which nobody has to tell turns apart."""
        return joined(self._turns(prompt))

    def _prompt(self, ids: list[int]) -> list[int] | None:
        """A prompt's ids within their limit, or None where the example is to be dropped."""
        limit = self._prompt_limit
        if not ids:
            self.drops["empty_prompt"] += 1
            return None
        if len(ids) <= limit:
            return ids
        if self._long_prompts == "drop":
            self.drops["long_prompt"] += 1
            return None
        self.notes["truncated_prompt"] += 1
        if self._long_prompts == "keep_start":
            return ids[:limit]
        bos = ids[:1] if ids[0] == self._tokenizer.bos_token_id and limit > 1 else []
        return bos + ids[len(ids) - limit + len(bos) :]

    def _response(self, text: str, room: int) -> list[int]:
        ids = self._response_ids(text)
        if len(ids) == 1:
            self.notes["empty_response"] += 1
        if len(ids) > room:
            self.notes["truncated_response"] += 1
        return ids[:room]

    def _prompt_example(self, record: Record) -> list[Example]:
        ids = self._prompt(self._whole(record.prompt))
        if ids is None:
            return []
        text = conversations.text(record.prompt)
        return [PromptExample(prompt_ids=ids, prompt=text, source=self._source, columns=record.columns)]

    def _demonstration(self, record: Record) -> list[Example]:
        turns = self._turns(record.prompt)
        ids = self._prompt(turns[0].context)
        if ids is None:
            return []
        room = self._max_tokens - len(ids)
        if len(turns) == 1:
            response = self._response(record.responses[0], room)
            return [DemonstrationExample(prompt_ids=ids, response_ids=response, source=self._source)]
        body: list[int] = []
        targets: list[bool] = []
        for turn, following in pairwise(turns):
            body += turn.response + following.context
            targets += [True] * len(turn.response) + [False] * len(following.context)
        if len(body) < room:
            body += self._response(record.responses[0], room - len(body))
            targets += [True] * (len(body) - len(targets))
        else:
            self.notes["truncated_response"] += 1
        return [
            DemonstrationExample(prompt_ids=ids, response_ids=body[:room], targets=targets[:room], source=self._source)
        ]

    def _unpaired(self, record: Record) -> list[Example]:
        ids = self._prompt(self._whole(record.prompt))
        if ids is None:
            return []
        response = self._response(record.responses[0], self._max_tokens - len(ids))
        return [UnpairedExample(prompt_ids=ids, response_ids=response, label=record.label, source=self._source)]

    def _comparison(self, record: Record) -> list[Example]:
        if self._response_ids(record.responses[0]) == self._response_ids(record.responses[1]):
            self.drops["identical_pair"] += 1
            return []
        whole = record.prompt == ""  # two whole texts are compared, there is nothing to answer
        ids = self._whole(record.prompt)
        ids = ids if whole else self._prompt(ids)
        if ids is None:
            return []
        room = self._max_tokens - len(ids)
        if self._response_ids(record.responses[0])[:room] == self._response_ids(record.responses[1])[:room]:
            self.drops["identical_after_truncation"] += 1
            return []
        chosen, rejected = (self._response(text, room) for text in record.responses)
        # __call__ weighs it: only there is known how many pairs of the row are left
        return [
            ComparisonExample(
                prompt_ids=ids,
                chosen_ids=chosen,
                rejected_ids=rejected,
                margin=record.margin,
                source=self._source,
            )
        ]

    def _text(self, record: Record) -> list[Example]:
        if record.responses:
            ids = self._whole(record.prompt) + self._response_ids(record.responses[0])
            empty = len(ids) < 2
        else:
            body = self._text_ids(conversations.text(record.prompt))
            eos = cast("int | None", self._tokenizer.eos_token_id)
            ids = with_bos(body, self._tokenizer) + ([] if eos is None or body[-1:] == [eos] else [eos])
            empty = not body or len(ids) < 2
        if empty:
            self.drops["empty_text"] += 1
            return []
        cut = pieces(ids, self._max_tokens)
        if len(cut) > 1:
            self.notes["long_text"] += 1
        return [TextExample(ids=piece, source=self._source) for piece in cut]
