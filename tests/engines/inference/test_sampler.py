"""A row depends on its own address only; the model is left as it was; what cannot be sampled is refused."""

from typing import Any

import pytest
import torch
from sampled import MODELS, PROMPTS, build, run
from spelling import prompts_of, responses
from transformers import PreTrainedModel

from rlhf.engines.inference import sampler


@pytest.mark.parametrize("max_rows", [1, 3, 8])
def test_rows_decoded_at_once_change_nothing(lm: PreTrainedModel, max_rows: int):
    whole, cut = run(lm), run(lm, max_rows=max_rows)
    lengths = [len(r) for r in responses(whole)]
    assert min(lengths) < max(lengths)  # rows do leave the batch at different times
    assert responses(cut) == responses(whole)
    assert cut.text == whole.text
    assert torch.equal(cut.sequences.ids, whole.sequences.ids)
    assert torch.equal(cut.ended, whole.ended)
    assert torch.allclose(cut.rollout_logprobs, whole.rollout_logprobs, atol=1e-4)


def test_row_order_changes_nothing(lm: PreTrainedModel):
    order = [3, 0, 7, 1, 6, 2, 5, 4]
    whole, permuted = run(lm), run(lm, PROMPTS.select(order), order)
    assert responses(permuted) == [responses(whole)[i] for i in order]


def test_padding_changes_nothing(lm: PreTrainedModel):  # case A1
    long = prompts_of([*PROMPTS.ids, [9] * 30])
    assert responses(run(lm, long))[:8] == responses(run(lm))
    assert responses(run(lm, pad_id=17)) == responses(run(lm))


@pytest.mark.parametrize("compact_at", [1, 1000])
def test_when_finished_rows_leave_changes_nothing(
    lm: PreTrainedModel, compact_at: int, monkeypatch: pytest.MonkeyPatch
):
    usual = run(lm)
    monkeypatch.setattr(sampler, "COMPACT_AT", compact_at)
    assert responses(run(lm)) == responses(usual)


def test_finished_rows_leave_the_batch():
    lm, sizes = MODELS["gpt2"], []

    def note(_: Any, __: Any, arguments: dict[str, Any]) -> None:
        sizes.append(len(arguments["input_ids"]))

    handle = lm.register_forward_pre_hook(note, with_kwargs=True)
    try:
        rollout = run(lm, PROMPTS.repeat(8), max_new_tokens=30)
    finally:
        handle.remove()
    lengths = rollout.mask.sum(1)
    for step, size in enumerate(sizes):
        active = int((lengths > step).sum())
        # A quarter of a batch may be finished rows, no more: active > ¾ · size.
        assert active <= size and 4 * active > 3 * size
    assert len(sizes) == int(lengths.max())


def test_duplicated_prompts_get_different_responses_and_a_rerun_the_same():  # case E10
    prompts = prompts_of([[5, 6, 7]]).repeat(4)
    first, again = run(MODELS["gpt2"], prompts, stop_ids=[]), run(MODELS["gpt2"], prompts, stop_ids=[])
    assert len({tuple(r) for r in responses(first)}) == 4
    assert responses(again) == responses(first)
    assert responses(run(MODELS["gpt2"], prompts, seed=2, stop_ids=[])) != responses(first)
    # The same counters again in a batch of another make-up: rows 2 and 3 of the four.
    assert responses(run(MODELS["gpt2"], prompts.select([0, 0]), [2, 3], stop_ids=[])) == responses(first)[2:]


def test_modes_and_settings_are_restored_and_dropout_is_off():  # case E6
    dropout: dict[str, Any] = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
    expected = responses(run(build("gpt2", **dropout).eval()))
    lm = build("gpt2", **dropout).train()
    lm.gradient_checkpointing_enable()
    lm.config.use_cache = False
    frozen = next(module for module in lm.modules() if isinstance(module, torch.nn.LayerNorm))
    frozen.eval()
    modes = [module.training for module in lm.modules()]
    assert responses(run(lm)) == expected
    assert [module.training for module in lm.modules()] == modes
    assert not frozen.training and lm.training
    assert all(block.gradient_checkpointing for block in lm.get_submodule("transformer.h").children())
    assert lm.config.use_cache is False


def test_modes_are_restored_after_an_exception():  # case E6
    lm = build("gpt2").train()

    def fail(*_: Any) -> None:
        assert not lm.training
        raise RuntimeError("out of memory")

    handle = lm.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        run(lm)
    handle.remove()
    assert all(module.training for module in lm.modules())
    assert torch.is_grad_enabled()


def test_a_rollout_can_enter_a_computation_with_gradient():
    rollout = run(MODELS["gpt2"])
    assert not rollout.rollout_logprobs.requires_grad
    scale = torch.ones((), requires_grad=True)
    (scale * rollout.rollout_logprobs).sum().backward()
    assert scale.grad is not None


def test_a_response_that_does_not_fit_is_refused_before_sampling():
    message = (
        r"prompt 1: 45 tokens \+ max_new_tokens 20 = 65, more than the model's 64 positions .*; "
        "shorten the prompts or lower max_new_tokens"
    )
    with pytest.raises(ValueError, match=message):
        run(MODELS["gpt2"], prompts_of([[5], [5] * 45]))
    assert len(responses(run(MODELS["gpt2"], prompts_of([[5], [5] * 44]), stop_ids=[]))[1]) == 20


def test_wrong_arguments_are_refused():
    lm = MODELS["gpt2"]
    with pytest.raises(ValueError, match="prompt 1: no tokens; give at least a beginning-of-sequence token"):
        run(lm, prompts_of([[5], []]))
    with pytest.raises(ValueError, match="counters: 1 for 2 prompts; give one per prompt"):
        run(lm, prompts_of([[5], [6]]), [0])
    with pytest.raises(ValueError, match=r"stop_ids: \[40, -1\] with a vocabulary of 40"):
        run(lm, stop_ids=[3, 40, -1])
    with pytest.raises(ValueError, match="stop_ids: of 40 tokens none is left with min_new_tokens 1; leave a token"):
        run(lm, stop_ids=list(range(40)), min_new_tokens=1)


@pytest.mark.parametrize("settings", [{}, {"top_k": 3}, {"top_p": 0.5}, {"greedy": True}])
def test_logits_that_are_not_finite_are_reported(settings: dict[str, Any]):
    lm = build("gpt2")
    with torch.no_grad():
        lm.get_parameter("transformer.wpe.weight")[9] = torch.nan  # only rows that get to position 9
    with pytest.raises(ValueError, match=r"logits of row 1: not finite \(1 of 2 rows\); the weights have diverged"):
        run(lm, prompts_of([[5], [6] * 9]), stop_ids=[], max_new_tokens=4, **settings)


@pytest.mark.parametrize("max_rows", [256, 3])
def test_a_listener_hears_every_token_once_and_none_after_the_end(max_rows: int):
    heard: dict[int, list[int]] = {}

    def listen(rows: list[int], ids: list[int]) -> None:
        for row, token in zip(rows, ids, strict=True):
            heard.setdefault(row, []).append(token)

    settings: dict[str, Any] = {"max_new_tokens": 8, "max_rows": max_rows}
    stop_ids = [0, 3, *range(20, 24)]  # some rows end early, so the batch is compacted on the way
    quiet = run(MODELS["llama"], stop_ids=stop_ids, **settings)
    loud = run(MODELS["llama"], stop_ids=stop_ids, on_tokens=listen, **settings)
    assert loud.ended.any() and not loud.ended.all()
    assert torch.equal(quiet.sequences.ids, loud.sequences.ids)
    assert heard == dict(enumerate(responses(loud)))
