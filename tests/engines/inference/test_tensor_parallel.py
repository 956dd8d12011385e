"""One rank's copy of a policy: its weights, its cache and what it says of them. With several ranks: test_hybrid."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from decoders import BASES, build
from spelling import Numbers, prompts_of, responses

from rlhf.engines.inference.responses import Request
from rlhf.engines.inference.sampler import sample
from rlhf.engines.inference.sampling import Sampling
from rlhf.engines.inference.tensor_parallel import LiveTensorParallel, TensorParallel
from rlhf.engines.weights import Delta, held_by
from rlhf.errors import UserError


def request_of(count: int, new: int = 8, **settings: Any) -> Request:
    tokenizer: Any = Numbers(51)
    prompts = prompts_of([[5 + row] * (1 + row % 5) for row in range(count)])
    return Request(prompts, Sampling(max_new_tokens=new, **settings), tokenizer, 1, list(range(count)), [3])


def live_of(model: Any, **settings: Any) -> LiveTensorParallel:
    live = TensorParallel(**settings).build(model)
    assert isinstance(live, LiveTensorParallel)
    live.refresh(held_by(model), ())
    return live


@pytest.mark.parametrize("family", sorted(BASES))
def test_every_family_answers_as_its_module(family) -> None:
    model = build(family)
    live, request = live_of(model), request_of(6)
    assert responses(live.respond(request)) == responses(sample(model, request))
    for weight in model.parameters():
        weight.data *= 1.05
    live.refresh(held_by(model), ())
    assert responses(live.respond(request)) == responses(sample(model, request))


def test_the_cache_is_used_again_and_grows() -> None:
    live = live_of(build("llama"))
    live.respond(request_of(2))
    small = live.cache
    live.respond(request_of(1))
    assert live.cache is small
    live.respond(request_of(9))
    large = live.cache
    assert large is not None and small is not None and large.blocks > small.blocks and large is not small
    live.respond(request_of(2))
    assert live.cache is large and large.free == large.blocks


def test_a_budget_bounds_the_cache_and_changes_no_answer() -> None:
    model, request = build("llama"), request_of(12, new=40)
    block = 2 * 2 * 2 * 32 * 8 * 4  # layers, keys and values, heads, positions, width of a head, fp32
    live = live_of(model, cache_gib=5.5 * block / 2**30)
    live.check(request)
    found = live.respond(request)
    assert live.cache is not None and live.cache.blocks == 5 and live.figures()["rollout/gave_way"] > 0
    assert responses(found) == responses(sample(model, request))
    little = live_of(model, cache_gib=1.5 * block / 2**30)
    with pytest.raises(UserError, match="holds 32 positions, and one prompt with its response may need 64; raise it"):
        little.check(request)


def test_a_change_of_low_rank_is_merged_anew_each_time() -> None:
    model, other = build("llama"), build("llama")
    name = "model.layers.1.mlp.down_proj.weight"
    weight = other.get_parameter(name)
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, weight.shape[1], generator=generator), torch.randn(weight.shape[0], 2, generator=generator)
    live = live_of(model)
    for _ in range(3):
        live.refresh(held_by(model), [Delta(name, a, b, 0.5)])
    weight.data += 0.5 * b @ a
    request = request_of(6)
    assert responses(live.respond(request)) == responses(sample(other, request)) != responses(sample(model, request))
    live.refresh(held_by(model), ())
    assert responses(live.respond(request)) == responses(sample(model, request))


@pytest.mark.parametrize("pack", [True, False])
def test_figures_are_of_what_was_done_since(pack) -> None:
    live = live_of(build("gpt2"), pack=pack)
    live.respond(request_of(3))
    figures = live.figures()
    own = sum(weight.nbytes for weight in live.weights.values())
    assert figures["memory/inference_weights_gb"] * 1e9 == pytest.approx(own + live.decoder.packed_bytes)  # type: ignore[union-attr]
    assert figures["memory/kv_cache_gb"] * 1e9 == pytest.approx(live.cache.bytes)  # type: ignore[union-attr]
    assert 1 <= figures["rollout/decoder_calls"] <= 8 and figures["switch/received_mb"] == 0
    assert live.figures() == {}


def test_half_precision_copies() -> None:
    model = build("qwen2")
    live = live_of(model, precision="bf16")
    assert {weight.dtype for weight in live.weights.values()} == {torch.bfloat16}
    found = live.respond(request_of(4, greedy=True))
    expected = sample(cast(Any, model).to(torch.bfloat16), request_of(4, greedy=True))
    gap = (found.rollout_logprobs[:, 0] - expected.rollout_logprobs[:, 0]).abs().max()
    assert gap < 0.1


def test_what_cannot_be_run_is_told(caplog) -> None:
    model = build("llama")
    model.config.rope_parameters = {"rope_type": "unheard of", "rope_theta": 1e4}
    assert TensorParallel().build(model) is None
    assert "sampled by its Hugging Face module" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"tp": 0}, "tp"), ({"cache_gib": 0.0}, "cache_gib"), ({"bucket_mib": -1.0}, "bucket_mib")],
)
def test_impossible_settings_are_refused(settings, message) -> None:
    with pytest.raises(UserError, match=message):
        TensorParallel(**settings)
