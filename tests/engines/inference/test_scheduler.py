"""Continuous batching draws what the reference sampler draws, whatever the cache, the places and the order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from decoders import BASES, VOCAB, build, decoder_of
from spelling import Numbers, prompts_of, responses

from rlhf.engines.inference.cache import KVCache
from rlhf.engines.inference.decoder import Decoder
from rlhf.engines.inference.responses import OnTokens, Request, Responses
from rlhf.engines.inference.sampler import sample
from rlhf.engines.inference.sampling import Sampling
from rlhf.engines.inference.scheduler import Scheduler, blocks_needed
from rlhf.types import Prompts, Rollout

STOPS = [0, 3, 20]
PROMPTS = prompts_of([[5, 6, 7, 8, 9, 10, 11], [12], [13, 14], [13, 14], [13, 14], [20, 21, 22, 23], [30], [33] * 6])
BLOCK = 4


def request_of(
    prompts: Prompts = PROMPTS, counters: Sequence[int] | None = None, *, seed: int = 1, **settings: Any
) -> Request:
    tokenizer: Any = Numbers(VOCAB)
    counters = list(range(len(prompts)) if counters is None else counters)
    return Request(prompts, Sampling(**{"max_new_tokens": 20, **settings}), tokenizer, seed, counters, STOPS)


def respond(
    decoder: Decoder, request: Request, blocks: int | None = None, *, on_tokens: OnTokens | None = None
) -> tuple[Rollout, Scheduler]:
    found = Responses(request, VOCAB, torch.device("cpu"))
    cache = KVCache(decoder.spec, blocks_needed(request, BLOCK)[1] if blocks is None else blocks, block=BLOCK)
    scheduler = Scheduler(decoder, cache, found, on_tokens=on_tokens)
    scheduler.run()
    assert cache.free == cache.blocks and not cache.lengths
    return found.rollout(), scheduler


@pytest.fixture(scope="module")
def llama():
    model = build("llama")
    return model, decoder_of(model)


@pytest.mark.parametrize("family", sorted(BASES))
@pytest.mark.parametrize("settings", [{}, {"greedy": True}])
def test_it_draws_what_the_reference_sampler_draws(family, settings):
    model, request = build(family), request_of(**settings)
    expected = sample(model, request)
    found, _ = respond(decoder_of(model), request)
    assert responses(found) == responses(expected) and found.text == expected.text
    assert torch.equal(found.sequences.ids, expected.sequences.ids) and torch.equal(found.ended, expected.ended)
    assert settings or 0 < expected.ended.sum() < len(PROMPTS)
    assert torch.allclose(found.rollout_logprobs, expected.rollout_logprobs, atol=1e-4)
    assert torch.allclose(found.behaviour_logprobs, expected.behaviour_logprobs, atol=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.6, "top_k": 5, "min_new_tokens": 3},
        {"top_p": 0.5},
        {"min_p": 0.3, "repetition_penalty": 1.5},
        {"repetition_penalty": 2.0, "greedy": True},
        {"stop_strings": ["1 4", "27"], "min_new_tokens": 2},
        {"allowed_tokens": [str(number) for number in range(10, 30)]},
    ],
)
def test_every_setting_means_the_same(llama, settings):
    model, decoder = llama
    request = request_of(PROMPTS.repeat(4), **settings)
    expected, (found, _) = sample(model, request), respond(decoder, request)
    assert responses(found) == responses(expected) and found.text == expected.text
    assert responses(found) != responses(respond(decoder, request_of(PROMPTS.repeat(4)))[0])


@pytest.mark.parametrize("max_rows", [1, 3, 64])
@pytest.mark.parametrize("blocks", [7, 11, None])
def test_places_and_memory_change_nothing(llama, max_rows, blocks):
    decoder = llama[1]
    expected, _ = respond(decoder, request_of())
    found, scheduler = respond(decoder, request_of(max_rows=max_rows), blocks)
    assert responses(found) == responses(expected)
    if blocks == 7 and max_rows == 64:
        assert scheduler.gave_way > 0
    if blocks is None:
        assert scheduler.gave_way == 0


def test_order_and_company_change_nothing(llama):
    decoder = llama[1]
    expected = responses(respond(decoder, request_of())[0])
    order = [7, 0, 4, 1, 6, 2, 5, 3]
    assert responses(respond(decoder, request_of(PROMPTS.select(order), order))[0]) == [expected[i] for i in order]
    for row in range(len(PROMPTS)):
        assert responses(respond(decoder, request_of(PROMPTS.select([row]), [row]))[0]) == [expected[row]]


def test_a_prompt_of_several_rows_is_read_once(llama, monkeypatch):
    decoder, read = llama[1], []
    forward = Decoder.forward

    def counted(self, ids, rows, counts, cache):
        read.append(len(ids))
        return forward(self, ids, rows, counts, cache)

    monkeypatch.setattr(Decoder, "forward", counted)
    prompts = prompts_of([[9, 8, 7, 6, 5]]).repeat(6)
    found, _ = respond(decoder, request_of(prompts, max_new_tokens=4))
    assert read[0] == 5 and max(read[1:]) <= 6
    assert len({tuple(row) for row in responses(found)}) > 1
    monkeypatch.undo()
    assert responses(found) == responses(sample(llama[0], request_of(prompts, max_new_tokens=4)))


def test_places_are_taken_by_the_next_prompts(llama):
    decoder, prompts = llama[1], PROMPTS.repeat(8)
    found, scheduler = respond(decoder, request_of(prompts, max_rows=16))
    tokens = int(found.mask.sum())
    assert scheduler.calls < 1.6 * tokens / 16  # rows that wait for the longest of their batch would need more
    assert responses(found) == responses(sample(llama[0], request_of(prompts)))


def test_a_listener_hears_every_token_once(llama):
    heard: dict[int, list[int]] = {}

    def listen(rows: list[int], ids: list[int]) -> None:
        for row, token in zip(rows, ids, strict=True):
            heard.setdefault(row, []).append(token)

    for blocks in (None, 7):
        heard.clear()
        found, _ = respond(llama[1], request_of(), blocks, on_tokens=listen)
        assert heard == dict(enumerate(responses(found)))


def test_nothing_to_answer(llama):
    found, scheduler = respond(llama[1], request_of(prompts_of([])), 4)
    assert len(found) == 0 and scheduler.calls == 0


def test_blocks_needed_by_hand():
    request = request_of(prompts_of([[1] * 12, [1], [1] * 13]), max_new_tokens=8, max_rows=2)
    assert blocks_needed(request, 4) == (6, 6 + 5)
