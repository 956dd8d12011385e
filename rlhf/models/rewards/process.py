"""Process rewards: a score for each step of a response, on the step's last token."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from rlhf.errors import UserError
from rlhf.interfaces import Engine, LiveEngine, ModelPath, RewardModel, Scorer
from rlhf.models.rewards.answers import finite_numbers
from rlhf.models.rewards.function import Imported, check_function, function_source, of_any
from rlhf.models.rewards.scalar import check_path, frozen_value_model
from rlhf.models.rewards.steps import Step, split_steps
from rlhf.types import Rollout, Scores, Selectable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def _check_separator(separator: str) -> None:
    if not separator:
        raise UserError("separator: it is empty; give the text that parts steps, such as a line break")


class StepScorer(Scorer):
    """Splits responses into steps and puts their scores in the steps' last tokens: totals are [B, T]."""

    def __init__(self, separator: str, tokenizer: PreTrainedTokenizerBase) -> None:
        self.separator = separator
        self.tokenizer = tokenizer

    @abstractmethod
    def score(self, rollout: Rollout, steps: Sequence[Sequence[Step]]) -> Sequence[Sequence[float]]:
        """A number for each step; a step's ``end`` is its column of the response."""

    def __call__(self, rollout: Rollout) -> Scores:
        steps = self.steps(rollout)
        total = torch.zeros(rollout.mask.shape, dtype=torch.float32)
        for row, scores in enumerate(self.score(rollout, steps)):
            total[row, [step.end for step in steps[row]]] = torch.tensor(scores, dtype=torch.float32)
        counts = torch.tensor([len(row) for row in steps], dtype=torch.float32)
        return Scores(total.to(rollout.mask.device), {"steps": counts.to(rollout.mask.device)})

    def steps(self, rollout: Rollout) -> list[list[Step]]:
        """The steps of each response, ``end`` being a column of [B, T]."""
        found = []
        for ids, mask, text in zip(rollout.sequences.response_ids, rollout.mask, rollout.text, strict=True):
            columns = mask.nonzero().flatten().tolist()
            steps = split_steps(ids[mask].tolist(), text, self.separator, self._decode)
            found.append([step._replace(end=columns[step.end]) for step in steps])
        return found

    def _decode(self, ids: list[int]) -> str:
        return cast(str, self.tokenizer.decode(ids, skip_special_tokens=False))


@dataclass(frozen=True, kw_only=True)
class StepFunctionReward(RewardModel):
    """A Python function that scores each step of a response.

    The call is ``function(prompts=[…], steps=[[…], …], **columns, **arguments)``: of each response the texts of its
    steps. It answers a list of as many numbers for each. Columns and arguments are those of ``FunctionReward``.

    Args:
        function: Import path such as my_rewards.check_lines.
        separator: What parts steps. A run of it counts once, and a step of white space only is none.
        arguments: Further keyword arguments; they take precedence over columns of the same name.
    """

    function: str
    separator: str = "\n"
    arguments: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_function(self.function, self.arguments, ("prompts", "steps"))
        _check_separator(self.separator)

    def build(self, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> Scorer:
        """Imports the function.

        Raises:
            UserError: there is no such function, or it does not take the arguments.
        """
        function = Imported(self.function, self.arguments, ("prompts", "steps"))
        return StepFunctionScorer(function, self.separator, tokenizer)

    def check_inputs(self) -> None:
        Imported(self.function, self.arguments, ("prompts", "steps"))

    def check_columns(self, columns: Mapping[str, Collection[str]]) -> None:
        Imported(self.function, self.arguments, ("prompts", "steps")).check_columns(of_any(columns))

    def fingerprint(self) -> str | None:
        return function_source(self.function)


class StepFunctionScorer(StepScorer):
    """A function of prompts and steps."""

    def __init__(self, function: Imported, separator: str, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(separator, tokenizer)
        self.function = function

    def score(self, rollout: Rollout, steps: Sequence[Sequence[Step]]) -> Sequence[Sequence[float]]:
        texts = [[step.text for step in row] for row in steps]
        answer = self.function(rollout.prompts, {"prompts": list(rollout.prompts.text), "steps": texts})
        who = f"function: {self.function.path}"
        if not isinstance(answer, list | tuple) or len(answer) != len(texts):
            raise UserError(
                f"{who} answered {answer!r:.200}; it must be a list of numbers for each of {len(texts)} rows"
            )
        return [finite_numbers(one, row, who, "steps") for one, row in zip(answer, texts, strict=True)]


@dataclass(frozen=True, kw_only=True)
class StepScalarReward(RewardModel):
    """A trained reward model read at the end of each step, in one pass over the sampled ids.

    At the last token it is what ``ScalarReward`` reads. The sum of the scores grows with the number of steps; that of
    the gains (a step's score less that of the step before) is the last step's score, however many there are.

    Args:
        path: "@stage" for the result of an earlier reward-modelling stage, or the folder of one.
        separator: What parts steps. A run of it counts once, and a step of white space only is none.
        gains: Whether a step is worth what it adds to the score of the step before.
    """

    path: ModelPath
    separator: str = "\n"
    gains: bool = True

    def __post_init__(self) -> None:
        check_path(self.path)
        _check_separator(self.separator)

    def build(self, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> Scorer:
        """Loads the model and freezes it in the engine; see ``ScalarReward``."""
        model = frozen_value_model(self.path, engine, tokenizer)
        return StepScalarScorer(model, engine.rows_at_once, self.gains, self.separator, tokenizer)


class StepScalarScorer(StepScorer):
    """A frozen value model, read after every token."""

    def __init__(
        self,
        engine: LiveEngine,
        rows_at_once: int,
        gains: bool,
        separator: str,
        tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        super().__init__(separator, tokenizer)
        self.engine = engine
        self.rows_at_once = rows_at_once
        self.gains = gains

    def score(self, rollout: Rollout, steps: Sequence[Sequence[Step]]) -> Sequence[Sequence[float]]:
        after = self._after(rollout).tolist()
        scores = [[values[step.end] for step in row] for values, row in zip(after, steps, strict=True)]
        if not self.gains:
            return scores
        return [[b - a for a, b in zip([0.0, *row], row, strict=False)] for row in scores]

    def _after(self, rollout: Rollout) -> Tensor:
        """[B, T] score of the response up to and with each token.

        The state after a token is the one before the next, whose value the model answers; after the last real token
        it answers the score.
        """
        real = rollout.sequences.attention_mask[:, rollout.sequences.prompt_width :]
        batches = Selectable(rollout.sequences, real).split(self.rows_at_once)
        after, row = torch.zeros(real.shape, dtype=torch.float32), 0
        for out in self.engine.evaluate(batches, want=("values", "scores")):
            assert out.values is not None and out.scores is not None
            count, width = out.values.shape
            after[row : row + count, : width - 1] = out.values[:, 1:].to(after)
            last = real[row : row + count].sum(1).cpu() - 1
            after[torch.arange(row, row + count), last] = out.scores.to(after)
            row += count
        return after
