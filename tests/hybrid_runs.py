"""What a hybrid engine does between its modes; run by the tests, some of it in processes."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast
from unittest import mock

import tiny_runs
import torch
from decoders import build
from spelling import Numbers, prompts_of, responses
from torch import Tensor

from rlhf import distributed
from rlhf.algorithms.optimizers import SGD
from rlhf.engines.hybrid import HybridEngine
from rlhf.engines.inference.decoder import Decoder
from rlhf.engines.inference.responses import Responses
from rlhf.engines.inference.sampling import Sampling
from rlhf.engines.inference.tensor_parallel import LiveTensorParallel
from rlhf.engines.weights import held_by
from rlhf.errors import NonFiniteError
from rlhf.interfaces import Engine, LiveEngine
from rlhf.loops.online import OnlineTrainer
from rlhf.models.lora import LoRA, adapted, attach
from rlhf.models.modules import PolicyModel
from rlhf.models.policy import FromScratch
from rlhf.types import Labelled, LossTerm, Outputs, Prompts, Rollout, Sequences, Tally

PROMPTS = prompts_of([[5, 6, 7, 8, 9], [12], [13, 14], [13, 14], [20, 21], [30], [33] * 6])


@contextmanager
def trainer_of(engine: Engine, **settings: Any) -> Iterator[OnlineTrainer]:
    with tempfile.TemporaryDirectory() as folder:
        context = dataclasses.replace(tiny_runs.context(Path(folder)), cache_dir=None)
        yield OnlineTrainer(tiny_runs.ppo(engine=engine, **settings), context)


def ask(live: LiveEngine, counter: int = 0, **settings: Any) -> Rollout:
    tokenizer: Any = Numbers(51)
    counters = range(counter, counter + len(PROMPTS))
    sampling = Sampling(**{"max_new_tokens": 12, **settings})
    return live.generate(PROMPTS, sampling, tokenizer, seed=1, counters=counters, stop_ids=[0, 3, 20])


def rollouts(engine: Engine, *, modes: bool = False, model_type: str = "gpt2") -> Any:
    """Figures of some iterations, with modes switched to and fro between them or not."""
    policy = tiny_runs.policy()
    if model_type == "bloom":
        sizes = {"hidden_size": 16, "n_layer": 2, "n_head": 2, "initializer_range": 0.2}
        policy = FromScratch(config={"model_type": "bloom", **sizes}, vocab_size=280)
    with trainer_of(engine, policy=policy) as trainer:
        live, lines = trainer.policy, []
        for _ in range(2):
            if modes:
                for switch in (live.eval, live.train, live.train, live.eval, live.eval):
                    switch()
            experience = trainer.generate_experience()
            if modes:
                live.eval()
            lines.append(trainer.train_rlhf(experience))
            lines.append(experience.rollout.sequences.ids.tolist())
        keep = {
            name
            for name in lines[0]
            if not name.startswith((*tiny_runs.TIMED, "switch/", "rollout/decoder", "rollout/own"))
        }
        return [{n: line[n] for n in keep} if isinstance(line, dict) else line for line in lines]


def memory(engine: Engine) -> dict[str, Any]:
    """Bytes of cache and weights in inference mode and after it; rollouts before and after."""
    with trainer_of(engine) as trainer:
        live = trainer.policy
        assert isinstance(live, HybridEngine) and isinstance(live.inference, LiveTensorParallel)
        inference = live.inference

        def held() -> int:
            weights = sum(weight.nbytes for weight in inference.weights.values())
            return weights + (0 if inference.cache is None else inference.cache.bytes)

        with live.inference_mode():
            first = responses(ask(live))
            inside = held()
        after = held()
        return {"inside": inside, "after": after, "first": first, "again": responses(ask(live))}


def after_an_error(engine: Engine, *, failing: bool = True) -> Any:
    """An iteration after the decoder has failed in the middle of a response; modes and gradients as they were."""
    with trainer_of(engine) as trainer:
        live, calls = trainer.policy, iter(range(100))
        assert isinstance(live, HybridEngine)
        forward = Decoder.forward

        def broken(*arguments: Any) -> Any:
            if next(calls) == 3:
                raise MemoryError("no more")
            return forward(*arguments)

        live.model.train()
        if failing:
            try:
                with mock.patch.object(Decoder, "forward", broken):
                    ask(live)
            except MemoryError:
                assert not live.sampling
            else:
                raise AssertionError("no error")
        assert all(module.training for module in live.model.modules()) and torch.is_grad_enabled()
        line = trainer.train_rlhf(trainer.generate_experience())
        return {name: value for name, value in line.items() if not name.startswith(tiny_runs.TIMED)}


def live_policy(engine: Engine, dtype: torch.dtype, lora: LoRA | None, *, spoilt: bool = False) -> LiveEngine:
    lm = build("llama", dtype=dtype)
    if spoilt:
        lm.get_input_embeddings().weight.data[BAD] = torch.nan
    if lora is not None:
        attach(lm, lora, seed=0, base=None)
        generator = torch.Generator().manual_seed(1)
        for _, layer in adapted(lm):
            for factor in layer.lora_B.parameters():  # an adapter that does much
                factor.data = torch.randn(factor.shape, generator=generator) * 0.2
    return engine.build(PolicyModel(lm), optimizer=SGD(lr=0.1))


def switches(engine: Engine, dtype: str, count: int) -> dict[str, Any]:
    """What has become of the base under an adapter, and whether responses are the adapted model's throughout."""
    precision = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    live = live_policy(engine, precision, LoRA(rank=2))
    lm = live.model.lm  # type: ignore[union-attr]
    before = {name: weight.clone() for name, weight in lm.named_parameters()}
    for _ in range(count):
        live.eval()
        live.train()
    rollout = ask(live)
    moved = sum(int(not torch.equal(weight, before[name])) for name, weight in lm.named_parameters())
    gap = 0.0
    for row, response in enumerate(responses(rollout)):
        ids = torch.tensor([[*PROMPTS.ids[row], *response]])
        with torch.no_grad():
            logits = lm(input_ids=ids).logits[0, len(PROMPTS.ids[row]) - 1 : -1].float()
        own = logits.log_softmax(-1).gather(-1, torch.tensor(response).unsqueeze(-1)).squeeze(-1)
        gap = max(gap, float((own - rollout.rollout_logprobs[row, : len(response)]).abs().max()))
    for _, layer in adapted(lm):
        layer.enable_adapters(False)
    without = ask(live)
    return {"base_moved": moved, "gap": gap, "adapter_shows": responses(without) != responses(rollout)}


def averaged(engine: Engine) -> dict[str, Any]:
    """Responses by weights of its own, by others, and by its own again."""
    live = live_policy(engine, torch.float32, None)
    others = [weight * 0.8 for weight in live.master()]
    own = responses(ask(live))
    with live.substituted(others):
        average = responses(ask(live))
    assert responses(ask(live)) == own
    return {"own": own, "average": average}


def draws(engine: Engine, count: int) -> list[list[int]]:
    """Twenty tokens for each of ``count`` prompts."""
    live, tokenizer = live_policy(engine, torch.float32, None), Numbers(51)
    prompts = prompts_of([[5 + row % 40] * (1 + row % 13) for row in range(count)])
    rollout = live.generate(
        prompts, Sampling(max_new_tokens=20), cast(Any, tokenizer), seed=1, counters=range(count), stop_ids=[]
    )
    return responses(rollout)


def switch_figures(engine: Engine) -> dict[str, float]:
    """Bytes that a switch has received, and those of this rank's tensors that the process did not hold."""
    live = live_policy(engine, torch.float32, None)
    assert isinstance(live, HybridEngine) and isinstance(live.inference, LiveTensorParallel)
    live.sampling_figures()
    live.eval()
    figures = live.sampling_figures()
    lacking, rank = 0, distributed.rank()
    held = {name.removeprefix("lm."): part for name, part in held_by(live.model).items()}
    seen: set[tuple[str, int]] = set()
    for tensor in live.inference.resharder.plan.values():
        for piece in tensor.pieces:
            part = held[piece.parameter]
            total = torch.arange(torch.Size(part.shape).numel()).view(part.shape)
            for place in piece.of(total).flatten().tolist():
                start = 0 if part.stretch is None else rank * part.stretch
                mine = part.stretch is None or start <= place < start + part.stretch
                if not mine and (piece.parameter, place) not in seen:
                    seen.add((piece.parameter, place))
                    lacking += 4
    live.train()
    return {
        "received": figures["switch/received_mb"] * 1e6,
        "lacking": lacking,
        "peak": figures["switch/peak_mb"] * 1e6,
    }


# ------------------------------------------------------------------------------------------------- what must not hang

END, BAD = 3, 50
MANY = prompts_of([[5 + row] * (1 + row % 4) for row in range(9)])
"""Of two groups, the first has five of them."""
ENDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "one group ends at once": lambda counters, at: counters < 5,
    "all end at once": lambda counters, at: counters >= 0,
    "one group goes on to the limit": lambda counters, at: (counters >= 5) & (at == counters % 3),
}
"""By scenario: whether the response of this number ends with the next token, and not before."""
SCENARIOS = (
    *ENDS,
    "fewer prompts than groups",
    "no prompts",
    "long prompts in one group",
    "rows give way",
    "a larger batch after a small one",
    "two calls in one mode",
    "with other weights, then its own",
    "uneven rows to train on",
    "not finite in one group",
)


def scenario(engine: Engine, name: str) -> Any:
    """What is answered, by any engine the same."""
    live = live_policy(engine, torch.float32, None, spoilt=name == "not finite in one group")
    tokenizer: Any = Numbers(BAD)  # so that BAD is never drawn

    def ask_for(prompts: Prompts, limit: int = 8) -> list[list[int]]:
        counters, sampling = range(len(prompts)), Sampling(max_new_tokens=limit)
        return responses(live.generate(prompts, sampling, tokenizer, seed=1, counters=counters, stop_ids=[END]))

    with mock.patch.object(Responses, "draw", _ending(ENDS[name])) if name in ENDS else nullcontext():
        if name == "fewer prompts than groups":
            return ask_for(MANY.select([4]))
        if name == "no prompts":
            return ask_for(MANY.select([]))
        if name == "long prompts in one group":
            return ask_for(prompts_of([[7], [8], *[[number] * 30 for number in range(10, 13)]]))
        if name == "rows give way":
            return ask_for(MANY, limit=40)
        if name == "a larger batch after a small one":
            return [ask_for(MANY.select([0])), ask_for(MANY), ask_for(MANY.repeat(3), limit=20)]
        if name == "two calls in one mode":
            with live.inference_mode():
                return [ask_for(MANY), ask_for(MANY.select([3, 1, 2]))]
        if name == "with other weights, then its own":
            with live.substituted([weight * 0.9 for weight in live.master()]):
                found = ask_for(MANY)
            return [found, ask_for(MANY)]
        if name == "uneven rows to train on":
            first = ask_for(MANY)
            _train_on(live, torch.arange(3 * 6).view(3, 6))
            return [first, ask_for(MANY)]
        if name == "not finite in one group":
            try:
                return ask_for(prompts_of([[5], [6], [7, BAD]]))
            except NonFiniteError as error:
                return re.sub(r"row \d", "a row", str(error))[:30]
        return ask_for(MANY)


def _ending(ends: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """Draws that end responses where they should, and nowhere else."""
    honest = Responses.draw

    def draw(self: Responses, logits: Tensor, rows: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        logits = logits.clone()
        logits[:, END] = torch.where(ends(torch.tensor(self.request.counters)[rows], at), 1e4, -1e4)
        return honest(self, logits, rows, at)

    return draw


def _train_on(live: LiveEngine, ids: Tensor) -> None:
    batch = Labelled(Sequences(ids, torch.ones_like(ids, dtype=torch.bool), 1), torch.ones_like(ids[:, 1:]).bool())

    def loss(outputs: Outputs, batch: Labelled) -> tuple[list[LossTerm], Tally]:
        assert outputs.logprobs is not None
        return [LossTerm("sft", -outputs.logprobs, batch.mask)], Tally()

    live.accumulate(batch.split(2), loss, {"sft": float(batch.mask.sum())}, want=("logprobs",))
    live.step()
