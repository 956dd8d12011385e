"""Where a number first became not finite: a weight, a module's output, a gradient, the batch, the loss."""

import functools

import pytest
import tiny_runs
import torch
from torch import nn

from rlhf.algorithms.optimizers import SGD, AdamW
from rlhf.engines.diagnosis import TrainingPass, bad_weight, watched
from rlhf.engines.inference.sampling import Sampling
from rlhf.engines.local import Local
from rlhf.errors import NonFiniteError
from rlhf.models.modules import PolicyModel
from rlhf.types import Batch, Labelled, LossTerm, Outputs, Prompts, Tally

NAN, INF = float("nan"), float("inf")
SEQUENCES, MASK = tiny_runs.right_padded([[1, 2, 3, 4], [5, 6]])
BATCH = Labelled(sequences=SEQUENCES, mask=MASK)


def nll(outputs: Outputs, batch: Labelled, *, factor: float = 1.0) -> tuple[list[LossTerm], Tally]:
    assert outputs.logprobs is not None
    return [LossTerm("sft", -factor * outputs.logprobs, batch.mask)], Tally()


@pytest.fixture
def engine():
    model = tiny_runs.policy().build(lambda: ["abc"], seed=1)
    return Local().build(PolicyModel(model.module), optimizer=SGD(lr=1.0))


def accumulate(engine, *batches, loss=nll):
    return engine.accumulate(batches or [BATCH], loss, {"sft": 4.0}, want=("logprobs",), dropout=True)


def weights(engine):
    return [p.detach().clone() for p in engine.model.parameters()]


def unchanged(engine, before):
    return all(torch.equal(a, b) for a, b in zip(before, weights(engine), strict=True)) and engine.steps == 0


def test_an_infinite_weight_is_named(engine):
    with torch.no_grad():
        engine.model.lm.transformer.h[1].mlp.c_fc.weight[0, :3] = INF
    before = weights(engine)
    first = r"First not finite: weight lm\.transformer\.h\.1\.mlp\.c_fc\.weight \(3 of 1024 numbers\)"
    with pytest.raises(NonFiniteError, match=rf"the loss is nan at optimiser step 1; no weight was changed\. {first}"):
        accumulate(engine)
    assert unchanged(engine, before) and all(p.grad is None for p in engine.model.parameters())


def test_a_module_whose_output_overflows_is_named(engine):
    with torch.no_grad():
        engine.model.lm.transformer.h[0].mlp.c_proj.weight.fill_(3e38)
        engine.model.lm.transformer.h[0].mlp.c_fc.bias.fill_(10.0)
    with pytest.raises(
        NonFiniteError, match=r"First not finite: output of lm\.transformer\.h\.0\.mlp\.c_proj, a Conv1D"
    ):
        accumulate(engine)


def test_what_modules_answer_at_pads_does_not_count():
    mask = torch.tensor([[True, True, False]])
    layer = nn.Linear(1, 1, bias=False)
    with watched(layer, mask) as found:
        layer(torch.tensor([[[1.0], [2.0], [NAN]]]))
    assert found == []
    with watched(layer, mask) as found:
        layer(torch.tensor([[[1.0], [NAN], [NAN]]]))
    assert found == ["output of the model, a Linear (1 of 2 numbers)"]
    assert not layer._forward_hooks


def test_a_loss_that_overflows_is_named(engine):
    with pytest.raises(
        NonFiniteError, match=r"the loss is inf at .* First not finite: loss term sft \(4 of 4 numbers\)"
    ):
        accumulate(engine, loss=functools.partial(nll, factor=1e300))


def test_a_broken_batch_is_named_and_which_of_its_fields():
    trained = nn.Linear(1, 1)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = trained

        def forward(self, sequences, *, temperature, want, mask):
            return Outputs(values=self.inner(sequences.response_ids.float().unsqueeze(-1)).squeeze(-1))

    zeros = torch.zeros(MASK.shape)
    returns = zeros.clone()
    returns[1, 0] = NAN
    batch = Batch(
        sequences=SEQUENCES, mask=MASK, rollout_logprobs=zeros, old_logprobs=zeros, ref_logprobs=None,
        advantages=zeros.masked_fill(~MASK, NAN), returns=returns, values=zeros,
    )  # fmt: skip

    def loss(outputs, batch):
        return [LossTerm("value", (outputs.values - batch.returns) ** 2, batch.mask)], Tally()

    engine = Local().build(Model(), optimizer=SGD())
    with pytest.raises(NonFiniteError, match=r"First not finite: the batch's returns \(1 of 4 numbers\)"):
        engine.accumulate([batch], loss, {"value": 4.0}, want=("values",))


class RootOfZero(nn.Module):
    """Its output is finite, its gradient is not."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, sequences, *, temperature, want, mask):
        return Outputs(logprobs=torch.where(mask, self.w.sqrt(), 0.0))


def test_a_gradient_is_named_though_the_loss_is_finite():
    engine = Local().build(RootOfZero(), optimizer=AdamW())
    accumulate(engine, BATCH, BATCH)
    with pytest.raises(NonFiniteError, match=r"the gradient's norm is .* First not finite: gradient of w \(1 of 1"):
        engine.step()
    assert engine.model.w.item() == 0 and engine.model.w.grad is None


def test_gradients_that_overflow_only_in_their_sum():
    # ids 2 + 3 + 4 + 6 = 15: each micro-batch's loss and gradient are 15 · 1.5e37 = 2.25e38, which fp32 holds
    engine = Local().build(tiny_runs.Ids(), optimizer=SGD())
    engine.accumulate([BATCH] * 2, functools.partial(nll, factor=1.5e37), {"sft": 1.0}, want=("logprobs",))
    with pytest.raises(NonFiniteError, match=r"norm is inf .* First not finite: the sum of all gradients"):
        engine.step()


def test_the_guilty_micro_batch_is_kept_and_finds_it_again_with_the_same_dropout(tmp_path):
    model = tiny_runs.policy(dropout=0.5).build(lambda: ["abc"], seed=1)
    with torch.no_grad():
        model.module.transformer.wpe.weight[3] = 3e38
        model.module.transformer.wpe.weight[3, 0] = -3e38
    engine = Local().build(PolicyModel(model.module), optimizer=SGD())
    healthy = Labelled(*tiny_runs.right_padded([[1, 2, 3], [5, 7]]))  # nothing at the broken position
    with pytest.raises(NonFiniteError) as error:
        accumulate(engine, healthy, BATCH)
    evidence = error.value.evidence
    assert evidence["step"] == 1 and evidence["pass"].batch is BATCH
    torch.save(evidence, tmp_path / "dump.pt")
    again = torch.load(tmp_path / "dump.pt", weights_only=False)
    state = torch.get_rng_state()
    assert again["pass"].find(again["model"]) == again["first"]
    assert again["first"].startswith("output of lm.transformer.")
    assert torch.equal(torch.get_rng_state(), state)
    assert TrainingPass(healthy, nll, {"sft": 4.0}, ("logprobs",), 1.0, True, state).find(engine.model) is None


def test_a_healthy_pass_finds_nothing(engine):
    sent = TrainingPass(BATCH, nll, {"sft": 4.0}, ("logprobs",), 1.0, False, torch.get_rng_state())
    assert bad_weight(engine.model) is None and sent.find(engine.model) is None


def test_a_sampler_that_diverges_names_the_module(engine):
    tokenizer = tiny_runs.policy().build(lambda: ["abc"], seed=1).tokenizer
    prompts = Prompts(ids=[[5, 6], [7]], text=["a", "b"], source=["x", "x"])
    with torch.no_grad():
        engine.model.lm.transformer.ln_f.weight.fill_(3e38)
    with pytest.raises(NonFiniteError, match=r"not finite.*First not finite: output of lm\.") as error:
        engine.generate(prompts, Sampling(max_new_tokens=2), tokenizer, seed=1, counters=[0, 1], stop_ids=[1])
    evidence = error.value.evidence
    assert evidence["pass"].find(evidence["model"]) == evidence["first"]
