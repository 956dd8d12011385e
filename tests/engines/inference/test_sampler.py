import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from spelling import Numbers, prompts_of, responses
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
)

from rlhf.engines.inference import sampler
from rlhf.engines.inference.responses import OnTokens, Request
from rlhf.engines.inference.sampler import sample
from rlhf.engines.inference.sampling import Sampling
from rlhf.types import Prompts, Rollout

VOCAB = 40
STOPS = [0, 3]
PAD = 0
BASE: dict[str, Any] = {"vocab_size": VOCAB, "max_position_embeddings": 64, "bos_token_id": None, "eos_token_id": None}
LLAMA: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def build(kind: str, **settings: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    common = BASE | {"pad_token_id": None}
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(**common, n_embd=32, n_layer=2, n_head=4, initializer_range=0.2, **settings))
    if kind == "opt":
        widths: dict[str, Any] = {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 64, "num_hidden_layers": 2}
        return OPTForCausalLM(OPTConfig(**BASE, **widths, num_attention_heads=4, pad_token_id=1, init_std=0.2))
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**common, **LLAMA, initializer_range=0.2))
    return MistralForCausalLM(MistralConfig(**common, **LLAMA, initializer_range=0.2, sliding_window=5))


MODELS = {kind: build(kind).eval() for kind in ("gpt2", "opt", "llama", "mistral")}


@pytest.fixture(params=list(MODELS))
def lm(request: pytest.FixtureRequest) -> PreTrainedModel:
    return MODELS[request.param]


PROMPTS = prompts_of([[5, 6, 7, 8, 9, 10, 11], [12], [13, 14], [5, 6, 7], [20, 21, 22, 23], [30], [31, 32], [33] * 6])


def run(
    lm: PreTrainedModel,
    prompts: Prompts = PROMPTS,
    counters: Sequence[int] | None = None,
    *,
    seed: int = 1,
    stop_ids: Sequence[int] = STOPS,
    pad_id: int = PAD,
    on_tokens: OnTokens | None = None,
    forbidden: Tensor | None = None,
    **settings: Any,
) -> Rollout:
    settings = {"max_new_tokens": 20, **settings}
    counters = range(len(prompts)) if counters is None else counters
    tokenizer: Any = Numbers(VOCAB, pad_id, forbidden)
    request = Request(prompts, Sampling(**settings), tokenizer, seed, list(counters), list(stop_ids))
    return sample(lm, request, on_tokens=on_tokens)


def plain_logits(lm: PreTrainedModel, prompt: Sequence[int], response: Sequence[int]) -> Tensor:
    """[len(response), V] logits each response token was drawn from: one row, no cache, no padding."""
    with torch.no_grad():
        logits = lm(input_ids=torch.tensor([[*prompt, *response]]), use_cache=False).logits[0]
    return logits[len(prompt) - 1 : -1]


def largest_gap(lm: PreTrainedModel, rollout: Rollout, temperature: float = 1.0) -> float:
    """Between the sampler's log-probs and those of plain forward passes."""
    gap = 0.0
    for row, response in enumerate(responses(rollout)):
        logprobs = (plain_logits(lm, rollout.prompts.ids[row], response) / temperature).log_softmax(-1)
        picked = logprobs.gather(-1, torch.tensor(response).unsqueeze(-1)).squeeze(-1)
        gap = max(gap, float((picked - rollout.rollout_logprobs[row, : len(response)]).abs().max()))
    return gap


# -------------------------------------------------------------------------------- a row depends on its own address only


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


# -------------------------------------------------------------------------------------------- the distribution is right


def test_greedy_is_the_plain_forward_loop_and_the_librarys_own(lm: PreTrainedModel):
    found = responses(run(lm, greedy=True))
    for prompt, response in zip(PROMPTS.ids, found, strict=True):
        expected: list[int] = []
        while len(expected) < 20 and not (expected and expected[-1] in STOPS):
            expected.append(int(plain_logits(lm, prompt, [*expected, 0])[-1].argmax()))
        assert response == expected
        theirs = lm.generate(  # pyright: ignore[reportCallIssue]
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=20,
            eos_token_id=STOPS,
            pad_token_id=PAD,
        )
        assert response == theirs[0, len(prompt) :].tolist()


def test_logprobs_are_the_models_before_and_after_an_update(lm: PreTrainedModel):  # case E5
    before = run(lm)
    assert largest_gap(lm, before) < 1e-4
    assert torch.equal(before.behaviour_logprobs, before.rollout_logprobs)
    weight = next(p for name, p in lm.named_parameters() if "mlp" in name or "fc1" in name)
    original = weight.detach().clone()
    with torch.no_grad():
        weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    try:
        after = run(lm)
        assert largest_gap(lm, after) < 1e-4
        assert largest_gap(lm, before) > 1e-2  # the update shows
    finally:
        weight.data.copy_(original)
    assert responses(run(lm)) == responses(before)


def test_full_and_filtered_logprobs_of_a_filtered_rollout(lm: PreTrainedModel):  # case A2
    rollout = run(lm, temperature=0.7, top_k=5, min_new_tokens=3)
    assert largest_gap(lm, rollout, temperature=0.7) < 1e-4
    for row, response in enumerate(responses(rollout)):
        logits = plain_logits(lm, PROMPTS.ids[row], response) / 0.7
        for t, token in enumerate(response):
            allowed = [i for i in range(VOCAB) if t >= 3 or i not in STOPS]
            best = sorted(allowed, key=lambda i: -float(logits[t, i]))[:5]
            assert token in best
            expected = logits[t, token] - logits[t, best].logsumexp(0)
            assert float((rollout.behaviour_logprobs[row, t] - expected).abs()) < 1e-4


def test_first_and_second_token_follow_the_softmax():
    lm, n = MODELS["gpt2"], 4000
    rollout = run(lm, prompts_of([[5, 6, 7]]).repeat(n), stop_ids=[], max_new_tokens=2, top_k=8, max_rows=1500)
    ids = rollout.sequences.response_ids

    def statistic(tokens: Tensor, logits: Tensor) -> float:
        top = logits.topk(8)
        expected = len(tokens) * top.values.softmax(0)
        observed = torch.tensor([int((tokens == i).sum()) for i in top.indices])
        assert int(observed.sum()) == len(tokens)
        return float(((observed - expected) ** 2 / expected).sum())

    # χ² with 7 degrees of freedom exceeds 24.3 once in a thousand.
    assert statistic(ids[:, 0], plain_logits(lm, [5, 6, 7], [0])[0]) < 24.3
    likeliest = int(ids[:, 0].mode().values)
    after = ids[ids[:, 0] == likeliest, 1]
    assert len(after) > 500
    assert statistic(after, plain_logits(lm, [5, 6, 7], [likeliest, 0])[1]) < 24.3


# ------------------------------------------------------------------------------------------------------ layout and ends


class Scripted(torch.nn.Module):
    """Stands in for a model: the likeliest next token is the last one plus 1, by a margin that leaves no chance."""

    def __init__(self) -> None:
        super().__init__()
        self.config = GPT2Config(vocab_size=VOCAB, n_positions=64)
        self.device = torch.device("cpu")
        self.bias = torch.zeros(VOCAB)

    def forward(self, input_ids: Tensor, past_key_values: Any, **_: Any) -> Any:
        past_key_values.update(*(torch.zeros(*input_ids.shape[:1], 1, input_ids.shape[1], 1) for _ in range(2)), 0)
        logits = 1e4 * torch.nn.functional.one_hot((input_ids + 1) % VOCAB, VOCAB) + self.bias

        @dataclasses.dataclass
        class Output:
            logits: Tensor

        return Output(logits[:, -1:])


def scripted(ids: Sequence[Sequence[int]], **arguments: Any) -> Rollout:
    lm: Any = Scripted()
    return run(lm, prompts_of(ids), **arguments)


def test_layout_by_hand():  # case A4
    rollout = scripted([[20, 7], [11], [1, 1, 8]], stop_ids=[9, 13], pad_id=39, max_new_tokens=3)
    # Row 0 counts 8, 9 (stop), row 1 12, 13 (the second stop id), row 2 only 9.
    assert rollout.sequences.ids.tolist() == [[39, 20, 7, 8, 9], [39, 39, 11, 12, 13], [1, 1, 8, 9, 39]]
    assert rollout.sequences.attention_mask.long().tolist() == [[0, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert rollout.sequences.prompt_width == 3
    assert rollout.mask.tolist() == [[True, True], [True, True], [True, False]]
    assert rollout.ended.tolist() == [True, True, True]
    assert rollout.text == ["8", "12", ""]
    assert rollout.groups.tolist() == [0, 1, 2]
    assert rollout.rollout_logprobs.tolist() == [[0.0, 0.0]] * 3
    assert rollout.rollout_logprobs.dtype == torch.float32


def test_the_length_limit_is_not_an_end():
    rollout = scripted([[5], [7], [8]], stop_ids=[10], max_new_tokens=3)
    assert responses(rollout) == [[6, 7, 8], [8, 9, 10], [9, 10]]
    assert rollout.ended.tolist() == [False, True, True]
    assert rollout.text == ["6 7 8", "8 9", "9"]


@pytest.mark.parametrize("pad_id", [9, 0])
def test_a_pad_that_is_a_stop_id_takes_nothing_from_the_mask(pad_id: int):  # case A3
    rollout = scripted([[7], [3]], stop_ids=[9], pad_id=pad_id, max_new_tokens=4)
    assert responses(rollout) == [[8, 9], [4, 5, 6, 7]]
    assert rollout.mask.sum(1).tolist() == [2, 4]
    assert rollout.sequences.ids[0].tolist() == [7, 8, 9, pad_id, pad_id]
    assert rollout.ended.tolist() == [True, False]


def test_minimum_length_forbids_every_stop_id_before_it():
    rollout = run(MODELS["gpt2"], PROMPTS.repeat(4), stop_ids=list(range(20)), min_new_tokens=4)
    found = responses(rollout)
    assert all(token >= 20 for response in found for token in response[:4])
    assert any(len(response) == 5 for response in found)


@pytest.mark.parametrize("settings", [{}, {"top_k": 3}, {"top_p": 0.5}, {"greedy": True}, {"min_new_tokens": 4}])
def test_forbidden_ids_are_never_drawn_and_keep_their_share(lm: PreTrainedModel, settings):
    forbidden = torch.arange(VOCAB) >= 20
    rollout = run(lm, PROMPTS.repeat(4), forbidden=forbidden, **settings)
    assert all(token < 20 for response in responses(rollout) for token in response)
    assert any(token >= 20 for response in responses(run(lm, PROMPTS.repeat(4), **settings)) for token in response)
    assert largest_gap(lm, rollout) < 1e-4  # of the full softmax, the one that ratios are taken of
    if not settings:
        gap = (rollout.behaviour_logprobs - rollout.rollout_logprobs)[rollout.mask]
        assert (gap > 0).all()


def test_nothing_left_to_draw_is_refused(lm: PreTrainedModel):
    forbidden = torch.arange(VOCAB) >= 5
    with pytest.raises(ValueError, match=r"stop_ids: .* leave a token that can be drawn"):
        run(lm, stop_ids=range(5), forbidden=forbidden, min_new_tokens=1)


def test_a_stop_string_ends_with_the_token_that_completes_it():
    rollout = scripted([[5], [17], [30]], stop_ids=[], stop_strings=["8 9", "1 2"], max_new_tokens=6)
    # "6 7 8 9"; "18 19 20 21 2…": the string is found inside of "21 22"; the third row counts on.
    assert responses(rollout) == [[6, 7, 8, 9], [18, 19, 20, 21, 22], [31, 32, 33, 34, 35, 36]]
    assert rollout.text == ["6 7 ", "18 19 20 2", "31 32 33 34 35 36"]
    assert rollout.ended.tolist() == [True, True, False]
    late = scripted([[5]], stop_ids=[], stop_strings=["8 9"], min_new_tokens=6, max_new_tokens=8)
    assert responses(late) == [[6, 7, 8, 9, 10, 11]] and late.text == ["6 7 "]


def test_a_stop_string_may_be_long_and_made_of_many_tokens():
    string = " ".join(str(i) for i in range(10, 30))
    rollout = scripted([[5]], stop_ids=[], stop_strings=[string], max_new_tokens=40)
    assert responses(rollout) == [list(range(6, 30))]


def test_only_allowed_tokens_and_those_that_end_are_drawn(lm: PreTrainedModel):
    rollout = run(lm, PROMPTS.repeat(4), allowed_tokens=["7", "8", "9"])
    drawn = {token for response in responses(rollout) for token in response}
    assert {7, 8, 9} <= drawn <= {7, 8, 9, *STOPS} and drawn & set(STOPS)
    assert largest_gap(lm, rollout) < 1e-4


def test_a_repetition_penalty_counts_the_prompt_and_the_response(lm: PreTrainedModel):
    found = run(lm, repetition_penalty=1.3, greedy=True, stop_ids=[])
    for prompt, response in zip(PROMPTS.ids, responses(found), strict=True):
        ids = torch.tensor([prompt])
        theirs = lm.generate(  # pyright: ignore[reportCallIssue]
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20, repetition_penalty=1.3,
            eos_token_id=None, pad_token_id=PAD,
        )  # fmt: skip
        assert response == theirs[0, len(prompt) :].tolist()
    assert responses(found) != responses(run(lm, greedy=True, stop_ids=[]))


def test_no_prompts_give_an_empty_rollout():
    rollout = scripted([])
    assert len(rollout) == 0
    assert rollout.sequences.ids.shape == (0, 1)
    assert rollout.mask.shape == rollout.rollout_logprobs.shape == (0, 0)
    assert rollout.text == []


# ------------------------------------------------------------------------------------------ the model is left as it was


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


# --------------------------------------------------------------------------------------------------------------- errors


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
