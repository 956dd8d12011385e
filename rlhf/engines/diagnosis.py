"""Where a number first became NaN or infinite: a pass is made again, and every tensor on the way is looked at."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from rlhf.algorithms.functional.masking import aggregate
from rlhf.errors import NonFiniteError
from rlhf.interfaces import LossFn
from rlhf.types import LossTerm, Outputs, Selectable, Tally

if TYPE_CHECKING:
    from rlhf.engines.inference.responses import Request
    from rlhf.models.modules import PolicyModel

M = TypeVar("M", bound=Selectable)


@contextmanager
def training_mode(model: nn.Module, mode: bool) -> Iterator[None]:
    """The model with dropout on or off inside the context, and every module's own flag as before after it."""
    flags = {module: module.training for module in model.modules()}
    model.train(mode)
    try:
        yield
    finally:
        for module, flag in flags.items():
            module.training = flag


def _bad(tensor: Tensor, mask: Tensor | None = None) -> str | None:
    """How many of a tensor's numbers are not finite, or None. Masked slots may hold anything."""
    if not tensor.is_floating_point():
        return None
    if mask is not None and tensor.shape[: mask.ndim] == mask.shape:
        tensor = tensor[mask]
    wrong = int((~tensor.detach().isfinite()).sum())
    return f"{wrong} of {tensor.numel()} numbers" if wrong else None


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from _tensors(value)


def bad_weight(model: nn.Module) -> str | None:
    """The first weight or buffer that is not finite."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if found := _bad(tensor):
            return f"weight {name} ({found})"
    return None


@contextmanager
def watched(model: nn.Module, mask: Tensor | None = None) -> Iterator[list[str]]:
    """Modules whose output is not finite, in the order in which they answer.

    Args:
        model: What runs inside the context.
        mask: Real positions: what a module answers at pads does not count.
    """
    found: list[str] = []

    def hook(name: str) -> Any:
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            for tensor in _tensors(output):
                if bad := _bad(tensor, mask):
                    found.append(f"output of {name or 'the model'}, a {type(module).__name__} ({bad})")
                    return

        return look

    handles = [module.register_forward_hook(hook(name)) for name, module in model.named_modules()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class TrainingPass(Generic[M]):
    """A micro-batch on its way through a model, and all that is needed to send it again.

    Attributes:
        batch: The micro-batch.
        loss_fn: Maps outputs to loss terms and metrics.
        denominators: Global count of each term.
        want: Fields of :class:`Outputs`.
        temperature: Of log-probabilities and entropies.
        dropout: Whether the model's dropout is on.
        rng: torch's random state before the pass.
    """

    batch: M
    loss_fn: LossFn[M]
    denominators: Mapping[str, float]
    want: Sequence[str]
    temperature: float
    dropout: bool
    rng: Tensor

    def outputs(self, model: nn.Module) -> Outputs:
        """The model's answers."""
        return model(self.batch.sequences, temperature=self.temperature, want=self.want, mask=self.batch.mask)

    def loss(self, outputs: Outputs) -> tuple[Tensor, list[LossTerm], Tally]:
        """The sum to be minimised, its terms, and the metrics with the terms among them."""
        terms, metrics = self.loss_fn(outputs, self.batch)
        total = torch.zeros((), dtype=torch.float32)
        for term in terms:
            loss = aggregate(term.values, term.mask, mode=term.mode, denominator=self.denominators[term.name])
            total = total + term.coef * loss
            metrics.sum(f"loss/{term.name}", loss.item())
        metrics.sum("loss/total", total.item())
        return total, terms, metrics

    def find(self, model: nn.Module) -> str | None:
        """The first tensor that is not finite when the pass is made again; None where all are.

        Looked at in this order: weights, outputs of modules, the model's answers, what the batch brings, loss terms,
        gradients of the parameters. Leaves the random state as it was, and the model without gradients.
        """
        if found := bad_weight(model):
            return found
        with torch.random.fork_rng(devices=[]), training_mode(model, self.dropout):
            torch.set_rng_state(self.rng)
            with watched(model, self.batch.sequences.attention_mask) as modules:
                outputs = self.outputs(model)
            if modules:
                return modules[0]
            if found := self._bad_field("the model's", outputs) or self._bad_field("the batch's", self.batch):
                return found
            total, terms, _ = self.loss(outputs)
            for term in terms:
                if found := _bad(term.values, term.mask):
                    return f"loss term {term.name} ({found})"
            return _bad_gradient(model, total)

    def _bad_field(self, owner: str, fields: Any) -> str | None:
        for item in dataclasses.fields(fields):
            value = getattr(fields, item.name)
            if isinstance(value, Tensor) and (found := _bad(value, self.batch.mask)):
                return f"{owner} {item.name} ({found})"
        return None


def _bad_gradient(model: nn.Module, total: Tensor) -> str | None:
    """The first parameter, in the order of the backward pass, to get a gradient that is not finite."""
    found: list[str] = []

    def hook(name: str) -> Any:
        def look(gradient: Tensor) -> None:
            if bad := _bad(gradient):
                found.append(f"gradient of {name} ({bad})")

        return look

    handles = [p.register_hook(hook(name)) for name, p in model.named_parameters() if p.requires_grad]
    try:
        if total.requires_grad:
            total.backward()
    finally:
        for handle in handles:
            handle.remove()
        model.zero_grad(set_to_none=True)
    return found[0] if found else None


@dataclass(frozen=True)
class SamplingPass:
    """A call of the sampler, and all that is needed to make it again.

    Attributes:
        request: What was to be answered, and how.
    """

    request: Request

    def find(self, model: nn.Module) -> str | None:
        """The first weight, or module's output, that is not finite when the prompts are answered again."""
        from rlhf.engines.inference.sampler import sample

        if found := bad_weight(model):
            return found
        with watched(model) as modules:
            try:
                sample(cast("PolicyModel", model).lm, self.request)
            except NonFiniteError:
                return modules[0] if modules else None
        return None
