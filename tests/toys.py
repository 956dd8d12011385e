"""Toy components with every kind of setting, and a YAML of them: what the tests of the config load."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rlhf.algorithms.advantages import GAE
from rlhf.algorithms.kl import KL, Fixed
from rlhf.algorithms.objectives import Entropy
from rlhf.interfaces import AdvantageEstimator, Algorithm, MetricSink, Source


@dataclass(frozen=True, kw_only=True)
class ToySource(Source):
    """Rows of a toy.

    Args:
        path: A file.
        limit: Rows.
    """

    path: str
    limit: int | None = None

    def load(self):
        raise AssertionError("a config loads no data")


@dataclass(frozen=True, kw_only=True)
class ToyData:
    """A group of settings.

    Args:
        sources: By name.
        weights: By name.
        max_tokens: Length.
    """

    sources: dict[str, Source]
    weights: dict[str, float] = field(default_factory=dict)
    max_tokens: int = 64


@dataclass(frozen=True, kw_only=True)
class ToyAlgorithm(Algorithm):
    """Every kind of setting."""

    data: ToyData | None = None
    advantage: AdvantageEstimator = GAE(lam=0.5)
    kl: KL | None = KL(estimator="k3", where="loss", controller=Fixed(coef=0.04))
    entropy: Entropy | None = None
    clip: float = 0.2
    steps: int = 10
    flag: bool = True
    label: str = "x"
    note: str | None = None
    mode: Literal["token", "sequence"] = "token"
    betas: tuple[float, float] = (0.9, 0.95)
    penalty: float | dict[str, float] = 0.5
    batch_size: int = 8

    def check(self) -> list[str]:
        return [f"batch_size: {self.batch_size} % 3 ≠ 0; take 9"] if self.batch_size == 16 else []


@dataclass(frozen=True, kw_only=True)
class ToyVariant(ToyAlgorithm):
    """Another default for one setting, another setting."""

    clip: float = 0.7
    extra: int = 1


@dataclass(frozen=True, kw_only=True)
class ToySink(MetricSink):
    """A sink."""

    color: str = "red"

    def open(self, directory):
        raise AssertionError("a config opens no sink")


class ToyPlain(AdvantageEstimator):
    """A component that is no dataclass."""

    def __init__(self, scale: float = 1.0):
        self.scale = scale

    def __call__(self, scored):
        raise AssertionError("a config computes nothing")


class ToyBare(AdvantageEstimator):
    """A component without settings."""

    def __call__(self, scored):
        raise AssertionError("a config computes nothing")


BASE = """
name: toy
stages:
  one:
    class_path: ToyAlgorithm
    init_args:
      clip: 1e-1
      advantage: {class_path: GAE, init_args: {gamma: 0.9}}
      data: {sources: {reviews: {class_path: ToySource, init_args: {path: a.jsonl}}}}
"""
REVIEWS = {"reviews": ToySource(path="a.jsonl")}


def stage(settings: str) -> str:
    return f"stages: {{one: {{init_args: {{{settings}}}}}}}"
