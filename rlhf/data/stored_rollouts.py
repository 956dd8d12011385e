"""Rollouts that a run has stored: exact to the last bit, so that an algorithm can be run on them without sampling."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlhf.errors import UserError
from rlhf.models.tokenizer import pad_id
from rlhf.types import Prompts, Rollout, Sequences

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NORMALIZATION = "normalization.jsonl"
"""The rollouts that the normalisation of scores was measured on."""
FIELDS: dict[str, type] = {
    "prompt": str,
    "response": str,
    "ended": bool,
    "source": str,
    "group": int,
    "columns": dict,
    "prompt_tokens": list,
    "tokens": list,
    "rollout_logprobs": list,
    "behaviour_logprobs": list,
}
"""What a row must hold. ``tokens`` and the log-probabilities are those of the tokens that the policy chose; a response
with others among them has all of them in ``response_tokens``, and in ``mask`` which the policy chose."""


def iteration_file(directory: Path, iteration: int) -> Path:
    """Where the rollouts of an iteration (from 1) are stored."""
    return directory / f"iteration_{iteration:06d}.jsonl"


def exact_rows(rollout: Rollout) -> list[dict[str, Any]]:
    """One row per response with all of ``FIELDS``.

    Raises:
        UserError: a column of the data holds what JSON cannot.
    """
    prompts, rows = rollout.prompts, []
    for index, mask in enumerate(rollout.mask):
        real = rollout.sequences.attention_mask[index, rollout.sequences.prompt_width :]
        ids = rollout.sequences.response_ids[index]
        row: dict[str, Any] = {
            "prompt": prompts.text[index],
            "response": rollout.text[index],
            "ended": bool(rollout.ended[index]),
            "source": prompts.source[index],
            "group": int(rollout.groups[index]),
            "columns": {name: values[index] for name, values in prompts.columns.items()},
            "prompt_tokens": list(prompts.ids[index]),
            "tokens": ids[mask].tolist(),
            "rollout_logprobs": rollout.rollout_logprobs[index][mask].tolist(),
            "behaviour_logprobs": rollout.behaviour_logprobs[index][mask].tolist(),
        }
        if not torch.equal(real, mask):
            row |= {"response_tokens": ids[real].tolist(), "mask": mask[real].tolist()}
        _check_columns(row["columns"])
        rows.append(row)
    return rows


def _check_columns(columns: Mapping[str, Any]) -> None:
    for name, value in columns.items():
        try:
            json.dumps(value)
        except TypeError:
            raise UserError(
                f"save_rollouts: column {name} holds a {type(value).__name__}, which JSON has not; make it text in the "
                "data, or leave it out there"
            ) from None


class StoredRollouts:
    """The folder ``rollouts/`` of a run with ``save_rollouts: all``.

    Args:
        directory: The folder.
        tokenizer: Of the policy that is to learn from them.
        vocabulary: Number of token ids that the policy knows.
    """

    def __init__(self, directory: str | Path, tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> None:
        self.directory = Path(directory).expanduser()
        self.tokenizer, self.vocabulary = tokenizer, vocabulary

    @staticmethod
    def check(directory: str | Path, iterations: int, rows: int) -> None:
        """Refuses a folder that has not the rollouts of so many iterations, or another number of them in the first.

        Raises:
            UserError: naming folder, iterations that are there, and the remedy.
        """
        folder = Path(directory).expanduser()
        if not folder.is_dir():
            raise UserError(f"replay: {folder} is no folder (looked in {Path.cwd()}); give the rollouts/ of a run")
        there = next((n for n in range(iterations) if not iteration_file(folder, n + 1).is_file()), iterations)
        if there == 0:
            hint = f"; {folder / 'rollouts'} has" if iteration_file(folder / "rollouts", 1).is_file() else ""
            raise UserError(
                f"replay: {folder} has no {iteration_file(folder, 1).name}; give the rollouts/ of a run{hint}"
            )
        if there < iterations:
            raise UserError(
                f"replay: {folder} has the rollouts of {there} iterations, but iterations is {iterations}; "
                f"set iterations to {there}, or replay a longer run"
            )
        first = iteration_file(folder, 1)
        with first.open("rb") as lines:
            _check_count(first, sum(1 for _ in lines), rows, "batch_size")

    def iteration(self, number: int, rows: int) -> Rollout:
        """The rollouts of an iteration (from 1), which must be so many."""
        return self._read(iteration_file(self.directory, number), rows, "batch_size")

    def normalization(self, rows: int) -> Rollout:
        """The rollouts that the normalisation of scores was measured on."""
        path = self.directory / NORMALIZATION
        if not path.is_file():
            raise UserError(
                f"replay: there is no {path}, as that run did not normalise scores; set score_normalization to null"
            )
        return self._read(path, rows, "score_normalization.samples")

    def _read(self, path: Path, count: int, setting: str) -> Rollout:
        rows = [self._row(line, f"{path} line {number}") for number, line in enumerate(path.open("rb"), 1)]
        _check_count(path, len(rows), count, setting)
        return assemble(rows, pad_id(self.tokenizer))

    def _row(self, line: bytes, where: str) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"replay: {where} is not JSON ({error}); is the file cut? Run the first run anew") from None
        if not isinstance(row, dict):
            raise UserError(f"replay: {where} is a {type(row).__name__}, not an object; give the rollouts/ of a run")
        for name, kind in FIELDS.items():
            if name not in row:
                raise UserError(f"replay: {where} has no {name}; only a run with save_rollouts: all can be replayed")
            if not isinstance(row[name], kind):
                raise UserError(f"replay: {where}: {name} is {str(row[name])[:80]!r}, not a {kind.__name__}")
        self._check_tokens(row, where)
        return row

    def _check_tokens(self, row: Mapping[str, Any], where: str) -> None:
        response = row.get("response_tokens", row["tokens"])
        for token in [*row["prompt_tokens"], *row["tokens"], *response]:
            if type(token) is not int or not 0 <= token < self.vocabulary:
                raise UserError(
                    f"replay: {where} has the token id {token!r}, and the policy's vocabulary ids from 0 to "
                    f"{self.vocabulary - 1}; replay with the policy of that run"
                )
        chosen = row.get("mask", [True] * len(response))
        lengths = [len(row[name]) for name in ("rollout_logprobs", "behaviour_logprobs", "tokens")]
        if not row["prompt_tokens"] or len(chosen) != len(response) or {*lengths} != {sum(chosen)}:
            raise UserError(f"replay: {where}: its tokens, mask and log-probabilities differ in number; was it edited?")
        for value in (*row["rollout_logprobs"], *row["behaviour_logprobs"]):
            if type(value) not in (int, float) or not math.isfinite(value):
                raise UserError(f"replay: {where} has the log-probability {value!r}; was it edited?")
        text = self.tokenizer.decode(response[:-1] if row["ended"] else response, skip_special_tokens=False)
        if text != row["response"]:
            raise UserError(
                f"replay: {where}: the policy's tokenizer reads its tokens as {text[:80]!r}, but the response was "
                f"{row['response'][:80]!r}; replay with the policy of that run"
            )


def _check_count(path: Path, rows: int, wanted: int, setting: str) -> None:
    if rows != wanted:
        raise UserError(
            f"replay: {path} has {rows} rows, but {setting} is {wanted}; set it to the value of that run, which must "
            "have had save_rollouts: all"
        )


def assemble(rows: Sequence[Mapping[str, Any]], pad: int) -> Rollout:
    """The rollout that rows of :func:`exact_rows` were made of, on the CPU.

    Args:
        rows: One or more.
        pad: Fills the slots without a token.
    """
    responses = [row.get("response_tokens", row["tokens"]) for row in rows]
    masks = [row.get("mask", [True] * len(response)) for row, response in zip(rows, responses, strict=True)]
    left, width = max(len(row["prompt_tokens"]) for row in rows), max(map(len, responses))
    ids = torch.full((len(rows), left + width), pad)
    real = torch.zeros(ids.shape, dtype=torch.bool)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for index, (row, response) in enumerate(zip(rows, responses, strict=True)):
        filled = slice(left - len(row["prompt_tokens"]), left + len(response))
        ids[index, filled] = torch.tensor([*row["prompt_tokens"], *response])
        real[index, filled] = True
        mask[index, : len(response)] = torch.tensor(masks[index], dtype=torch.bool)

    def per_token(name: str) -> Tensor:
        values = torch.zeros(mask.shape)
        values[mask] = torch.tensor([value for row in rows for value in row[name]])
        return values

    names = rows[0]["columns"]
    prompts = Prompts(
        ids=[row["prompt_tokens"] for row in rows],
        text=[row["prompt"] for row in rows],
        source=[row["source"] for row in rows],
        columns={name: [row["columns"].get(name) for row in rows] for name in names},
    )
    return Rollout(
        prompts=prompts,
        sequences=Sequences(ids, real, prompt_width=left),
        mask=mask,
        rollout_logprobs=per_token("rollout_logprobs"),
        behaviour_logprobs=per_token("behaviour_logprobs"),
        ended=torch.tensor([row["ended"] for row in rows]),
        groups=torch.tensor([row["group"] for row in rows]),
        text=[row["response"] for row in rows],
    )
