"""Contracts of the parts of data and of reward models: templates, blenders, sources, scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from rlhf.data.forms import NEEDS, keys
from rlhf.errors import UserError
from rlhf.interfaces import Blender, Engine, RewardModel, Source, Template
from rlhf.testing import samples
from rlhf.testing.contract import Contract
from rlhf.types import Message, Rollout, Scores, joined

TEXTS = ("What is new?", "Nothing much.", "ünïcode ✓ and\ntwo lines", "{prompt} {response}")
SIZES = {"a": 7, "b": 20}
ANSWERS = {"answer": ["12", "7", "5", "3"]}
RESPONSES = ["12", "the answer is 7", "x", "one\ntwo 3"]


def check_template(contract: Contract, template: Template) -> None:
    """See :func:`rlhf.testing.check_component`."""
    tokenizer = samples.tokenizer()
    end = template.end_id(tokenizer)
    marker = tokenizer.convert_ids_to_tokens(end)
    for text in TEXTS:
        prompt, response = template.prompt(text, tokenizer), template.response(text, tokenizer)
        contract.holds(
            template.prompts([text, "a"], tokenizer)[0] == prompt, f"prompts differs from prompt of {text!r}"
        )
        contract.holds(
            template.responses(["a", text], tokenizer)[1] == response, f"responses differs from response to {text!r}"
        )
        _check_end(contract, response, end, f"the response {text!r}")
        _check_end(
            contract, template.response(text + str(marker), tokenizer), end, f"the response {text + str(marker)!r}"
        )
        within = joined(template.turns((Message("user", text),), tokenizer))
        contract.holds(
            within == prompt,
            f"the prompt {text!r} is {prompt} alone, and {within} as the only message of a conversation",
        )
        found = template.bare(str(tokenizer.decode(response[:-1])))
        contract.holds(found == text, f"bare: the response {text!r} comes back as {found!r}")
    _check_conversation(contract, template)


def _check_end(contract: Contract, response: list[int], end: int, what: str) -> None:
    number = response.count(end)
    contract.holds(
        number == 1 and response[-1] == end, f"{what} must end in exactly one {end}, it has {number}: {response}"
    )


def _check_conversation(contract: Contract, template: Template) -> None:
    tokenizer = samples.tokenizer()
    asked, said, then = TEXTS[:3]
    talk = (Message("user", asked), Message("assistant", said), Message("user", then))
    turns = template.turns(talk, tokenizer)
    contract.holds(template.all_turns([talk], tokenizer) == [turns], "all_turns differs from turns")
    contract.holds(
        not turns[-1].response, f"the last turn is still to be said, but has the response {turns[-1].response}"
    )
    if len(turns) == 1:  # only the last is learned, and all before it is one text
        return
    prompt, response = template.prompt(asked, tokenizer), template.response(said, tokenizer)
    contract.holds(
        turns[0].context == prompt, f"the prompt {asked!r} is {prompt} alone, and {turns[0].context} in a conversation"
    )
    contract.holds(
        turns[0].response == response,
        f"the response {said!r} is {response} alone, and {turns[0].response} in a conversation",
    )


def check_blender(contract: Contract, blender: Blender) -> None:
    """See :func:`rlhf.testing.check_component`."""
    contract.answered(lambda: blender.check_sources(SIZES), "its settings must fit the sources a and b")
    for what, one in (("", blender), (" over a run", blender.over(draws=54, batch_size=3))):

        def order(seed: int, epoch: int, one: Blender = one) -> np.ndarray:
            return one.epoch(SIZES, seed=seed, epoch=epoch)

        first = order(1, 0)
        contract.holds(
            first.ndim == 2 and first.shape[1] == 2 and first.dtype == np.int64,
            f"an epoch{what} must be [N, 2] int64, it is {list(first.shape)} {first.dtype}",
        )
        contract.holds(np.array_equal(order(1, 0), first), f"the same seed and epoch give two orders{what}")
        contract.holds(not np.array_equal(order(2, 0), first), f"seeds 1 and 2 give the same order{what}")
        for epoch in range(3):
            drawn = order(1, epoch)
            contract.holds(
                len(drawn) == len(first), f"epoch {epoch}{what} has {len(drawn)} draws, epoch 0 {len(first)}"
            )
            sizes = np.array(list(SIZES.values()))
            inside = (drawn >= 0).all(1) & (drawn[:, 0] < len(sizes))
            inside &= drawn[:, 1] < sizes[np.clip(drawn[:, 0], 0, len(sizes) - 1)]
            wrong = drawn[~inside].tolist()
            contract.holds(not wrong, f"{len(wrong)} draws{what} are out of range, such as {wrong[:1]} of {SIZES}")
        contract.holds(not np.array_equal(order(1, 1), first), f"epochs 0 and 1 have the same order{what}")


def check_source(contract: Contract, source: Source) -> None:
    """See :func:`rlhf.testing.check_component`."""
    rows = source.load()
    contract.holds(len(rows) > 0, "it has no rows")
    columns = rows.column_names
    forms = [form for form, ways in NEEDS.items() if any(set(way) <= set(columns) for way in ways)]
    contract.holds(bool(forms), f"columns: of {', '.join(columns)} no form is made; see Source in rlhf.interfaces")
    contract.answered(lambda: keys(rows, contract.name), "each row must have a prompt, messages or a text")
    again = source.load()
    some = range(min(len(rows), 1000))
    differs = [row for row in some if again[row] != rows[row]] if len(again) == len(rows) else [-1]
    contract.holds(not differs, f"loaded twice, its rows differ: row {differs[:1]} of {len(rows)} and {len(again)}")
    contract.holds(source.fingerprint() == source.fingerprint(), "its fingerprint is another each time")


class _NoEngine(Engine):
    micro_batch_size = None

    def build(self, model: Any, **settings: Any) -> NoReturn:
        raise UserError("check_component has no engine: it checks reward models that run no model of their own")


def check_reward(contract: Contract, reward: RewardModel) -> None:
    """See :func:`rlhf.testing.check_component`."""
    scorer = reward.build(_NoEngine(), samples.tokenizer())
    rollout = samples.rollout(RESPONSES, ANSWERS)

    def scored(rollout: Rollout) -> Scores:
        found = scorer(rollout)
        contract.holds(isinstance(found, Scores), f"it answers a {type(found).__name__}, not Scores")
        shapes = ((len(rollout),), tuple(rollout.mask.shape))
        contract.shaped(found.total, shapes[getattr(found.total, "ndim", 1) == 2], "the score")
        contract.finite(found.total, "the score of")
        for name, part in found.parts.items():
            contract.shaped(part, shapes[0], f"the part {name}")
            contract.finite(part, f"the part {name} of")
        return found

    def whole(scores: Scores, rollout: Rollout) -> Tensor:
        return scores.total if scores.total.ndim == 1 else scores.total.where(rollout.mask, 0).sum(1)

    with contract.untouched(rollout=rollout):
        plain = whole(scored(rollout), rollout)
    contract.same(whole(scored(rollout), rollout), plain, "asked twice, the score")
    padded = samples.rollout(RESPONSES, ANSWERS, pads=2)
    contract.same(
        whole(scored(padded), padded), plain, "padding must change nothing, but with 2 more columns the score"
    )
    order = [2, 0, 3, 1]
    moved = samples.rollout([RESPONSES[row] for row in order], {"answer": [ANSWERS["answer"][row] for row in order]})
    contract.same(
        whole(scored(moved), moved),
        plain[torch.tensor(order)],
        f"the order of rows must change nothing, but as {order} the score",
    )
    for row, text in enumerate(RESPONSES):
        alone = samples.rollout([text], {"answer": [ANSWERS["answer"][row]]})
        alone = replace(alone, groups=torch.tensor([row]))
        contract.same(
            whole(scored(alone), alone),
            plain[row : row + 1],
            f"what stands beside a response must change nothing, but {text!r} alone",
        )
