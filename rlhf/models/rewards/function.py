"""A Python function of the texts as reward."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlhf import distributed
from rlhf.errors import UserError, telling
from rlhf.files import checksum
from rlhf.interfaces import Engine, RewardModel, Scorer
from rlhf.models.rewards.answers import finite_numbers
from rlhf.types import Prompts, Rollout, Scores
from rlhf.user_code import import_module, users_code

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Imported:
    """A function found by its import path, its signature checked against what it will be given.

    Args:
        path: Import path.
        arguments: Fixed keyword arguments; they take precedence over columns of the same name.
        given: Names of the lists that each call gives.

    Raises:
        UserError: there is no such function, or it does not take the arguments.
    """

    def __init__(self, path: str, arguments: Mapping[str, Any], given: Sequence[str]) -> None:
        self.path = path
        self.arguments = arguments
        self.given = given
        module, _, name = path.rpartition(".")
        try:
            with telling(f"function: {path} cannot be imported"):
                self.function = getattr(import_module(module), name)
        except AttributeError as error:
            raise UserError(f"function: {path} cannot be imported ({error}); check the path") from error
        if not callable(self.function):
            raise UserError(f"function: {path} is {self.function!r}; give something that can be called")
        parameters = inspect.signature(self.function).parameters
        self.takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        named = {n: p for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        self.accepted = set(named)
        self.required = {n for n, p in named.items() if p.default is p.empty}
        for argument in (*given, *arguments):
            if not (self.takes_all or argument in self.accepted):
                near = difflib.get_close_matches(argument, sorted(self.accepted), 1)
                hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(sorted(self.accepted)) or 'none'}"
                raise UserError(f"function: {path} takes no argument {argument}; {hint}")

    def check_columns(self, columns: Collection[str]) -> None:
        """Refuses data without a column that the function cannot do without.

        Raises:
            UserError: it needs an argument that is nowhere.
        """
        if missing := sorted(self.required - {*columns, *self.arguments, *self.given}):
            raise UserError(
                f"function: {self.path} needs {', '.join(missing)}, which is neither in arguments nor a column of the "
                f"data; columns there: {', '.join(sorted(columns)) or 'none'}"
            )

    def __call__(self, prompts: Prompts, given: Mapping[str, list[Any]]) -> Any:
        """Its answer to the given lists and those columns that it names in its signature.

        Raises:
            UserError: it needs an argument that is nowhere.
            UserCodeError: it raised something.
        """
        columns = {n: list(v) for n, v in prompts.columns.items() if self.takes_all or n in self.accepted}
        everything = columns | dict(self.arguments) | dict(given)
        self.check_columns(prompts.columns)
        with users_code(f"function: {self.path}, given {len(prompts)} responses,"):
            return self.function(**everything)


def of_any(columns: Mapping[str, Collection[str]]) -> set[str]:
    """The columns that any source has: the rows of the others have no value there."""
    return {name for names in columns.values() for name in names}


def check_function(path: str, arguments: Mapping[str, Any], given: Sequence[str]) -> None:
    """Refuses what can be no import path, and arguments that each call gives itself."""
    if not all(part.isidentifier() for part in path.split(".")) or "." not in path:
        raise UserError(f"function: {path!r} is no import path; write module.function")
    if taken := set(given) & set(arguments):
        raise UserError(f"arguments: {min(taken)} is given by the rollout; name the argument otherwise")


def function_source(path: str) -> str | None:
    """A text that is equal where the file is that a function of somebody's own is written in.

    None for this package's own functions, and those that no file is known of.
    """
    module = path.rpartition(".")[0]
    file = None if module.startswith("rlhf.") else getattr(import_module(module), "__file__", None)
    return None if file is None else checksum(Path(file))[1]


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
        check_function(self.function, self.arguments, ("prompts", "responses"))

    def build(self, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> Scorer:
        """Imports the function; neither engine nor tokenizer is needed.

        Raises:
            UserError: there is no such function, or it does not take the arguments.
        """
        return FunctionScorer(Imported(self.function, self.arguments, ("prompts", "responses")))

    def check_inputs(self) -> None:
        Imported(self.function, self.arguments, ("prompts", "responses"))

    def check_columns(self, columns: Mapping[str, Collection[str]]) -> None:
        Imported(self.function, self.arguments, ("prompts", "responses")).check_columns(of_any(columns))

    def fingerprint(self) -> str | None:
        return function_source(self.function)


class FunctionScorer(Scorer):
    """A function of prompts and responses."""

    def __init__(self, function: Imported) -> None:
        self.function = function

    def __call__(self, rollout: Rollout) -> Scores:
        responses = list(rollout.text)
        given = {"prompts": list(rollout.prompts.text), "responses": responses}
        answer = distributed.once(lambda: self.function(rollout.prompts, given))
        scores = finite_numbers(answer, responses, f"function: {self.function.path}")
        return Scores(torch.tensor(scores, dtype=torch.float32, device=rollout.sequences.ids.device))
