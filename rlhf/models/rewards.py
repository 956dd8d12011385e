"""What a response is worth: a trained scalar model, a function of the text, or a weighted sum of such."""

from __future__ import annotations

import difflib
import importlib
import inspect
import logging
import math
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlhf.errors import UserError
from rlhf.interfaces import Engine, LiveEngine, ModelPath, RewardModel, Scorer, Template
from rlhf.models.storage import load_template, load_value_model
from rlhf.models.tokenizer import differing_tokens, pad_id
from rlhf.types import Rollout, Scores, Selectable, Sequences

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ScalarReward(RewardModel):
    """A trained reward model, read at the last real token of the sampled ids: where its training read it.

    A model with another tokenizer than the policy's is given the texts instead, through its own tokenizer and the
    template of its training.

    Args:
        path: "@stage" for the result of an earlier reward-modelling stage, or the folder of one.
    """

    path: ModelPath

    def __post_init__(self) -> None:
        if not self.path:
            raise UserError("path: it is empty; give @stage or the folder of a reward model")

    def build(self, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> Scorer:
        """Loads the model and freezes it in the engine.

        Raises:
            UserError: the folder, or its head, is missing.
            UserError: the reward model has another tokenizer than the policy, and its folder does not say how texts
                are to be read.
        """
        model, own = load_value_model(self.path)
        if not (different := differing_tokens(own, tokenizer)):
            return ScalarScorer(engine.build(model), engine.rows_at_once)
        template = load_template(self.path)
        logger.warning(
            "The reward model in %s has another vocabulary than the policy (%d tokens differ, such as %r): "
            "responses are decoded and tokenised again for it.",
            self.path,
            len(different),
            different[0],
        )
        return TextScorer(engine.build(model), engine.rows_at_once, template, own)


class ScalarScorer(Scorer):
    """A frozen value model in an engine."""

    def __init__(self, engine: LiveEngine, rows_at_once: int) -> None:
        self.engine = engine
        self.rows_at_once = rows_at_once

    def __call__(self, rollout: Rollout) -> Scores:
        device = rollout.sequences.ids.device
        scores = [out.scores for out in self.engine.evaluate(self._batches(rollout), want=("scores",))]
        return Scores(torch.cat([part.to(device) for part in scores if part is not None]))

    def _batches(self, rollout: Rollout) -> Iterator[Selectable]:
        whole = self.read(rollout)
        for rows in torch.arange(len(whole), device=whole.mask.device).split(self.rows_at_once):
            yield whole.select(rows)

    def read(self, rollout: Rollout) -> Selectable:
        """The sequences that the model reads."""
        return Selectable(rollout.sequences, rollout.mask)


class TextScorer(ScalarScorer):
    """A frozen value model that reads the texts of a rollout through its own template and tokenizer."""

    def __init__(
        self, engine: LiveEngine, rows_at_once: int, template: Template, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        super().__init__(engine, rows_at_once)
        self.template = template
        self.tokenizer = tokenizer

    def read(self, rollout: Rollout) -> Selectable:
        """Prompt and response as its training would have encoded them; a cut response has no end id."""
        texts = zip(rollout.prompts.text, rollout.text, rollout.ended.tolist(), strict=True)
        rows = [self._ids(*row) for row in texts]
        width = max(2, *map(len, rows))
        fill = pad_id(self.tokenizer)
        ids = torch.tensor([row + [fill] * (width - len(row)) for row in rows], device=rollout.mask.device)
        lengths = torch.tensor([len(row) for row in rows], device=rollout.mask.device)
        real = torch.arange(width, device=rollout.mask.device) < lengths.unsqueeze(1)
        return Selectable(Sequences(ids, real, prompt_width=1), real[:, 1:])

    def _ids(self, prompt: str, response: str, ended: bool) -> list[int]:
        ids = self.template.response(self.template.bare(response), self.tokenizer)
        return self.template.prompt(prompt, self.tokenizer) + (ids if ended else ids[:-1])


@dataclass(frozen=True, kw_only=True)
class FunctionReward(RewardModel):
    """A Python function of the texts, called once per rollout with all B responses.

    The call is ``function(prompts=[…], responses=[…], **columns, **arguments)``, lists of B entries: columns are those
    further columns of the data source that the function names in its signature (all of them if it takes ``**kwargs``).
    It answers B numbers.

    Args:
        function: Import path such as my_rewards.length, from an installed package or the folder where the command runs.
        arguments: Further keyword arguments; they take precedence over columns of the same name.
    """

    function: str
    arguments: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not all(part.isidentifier() for part in self.function.split(".")) or "." not in self.function:
            raise UserError(f"function: {self.function!r} is no import path; write module.function")
        if taken := {"prompts", "responses"} & set(self.arguments):
            raise UserError(f"arguments: {min(taken)} is given by the rollout; name the argument otherwise")

    def build(self, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> Scorer:
        """Imports the function; neither engine nor tokenizer is needed.

        Raises:
            UserError: there is no such function, or it does not take the arguments.
        """
        return self._scorer()

    def check_inputs(self) -> None:
        self._scorer()

    def _scorer(self) -> FunctionScorer:
        module, _, name = self.function.rpartition(".")
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise UserError(f"function: {self.function} cannot be imported ({error}); check the path") from error
        if not callable(function):
            raise UserError(f"function: {self.function} is {function!r}; give something that can be called")
        return FunctionScorer(self.function, function, self.arguments)


class FunctionScorer(Scorer):
    """A function with its arguments, checked against its signature."""

    def __init__(self, name: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
        self.name = name
        self.function = function
        self.arguments = arguments
        parameters = inspect.signature(function).parameters
        self.takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        named = {n: p for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        self.accepted = set(named)
        self.required = {n for n, p in named.items() if p.default is p.empty}
        for argument in ("prompts", "responses", *arguments):
            if not (self.takes_all or argument in self.accepted):
                near = difflib.get_close_matches(argument, sorted(self.accepted), 1)
                hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(sorted(self.accepted)) or 'none'}"
                raise UserError(f"function: {name} takes no argument {argument}; {hint}")

    def __call__(self, rollout: Rollout) -> Scores:
        prompts = rollout.prompts
        columns = {n: list(v) for n, v in prompts.columns.items() if self.takes_all or n in self.accepted}
        given = columns | dict(self.arguments) | {"prompts": list(prompts.text), "responses": list(rollout.text)}
        if missing := sorted(self.required - set(given)):
            raise UserError(
                f"function: {self.name} needs {', '.join(missing)}, which is neither in arguments nor a column of the "
                f"data; columns there: {', '.join(sorted(prompts.columns)) or 'none'}"
            )
        try:
            answer = self.function(**given)
        except Exception as error:  # foreign code may raise anything; its own traceback stays above this message
            raise RuntimeError(
                f"function: {self.name} raised {type(error).__name__} on {len(rollout)} responses: {error}"
            ) from error
        numbers_ = self._numbers(answer, list(rollout.text))
        return Scores(torch.tensor(numbers_, dtype=torch.float32, device=rollout.sequences.ids.device))

    def _numbers(self, answer: Any, responses: Sequence[str]) -> list[float]:
        if isinstance(answer, Tensor):
            answer = answer.tolist()
        if isinstance(answer, str) or not hasattr(answer, "__len__") or not hasattr(answer, "__iter__"):
            raise UserError(f"function: {self.name} answered {answer!r}; it must be {len(responses)} numbers")
        if len(answer) != len(responses):
            raise UserError(f"function: {self.name} answered {len(answer)} scores for {len(responses)} responses")
        for score, response in zip(answer, responses, strict=True):
            value = score.item() if isinstance(score, Tensor) and score.numel() == 1 else score
            if not (isinstance(value, numbers.Real) and math.isfinite(value)):
                raise UserError(f"function: {self.name} answered {score!r}, no finite number, for {response[:200]!r}")
        return [float(score) for score in answer]


@dataclass(frozen=True, kw_only=True)
class Weighted(RewardModel):
    """A weighted sum of reward models: total = Σ weight · score. Each score is reported under its name.

    Args:
        models: The reward models, by name.
        weights: A weight for each of them, negative for what is to be avoided.
    """

    models: dict[str, RewardModel]
    weights: dict[str, float]

    def __post_init__(self) -> None:
        if not self.models:
            raise UserError("models: there is none; name at least one reward model")
        if odd := sorted(set(self.models) ^ set(self.weights)):
            where = "models but not in weights" if odd[0] in self.models else "weights but not in models"
            raise UserError(f"weights: {odd[0]} is in {where}; give each model exactly one weight")

    def build(self, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> Scorer:
        """Builds each model."""
        scorers = {name: model.build(engine, tokenizer) for name, model in self.models.items()}
        return WeightedScorer(scorers, self.weights)


class WeightedScorer(Scorer):
    """Scorers with weights. Totals must all be per response or all per token; a part is always per response."""

    def __init__(self, scorers: Mapping[str, Scorer], weights: Mapping[str, float]) -> None:
        self.scorers = scorers
        self.weights = weights

    def __call__(self, rollout: Rollout) -> Scores:
        answers = {name: scorer(rollout) for name, scorer in self.scorers.items()}
        shapes = {name: list(scores.total.shape) for name, scores in answers.items()}
        if len({tuple(shape) for shape in shapes.values()}) > 1:
            raise UserError(f"models: scores per response and per token cannot be added; they have shapes {shapes}")
        parts: dict[str, Tensor] = {}
        for name, scores in answers.items():
            total = scores.total
            parts[name] = total if total.ndim == 1 else torch.where(rollout.mask, total, 0.0).sum(1)
            parts |= {f"{name}/{inner}": part for inner, part in scores.parts.items()}
        weighted = [self.weights[name] * scores.total for name, scores in answers.items()]
        return Scores(torch.stack(weighted).sum(0), parts)
