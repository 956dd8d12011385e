"""Rollouts to JSON lines and back, exactly; and what is refused, with its line."""

import json
from datetime import date

import pytest
import tiny_runs
import torch

from rlhf.data.stored_rollouts import NORMALIZATION, StoredRollouts, assemble, exact_rows, iteration_file
from rlhf.errors import UserError
from rlhf.types import Prompts, Rollout, Sequences

TOKENIZER = tiny_runs.policy().build(lambda: ["abcxyz="], seed=1).tokenizer
END = TOKENIZER.eos_token_id
A, B, C = (TOKENIZER.encode(letter)[0] for letter in "abc")


def rollout(columns=None):
    """Two prompts, two responses each: one ended, one cut, one with tokens that are not the policy's."""
    prompts = Prompts(
        ids=[[A], [A], [B, C, A], [B, C, A]],
        text=["a", "a", "bca", "bca"],
        source=["x", "x", "y", "y"],
        columns={"gold": [1, 1, None, None], "tags": [["é"], ["é"], [], []]} if columns is None else columns,
    )
    pad = TOKENIZER.pad_token_id
    responses = [[B, END, pad, pad], [C, C, C, C], [END, pad, pad, pad], [A, B, C, END]]
    real = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 1]]).bool()
    mask = real.clone()
    mask[3, 1] = False
    ids = [
        [pad] * (3 - len(prompt)) + prompt + response for prompt, response in zip(prompts.ids, responses, strict=True)
    ]
    prompt_real = torch.tensor([[0, 0, 1], [0, 0, 1], [1, 1, 1], [1, 1, 1]]).bool()
    logprobs = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).sub(3) * mask
    return Rollout(
        prompts=prompts,
        sequences=Sequences(torch.tensor(ids), torch.cat([prompt_real, real], 1), prompt_width=3),
        mask=mask,
        rollout_logprobs=logprobs,
        behaviour_logprobs=logprobs / 3,
        ended=torch.tensor([True, False, True, True]),
        groups=torch.tensor([0, 0, 1, 1]),
        text=["b", "cccc", "", "abc"],
    )


def equal(a, b):
    for name in ("mask", "rollout_logprobs", "behaviour_logprobs", "ended", "groups"):
        one, other = getattr(a, name), getattr(b, name)
        assert one.dtype == other.dtype and torch.equal(one, other), name
    assert torch.equal(a.sequences.ids, b.sequences.ids) and a.sequences.prompt_width == b.sequences.prompt_width
    assert torch.equal(a.sequences.attention_mask, b.sequences.attention_mask)
    assert a.prompts == b.prompts and list(a.text) == list(b.text)


def stored(tmp_path, rows, name="iteration_000001.jsonl"):
    (tmp_path / name).write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return StoredRollouts(tmp_path, TOKENIZER, len(TOKENIZER))


def test_back_to_the_last_bit(tmp_path):
    original = rollout()
    rows = exact_rows(original)
    assert "mask" not in rows[0] and rows[3]["mask"] == [True, False, True, True]
    equal(original, assemble(rows, TOKENIZER.pad_token_id))
    equal(original, stored(tmp_path, rows).iteration(1, 4))
    equal(original, stored(tmp_path, rows, NORMALIZATION).normalization(4))


def test_a_column_that_json_has_not_is_named():
    with pytest.raises(UserError, match="save_rollouts: column day holds a date, which JSON has not; make it text"):
        exact_rows(rollout({"day": [date(2020, 1, 1)] * 4}))


def edited(**changes):
    rows = exact_rows(rollout())
    rows[1] |= changes
    return rows


def without(name):
    rows = exact_rows(rollout())
    del rows[1][name]
    return rows


PLACE = r"replay: \S+iteration_000001\.jsonl line 2"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([*edited()[:1], '{"prompt": "a'], rf"{PLACE} is not JSON \(.*is the file cut\?"),
        ([*edited()[:1], ""], rf"{PLACE} is not JSON"),
        ([*edited()[:1], "[1]"], rf"{PLACE} is a list, not an object"),
        (
            without("prompt_tokens"),
            rf"{PLACE} has no prompt_tokens; only a run with save_rollouts: all can be replayed",
        ),
        (edited(ended="yes"), rf"{PLACE}: ended is 'yes', not a bool"),
        (
            edited(tokens=[C, C, 9999, C]),
            rf"{PLACE} has the token id 9999, and the policy's vocabulary ids from 0 to \d+",
        ),
        (edited(tokens=[C, C, "c", C]), rf"{PLACE} has the token id 'c'"),
        (
            edited(tokens=[C, C, A, C]),
            rf"{PLACE}: the policy's tokenizer reads its tokens as 'ccac', but the response was",
        ),
        (edited(tokens=[C, C, C]), rf"{PLACE}: its tokens, mask and log-probabilities differ in number"),
        (edited(prompt_tokens=[]), rf"{PLACE}: its tokens"),
        (edited(mask=[True]), rf"{PLACE}: its tokens"),
        (edited(rollout_logprobs=[-1.0, float("nan"), -1.0, -1.0]), rf"{PLACE} has the log-probability nan"),
        (edited(behaviour_logprobs=[-1.0, None, -1.0, -1.0]), rf"{PLACE} has the log-probability None"),
        (edited()[:3], r"iteration_000001\.jsonl has 3 rows, but batch_size is 4; .* must have had save_rollouts: all"),
        ([], r"has 0 rows, but batch_size is 4"),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_its_line(tmp_path, rows, message):
    with pytest.raises(UserError, match=message):
        stored(tmp_path, rows).iteration(1, 4)


def test_another_tokenizer_is_noticed(tmp_path):
    other = tiny_runs.policy().build(lambda: ["zzzyyyxxx"] * 9, seed=1).tokenizer
    stored(tmp_path, exact_rows(rollout()))
    merged = [i for i in range(len(other)) if len(other.decode([i])) > 1][-1]
    rows = edited(tokens=[merged] * 4)
    with pytest.raises(UserError, match="the policy's tokenizer reads its tokens as"):
        StoredRollouts(stored(tmp_path, rows).directory, other, len(other)).iteration(1, 4)


def test_a_run_without_normalisation(tmp_path):
    with pytest.raises(
        UserError, match=r"there is no .*normalization\.jsonl, as that run .* set score_normalization to"
    ):
        stored(tmp_path, []).normalization(4)


def test_enough_iterations_are_asked_for_at_once(tmp_path):
    for number in (1, 2, 4):
        iteration_file(tmp_path, number).write_text("{}\n" * 8)
    StoredRollouts.check(tmp_path, 2, 8)
    with pytest.raises(UserError, match=r"iteration_000001\.jsonl has 8 rows, but batch_size is 4; set it"):
        StoredRollouts.check(tmp_path, 2, 4)
    with pytest.raises(
        UserError, match="has the rollouts of 2 iterations, but iterations is 3; set iterations to 2, or"
    ):
        StoredRollouts.check(tmp_path, 3, 8)
    with pytest.raises(
        UserError, match=r"replay: \S+nowhere is no folder \(looked in .*\); give the rollouts/ of a run"
    ):
        StoredRollouts.check(tmp_path / "nowhere", 3, 8)
    (tmp_path / "stage").mkdir()
    with pytest.raises(UserError, match=r"has no iteration_000001\.jsonl; give the rollouts/ of a run$"):
        StoredRollouts.check(tmp_path / "stage", 3, 8)
    (tmp_path / "stage" / "rollouts").mkdir()
    iteration_file(tmp_path / "stage" / "rollouts", 1).touch()
    with pytest.raises(UserError, match=r"give the rollouts/ of a run; \S+/stage/rollouts has$"):
        StoredRollouts.check(tmp_path / "stage", 3, 8)
