"""The parity check finds what it is there for: each fault, planted, makes it fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import decoders
import pytest
import torch
from decoders import NEW, build, check_parity, ours, plain
from torch import Tensor

from rlhf.engines.inference import attention, cache, decoder as decoding
from rlhf.engines.inference.decoder import Decoder
from rlhf.engines.inference.families import spec_of
from rlhf.engines.inference.shards import load
from rlhf.engines.inference.specs import DecoderSpec

Plant = Callable[[DecoderSpec, dict[str, Tensor], pytest.MonkeyPatch], DecoderSpec]


def attentions(**changes: Any) -> Plant:
    """Every layer's attention with other settings."""

    def plant(spec: DecoderSpec, weights: dict[str, Tensor], patch: pytest.MonkeyPatch) -> DecoderSpec:
        layers = (dataclasses.replace(x, attention=dataclasses.replace(x.attention, **changes)) for x in spec.layers)
        return dataclasses.replace(spec, layers=tuple(layers))

    return plant


def layers(**changes: Any) -> Plant:
    """Every layer with other settings; those of its MLP and its norm by ``mlp_`` and ``norm_``."""

    def change(layer: Any) -> Any:
        for part in ("mlp", "norm"):
            inner = {key[len(part) + 1 :]: value for key, value in changes.items() if key.startswith(f"{part}_")}
            layer = dataclasses.replace(layer, **{part: dataclasses.replace(getattr(layer, part), **inner)})
        return dataclasses.replace(layer, **{k: v for k, v in changes.items() if k == "residual"})

    return lambda spec, weights, patch: dataclasses.replace(spec, layers=tuple(map(change, spec.layers)))


def whole(**changes: Any) -> Plant:
    return lambda spec, weights, patch: dataclasses.replace(spec, **changes)


def without(*names: str) -> Plant:
    """Weights left out."""

    def plant(spec: DecoderSpec, weights: dict[str, Tensor], patch: pytest.MonkeyPatch) -> DecoderSpec:
        for name in names:
            del weights[name]
        return spec

    return plant


def patched(module: Any, name: str, other: Callable[[Any], Any]) -> Plant:
    """A function replaced by ``other`` of it."""

    def plant(spec: DecoderSpec, weights: dict[str, Tensor], patch: pytest.MonkeyPatch) -> DecoderSpec:
        patch.setattr(module, name, other(getattr(module, name)))
        return spec

    return plant


def stale(write: Any) -> Any:
    """Keys and values of every third single token are not stored."""
    calls = iter(range(10**6))

    def forgetful(self: attention.Step, layer: int, keys: Tensor, values: Tensor) -> None:
        if next(calls) % 3 or self.groups:
            write(self, layer, keys, values)

    return forgetful


def half_turned(rotate: Any) -> Any:
    """Neighbours as pairs, where the family has halves."""

    def other(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        return x * cosine + turned * sine

    return other


def stacked(spec: DecoderSpec, weights: dict[str, Tensor], patch: pytest.MonkeyPatch) -> DecoderSpec:
    """Heads of GPT-NeoX taken as if they were not interleaved."""
    wrong = dataclasses.replace(spec, names=dataclasses.replace(spec.names, qkv_layout="stacked"))
    weights.update(load(wrong, build("gpt_neox")))
    return spec


FAULTS: dict[str, tuple[str, dict[str, Any], Plant]] = {
    "rotary off": ("llama", {}, attentions(rotary=None)),
    "rotary pairs": ("llama", {}, patched(decoding, "rotate", half_turned)),
    "scale": ("qwen2", {}, attentions(scale=32**-0.5)),
    "missing bias": ("phi", {}, without("layers.1.out.bias")),
    "missing head bias": ("phi", {}, without("head.bias")),
    "stale cache": ("gpt2", {}, patched(attention.Step, "write", stale)),
    "positions off by one": ("opt", {}, whole(position_offset=1)),
    "window off": ("mistral", {}, attentions(window=None)),
    "window off by one": ("mistral", {}, attentions(window=6)),
    "softcap of scores off": ("gemma2", {"attn_logit_softcapping": 2.0}, attentions(softcap=None)),
    "softcap of logits off": ("gemma2", {}, whole(logit_softcap=None)),
    "embedding not scaled": ("gemma3_text", {}, whole(embedding_scale=1.0)),
    "one angle for all layers": ("gemma3_text", {}, lambda spec, weights, patch: dataclasses.replace(
        spec, layers=tuple(dataclasses.replace(layer, attention=dataclasses.replace(
            layer.attention, rotary=spec.layers[0].attention.rotary)) for layer in spec.layers))),
    "norm without one": ("gemma2", {}, layers(norm_kind="rms")),
    "norm's epsilon": ("llama", {}, layers(norm_eps=1e-4)),
    "query norm off": ("qwen3", {}, attentions(qk_norm=None)),
    "norm after for before": ("opt", {}, layers(residual="post")),
    "sequential for parallel": ("gpt_neox", {}, layers(residual="pre")),
    "interleaved for stacked heads": ("gpt_neox", {}, stacked),
    "another activation": ("gpt2", {"activation_function": "gelu"}, layers(mlp_activation="quick_gelu")),
    "tanh for exact gelu": ("gpt_neox", {}, layers(mlp_activation="gelu_new")),
    "causal mask": ("gemma2", {}, patched(
        attention.Group, "seen", lambda f: lambda self, w, b: f(self, w, b).roll(1, -1))),
    "last token": ("llama", {}, patched(
        attention.Singles, "unseen", lambda f: lambda self, w, d: f(self, w, d).roll(1, -1))),
    "blocks of another row": ("llama", {}, patched(
        cache.KVCache, "layer", lambda f: lambda self, i: tuple(x.roll(1, 0) for x in f(self, i)))),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_fails_the_check(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family, settings, plant = FAULTS[fault]
    model = build(family, **settings)
    expected, spec = plain(model), spec_of(model.config)
    weights = load(spec, model)
    check_parity(ours(Decoder(spec, weights)), expected)  # as it is, it passes
    wrong = plant(spec, weights, monkeypatch)
    with pytest.raises(AssertionError):
        check_parity(ours(Decoder(wrong, weights)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ("no sum", "bias summed", "shards swapped"))
def test_a_fault_of_ranks_fails_the_check(two_processes, fault: str) -> None:
    expected = plain(build("opt"))
    for found in two_processes.run(decoders.under_tp_with, fault, "opt"):
        assert len(found.ids[0]) == NEW
        with pytest.raises(AssertionError):
            check_parity(found, expected)
