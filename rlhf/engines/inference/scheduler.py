"""Continuous batching: a row that has ended gives its place to the next prompt, in the middle of everybody's decoding.

What is read and what is continued go through the decoder in one call. When the cache is full, the row that came last
gives way and is read again later; as random numbers are keyed and tokens noted, nobody's answer changes by it.
Source: Yu et al. 2022, "Orca", section 4.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from rlhf.engines.inference.cache import CacheFull, KVCache
from rlhf.engines.inference.decoder import Decoder
from rlhf.engines.inference.responses import OnTokens, Request, Responses

READ_AT_ONCE = 4096
"""Prompt tokens that are read in one call, unless a single prompt has more: bounds the memory of activations."""
ADMIT_AT = 8
"""New prompts come in once an ADMIT_AT-th of the places is free: a call that reads as well as continues costs more."""


@dataclass
class Waiting:
    """Rows that begin with the same tokens, and so are read once.

    Attributes:
        rows: Numbers of the prompts.
        ids: What is to be read: the prompt, and what was drawn before a row gave way.
        drawn: How many of these were drawn.
    """

    rows: list[int]
    ids: list[int]
    drawn: int = 0


@dataclass
class Active:
    """A row that is being answered.

    Attributes:
        row: Number of its prompt.
        slot: Its row of the cache.
        drawn: What was drawn so far.
    """

    row: int
    slot: int
    drawn: list[int] = field(default_factory=list)


def blocks_needed(request: Request, block: int) -> tuple[int, int]:
    """Blocks of the cache for the longest row alone, and for as many of the longest as are decoded at once."""
    new = request.sampling.max_new_tokens
    sizes = sorted((-(-(len(ids) + new) // block) for ids in request.prompts.ids), reverse=True)
    return max(sizes, default=0), sum(sizes[: request.sampling.max_rows])


class Scheduler:
    """Answers a request.

    Args:
        decoder: The model.
        cache: Empty; large enough for the longest row (:func:`blocks_needed`), better for many.
        responses: Get every token.
        on_tokens: Told of every step: the prompts, and the token drawn for each.

    Attributes:
        calls: Of the decoder.
        gave_way: How often a row had to.
    """

    def __init__(
        self, decoder: Decoder, cache: KVCache, responses: Responses, *, on_tokens: OnTokens | None = None
    ) -> None:
        self.decoder, self.cache, self.responses, self.on_tokens = decoder, cache, responses, on_tokens
        request = responses.request
        self.prompts, self.places = request.prompts.ids, request.sampling.max_rows
        alike = itertools.groupby(range(len(request)), key=lambda row: tuple(self.prompts[row]))
        self.waiting = deque(Waiting(list(rows), list(ids)) for ids, rows in alike)
        self.active: list[Active] = []
        self.calls = self.gave_way = 0

    def run(self) -> None:
        """Answers all."""
        while self.waiting or self.active:
            self._make_room()
            new = list(self._admit())
            self._step(new)

    def _make_room(self) -> None:
        """The rows that go on get what they need for a token; the last ones give way for it."""
        while self.cache.needed([one.slot for one in self.active], [1] * len(self.active)) > self.cache.free:
            last = self.active.pop()
            self.cache.close(last.slot)
            ids = [*self.prompts[last.row], *last.drawn]
            self.waiting.appendleft(Waiting([last.row], ids, len(last.drawn)))
            self.gave_way += 1

    def _admit(self) -> Iterator[tuple[int, Waiting]]:
        """Opens rows of the cache for prompts that fit: a row, and whose it will be."""
        places = self.places - len(self.active)
        if self.active and places * ADMIT_AT < self.places:
            return
        # Whoever finds room up to its last token is let in; others as long as each that goes on may have a block more.
        left = self.cache.blocks - sum(self._most(self.prompts[one.row]) for one in self.active)
        spare = self.cache.free - len(self.active)
        read = 0
        while self.waiting and places:
            first = self.waiting[0]
            blocks, most = self._blocks(len(first.ids) + 1), self._most(self.prompts[first.rows[0]])
            alone = not self.active and not read
            count = min(len(first.rows), places, max(left // most, spare // blocks, int(alone)))
            if not count or (read and read + len(first.ids) > READ_AT_ONCE):
                return
            taken = Waiting(first.rows[:count], first.ids, first.drawn)
            first.rows = first.rows[count:]
            if not first.rows:
                self.waiting.popleft()
            places, read = places - count, read + len(first.ids)
            left, spare = left - count * most, spare - count * blocks
            yield self.cache.open(), taken

    def _blocks(self, positions: int) -> int:
        return -(-positions // self.cache.block)

    def _most(self, prompt: Sequence[int]) -> int:
        """Blocks of a row that goes on to the limit."""
        return self._blocks(len(prompt) + self.responses.request.sampling.max_new_tokens)

    def _step(self, new: Sequence[tuple[int, Waiting]]) -> None:
        """One call of the decoder, and a token more for every row."""
        going = list(self.active)
        ids = [one.drawn[-1] for one in going]
        counts = [1] * len(going)
        for _, waiting in new:
            ids += waiting.ids
            counts.append(len(waiting.ids))
        slots = [one.slot for one in going] + [slot for slot, _ in new]
        device = self.responses.device
        logits = self.decoder.forward(torch.tensor(ids, device=device), slots, counts, self.cache)
        self.calls += 1
        source = list(range(len(going)))
        for place, (slot, waiting) in enumerate(new, start=len(going)):
            for number, row in enumerate(waiting.rows):
                try:
                    own = self.cache.fork(slot) if number else slot
                except CacheFull:  # the estimate was too good, as blocks may be few for all that come at once
                    self.waiting.appendleft(Waiting(waiting.rows[number:], waiting.ids, waiting.drawn))
                    break
                drawn = waiting.ids[len(waiting.ids) - waiting.drawn :]
                going.append(Active(row, own, drawn))
                source.append(place)
        if len(source) != len(logits):
            logits = logits[source]
        rows, at = torch.tensor([[one.row for one in going], [len(one.drawn) for one in going]], device=device)
        drawn, complete = self.responses.draw(logits, rows, at)
        tokens = drawn.tolist()
        if self.on_tokens is not None:
            self.on_tokens([one.row for one in going], tokens)
        self.active = []
        for one, token, done in zip(going, tokens, complete.tolist(), strict=True):
            one.drawn.append(token)
            if done:
                self.cache.close(one.slot)
            else:
                self.active.append(one)
