"""Stages small enough to run whole in a test: a GPT-2 of two narrow layers on a toy language."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import random
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor, nn

from rlhf.algorithms.optimizers import AdamW
from rlhf.algorithms.ppo import PPO
from rlhf.algorithms.reward_modelling import RewardModelling
from rlhf.algorithms.sft import SFT
from rlhf.data.dataset import Data
from rlhf.data.sources import Generator
from rlhf.engines.inference.sampling import Sampling
from rlhf.interfaces import LanguageModel, LiveSink, MetricSink, Source
from rlhf.loops.context import StageContext
from rlhf.loops.online import OnlineTrainer
from rlhf.models.policy import FromScratch
from rlhf.models.rewards import FunctionReward
from rlhf.types import Outputs, Sequences

TIMED = ("time/", "throughput/", "memory/")
"""Figures that no two runs share."""


def rows(form: str, n: int) -> Iterator[dict[str, Any]]:
    """Prompts of a few letters; good responses are lower case, bad ones upper case."""
    rng = random.Random(0)
    for _ in range(n):
        prompt = "".join(rng.choices("abcdef", k=rng.randint(2, 5))) + "="
        good = "".join(rng.choices("xyz", k=rng.randint(2, 6)))
        yield {
            "prompt": {"prompt": prompt},
            "demonstration": {"prompt": prompt, "response": good},
            "comparison": {"prompt": prompt, "chosen": good, "rejected": good.upper()},
            "scored": {"prompt": prompt, "responses": [good, good.upper(), good.title()], "scores": [1.0, 0.0, 0.5]},
            "text": {"text": prompt + good},
            "talk": {"messages": _talk(prompt, good)},
            "talk_pair": {
                "messages": _talk(prompt, good)[:3],
                "chosen": {"role": "assistant", "content": good},
                "rejected": {"role": "assistant", "content": good.upper()},
            },
        }[form]


def _talk(prompt: str, good: str) -> list[dict[str, str]]:
    says = [("user", prompt), ("assistant", good), ("user", prompt[::-1]), ("assistant", good[::-1])]
    return [{"role": role, "content": content} for role, content in says]


def source(form: str, n: int = 24) -> Source:
    return Generator(function="tiny_runs.rows", arguments={"form": form, "n": n})


def data(form: str, n: int = 24, **settings: Any) -> Data:
    return Data(sources={"toy": source(form, n)}, **{"eval_rows": 4, "max_tokens": 32, **settings})


def letters(prompts: list[str], responses: list[str]) -> list[float]:
    """Lower-case letters in each response."""
    return [float(sum("a" <= character <= "z" for character in response)) for response in responses]


STOPS = list("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
"""An untrained policy seldom draws the end token: with these, about one token in eight ends a response."""
LETTERS = FunctionReward(function="tiny_runs.letters")


def policy(dropout: float = 0.0, width: int = 16, std: float = 0.2) -> FromScratch:
    probabilities = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    sizes = {"n_layer": 2, "n_embd": width, "n_head": 2, "n_positions": 64, "initializer_range": std}
    return FromScratch(config={"model_type": "gpt2", **sizes, **probabilities}, vocab_size=280)


@dataclass(frozen=True, kw_only=True)
class SameTokenizer(FromScratch):
    """A policy with the tokenizer of the stage that learns from this form of the toy rows."""

    form: str

    def build(self, corpus: Callable[[], Iterable[str]], *, seed: int) -> LanguageModel:
        return super().build(lambda: data(self.form).corpus("sft"), seed=seed)


def sft(**settings: Any) -> SFT:
    usual = {"policy": policy(), "data": data("demonstration"), "batch_size": 4, "optimizer": AdamW(lr=1e-2)}
    return SFT(**{**usual, **settings})


def reward_modelling(**settings: Any) -> RewardModelling:
    usual = {"model": policy(), "data": data("comparison"), "batch_size": 4, "optimizer": AdamW(lr=1e-2)}
    return RewardModelling(**{**usual, **settings})


def ppo(kind: type[PPO] = PPO, **settings: Any) -> PPO:
    """An on-policy algorithm, with the critic of its class where that has one."""
    critic = next(item.default for item in dataclasses.fields(kind) if item.name == "critic")
    usual: dict[str, Any] = {
        "policy": policy(),
        "reward": LETTERS,
        "data": data("prompt"),
        "critic": critic and dataclasses.replace(critic, optimizer=AdamW(lr=1e-2)),
        "sampling": Sampling(max_new_tokens=8, stop_tokens=STOPS),
        "batch_size": 8,
        "mini_batch_size": 4,
        "iterations": 3,
        "optimizer": AdamW(lr=1e-2),
    }
    return kind(**{**usual, **settings})


def learning_curve(
    directory: Path, seed: int, kind: type[PPO] = PPO, *, figure: str = "reward/score", **settings: Any
) -> list[float]:
    """An algorithm on the number of letters: a figure of each iteration, such as the mean reward."""
    usual = {
        "policy": policy(width=32, std=0.1),
        "optimizer": AdamW(lr=5e-3),
        "iterations": 12,
        "batch_size": 32,
        "mini_batch_size": 16,
        "epochs": 2,
        "score_clip": None,
    }
    trainer = OnlineTrainer(ppo(kind, **{**usual, **settings}), context(directory, seed=seed))
    return [trainer.train_rlhf(trainer.generate_experience())[figure] for _ in range(trainer.algorithm.iterations)]


def gain(directory: Path, seed: int, kind: type[PPO] = PPO, **settings: Any) -> float:
    """The reward of the last iterations over that of the first."""
    scores = learning_curve(directory, seed, kind, **settings)
    return sum(scores[-3:]) / 3 - sum(scores[:2]) / 2


def context(directory: Path, *, seed: int = 1, sinks: tuple[MetricSink, ...] = ()) -> StageContext:
    return StageContext(directory=directory, seed=seed, sinks=sinks, console=Console(file=io.StringIO()))


def metrics(directory: Path) -> list[dict[str, float]]:
    """The lines of ``metrics.jsonl`` without what is different in every run."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(TIMED)} for line in lines]


class Ids(nn.Module):
    """Stands for a model: every token's log-probability is −w · its id, so that losses can be written as ids."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))  # DeepSpeed has no room for weights without a dimension

    def forward(self, sequences: Sequences, *, temperature: float = 1.0, want: Any = (), mask: Tensor) -> Outputs:
        ids = sequences.response_ids.to(self.w.dtype)
        return Outputs(logprobs=torch.where(mask, -self.w * ids, torch.zeros_like(ids)))


def right_padded(rows: list[list[int]], prompt: int = 1, *, left: int = 0, right: int = 0) -> tuple[Sequences, Tensor]:
    """Rows behind ``left`` pads, with at least ``right`` more after them; and the mask of their responses."""
    width = max(map(len, rows)) + right
    ids = torch.tensor([[0] * left + row + [0] * (width - len(row)) for row in rows])
    real = torch.tensor([[0] * left + [1] * len(row) + [0] * (width - len(row)) for row in rows]).bool()
    return Sequences(ids, real, prompt + left), real[:, prompt + left :]


def stop_after(trainer: Any, step: int, monkeypatch: Any, method: str) -> None:
    """Has a trainer asked to stop, as by SIGTERM, during an optimiser step."""
    honest, made = getattr(trainer, method), iter(range(1, step + 1))

    def counting(*arguments: Any) -> Any:
        figures = honest(*arguments)
        if next(made, None) == step:
            trainer.context.stop.signal = signal.SIGTERM
        return figures

    monkeypatch.setattr(trainer, method, counting)


class Killed(BaseException):
    """Stands for kill −9: nothing in the loop catches it."""


@dataclass(frozen=True, kw_only=True)
class KillAt(MetricSink):
    """Ends the run in the middle of a step: its line is written, its checkpoint is not."""

    step: int

    def open(self, directory: Path) -> LiveSink:
        return _Killer(self.step)


class _Killer(LiveSink):
    def __init__(self, step: int) -> None:
        self.step = step

    def write(self, metrics: Mapping[str, float]) -> None:
        if metrics["step"] == self.step:
            raise Killed

    def close(self) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class SignalAt(MetricSink):
    """Sends this process a signal when a step of the named stage is first written."""

    stage: str
    step: int
    number: int

    def open(self, directory: Path) -> LiveSink:
        return _Signaller(self if directory.name == self.stage else None)


class _Signaller(LiveSink):
    def __init__(self, settings: SignalAt | None) -> None:
        self.settings = settings

    def write(self, metrics: Mapping[str, float]) -> None:
        if self.settings is not None and metrics["step"] == self.settings.step:
            number, self.settings = self.settings.number, None
            os.kill(os.getpid(), number)

    def close(self) -> None:
        pass


def same_weights(a: Path, b: Path) -> bool:
    """Whether two saved models are bit-equal."""
    one, other = (load_file(folder / "model.safetensors") for folder in (a, b))
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
