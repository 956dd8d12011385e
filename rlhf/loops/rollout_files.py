"""Sampled rollouts as JSON lines, for people and reports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf.algorithms.functional.rewards import per_response
from rlhf.files import refusals_named
from rlhf.models.tokenizer import TextStream
from rlhf.types import Experience, Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def rollout_rows(rollout: Rollout) -> list[dict[str, Any]]:
    """One row per response: prompt, response, whether it ended by itself."""
    texts = zip(rollout.prompts.text, rollout.text, rollout.ended.tolist(), strict=True)
    return [{"prompt": prompt, "response": response, "ended": ended} for prompt, response, ended in texts]


def experience_rows(experience: Experience, count: int, tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """The first ``count`` responses of an iteration with scores, and ids, texts and figures of the real tokens.

    ``raw_score`` is what the reward model said, ``score`` the same after normalisation and the missing-end penalty.
    """
    rollout, batch = experience.rollout, experience.batch
    rows = rollout_rows(rollout)[:count]
    raw = per_response(experience.raw.total, rollout.mask)
    per_token = {
        "tokens": rollout.sequences.response_ids,
        "rollout_logprobs": batch.rollout_logprobs,
        "old_logprobs": batch.old_logprobs,
        "ref_logprobs": batch.ref_logprobs,
        "rewards": experience.scored.rewards,
        "values": batch.values,
        "advantages": batch.advantages,
    }
    for index, row in enumerate(rows):
        row["score"] = float(experience.scored.scores[index])
        row["raw_score"] = float(raw[index])
        row |= {f"reward/{name}": float(values[index]) for name, values in experience.raw.parts.items()}
        for name, tensor in per_token.items():
            if tensor is not None:
                row[name] = tensor[index][rollout.mask[index]].tolist()
        stream = TextStream(tokenizer)
        row["token_texts"] = [stream.push(token) for token in row["tokens"]]
    return rows


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes rows as JSON lines, in place of an older file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with refusals_named(path), path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
