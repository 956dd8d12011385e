"""Tasks of the package reasoning-gym: its procedures write the questions, and judge the answers.

A row's column ``entry`` says from which task, settings and place it comes, so that the reward can make the entry anew
and give it to the task's own judge whole.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.metadata
import inspect
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rlhf import distributed
from rlhf.errors import UserError
from rlhf.interfaces import Engine, RewardModel, Scorer
from rlhf.models.rewards.rules import check_column, column, compiled
from rlhf.types import Rollout, Scores

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_EVALUATES = re.compile(r"\b(?:eval|exec|parse_expr|sympify)\s*\(")


def installed() -> Any:
    """The package.

    Raises:
        UserError: it is missing.
    """
    try:
        return importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise UserError(
            f"ReasoningGym: reasoning-gym is not installed ({error}); pip install 'rlhf[reasoning-gym]'"
        ) from None


def installed_version() -> str:
    """Of the package: another one may ask and judge otherwise."""
    package = installed()
    try:
        return importlib.metadata.version("reasoning-gym")
    except importlib.metadata.PackageNotFoundError:  # found on the path, without having been installed
        return str(package.__version__)


def make_task(task: str, config: Mapping[str, Any], *, size: int, seed: int) -> Any:
    """A task of reasoning-gym with so many entries.

    Raises:
        UserError: the package is missing, it has no such task, or the task refuses the settings.
    """
    package = installed()
    known = package.factory.DATASETS
    if task not in known:
        near = difflib.get_close_matches(task, known, 3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(sorted(known))}"
        raise UserError(f"task: reasoning-gym has no {task}; {hint}")
    try:
        return package.create_dataset(task, size=size, seed=seed, **config)
    except Exception as error:  # a task's own checks: assertions, type errors and others
        raise UserError(f"config: {task} refuses {dict(config)} ({error}); correct it") from error


def evaluates_text(dataset: Any) -> bool:
    """Whether a task's class calls an evaluator such as ``eval``: then its judge may run what a response says."""
    ours = [cls for cls in type(dataset).__mro__ if cls.__module__.startswith("reasoning_gym")]
    return any(_EVALUATES.search(inspect.getsource(cls)) for cls in ours)


@functools.lru_cache(maxsize=64)
def _remade(task: str, config: str, size: int, seed: int) -> Any:
    return make_task(task, json.loads(config), size=size, seed=seed)


@dataclass(frozen=True, kw_only=True)
class ReasoningGymReward(RewardModel):
    r"""What the judge of a row's task of reasoning-gym gives the response: 0 to 1.

    The rows are those of the source ``ReasoningGym``. A response that the judge fails on with an error is worth 0 and
    counted as ``unjudged`` (``reward/unjudged``).

    Args:
        column: Column that says which entry of which task a row is.
        extract: Regular expression whose last match is the answer, its first group where it has one, such as
            ``(?s)<answer>\s*(.*?)\s*</answer>``; a response without a match is worth 0. Null judges the whole
            response, without the white space around it.
        run_responses: Some tasks' judges hand the response to Python's ``eval`` or to a parser that does, so that what
            a model writes is executed. They are refused unless this is true: set it only where nothing can be harmed.
    """

    column: str = "entry"
    extract: str | None = None
    run_responses: bool = False

    def __post_init__(self) -> None:
        if self.extract is not None:
            compiled(self.extract, "extract")

    def check_inputs(self) -> None:
        installed()

    def fingerprint(self) -> str | None:
        return installed_version()

    def check_columns(self, columns: Mapping[str, Collection[str]]) -> None:
        check_column(columns, self.column)

    def build(self, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> Scorer:
        """Nothing is needed."""
        return ReasoningGymScorer(self)

    def answer(self, response: str) -> str | None:
        """The answer that a response gives."""
        if self.extract is None:
            return response.strip()
        found = list(re.finditer(self.extract, response))
        return (found[-1][1 if found[-1].re.groups else 0] or "") if found else None


class ReasoningGymScorer(Scorer):
    """The judges of the tasks that rows come from."""

    def __init__(self, settings: ReasoningGymReward) -> None:
        self.settings = settings

    def __call__(self, rollout: Rollout) -> Scores:
        entries = column(rollout.prompts, self.settings.column)
        judged = distributed.once(lambda: [self._judge(*one) for one in zip(entries, rollout.text, strict=True)])
        device = rollout.sequences.ids.device
        scores = torch.tensor([0.0 if score is None else score for score in judged], device=device)
        unjudged = torch.tensor([float(score is None) for score in judged], device=device)
        return Scores(scores, {"unjudged": unjudged})

    def _judge(self, entry: str, response: str) -> float | None:
        """The score; None where the judge raises an error."""
        settings = self.settings
        try:
            place = json.loads(entry)
            task, config, index = place["task"], json.dumps(place["config"]), place["index"]
            dataset = _remade(task, config, place["size"], place["seed"])
        except (TypeError, ValueError, KeyError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(
                f"column: {settings.column} of a row is {entry!r:.200}, no entry of reasoning-gym; take the rows of "
                "the source ReasoningGym"
            ) from error
        if not settings.run_responses and evaluates_text(dataset):
            raise UserError(
                f"task: the judge of {task} may evaluate what the model writes as Python; take another task, or set "
                "run_responses of the reward to true where nothing can be harmed"
            )
        answer = settings.answer(response)
        if answer is None:
            return 0.0
        try:
            return float(dataset.score_answer(answer, dataset[index]))
        except Exception:  # foreign judges meet any text at all; how often they fail is a figure
            return None
