"""A decoder-only language model run from its spec, alone or as one rank of a tensor-parallel group.

New tokens of any rows come as one flat list: rows that are being read and rows that are being continued in one call,
without padding. Rounding follows the Hugging Face modules: norms, softmax and rotary angles in fp32, the rest in the
dtype of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from rlhf.engines.inference.attention import Step, attend
from rlhf.engines.inference.cache import KVCache
from rlhf.engines.inference.collectives import Collectives
from rlhf.engines.inference.packing import pack, packed_linear
from rlhf.engines.inference.shards import check_divisible, head_part, vocabulary_part
from rlhf.engines.inference.specs import DecoderSpec, Layer, Norm, Rotary

Activation = Callable[[Tensor], Tensor]
Angles = dict[Rotary, tuple[Tensor, Tensor]]
"""Cosine and sine of the new tokens."""
Weights = dict[str, Tensor]
"""By local name."""


class Decoder:
    """One rank of a model.

    A call costs one sum over ranks for the embedding, and one for each half of a block (one for both where they are
    parallel); logits of all ranks are joined once.

    Args:
        spec: The model.
        weights: Of this rank (:func:`rlhf.engines.inference.shards.load`); read anew at every call, unless packed.
        collectives: The ranks. None: there is one.

    Raises:
        Unsupported: more ranks than the model can be divided among.
    """

    def __init__(self, spec: DecoderSpec, weights: Weights, collectives: Collectives | None = None) -> None:
        self.spec = spec
        self.weights = weights
        self.collectives = collectives or Collectives()
        rank, tp = self.collectives.rank, self.collectives.size
        check_divisible(spec, tp)
        self._packed: Weights = {}
        self.packed_bytes = 0
        self._vocabulary = vocabulary_part(spec, rank, tp)
        self._heads = [head_part(layer.attention, rank, tp) for layer in spec.layers]
        self._act = {layer.mlp.activation: _activation(layer.mlp.activation) for layer in spec.layers}
        device = weights["embedding.weight"].device
        rotaries = {layer.attention.rotary for layer in spec.layers} - {None}
        self._inv_freq = {rotary: torch.tensor(rotary.inv_freq, device=device) for rotary in rotaries if rotary}

    def pack(self) -> None:
        """Copies the matrices into the layout that this processor multiplies fastest by; once more after a change.

        ``packed_bytes`` are in memory besides the weights then, 0 where there is nothing to gain.
        """
        matrices = {name: weight for name, weight in self.weights.items() if weight.dim() == 2}
        matrices.pop("positions.weight", None)
        if not self.spec.tied:
            del matrices["embedding.weight"]
        packed = {name: pack(weight) for name, weight in matrices.items()}
        self._packed = {name: weight for name, weight in packed.items() if weight is not None}
        self.packed_bytes = sum(matrices[name].nbytes for name in self._packed)

    def cache(self, blocks: int) -> KVCache:
        """An empty cache of this rank."""
        weight = self.weights["embedding.weight"]
        rank, tp = self.collectives.rank, self.collectives.size
        return KVCache(self.spec, blocks, rank=rank, tp=tp, dtype=weight.dtype, device=weight.device)

    @torch.no_grad()
    def forward(self, ids: Tensor, rows: Sequence[int], counts: Sequence[int], cache: KVCache) -> Tensor:
        """Reads new tokens of some rows.

        Args:
            ids: [N] int64, the new tokens of the first row, then of the second, …
            rows: R distinct open rows of the cache, which stand where they did after the last call.
            counts: How many tokens are new in each, at least 1.
            cache: Gets their keys and values.

        Returns:
            [R, V] logits after the last token of each row, in the dtype of the weights; equal on all ranks.

        Raises:
            CacheFull: the cache has too few free blocks; it is as it was.
            ValueError: ids outside the vocabulary, positions behind the last learned one, or counts that do not fit.
        """
        self._check(ids, rows, counts, cache)
        cache.extend(rows, counts)
        step = Step(cache, rows, counts)
        x = self._embed(ids, step.positions)
        angles = {rotary: self._angles(rotary, step.positions, x.dtype) for rotary in self._inv_freq}
        for index, layer in enumerate(self.spec.layers):
            x = self._block(index, layer, x, step, angles)
        return self._logits(x[step.last])

    def _check(self, ids: Tensor, rows: Sequence[int], counts: Sequence[int], cache: KVCache) -> None:
        if len(set(rows)) != len(rows) or min(counts, default=0) < 1 or sum(counts) != len(ids):
            raise ValueError(f"{len(ids)} ids for rows {list(rows)} with counts {list(counts)}: they do not fit")
        if not 0 <= int(ids.min()) <= int(ids.max()) < self.spec.vocab_size:
            raise ValueError(
                f"ids from {int(ids.min())} to {int(ids.max())}: the vocabulary has {self.spec.vocab_size}"
            )
        longest = max(cache.lengths[row] + count for row, count in zip(rows, counts, strict=True))
        if self.spec.max_positions is not None and longest > self.spec.max_positions:
            raise ValueError(f"{longest} positions: the model has learned {self.spec.max_positions}")

    # -------------------------------------------------------------------------------------------------------- ends

    def _embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        spec, weight = self.spec, self.weights["embedding.weight"]
        if self.collectives.size == 1:
            x = F.embedding(ids, weight)
        else:
            local = ids - self._vocabulary[0]
            here = (local >= 0) & (local < len(weight))
            x = F.embedding(local.where(here, 0), weight).masked_fill_(~here.unsqueeze(1), 0)
            x = self.collectives.all_reduce(x)
        if spec.embedding_scale != 1:
            x = x * torch.tensor(spec.embedding_scale, device=x.device).to(x.dtype)
        if "project_in.weight" in self.weights:
            x = self._product("project_in.weight", x)
        if spec.max_positions is not None:
            x = x + F.embedding(positions + spec.position_offset, self.weights["positions.weight"])
        return x

    def _logits(self, x: Tensor) -> Tensor:
        """[R, V] from the [R, width] after the last block."""
        spec = self.spec
        if spec.final_norm is not None:
            x = self._norm("final_norm", spec.final_norm, x)
        if "project_out.weight" in self.weights:
            x = self._product("project_out.weight", x)
        head = "embedding.weight" if spec.tied else "head.weight"
        logits = self._product(head, x, self.weights.get("head.bias"))
        if spec.logit_softcap is not None:
            logits = torch.tanh(logits / spec.logit_softcap) * spec.logit_softcap
        return self.collectives.all_gather(logits)[:, : spec.vocab_size]

    # ------------------------------------------------------------------------------------------------------- blocks

    def _block(self, index: int, layer: Layer, x: Tensor, step: Step, angles: Angles) -> Tensor:
        prefix = f"layers.{index}."

        def normed(name: str, x: Tensor) -> Tensor:
            return self._norm(prefix + name, layer.norm, x)

        if layer.residual in ("parallel", "parallel_shared"):
            once = normed("attention_norm", x)
            own = once if layer.residual == "parallel_shared" else normed("mlp_norm", x)
            attended = self._product(prefix + "out.weight", self._attention(index, layer, once, step, angles))
            both = self.collectives.all_reduce(
                attended + self._product(prefix + "down.weight", self._mlp(index, layer, own))
            )
            return self._biased(prefix + "down", self._biased(prefix + "out", both)) + x
        post, sandwich = layer.residual == "post", layer.residual == "sandwich"
        y = self._attention(index, layer, x if post else normed("attention_norm", x), step, angles)
        y = self._summed(prefix + "out", y, None if sandwich else x)
        x = x + normed("attention_post_norm", y) if sandwich else y
        x = normed("attention_norm", x) if post else x
        y = self._mlp(index, layer, x if post else normed("mlp_norm", x))
        y = self._summed(prefix + "down", y, None if sandwich else x)
        x = x + normed("mlp_post_norm", y) if sandwich else y
        return normed("mlp_norm", x) if post else x

    def _attention(self, index: int, layer: Layer, x: Tensor, step: Step, angles: Angles) -> Tensor:
        """What this rank's heads read, [N, heads · width of a head]."""
        attention, part, prefix = layer.attention, self._heads[index], f"layers.{index}."
        qkv = self._linear(prefix + "qkv", x).view(len(x), -1, attention.head_dim)
        rotated, values = qkv.split([part.heads + len(part.kv), len(part.kv)], dim=1)
        if attention.qk_norm is not None:
            queries, keys = rotated.split([part.heads, len(part.kv)], dim=1)
            queries = self._norm(prefix + "q_norm", attention.qk_norm, queries)
            rotated = torch.cat([queries, self._norm(prefix + "k_norm", attention.qk_norm, keys)], dim=1)
        if attention.rotary is not None:
            rotated = rotate(rotated, *angles[attention.rotary])
        queries, keys = rotated.split([part.heads, len(part.kv)], dim=1)
        step.write(index, keys, values)
        return attend(attention, index, step, queries)

    def _mlp(self, index: int, layer: Layer, x: Tensor) -> Tensor:
        """This rank's part of the MLP's inner layer, [N, inner width]."""
        name, activation = f"layers.{index}.up", layer.mlp.activation
        if not layer.mlp.gated:
            return self._linear(name, x, activation)
        gate, up = self._linear(name, x).chunk(2, dim=-1)
        return self._act[activation](gate) * up

    def _linear(self, name: str, x: Tensor, activation: str | None = None) -> Tensor:
        weight, bias = f"{name}.weight", self.weights.get(f"{name}.bias")
        if activation == "relu" and weight in self._packed:
            return packed_linear(x, self._packed[weight], bias, activation=activation)
        product = self._product(weight, x, bias)
        return product if activation is None else self._act[activation](product)

    def _summed(self, name: str, x: Tensor, residual: Tensor | None) -> Tensor:
        """A product summed over ranks, with its bias, of which each rank has all, and the residual."""
        weight = f"{name}.weight"
        if self.collectives.size == 1 and residual is not None and weight in self._packed:
            return packed_linear(x, self._packed[weight], self.weights.get(f"{name}.bias"), plus=residual)
        y = self._biased(name, self.collectives.all_reduce(self._product(weight, x)))
        return y if residual is None else residual + y

    def _product(self, name: str, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if name in self._packed:
            return packed_linear(x, self._packed[name], bias)
        return F.linear(x, self.weights[name], bias)

    def _biased(self, name: str, x: Tensor) -> Tensor:
        """The bias of a product that was summed over ranks, each of which has all of it."""
        bias = self.weights.get(f"{name}.bias")
        return x if bias is None else x + bias

    def _norm(self, name: str, norm: Norm, x: Tensor) -> Tensor:
        return normalize(norm, x, self.weights.get(f"{name}.weight"), self.weights.get(f"{name}.bias"))

    def _angles(self, rotary: Rotary, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine, [N, 1, rotated dimensions]."""
        half = positions.unsqueeze(1).float() * self._inv_freq[rotary]
        angles = torch.cat([half, half], dim=-1).unsqueeze(1)
        return (angles.cos() * rotary.scaling).to(dtype), (angles.sin() * rotary.scaling).to(dtype)


def normalize(norm: Norm, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """The norm over the last dimension, [.., D].

    Source: the Hugging Face modules; which product is rounded first is theirs.
    """
    if norm.kind == "layer":
        return F.layer_norm(x, x.shape[-1:], weight, bias, norm.eps)
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.eps)
    if weight is None:
        return wide.to(x.dtype)
    if norm.kind == "rms_plus_one":
        return (wide * (1 + weight.float())).to(x.dtype)
    return weight * wide.to(x.dtype)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """The first dimensions of each head turned by its position's angles; the others are left.

    Args:
        x: [N, heads, width of a head].
        cosine: [N, 1, rotated dimensions].
        sine: Likewise.

    Source: Su et al. 2021, arXiv:2104.09864, with halves in the place of neighbours as pairs.
    """
    size = cosine.shape[-1]
    turned, rest = x.split([size, x.shape[-1] - size], dim=-1)
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cosine + torch.cat([-second, first], dim=-1) * sine
    return turned if not rest.shape[-1] else torch.cat([turned, rest], dim=-1)


def _activation(name: str) -> Activation:
    if name in ("gelu_new", "gelu_pytorch_tanh"):  # one function; transformers writes the first out in eight operations
        return lambda x: F.gelu(x, approximate="tanh")
    from transformers.activations import ACT2FN

    return ACT2FN[name]
